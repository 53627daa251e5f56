"""Acknowledgments of child processes, sent over a pipe that only the test reads."""

from __future__ import annotations

import os
import select
import time


def note(descriptor: int, *words: object) -> None:
    """Write a line to the pipe in one system call, so that a kill after it cannot lose the line."""
    os.write(descriptor, (" ".join(str(word) for word in words) + "\n").encode())


class Ledger:
    """The test's end of the pipe: the code under test can neither change nor lose a line."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._rest = b""
        self.lines: list[list[str]] = []

    def read(self) -> list[list[str]]:
        """Return the lines that arrived since the last call."""
        try:
            while more := os.read(self._reading, 1 << 16):
                self._rest += more
        except BlockingIOError:
            pass
        *whole, self._rest = self._rest.split(b"\n")
        lines_read = [line.decode().split(" ") for line in whole]
        self.lines += lines_read
        return lines_read

    def wait(self, seconds: float) -> list[list[str]]:
        """Return the next lines, or an empty list if none arrive within `seconds`."""
        deadline = time.monotonic() + seconds
        while not (lines_read := self.read()) and (left := deadline - time.monotonic()) > 0:
            select.select([self._reading], [], [], left)
        return lines_read

    def close(self) -> None:
        os.close(self._reading)
        os.close(self.writing)
