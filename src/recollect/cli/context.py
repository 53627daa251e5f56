"""Options common to all commands, the memory they open, and the command groups."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperGroup
from typer.models import ArgumentInfo

from recollect.cli.output import print_error, print_hint, print_json, print_text, to_json_value
from recollect.errors import BadInput, StoreUnavailable
from recollect.settings import Settings
from recollect.types import Tier

if TYPE_CHECKING:
    # Not imported at runtime: `--help` must not wait for numpy.
    from recollect.memory import AgentMemory

ResultT = TypeVar("ResultT")

NOT_FOUND, USAGE, FAILED = 1, 2, 3
INTERRUPTED = 130  # the shells' code for Ctrl-C
MEMORY_URL = "memory://"

COMMON_OPTIONS = ("--store", "--user", "--agent", "--session", "--tenant", "--json")

# `forget` cannot be undone, and shorter prefixes are easily mistyped.
MIN_ID_PREFIX = 6
_ID_PAGE_SIZE = 500


def _common_option(name: str, help: str, variable: str | None = None) -> Any:
    return typer.Option(name, help=help, envvar=variable, rich_help_panel="Options of every command")


@dataclass(frozen=True, slots=True)
class CliContext:
    """The options that every command has."""

    store: Annotated[str | None, _common_option("--store", "File or URL; default: the setting `store`.")] = None
    user: Annotated[str, _common_option("--user", "The user whose memory it is.", "RECOLLECT_USER")] = "default"
    agent: Annotated[str, _common_option("--agent", "The agent.", "RECOLLECT_AGENT")] = "default"
    session: Annotated[str | None, _common_option("--session", "The session.", "RECOLLECT_SESSION")] = None
    tenant: Annotated[str, _common_option("--tenant", "The tenant.", "RECOLLECT_TENANT")] = "default"
    as_json: Annotated[bool, _common_option("--json", "Print JSON, also of an error.")] = False

    def print_result(self, value: Any, text: str) -> None:
        print_json(value) if self.as_json else print_text(text)

    def print_page(
        self,
        values: Sequence[Any],
        format_line: Callable[[Any], str],
        *,
        empty: str,
        limit: int | None = None,
        encode: Callable[[Any], Any] = to_json_value,
    ) -> None:
        """Print a value on each line, or all as JSON with --json, and how to get the next page of `limit` values."""
        if self.as_json:
            print_json([encode(value) for value in values])
            return
        for value in values:
            print_text(format_line(value))
        if limit is not None and len(values) == limit:
            print_hint(f"for the next page: --after {values[-1].id}")
        if not values:
            print_hint(empty)

    def print_deletion(self, value: dict[str, Any], text: str, *, is_done: bool, missing: str) -> None:
        """Print a deletion; exit with `NOT_FOUND` and the error `missing` if there was nothing to delete."""
        if self.as_json:
            print_json(value)
        else:
            print_text(text) if is_done else print_error(missing)
        if not is_done:
            raise typer.Exit(NOT_FOUND)

    def use_memory(self, use: Callable[[AgentMemory], Awaitable[ResultT]]) -> ResultT:
        """Open the memory, creating the store if needed, and return the result of `use`."""
        from recollect.memory import AgentMemory

        async def open_and_use() -> ResultT:
            async with AgentMemory.open(
                self.store, tenant=self.tenant, user=self.user, agent=self.agent, session=self.session
            ) as memory:
                return await use(memory)

        return asyncio.run(open_and_use())

    def use_existing_memory(self, use: Callable[[AgentMemory], Awaitable[ResultT]]) -> ResultT:
        """Open the memory of a store that exists, and return the result of `use`."""
        from recollect.stores.factory import check_routes

        check_routes(self._locate_tiers())
        self.get_existing_store()
        return self.use_memory(use)

    def get_existing_store(self) -> str | None:
        """Return the store; raise `StoreUnavailable` if it is a file that does not exist."""
        from recollect.stores.factory import parse_local_path

        for location in dict.fromkeys(self._locate_tiers().values()):
            path = parse_local_path(location)
            if path is not None and not path.exists():
                raise StoreUnavailable(f"there is no store at {path}; `recollect remember` creates one")
        return self.store

    def refuse_volatile_store(self, content: str) -> None:
        """Raise `BadInput` if the store is lost when the command ends."""
        if MEMORY_URL in self._locate_tiers().values():
            raise BadInput(
                f"{MEMORY_URL} keeps nothing: {content} would be lost when the command ends; use --store FILE"
            )

    def _locate_tiers(self) -> dict[Tier, str]:
        from recollect.stores.factory import resolve_locations

        return resolve_locations(self.store, Settings.load())


def add_common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `caller` of a command, if it has one, by an option for each field of `CliContext`."""
    if "caller" not in inspect.signature(function).parameters:
        return function
    hints = get_type_hints(function, include_extras=True)
    option_hints = get_type_hints(CliContext, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "caller"
    ]
    # A command may define an option of the same name itself.
    names = {option.name: option.default for option in fields(CliContext) if option.name not in hints}
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option_hints[name])
        for name, default in names.items()
    ]

    @wraps(function)
    def command(**arguments: Any) -> None:
        caller = CliContext(**{name: arguments.pop(name) for name in names})
        function(**arguments, caller=caller)

    # Line breaks inside a paragraph of the docstring would appear in the help.
    command.__doc__ = "\n\n".join(
        " ".join(paragraph.split()) for paragraph in inspect.cleandoc(function.__doc__ or "").split("\n\n")
    )
    command.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *common)}
    return command


class CommandGroup(TyperGroup):
    """A command group that works with typer before 0.26 and click from 8.5."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in self.commands.values():
            for parameter in command.params:
                if isinstance(parameter, TyperArgument) and not parameter.help:
                    parameter.help = _find_argument_help(parameter, command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in COMMON_OPTIONS:
                raise
            example = "list" if "list" in self.commands else self.list_commands(ctx)[0]
            message = f"{error.option_name} goes after a command: {ctx.command_path} {example} {error.option_name} …"
            raise click.UsageError(message, ctx) from error


class SubcommandApp(typer.Typer):
    """Commands below another command, each with the common options."""

    def __init__(self, help: str) -> None:
        super().__init__(cls=CommandGroup, no_args_is_help=True, help=help)

    def add(self, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        return lambda function: self.command(name)(add_common_options(function))


def _find_argument_help(argument: TyperArgument, command: click.Command) -> str | None:
    """Return the help text of an argument from its annotation, because click 8.5 drops what typer has set."""
    if command.callback is None or argument.name is None:
        return None
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    infos = [info for info in get_args(hints[argument.name]) if isinstance(info, ArgumentInfo)]
    return infos[0].help if infos else None


async def resolve_id(memory: AgentMemory, prefix: str) -> str:
    """Return the id of the only fact whose id starts with `prefix`, or `prefix` itself if there is none."""
    if len(prefix) < MIN_ID_PREFIX or await memory.semantic.get(prefix) is not None:
        return prefix
    ids: list[str] = []
    last: str | None = None
    while page := await memory.semantic.page(_ID_PAGE_SIZE, after=last, past=True):
        ids += [item.id for item in page if item.id.startswith(prefix)]
        last = page[-1].id
    return select_id(prefix, ids)


def select_id(prefix: str, ids: list[str]) -> str:
    """Return the only id that starts with `prefix`, or `prefix` itself if there is none."""
    matches = [id for id in ids if id.startswith(prefix)]
    if len(prefix) < MIN_ID_PREFIX or prefix in matches:
        return prefix
    if len(matches) > 1:
        raise BadInput(
            f"{prefix} is the prefix of {len(matches)} ids, such as {matches[0]} and {matches[1]}; use a longer one"
        )
    return matches[0] if matches else prefix
