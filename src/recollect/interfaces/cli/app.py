"""The command line as a whole: every command in its place, and an exit code for everything that can go wrong."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import click
import typer

from recollect import __version__
from recollect.errors import BadInput, NotFound, RecollectError
from recollect.interfaces.cli import doctor, erasing, facts, keep, moving, setting_up
from recollect.interfaces.cli.chat import chat
from recollect.interfaces.cli.demo import demo
from recollect.interfaces.cli.evaluate import eval_app
from recollect.interfaces.cli.grouping import InOrder
from recollect.interfaces.cli.keys import key_app
from recollect.interfaces.cli.opening import FAILED, INTERRUPTED, NOT_FOUND, USAGE, command
from recollect.interfaces.cli.output import ReaderGone, complain, complain_json, say
from recollect.interfaces.cli.procedures import procedures_app
from recollect.interfaces.cli.quarantine import quarantine_app
from recollect.interfaces.cli.tasks import tasks_app

_FIRST, _FACTS, _WORK, _STORE, _MACHINE = (
    "A first look",
    "What is known",
    "What agents do",
    "Looking after a store",
    "This machine",
)

app = typer.Typer(
    name="recollect",
    cls=InOrder,
    help="Memory for agents: one file, a local model, no server, no key.",
    epilog="New here? `recollect demo` shows it at work, and `recollect chat` talks with you. "
    "Exit codes: 0 done, 1 not found, 2 usage, 3 failed.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(rich_help_panel=_FIRST)(command(demo))
app.command(rich_help_panel=_FIRST)(command(chat))
facts.add_commands(app, _FACTS)
app.add_typer(quarantine_app, name="quarantine", rich_help_panel=_FACTS)
app.add_typer(procedures_app, name="procedures", rich_help_panel=_WORK)
app.add_typer(tasks_app, name="tasks", rich_help_panel=_WORK)
keep.add_commands(app, _STORE)
moving.add_commands(app, _STORE)
erasing.add_commands(app, _STORE)
doctor.add_commands(app, _STORE)
app.add_typer(key_app, name="key", rich_help_panel=_STORE)
setting_up.add_commands(app, _MACHINE)
app.add_typer(eval_app, name="eval", rich_help_panel=_MACHINE)


def _version(wanted: bool) -> None:
    if wanted:
        say(__version__)
        raise typer.Exit


@app.callback()
def recollect(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Memory for agents: one file, a local model, no server, no key."""


def run() -> None:
    """The entry point: our errors become one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows less than Unicode shows ? for the rest, and is no reason to fail.
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # here, where a reader who has gone can still be dealt with
    except (ReaderGone, BrokenPipeError):
        # To stop reading is their right and no failure; what is left must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (click.ClickException, click.Abort, KeyboardInterrupt, RecollectError) as error:
        _tell(error)
        sys.exit(_code(error))
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: BaseException) -> None:
    if isinstance(error, click.UsageError) and "Did you mean" in error.message and hasattr(error, "possibilities"):
        error.possibilities = None  # typer has made its suggestion already, and click would make it again
    text = error.format_message() if isinstance(error, click.ClickException) else str(error) or "stopped"
    if "--json" in sys.argv[1:]:
        # What the parser calls its own errors changes with its versions.
        complain_json("UsageError" if isinstance(error, click.ClickException) else type(error).__name__, text)
    elif isinstance(error, click.ClickException):
        error.show()
    else:
        complain(text)


def _code(error: BaseException) -> int:
    match error:
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case click.ClickException() | BadInput():
            return USAGE
        case NotFound():
            return NOT_FOUND
        case _:
            return FAILED
