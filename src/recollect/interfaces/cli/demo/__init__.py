"""`recollect demo`: memory at work in six scenes, offline, each in processes of its own, every claim checked."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from recollect.errors import BadInput, StoreUnavailable
from recollect.interfaces.cli.opening import FAILED, Caller
from recollect.interfaces.cli.output import complain, print_json


def demo(
    *,
    keep: Annotated[Path | None, typer.Option("--keep", help="A new directory to leave what was made in.")] = None,
    caller: Caller,
) -> None:
    """See it at work, offline and without a key: learn, recall by meaning, survive a kill, change, improve, erase.

    Takes some ten seconds, in a temporary directory that is removed again, unless --keep or --store says where it is to
    stay; your own store is not touched. Every ✓ was checked just then; exit code 3 when one of them does not hold.
    """
    from recollect.interfaces.cli.demo.play import play
    from recollect.interfaces.cli.demo.process import Place
    from recollect.interfaces.cli.demo.stage import Stage, stage_console

    with _directory(keep) as directory:
        store = str(directory / "agent.db") if caller.store is None else _new(caller.store)
        place = Place(str(directory), store, tenant=caller.tenant, user=caller.user, agent=caller.agent)
        stage = Stage(stage_console(quiet=caller.as_json))
        play(stage, place, monday=caller.session or "monday")
        if caller.as_json:
            print_json(stage.report())
        elif keep is not None or caller.store is not None:
            stage.note(f"What was made stays: {store}")
    if not stage.holds:
        if not caller.as_json:
            complain(f"{sum(not one.ok for one in stage.checks)} of {len(stage.checks)} checks do not hold")
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        # A virus scanner or an indexer may still look at a file that nobody needs any more.
        with tempfile.TemporaryDirectory(prefix="recollect-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadInput(f"{keep} is there already and not empty; name a new directory")
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{keep} cannot be made: {error.strerror}") from error
    yield keep.resolve()


def _new(store: str) -> str:
    path = Path(store.removeprefix("sqlite:///")).expanduser()
    if "://" in store.removeprefix("sqlite:///") or path.exists():
        raise BadInput(f"the demo makes a new file, and {store} is none; leave --store out, or name a new file")
    return str(path.resolve())
