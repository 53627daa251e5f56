"""A process that has loaded what the others need: a fork of it costs less than starting Python again and again."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

# What every child needs, but for the runtime: its fail points are read from the environment when it is loaded.
import recollect.inference.connect
import recollect.recall.recall
import recollect.stores.postgres
import recollect.stores.redis
import recollect.tiers.episodic  # noqa: F401
import tests.crash.history
import tests.embedders  # noqa: F401
from tests.crash.processes import line_of, start, tell

_END_WITH_MOTHER = 1  # PR_SET_PDEATHSIG: a child that was frozen when the test failed must not stay behind


class Nursery:
    """The test's side of it: children by their process id."""

    def __init__(self, *keep: int, mutant: str = "") -> None:
        self._mother: subprocess.Popen[str] = start("nursery", mutant=mutant, keep=keep)

    def child(self, module: str, *arguments: object, environ: Mapping[str, str] | None = None) -> int:
        """Start one of the child programs."""
        wish = {"module": module, "arguments": [str(one) for one in arguments], "environ": dict(environ or {})}
        tell(self._mother, json.dumps(wish))
        return int(line_of(self._mother))

    def send(self, child: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(child, number)

    def kill(self, child: int) -> None:
        self.send(child, signal.SIGKILL)
        self.wait(child)

    def wait(self, child: int, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.lives(child):
            assert time.monotonic() < deadline, f"process {child} does not end"
            time.sleep(0.001)

    def lives(self, child: int) -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> None:
        """Nobody may have complained."""
        complaints = self.complaints()
        assert not complaints, complaints

    def complaints(self) -> str:
        """What children that failed had to say, when the last of them has ended."""
        return self._mother.communicate()[1]


def raise_children() -> None:
    # Nobody waits for them: the kernel forgets a child as soon as it is dead, and that is how the test sees it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        wish = json.loads(line)
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_END_WITH_MOTHER, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.update(wish["environ"])
            importlib.import_module(f"tests.crash.{wish['module']}").main(wish["arguments"])
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    raise_children()
