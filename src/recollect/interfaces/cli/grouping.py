"""Groups of commands: in an order of their own, and with what is said about every argument."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import click
from typer.core import TyperArgument, TyperGroup
from typer.models import ArgumentInfo

ORDER = (
    *("demo", "chat"),
    *("remember", "recall", "list", "history", "forget", "quarantine", "consolidate"),
    *("procedures", "tasks"),
    *("doctor", "stats", "lifecycle", "export", "import", "backup", "restore", "migrate", "reembed"),
    *("key", "erase", "verify-erasure", "finish-erasures"),
    *("setup", "config", "eval", "version"),
)

OF_EVERY_COMMAND = ("--store", "--user", "--agent", "--session", "--tenant", "--json")


class Group(TyperGroup):
    """A group that puts right what typer before 0.26 and click from 8.5 do not agree on."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for one in self.commands.values():
            for parameter in one.params:
                if isinstance(parameter, TyperArgument) and not parameter.help:
                    parameter.help = _said_about(parameter, one)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in OF_EVERY_COMMAND:
                raise
            # Every command has it, and the group has not: to say that it does not exist would be no help.
            example = "list" if "list" in self.commands else self.list_commands(ctx)[0]
            told = f"{error.option_name} goes behind a command: {ctx.command_path} {example} {error.option_name} …"
            raise click.UsageError(told, ctx) from error


class InOrder(Group):
    """The commands in the order in which somebody meets them, rather than plain ones before groups."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


def _said_about(argument: TyperArgument, command: click.Command) -> str | None:
    """The help of an argument as it was written: click sets aside what typer has set before it."""
    if command.callback is None or argument.name is None:
        return None
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    written = [one for one in get_args(hints[argument.name]) if isinstance(one, ArgumentInfo)]
    return written[0].help if written else None
