"""The oracle: what a process was told is safe, on a pipe that only the test reads."""

from __future__ import annotations

import os
import select
import time


def note(descriptor: int, *words: object) -> None:
    """Write a line down, in a child. One call: the kernel has it before this process can be killed again."""
    os.write(descriptor, (" ".join(str(word) for word in words) + "\n").encode())


class Ledger:
    """The test's end of the pipe. Nothing under test can take a line back, nor lose one."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._rest = b""
        self.lines: list[list[str]] = []

    def read(self) -> list[list[str]]:
        """The lines that came since the last time."""
        try:
            while more := os.read(self._reading, 1 << 16):
                self._rest += more
        except BlockingIOError:
            pass
        *whole, self._rest = self._rest.split(b"\n")
        came = [line.decode().split(" ") for line in whole]
        self.lines += came
        return came

    def wait(self, seconds: float) -> list[list[str]]:
        """The next lines, or none when none came in time."""
        deadline = time.monotonic() + seconds
        while not (came := self.read()) and (left := deadline - time.monotonic()) > 0:
            select.select([self._reading], [], [], left)
        return came

    def close(self) -> None:
        os.close(self._reading)
        os.close(self.writing)
