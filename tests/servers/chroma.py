"""A real Chroma server for tests, on a free loopback port."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.ports import free_port

_PATIENCE = 60.0


def binary() -> str:
    """Return the path of the `chroma` program of the package; raise RuntimeError if it is missing."""
    beside = Path(sys.executable).with_name("chroma")
    found = str(beside) if beside.exists() else shutil.which("chroma")
    if found is None:
        raise RuntimeError("the Chroma server is missing: pip install chromadb")
    return found


class ChromaServer:
    """A server with a directory of its own, which it keeps across restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"chroma+http://127.0.0.1:{self.port}"

    def create(self, database: str) -> str:
        """Create a database and return its URL."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v2/tenants/default_tenant/databases",
            json.dumps({"name": database}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            pass
        return f"{self.url}?database={database}"

    def start(self) -> ChromaServer:
        log = self.directory.with_suffix(".log")
        with log.open("wb") as written:
            self._process = subprocess.Popen(
                [
                    *(binary(), "run", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--path", str(self.directory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"the Chroma server did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """Stop the server with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(_PATIENCE)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v2/heartbeat", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
