"""The commands: each opens a memory, does one thing and prints it."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import click
import typer

from recollect import __version__
from recollect.errors import BadInput, NotFound, RecollectError
from recollect.inference.connect import install_local_model
from recollect.interfaces.cli import facts, keep
from recollect.interfaces.cli.demo import demo
from recollect.interfaces.cli.evaluate import eval_app
from recollect.interfaces.cli.opening import FAILED, NOT_FOUND, USAGE, Caller, command
from recollect.interfaces.cli.output import complain, complain_json, print_json, progress_bar, say
from recollect.interfaces.cli.procedures import procedures_app
from recollect.interfaces.cli.tasks import tasks_app
from recollect.memory import reembed_store
from recollect.settings import Settings, effective

app = typer.Typer(
    name="recollect",
    help="Memory for agents: one file, a local model, no server, no key.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(no_args_is_help=True, help="Look at the settings.")
app.add_typer(config_app, name="config")
app.add_typer(eval_app, name="eval")
app.add_typer(procedures_app, name="procedures")
app.add_typer(tasks_app, name="tasks")
app.command()(demo)

facts.add_commands(app)
keep.add_commands(app)


def run() -> None:
    """The entry point: our errors become one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows less than Unicode shows ? for the rest, and is no reason to fail.
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left of it must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (click.ClickException, click.Abort, KeyboardInterrupt, RecollectError) as error:
        _tell(error)
        sys.exit(_code(error))
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: BaseException) -> None:
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
        case click.ClickException() | BadInput():
            return USAGE
        case NotFound():
            return NOT_FOUND
        case _:
            return FAILED


@app.command()
def setup() -> None:
    """Set the local embedding model up on this machine, once. Nothing is downloaded at run time."""
    with progress_bar() as bar:
        task = bar.add_task("local model", total=100)
        where = install_local_model(
            lambda stage, share: bar.update(task, description=stage, completed=round(100 * share))
        )
        bar.update(task, completed=100)
    say(f"The local model is ready in {where}.")


@app.command()
@command
def reembed(
    embedder: Annotated[str, typer.Argument(help="The model to change to, such as `minilm` or `minilm:DIRECTORY`.")],
    *,
    caller: Caller,
) -> None:
    """Change a store's embedding model while it answers; goes on where it stopped."""
    with progress_bar(caller.as_json) as bar:
        task = bar.add_task("embedding", total=None)
        # Not through an open memory: that would ask for the model the store has, which may be gone. And a store has
        # one model for everybody in it: `--user` and the like are taken as everywhere, and change nothing.
        done = asyncio.run(
            reembed_store(
                caller.existing(), embedder, progress=lambda done, every: bar.update(task, completed=done, total=every)
            )
        )
    if caller.as_json:
        print_json({"embedded": done, "model": embedder})
    else:
        say(f"embedded {done} items with {embedder}")


@config_app.command("show")
def config_show(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the effective settings and where each came from."""
    options = effective()
    Settings.load()  # complains about a value that nothing could use
    if as_json:
        print_json({name: {"value": _plain(value), "from": origin} for name, (value, origin) in options.items()})
        return
    for name, (value, origin) in options.items():
        shown = ", ".join(tier.name for tier in value) if name == "tiers" else value
        say(f"{name:>14}  {shown}  ({origin})")


def _plain(value: Any) -> Any:
    return {tier.name: asdict(tier) for tier in value} if isinstance(value, tuple) else value


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)
