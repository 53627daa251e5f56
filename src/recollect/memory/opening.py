"""How a memory is opened: the stores and models behind a few arguments, to be awaited or entered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from recollect.clock import Clock, system_clock
from recollect.errors import BadSettings
from recollect.inference.base import Embedder
from recollect.inference.connect import connect_embedder
from recollect.inference.llm import language_model
from recollect.memory.parts import Parts
from recollect.memory.reembedding import holding_vectors
from recollect.recall.recall import Recall
from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.stores.ops import Model
from recollect.values import Tier

_LLM_TIMEOUT = 60.0
_AS_IN = "as in clock=lambda: datetime.now(UTC)"
_SEARCHED: tuple[Tier, Tier] = ("semantic", "procedural")


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
    llm: Callable[[str], Any] | None,
    settings: Settings | None,
    clock: Clock | None,
) -> Parts:
    if llm is not None and not callable(llm):
        raise BadSettings(f"llm is a callable that answers a prompt with a text, not {type(llm).__name__}")
    options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    now = system_clock if clock is None else checked_clock(clock)
    embedding = await connect_embedder(embedder, options)
    stores = await connect(options.store if store is None else store, options, now)
    try:
        for records in holding_vectors(stores):
            if await records.model() is not None:
                await records.adopt(Model(embedding.name, embedding.dim, embedding.fingerprint))
    except BaseException:
        await stores.close()
        raise
    facts, procedures = (Recall(stores.records(tier), embedding, options) for tier in _SEARCHED)
    model = language_model(llm, timeout=_LLM_TIMEOUT, clock=now)
    return Parts(
        stores=stores, embedding=embedding, facts=facts, procedures=procedures, settings=options, clock=now, llm=model
    )
