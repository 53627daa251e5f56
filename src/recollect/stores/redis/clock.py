"""What time it is: the server's, so that all who share it agree, or that of a clock that was given."""

from __future__ import annotations

import time
from datetime import datetime

from recollect.clock import Clock, aware, from_micros, system_clock, to_micros

# How far the time that a batch was decided at may lie from the server's when it gets there.
_TOLERANCE = b"2000000"


class SharedClock:
    """The server's time as last heard, gone on by this machine's steady clock; leaps of its wall clock do not matter.

    A clock other than the system's is taken at its word: somebody gave it for a reason.
    """

    def __init__(self, given: Clock) -> None:
        self._given = None if given is system_clock else given
        self._heard = 0
        self._steady = time.monotonic()

    @property
    def tolerance(self) -> bytes:
        """For the scripts: how far from the server's time a batch is sent back. Nothing: however far."""
        return _TOLERANCE if self._given is None else b""

    def __call__(self) -> datetime:
        if self._given is not None:
            return from_micros(to_micros(aware(self._given())))
        return from_micros(self._heard + int((time.monotonic() - self._steady) * 1_000_000))

    def hear(self, micros: bytes) -> None:
        """The server's time, a moment ago."""
        self._heard, self._steady = int(micros), time.monotonic()
