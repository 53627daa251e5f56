"""Conversations that are long over, and what their index holds; with embedders that fail or hesitate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect import AgentMemory
from recollect.memory.turn_items import name_of_mark, owner_of, space_of
from recollect.stores.ops import Delete
from recollect.stores.where import Where
from recollect.values import MemoryItem
from tests.embedders import AsyncEmbedder, HashEmbedder
from tests.flows.conftest import indexed

REMARK = "By the way, our neighbour practises the cello until midnight."
ASKED = "What instrument is played next door?"  # in the thesaurus of the test embedder both are of one topic


async def rows(memory: AgentMemory) -> list[MemoryItem]:
    """All that the index of a memory holds."""
    return await memory._parts.stores.records("semantic").find(Where(space_of(memory.scope)), limit=5000)


async def found(memory: AgentMemory, question: str = ASKED, **options: Any) -> list[str]:
    """What of the conversations answers a question, in a session that knows nothing yet."""
    context = await memory.scoped(session="new").recall(question, tiers=("conversation",), **options)
    return [hit.item.content for hit in context]


async def small_talk(memory: AgentMemory, sessions: int = 4, turns: int = 2) -> None:
    """Newer sessions, so that nothing before them is among the newest of anything."""
    for number in range(sessions):
        for turn in range(turns):
            await memory.scoped(session=f"talk {number}").record_turn(
                f"Ticket {number}{turn} waits for review.", f"I assign ticket {number}{turn}."
            )


async def settled(memory: AgentMemory) -> AgentMemory:
    await indexed(memory)
    return memory


async def dropped_note(memory: AgentMemory) -> list[Any]:
    log = memory.conversation.space
    return [Delete(owner_of(log).space("lifecycle"), name_of_mark(log))]


class Failing(HashEmbedder):
    """Works until it is told not to."""

    down = False

    def embed_batch(self, texts: Sequence[str]) -> Any:
        if self.down:
            raise RuntimeError("no answer")
        return super().embed_batch(texts)


class Stumbling(HashEmbedder):
    """Has no answer to one text."""

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return [self.embed(text) * (np.nan if text.startswith("The gibberish") else 1.0) for text in texts]


class Hesitating(AsyncEmbedder):
    """Works until it is told to wait, and then says that it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def embed_batch(self, texts: Sequence[str]) -> Any:  # type: ignore[override]
        if self.hangs:
            self.asked.set()
            await self.go_on.wait()
        return await super().embed_batch(texts)
