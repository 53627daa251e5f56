"""A fork server: it imports the modules once, and each child process is a fork of it."""

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

# Modules that every child needs. The durable runtime is not among them: it reads its failpoints when it is imported.
import recollect.models.factory
import recollect.retrieval.search
import recollect.stores.postgres
import recollect.stores.redis
import recollect.tiers.episodic  # noqa: F401
import tests.crash.turn_history
import tests.embedders  # noqa: F401
from tests.crash.process_launcher import read_line, send_line, start

_PR_SET_PDEATHSIG = 1  # ends a child that is stopped when the test fails


class ForkServer:
    """A client of the fork server; children are named by their process id."""

    def __init__(self, *keep: int, mutant: str = "") -> None:
        self._process: subprocess.Popen[str] = start("forkserver", mutant=mutant, keep=keep)

    def start_child(self, module: str, *arguments: object, environ: Mapping[str, str] | None = None) -> int:
        """Start a module of this package as a child process and return its process id."""
        request = {
            "module": module,
            "arguments": [str(argument) for argument in arguments],
            "environ": dict(environ or {}),
        }
        send_line(self._process, json.dumps(request))
        return int(read_line(self._process))

    def send(self, child: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the process has already ended
            os.kill(child, number)

    def kill(self, child: int) -> None:
        self.send(child, signal.SIGKILL)
        self.wait(child)

    def wait(self, child: int, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.is_alive(child):
            assert time.monotonic() < deadline, f"process {child} is still running after {seconds} s"
            time.sleep(0.001)

    def is_alive(self, child: int) -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Wait for all children and assert that none wrote to stderr."""
        errors = self.read_errors()
        assert not errors, errors

    def read_errors(self) -> str:
        """Wait for all children and return what they wrote to stderr."""
        return self._process.communicate()[1]


def serve() -> None:
    # The kernel reaps ended children at once, so that the test sees by `kill(pid, 0)` that a child has ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.update(request["environ"])
            importlib.import_module(f"tests.crash.{request['module']}").main(request["arguments"])
            os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
