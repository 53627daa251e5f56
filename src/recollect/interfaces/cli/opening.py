"""The options that every command has, and the memory they open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from recollect.errors import StoreUnavailable
from recollect.memory import AgentMemory
from recollect.settings import Settings

T = TypeVar("T")

NOT_FOUND, USAGE, FAILED = 1, 2, 3

Store = Annotated[str | None, typer.Option("--store", help="File or URL; the setting `store` when not given.")]
User = Annotated[str, typer.Option("--user", help="Whose memory.")]
Session = Annotated[str | None, typer.Option("--session", help="The session it belongs to.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def existing(store: str | None) -> str | None:
    """The store, unless it is a file that is not there: only `remember` and `import` make one."""
    place = store if store is not None else Settings.load().store
    path = Path(place.removeprefix("sqlite:///")).expanduser()
    if "://" not in place.removeprefix("sqlite:///") and place.strip() and not path.exists():
        raise StoreUnavailable(f"there is no store at {path}; `recollect remember` makes one")
    return store


def with_memory(store: str | None, user: str, session: str | None, use: Callable[[AgentMemory], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with AgentMemory.open(store, user=user, session=session) as memory:
            return await use(memory)

    return asyncio.run(opened())
