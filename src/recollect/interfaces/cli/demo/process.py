"""A scene in a process of its own: nothing is carried over to the next one but the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from recollect.errors import RecollectError
from recollect.settings import PREFIX

# -P: what lies in the directory where somebody tries us out is not imported by mistake.
_PROGRAM = ("-P", "-c", "from recollect.interfaces.cli.demo.play import act; act()")

_THREADS = f"{PREFIX}THREADS"  # how much of a machine may be used is nobody else's to say


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo's memory is, and whose it is."""

    directory: str
    store: str
    tenant: str = "default"
    user: str = "default"
    agent: str = "default"


class Child:
    """A process that plays a scene and tells what comes of it, a line of JSON each."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "error" in told:
                raise RecollectError(told["error"])
            yield told

    def kill(self) -> int:
        """End it at once, without a chance to tidy up (SIGKILL where there is one), and return how it ended."""
        self._process.kill()
        return self._process.wait()

    def ended(self) -> None:
        """Wait for its end; one that failed without a word of ours is an error."""
        assert self._process.stderr is not None
        said = self._process.stderr.read().strip().splitlines()
        if self._process.wait():
            raise RecollectError(f"a process of the demo failed: {said[-1] if said else self._process.returncode}")


@contextmanager
def begun(scene: str, place: Place, **given: Any) -> Iterator[Child]:
    """A scene under way; the process is gone when this is left, however it is left."""
    request = json.dumps({"scene": scene, "place": asdict(place), "given": given})
    with subprocess.Popen(
        [sys.executable, *_PROGRAM, request],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        cwd=place.directory,
        env=_environment(),
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    """Without the settings of whoever watches: the demo is offline and the same for everybody."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX) or name == _THREADS}


def told_by(scene: str, place: Place, **given: Any) -> dict[str, Any]:
    """All that a scene tells, played from beginning to end."""
    with begun(scene, place, **given) as child:
        told = {name: value for line in child for name, value in line.items()}
        child.ended()
    return told


def tell(**told: Any) -> None:
    """In the process of a scene: tell the one that watches."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
