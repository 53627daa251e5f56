"""The options that every command has, and the memory they open."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from recollect.errors import StoreUnavailable
from recollect.memory import AgentMemory
from recollect.settings import Settings

T = TypeVar("T")

NOT_FOUND, USAGE, FAILED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, of which store, and whether a program reads the answer: the options that every command has."""

    store: Annotated[str | None, typer.Option("--store", help="File or URL; the setting `store` when not given.")] = (
        None
    )
    user: Annotated[str, typer.Option("--user", help="Whose memory.")] = "default"
    agent: Annotated[str, typer.Option("--agent", help="Which agent's.")] = "default"
    session: Annotated[str | None, typer.Option("--session", help="The session it belongs to.")] = None
    tenant: Annotated[str, typer.Option("--tenant", help="Of which tenant.")] = "default"
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, also of an error.")] = False

    def memory(self, use: Callable[[AgentMemory], Awaitable[T]]) -> T:
        """What a use of the memory gives; a store that is not there yet is made."""

        async def opened() -> T:
            async with AgentMemory.open(
                self.store, tenant=self.tenant, user=self.user, agent=self.agent, session=self.session
            ) as memory:
                return await use(memory)

        return asyncio.run(opened())

    def known(self, use: Callable[[AgentMemory], Awaitable[T]]) -> T:
        """The same of a store that has to be there."""
        self.existing()
        return self.memory(use)

    def existing(self) -> str | None:
        """The store, unless it is a file that is not there: only `remember` and `import` make one."""
        place = self.store if self.store is not None else Settings.load().store
        path = Path(place.removeprefix("sqlite:///")).expanduser()
        if "://" not in place.removeprefix("sqlite:///") and place.strip() and not path.exists():
            raise StoreUnavailable(f"there is no store at {path}; `recollect remember` makes one")
        return self.store


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function with a `caller`, as one with every option of a `Caller` in its place: typer reads signatures."""
    hints = get_type_hints(function, include_extras=True)
    options = get_type_hints(Caller, include_extras=True)
    own = [
        one.replace(annotation=hints[one.name])
        for one in inspect.signature(function).parameters.values()
        if one.name != "caller"
    ]
    common = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=options[one.name])
        for one in fields(Caller)
    ]

    @wraps(function)
    def called(**given: Any) -> None:
        caller = Caller(**{one.name: given.pop(one.name) for one in fields(Caller)})
        function(**given, caller=caller)

    called.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *common)}
    return called
