"""The command line: all commands in their order, and the exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import click
import typer

from recollect import __version__
from recollect.cli import erase, facts, maintenance
from recollect.cli.agents import procedures_app, tasks_app
from recollect.cli.context import FAILED, INTERRUPTED, NOT_FOUND, USAGE, CliContext, CommandGroup, add_common_options
from recollect.cli.demo import demo
from recollect.cli.output import OutputClosed, print_error, print_error_json, print_text
from recollect.errors import BadInput, NotFound, RecollectError

_DESCRIPTION = "Memory for agents: one file, a local model, no server, no key."
_FIRST_LOOK, _FACTS, _AGENTS, _STORE, _MACHINE = ("First look", "Facts", "Agents", "Store maintenance", "This machine")


def chat(
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The model: anthropic:NAME, openai:NAME, or openai:NAME@URL for your own server. "
            "Default: the setting `llm`.",
        ),
    ] = None,
    caller: CliContext,
) -> None:
    """Chat with memory: every line recalls what is relevant to it, and is stored.

    At its start and end a chat learns facts from what was said, as `recollect lifecycle` does. Without a model the
    answer is what memory recalls. In the chat /help lists the commands, /why explains what was recalled, Ctrl-C stops
    an answer and Ctrl-D leaves. A chat is a new session unless --session names an existing one. Lines can also be
    piped in; with --json every answer is a line of JSON.
    """
    from recollect.cli.repl import run_chat

    run_chat(caller, model)


# In the order of the help.
COMMANDS: tuple[tuple[str, str, Callable[..., None] | typer.Typer], ...] = (
    (_FIRST_LOOK, "demo", demo),
    (_FIRST_LOOK, "chat", chat),
    (_FACTS, "remember", facts.remember),
    (_FACTS, "recall", facts.recall),
    (_FACTS, "list", facts.list_facts),
    (_FACTS, "history", facts.history),
    (_FACTS, "forget", facts.forget),
    (_FACTS, "quarantine", facts.quarantine_app),
    (_FACTS, "consolidate", facts.consolidate),
    (_AGENTS, "procedures", procedures_app),
    (_AGENTS, "tasks", tasks_app),
    (_STORE, "doctor", maintenance.run_doctor),
    (_STORE, "stats", maintenance.show_stats),
    (_STORE, "lifecycle", maintenance.run_lifecycle),
    (_STORE, "export", maintenance.export_memory),
    (_STORE, "import", maintenance.import_memory),
    (_STORE, "backup", maintenance.backup_store),
    (_STORE, "restore", erase.restore),
    (_STORE, "migrate", maintenance.migrate_tiers),
    (_STORE, "reembed", maintenance.reembed_items),
    (_STORE, "key", maintenance.key_app),
    (_STORE, "erase", erase.erase),
    (_STORE, "finish-erasures", erase.finish_erasures),
    (_STORE, "verify-erasure", erase.verify_erasure),
    (_MACHINE, "setup", maintenance.set_up),
    (_MACHINE, "config", maintenance.config_app),
    (_MACHINE, "eval", maintenance.eval_app),
    (_MACHINE, "version", maintenance.show_version),
)


class OrderedCommandGroup(CommandGroup):
    """The top-level group, with its commands in the order of `COMMANDS`; typer would list plain commands first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, name, _ in COMMANDS]


app = typer.Typer(
    name="recollect",
    cls=OrderedCommandGroup,
    help=_DESCRIPTION,
    epilog="New here? `recollect demo` shows it at work, and `recollect chat` talks with you. "
    "Exit codes: 0 done, 1 not found, 2 usage, 3 failed.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _panel, _name, _command in COMMANDS:
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name, rich_help_panel=_panel)
    else:
        app.command(_name, rich_help_panel=_panel)(add_common_options(_command))


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print_text(__version__)
        raise typer.Exit


@app.callback(help=_DESCRIPTION)
def configure_root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declare the options that come before a command."""


def run_app() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # terminals without Unicode show "?"
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # raises here, not at exit, if the reader has closed the pipe
    except (OutputClosed, BrokenPipeError):
        # Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (click.ClickException, click.Abort, KeyboardInterrupt, RecollectError) as error:
        _print_error(error)
        sys.exit(_get_exit_code(error))
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(error: BaseException) -> None:
    if isinstance(error, click.UsageError) and "Did you mean" in error.message and hasattr(error, "possibilities"):
        error.possibilities = None  # typer has already added the suggestion that click would repeat
    text = error.format_message() if isinstance(error, click.ClickException) else str(error) or "stopped"
    if "--json" in sys.argv[1:]:
        # The class names of click's errors change between its versions.
        print_error_json("UsageError" if isinstance(error, click.ClickException) else type(error).__name__, text)
    elif isinstance(error, click.ClickException):
        error.show()
    else:
        print_error(text)


def _get_exit_code(error: BaseException) -> int:
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case click.ClickException() | BadInput():
            return USAGE
        case NotFound():
            return NOT_FOUND
        case _:
            return FAILED
