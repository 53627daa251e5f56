"""What every scope of one opened memory shares: its stores, its models, its settings and its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from recollect.clock import Clock
from recollect.inference.base import Embedding
from recollect.inference.ledger import Ledger
from recollect.inference.llm import LanguageModel, summary_of
from recollect.inference.summarise import Passage
from recollect.lifecycle import Erasures, Lifecycle, Means, Subject
from recollect.memory.known_texts import forget_texts
from recollect.memory.turn_index import TurnIndex
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.connect import Stores
from recollect.tiers.entries import fresh_id
from recollect.tiers.messages import Message, summed_up_as
from recollect.values import Scope

_SUMMARY_TOKENS = 1000


def _nothing_again() -> None:
    """What is told outside of a step is told once."""


class Minded(Protocol):
    """A memory, as far as it has something in mind."""

    scope: Scope

    def clear_mind(self) -> None:
        """Forget the task at hand."""


class Memories:
    """Every memory over one opening of stores: what one of them erases, all of them put out of mind."""

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._memories: WeakSet[Minded] = WeakSet()

    def add(self, memory: Minded) -> None:
        self._memories.add(memory)

    def forget(self, subject: Subject | None) -> None:
        """Drop every text that this process knows again, and what memories of the subject have in mind."""
        self._embedding.forget()
        forget_texts()
        for memory in list(self._memories):
            if subject is not None and subject.covers(memory.scope):
                memory.clear_mind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What every scope of one opened memory shares."""

    stores: Stores
    embedding: Embedding
    facts: Recall
    procedures: Recall
    said: TurnIndex
    settings: Settings
    clock: Clock
    llm: LanguageModel | None
    ledger: Ledger
    """What its models have cost."""
    erasures: Erasures
    memories: Memories
    lifecycles: WeakSet[Lifecycle] = field(default_factory=WeakSet)
    """Of every scope: whoever closes the stores stops those that run."""
    opened_as: str = field(default_factory=fresh_id)
    """This opening, told from those of other processes and other days."""
    act: Callable[[], str | None] = _nothing_again
    """A name for what is done now, where it may be done again; see `step_memory`."""

    def new_id(self) -> str:
        """For what is told without an id of its own."""
        return self.act() or fresh_id()

    @property
    def means(self) -> Means:
        """What the lifecycle works with."""
        return Means(
            records=self.stores.records("semantic"),
            conversation=self.stores.log("conversation"),
            episodic=self.stores.log("episodic"),
            tasks=self.stores.tasks(),
            embedding=self.embedding,
            settings=self.settings,
            clock=self.clock,
            llm=self.llm,
            index=self.said.catch_up,
            erasures=self.erasures,
        )

    async def close_models(self) -> None:
        """Let go of the connections to models elsewhere."""
        self.embedding.close()
        await self.embedding.release()
        if self.llm is not None:
            await self.llm.close()

    async def summarise(self, messages: list[Message], before: str | None) -> str:
        """What was said, in short: by the language model if there is one, and without it otherwise."""
        said = [f"{message.role}: {summed_up_as(message)}" for message in messages]
        passages = [Passage(text) for text in ([before, *said] if before else said)]
        return (await summary_of(passages, _SUMMARY_TOKENS, model=self.llm)).text
