"""How a memory is opened: the stores and models behind a few arguments, to be awaited or entered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from recollect.clock import Clock, system_clock
from recollect.errors import BadInput, BadSettings
from recollect.inference.base import Embedder, Embedding
from recollect.inference.connect import connect_embedder, connect_llm
from recollect.inference.ledger import Ledger
from recollect.lifecycle import Erasures
from recollect.memory.parts import Memories, Parts
from recollect.memory.reembedding import holding_vectors
from recollect.memory.turn_index import TurnIndex
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.connect import connect
from recollect.stores.ops import Model
from recollect.values import Tier

_AS_IN = "as in clock=lambda: datetime.now(UTC)"
_SEARCHED: tuple[Tier, Tier] = ("semantic", "procedural")


_NOT_YET = (
    "open it with `async with AgentMemory.open(…) as memory`, or `memory = await AgentMemory.open(…)`; "
    "code that does not await uses recollect.sync"
)


def not_opened(example: str) -> BadInput:
    """For whoever calls the class itself: what it takes is made by `open`."""
    return BadInput(f"a memory is opened, not made: {example}")


class _Closes(Protocol):
    async def close(self) -> None: ...


M = TypeVar("M", bound=_Closes)


class Opening(Generic[M]):
    """A memory that is being opened: await it, or enter it with `async with`."""

    def __init__(self, begin: Callable[[], Awaitable[M]]) -> None:
        self._begin = begin
        self._memory: M | None = None

    def __await__(self) -> Generator[Any, None, M]:
        return self._begin().__await__()

    async def __aenter__(self) -> M:
        self._memory = await self._begin()
        return self._memory

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._memory is not None:
            await self._memory.close()

    def __enter__(self) -> NoReturn:
        raise BadInput(_NOT_YET)

    def __exit__(self, *_: object) -> None:
        """Never reached; `with` looks for it before it enters."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what Python itself looks for, to copy it say
            raise AttributeError(name)
        raise BadInput(f"{name!r} was asked of a memory that is not open yet; {_NOT_YET}")


def checked_clock(clock: Any) -> Clock:
    """A clock that tells the time, asked once to see that it does: later it would be in the middle of a write."""
    if not callable(clock):
        raise BadSettings(f"clock is a callable that returns the time, not {type(clock).__name__}; {_AS_IN}")
    try:
        now = clock()
    except TypeError as error:
        raise BadSettings(f"clock is called without arguments, and that failed: {error}; {_AS_IN}") from error
    if not isinstance(now, datetime):
        raise BadSettings(f"clock returns a datetime, not {type(now).__name__}; {_AS_IN}")
    if now.utcoffset() is None:
        raise BadSettings(f"clock returned {now}, without a time zone; say which, {_AS_IN}")
    return clock  # type: ignore[no-any-return]


async def open_parts(
    store: str | Path | Mapping[str, str] | None,
    embedder: str | Embedder | Callable[[Any], Any] | None,
    llm: str | Callable[[str], Any] | None,
    settings: Settings | None,
    clock: Clock | None,
) -> Parts:
    options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    now = system_clock if clock is None else checked_clock(clock)
    ledger = Ledger(usd=options.llm_budget_usd, tokens=options.llm_budget_tokens)
    model = connect_llm(llm, options, ledger=ledger, clock=now)
    embedding = await connect_embedder(embedder, options, ledger=ledger, ask_size=False)
    stores = await connect(store, options, now)
    memories = Memories(embedding)
    erasures = Erasures(stores.every, now, forget=memories.forget)
    try:
        await erasures.catch_up()
        await _bind(holding_vectors(stores), embedding)
    except BaseException:
        await stores.close()
        await embedding.release()
        raise
    facts, procedures = (Recall(stores.records(tier), embedding, options) for tier in _SEARCHED)
    return Parts(
        stores=stores,
        embedding=embedding,
        facts=facts,
        procedures=procedures,
        said=TurnIndex(stores.records("semantic"), stores.log("conversation"), embedding, now),
        settings=options,
        clock=now,
        llm=model,
        ledger=ledger,
        erasures=erasures,
        memories=memories,
    )


async def _bind(stores: list[Records], embedding: Embedding) -> None:
    """Every store that holds vectors holds this model's; a model that a store knows is not asked for its size."""
    bound = [(records, model) for records in stores if (model := await records.model()) is not None]
    for _, model in bound:
        if model.name == embedding.name:
            await embedding.size_up(model.dim)
    await embedding.size_up()
    for records, _ in bound:
        await records.adopt(Model(embedding.name, embedding.dim, embedding.fingerprint))
