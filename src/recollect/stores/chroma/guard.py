"""One process at a time in a directory: Chroma's files are not safe for two, and nobody would notice at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from recollect.errors import StoreUnavailable

_FILE = "recollect.lock"


class Guard:
    """Held from open to close, and let go by the operating system when its process dies.

    `was_killed` says that the one before did not come to its end.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # Chroma's own files are readable by all
            self._file = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"{directory} cannot be used as a Chroma directory ({error.strerror}); name one that may be written to"
            ) from error
        try:
            _lock(self._file)
        except OSError as error:
            os.close(self._file)
            raise StoreUnavailable(
                f"{directory} is open already, here or in another process, and Chroma's files are not safe for two; "
                f"close the other, or run a server for all of them (chroma run --path {directory}) and open it as "
                "chroma+http://localhost:8000"
            ) from error
        self.was_killed = os.fstat(self._file).st_size > 0
        os.pwrite(self._file, b"in use\n", 0)
        os.fsync(self._file)

    def close(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)

    def drop(self) -> None:
        """Let go as somebody does who has not looked after what was left."""
        os.close(self._file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
