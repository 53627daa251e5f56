"""The options that every command has, and the memory they open."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from recollect.errors import BadInput, StoreUnavailable
from recollect.settings import Settings

if TYPE_CHECKING:
    # For the checker alone, here and in the commands: who asks for help does not wait for numpy.
    from recollect.memory import AgentMemory

T = TypeVar("T")

NOT_FOUND, USAGE, FAILED = 1, 2, 3
NOWHERE = "memory://"
INTERRUPTED = 130  # as shells have it for Ctrl-C


def _common(name: str, said: str, variable: str | None = None) -> Any:
    """An option that every command has, apart from those that are its own."""
    return typer.Option(name, help=said, envvar=variable, rich_help_panel="Options of every command")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, of which store, and whether a program reads the answer: the options that every command has."""

    store: Annotated[str | None, _common("--store", "File or URL; the setting `store` when not given.")] = None
    user: Annotated[str, _common("--user", "Whose memory.", "RECOLLECT_USER")] = "default"
    agent: Annotated[str, _common("--agent", "Which agent's.", "RECOLLECT_AGENT")] = "default"
    session: Annotated[str | None, _common("--session", "The session it belongs to.", "RECOLLECT_SESSION")] = None
    tenant: Annotated[str, _common("--tenant", "Of which tenant.", "RECOLLECT_TENANT")] = "default"
    as_json: Annotated[bool, _common("--json", "Print JSON, also of an error.")] = False

    def memory(self, use: Callable[[AgentMemory], Awaitable[T]]) -> T:
        """What a use of the memory gives; a store that is not there yet is made."""
        from recollect.memory import AgentMemory

        async def opened() -> T:
            async with AgentMemory.open(
                self.store, tenant=self.tenant, user=self.user, agent=self.agent, session=self.session
            ) as memory:
                return await use(memory)

        return asyncio.run(opened())

    def known(self, use: Callable[[AgentMemory], Awaitable[T]]) -> T:
        """The same of a store that has to be there. What cannot be is told first: nobody could make it."""
        from recollect.stores.connect import check_routes, routed

        check_routes(routed(self.store, Settings.load()))
        self.existing()
        return self.memory(use)

    def keeps(self, what: str) -> None:
        """Refuse a store that is gone when the command ends."""
        from recollect.stores.connect import routed

        if NOWHERE in routed(self.store, Settings.load()).values():
            raise BadInput(f"{NOWHERE} keeps nothing: {what} would be gone when this command ends; use --store FILE")

    def existing(self) -> str | None:
        """The store, unless it is a file that is not there: only `remember`, `chat` and `import` make one."""
        from recollect.stores.connect import path_of, routed

        for place in dict.fromkeys(routed(self.store, Settings.load()).values()):
            path = path_of(place)
            if path is not None and not path.exists():
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
        if one.name not in hints  # a command may mean something of its own by a name
    ]

    @wraps(function)
    def called(**given: Any) -> None:
        caller = Caller(**{one.name: given.pop(one.name) for one in fields(Caller) if one.name not in hints})
        function(**given, caller=caller)

    # Where a line ends in the source is of no interest in a terminal.
    called.__doc__ = "\n\n".join(
        " ".join(part.split()) for part in inspect.cleandoc(function.__doc__ or "").split("\n\n")
    )
    called.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *common)}
    return called
