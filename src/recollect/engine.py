"""The stores, models and settings that every scope of one opened memory shares, and the code that opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakSet

from recollect.clock import Clock, system_clock
from recollect.erasure.eraser import Eraser
from recollect.erasure.subject import ErasureSubject
from recollect.errors import BadInput, BadSettings
from recollect.language import novelty
from recollect.language.analysis import stem
from recollect.language.claims import parse_clauses
from recollect.language.extractive_summary import LabeledText
from recollect.models.embedding import Embedder, Embedding
from recollect.models.factory import open_embedder, open_llm
from recollect.models.llm import LanguageModel, summarize_with_fallback
from recollect.models.usage import UsageLedger
from recollect.retrieval import query
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import TierStores, open_stores
from recollect.tiers.indexing import current_model
from recollect.tiers.log_entries import generate_id
from recollect.tiers.messages import Message, text_for_summary

_SUMMARY_TOKENS = 1000
_CLOCK_EXAMPLE = "pass, for example, clock=lambda: datetime.now(UTC)"
_NOT_OPEN_MESSAGE = (
    "use `async with AgentMemory.open(…) as memory` or `memory = await AgentMemory.open(…)`; "
    "use recollect.sync in code that does not await"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The open stores, models and indexes behind a memory; shared by all of its scopes."""

    stores: TierStores
    embedding: Embedding
    fact_search: HybridSearch
    procedure_search: HybridSearch
    turn_index: TurnIndex
    settings: Settings
    clock: Clock
    llm: LanguageModel | None
    usage: UsageLedger
    """Tokens and cost of every remote model since the memory was opened."""
    erasures: Eraser
    memories: WeakSet[Any]
    """All memories that share these stores. An erasure clears their current tasks."""
    lifecycles: WeakSet[Any] = field(default_factory=WeakSet)
    """Background tasks that must end before the stores are closed."""
    opening_id: str = field(default_factory=generate_id)
    """Identifies this opening among processes and restarts."""
    next_action_id: Callable[[], str | None] = lambda: None
    """Returns a deterministic id for the next write of a retried step; None outside a step."""

    def new_id(self) -> str:
        return self.next_action_id() or generate_id()

    async def close(self) -> None:
        """Stop background work, then close models and stores. Safe to call twice."""
        for lifecycle in list(self.lifecycles):
            await lifecycle.stop()
        await self.turn_index.close()
        self.embedding.close()
        await self.embedding.release()
        if self.llm is not None:
            await self.llm.close()
        await self.stores.close()

    async def summarize(self, messages: list[Message], before: str | None) -> str:
        """Summarize messages and an earlier summary with the language model, or offline if there is none."""
        texts = [f"{message.role}: {text_for_summary(message)}" for message in messages]
        passages = [LabeledText(text) for text in ([before, *texts] if before else texts)]
        return (await summarize_with_fallback(passages, _SUMMARY_TOKENS, model=self.llm)).text


def list_vector_stores(stores: TierStores) -> list[Records]:
    """Return the stores that hold vectors, without duplicates."""
    both = (stores.records("semantic"), stores.records("procedural"))
    return list({id(store): store for store in both}.values())


async def open_engine(
    store: str | Path | Mapping[str, str] | None,
    embedder: str | Embedder | Callable[[Any], Any] | None,
    llm: str | Callable[[str], Any] | None,
    settings: Settings | None,
    clock: Clock | None,
) -> Engine:
    """Open stores and models, finish interrupted erasures, and bind the stores to the embedding model."""
    options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    now = system_clock if clock is None else check_clock(clock)
    ledger = UsageLedger(usd=options.llm_budget_usd, tokens=options.llm_budget_tokens)
    model = open_llm(llm, options, ledger=ledger, clock=now)
    embedding = await open_embedder(embedder, options, ledger=ledger, ask_size=False)
    stores = await open_stores(store, options, now)
    memories: WeakSet[Any] = WeakSet()
    erasures = Eraser(stores.all_stores, now, forget=partial(_forget_subject, embedding, memories))
    try:
        await erasures.catch_up()
        await _bind_models(list_vector_stores(stores), embedding)
    except BaseException:
        await stores.close()
        await embedding.release()
        raise
    return Engine(
        stores=stores,
        embedding=embedding,
        fact_search=HybridSearch(stores.records("semantic"), embedding),
        procedure_search=HybridSearch(stores.records("procedural"), embedding),
        turn_index=TurnIndex(stores.records("semantic"), stores.log("conversation"), embedding, now),
        settings=options,
        clock=now,
        llm=model,
        usage=ledger,
        erasures=erasures,
        memories=memories,
    )


def _forget_subject(embedding: Embedding, memories: WeakSet[Any], subject: ErasureSubject | None) -> None:
    """Clear all text caches of this process, and the current task of every memory that `subject` covers."""
    embedding.clear_cache()
    novelty.clear_cache()
    query.clear_plan_cache()
    parse_clauses.cache_clear()
    stem.cache_clear()
    for memory in list(memories):
        if subject is not None and subject.covers(memory.scope):
            memory._clear_working()


async def _bind_models(stores: list[Records], embedding: Embedding) -> None:
    """Bind stores that have vectors to this model. A dimension that a store knows is not requested from the model."""
    bound = [(records, model) for records in stores if (model := await records.model()) is not None]
    for _, model in bound:
        if model.name == embedding.name:
            await embedding.resolve_dimension(model.dim)
    await embedding.resolve_dimension()
    for records, _ in bound:
        await records.bind_model(current_model(embedding))


def check_clock(clock: Any) -> Clock:
    """Return `clock` after one test call, so that a bad clock fails at opening and not during a write."""
    if not callable(clock):
        raise BadSettings(f"clock must be a callable; got {type(clock).__name__}; {_CLOCK_EXAMPLE}")
    try:
        now = clock()
    except TypeError as error:
        raise BadSettings(f"clock must be callable without arguments: {error}; {_CLOCK_EXAMPLE}") from error
    if not isinstance(now, datetime):
        raise BadSettings(f"clock must return a datetime; got {type(now).__name__}; {_CLOCK_EXAMPLE}")
    if now.utcoffset() is None:
        raise BadSettings(f"clock must return a time with a time zone; got {now}; {_CLOCK_EXAMPLE}")
    return clock  # type: ignore[no-any-return]


def build_not_opened_error(example: str) -> BadInput:
    return BadInput(f"AgentMemory cannot be instantiated directly; use {example}")


M = TypeVar("M", bound=AbstractAsyncContextManager[Any])


class Opening(Generic[M]):
    """A memory that is being opened: await it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Awaitable[M]]) -> None:
        self._open = begin
        self._memory: M | None = None

    def __await__(self) -> Generator[Any, None, M]:
        return self._open().__await__()

    async def __aenter__(self) -> M:
        self._memory = await self._open()
        return self._memory

    async def __aexit__(self, *_: object) -> None:
        if self._memory is not None:
            await self._memory.__aexit__(None, None, None)

    def __enter__(self) -> NoReturn:
        raise BadInput(f"this memory is not open yet; {_NOT_OPEN_MESSAGE}")

    def __exit__(self, *_: object) -> None:
        """Exist, because `with` looks it up before it calls `__enter__`."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # looked up by Python itself, for example by copy()
            raise AttributeError(name)
        raise BadInput(f"{name!r} was requested from a memory that is not open yet; {_NOT_OPEN_MESSAGE}")
