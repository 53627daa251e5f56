"""The order of the scenes, for the one who watches and for the process that plays one of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from recollect import __version__
from recollect.errors import RecollectError
from recollect.interfaces.cli.demo import erasing, improving, killing, learning, meaning, superseding
from recollect.interfaces.cli.demo.process import Place, tell
from recollect.interfaces.cli.demo.stage import Stage

_ACTS: dict[str, Callable[..., dict[str, Any]]] = {
    "learning": learning.act,
    "meaning": meaning.act,
    "killing": killing.act,
    "superseding": superseding.act,
    "improving": improving.act,
    "erasing": erasing.act,
}
_NEXT = {
    "recollect chat": "talk with it, with a model of yours or without",
    'recollect remember "…"': 'keep something; then: recollect recall "…"',
    "docs/quickstart.md": "the same from Python, in ten lines",
    "recollect --help": "everything else",
}


def play(stage: Stage, place: Place, *, monday: str) -> None:
    """The six scenes, one after another, and what they took."""
    began = time.perf_counter()
    stage.console.print(
        f"[bold]Recollect {__version__}[/bold]: memory for agents, in one file, offline, without a key."
    )
    timings = learning.show(stage, place, session=monday)
    timings |= meaning.show(stage, place)
    timings |= killing.show(stage, place)
    superseding.show(stage, place)
    improving.show(stage, place)
    erasing.show(stage, place)
    timings["the whole demo, in eight processes"] = time.perf_counter() - began
    stage.closes(timings, _NEXT)


def act() -> None:
    """In a process of its own: play what the argument asks for, and tell."""
    request = json.loads(sys.argv[1])
    try:
        tell(**_ACTS[request["scene"]](Place(**request["place"]), **request["given"]))
    except RecollectError as error:
        tell(error=str(error))
