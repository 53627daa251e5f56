"""The commands: each opens a memory, does one thing and prints it."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from typing import Annotated

import click
import typer

from recollect import __version__
from recollect.errors import BadInput, NotFound, RecollectError
from recollect.inference.connect import install_local_model
from recollect.interfaces.cli import keep
from recollect.interfaces.cli.demo import demo
from recollect.interfaces.cli.evaluate import eval_app
from recollect.interfaces.cli.opening import (
    FAILED,
    NOT_FOUND,
    USAGE,
    AsJson,
    Session,
    Store,
    User,
    existing,
    with_memory,
)
from recollect.interfaces.cli.output import complain, hit_json, item_json, print_json, progress_bar, say
from recollect.interfaces.cli.procedures import procedures_app
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
app.command()(demo)

keep.add_commands(app)


def run() -> None:
    """The entry point: our errors become one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that knows less than Unicode shows ? for the rest, and is no reason to fail.
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left of it must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (click.Abort, KeyboardInterrupt):
        complain("stopped")
        sys.exit(FAILED)
    except BadInput as error:
        complain(str(error))
        sys.exit(USAGE)
    except NotFound as error:
        complain(str(error))
        sys.exit(NOT_FOUND)
    except RecollectError as error:
        complain(str(error))
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else 0)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 at byte {error.start}") from error


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
def remember(
    content: Annotated[str, typer.Argument(help="What to remember; `-` reads standard input.")],
    *,
    importance: Annotated[float | None, typer.Option(help="From 0 to 1; scored when not given.")] = None,
    key: Annotated[str | None, typer.Option(help="A keyed fact: a new value supersedes the old one.")] = None,
    source: Annotated[str, typer.Option(help="Where it comes from.")] = "user",
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Store a fact."""
    text = _standard_input() if content == "-" else content
    item = with_memory(store, user, session, lambda m: m.remember(text, importance=importance, key=key, source=source))
    print_json(item_json(item)) if as_json else say(f"remembered {item.id}")


@app.command()
def recall(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    *,
    n: Annotated[int, typer.Option("-n", help="At most so many hits.")] = 5,
    min_relevance: Annotated[float | None, typer.Option(help="From 0 to 1; 0 shows everything.")] = None,
    budget: Annotated[int | None, typer.Option(help="Tokens the answer may cost.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each line is there.")] = False,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Show what matters for a query. Exit code 1 when nothing does."""
    context = with_memory(
        existing(store), user, session, lambda m: m.recall(query, n, min_relevance=min_relevance, budget=budget)
    )
    if as_json:
        print_json({"query": query, "text": str(context), "tokens": context.tokens, "hits": [*map(hit_json, context)]})
    elif explain:
        say(context.explain())
    elif context:
        say(str(context))
    else:
        complain("nothing relevant is remembered")
    if not context:
        raise typer.Exit(NOT_FOUND)


@app.command()
def forget(
    id: Annotated[str, typer.Argument(help="The item's id.")],
    *,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Drop one item. Exit code 1 when there is no such item."""
    done = with_memory(existing(store), user, session, lambda m: m.forget(id))
    if as_json:
        print_json({"id": id, "forgotten": done})
    elif done:
        say(f"forgot {id}")
    else:
        complain(f"there is no item {id}")
    if not done:
        raise typer.Exit(NOT_FOUND)


@app.command()
def reembed(
    embedder: Annotated[str, typer.Argument(help="The model to change to, such as `minilm` or `minilm:DIRECTORY`.")],
    *,
    store: Store = None,
    user: User = "default",
    session: Session = None,
    as_json: AsJson = False,
) -> None:
    """Change a store's embedding model while it answers; goes on where it stopped."""
    with progress_bar() as bar:
        task = bar.add_task("embedding", total=None)
        # Not through an open memory: that would ask for the model the store has, which may be gone. And a store has
        # one model for everybody in it: `--user` and `--session` are taken as everywhere, and change nothing.
        done = asyncio.run(
            reembed_store(
                existing(store), embedder, progress=lambda done, every: bar.update(task, completed=done, total=every)
            )
        )
    print_json({"embedded": done, "model": embedder}) if as_json else say(f"embedded {done} items with {embedder}")


@config_app.command("show")
def config_show(*, as_json: AsJson = False) -> None:
    """Print the effective settings and where each came from."""
    options = effective()
    Settings.load()  # complains about a value that nothing could use
    if as_json:
        shown = {name: {"value": str(value), "from": origin} for name, (value, origin) in options.items()}
        print_json(shown)
        return
    for name, (value, origin) in options.items():
        if name == "tiers":
            value = ", ".join(tier.name for tier in value)
        say(f"{name:>14}  {value}  ({origin})")


@app.command()
def version() -> None:
    """Print the version."""
    say(__version__)
