"""A little room kept back beside the file, so that deleting still works on a disk that is full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Some deletions with their words and vectors, and the checkpoint after which the log is written from its start again.
_BYTES = 1 << 20


def is_kept(path: Path) -> bool:
    """Whether there is room kept back beside a file, whoever did so."""
    return _size(_beside(path)) == _BYTES


class Ballast:
    """A file of nothing. It lives as long as the write-ahead log, and goes when its room is needed."""

    def __init__(self, path: Path) -> None:
        self._path = _beside(path)
        self._log = path.with_name(path.name + "-wal")
        self.kept = False

    def keep(self) -> None:
        """Take the room. Where there is none, writing goes on without: whoever frees some will be asked again."""
        self.kept = _size(self._path) == _BYTES
        if self.kept:
            return
        try:
            with self._path.open("wb") as file:
                _take(file.fileno(), _BYTES)
            self.kept = True
        except OSError:
            self.release()

    def release(self) -> None:
        self.kept = False
        with suppress(OSError):  # it was not there, or the directory is not ours to change
            self._path.unlink()

    def leave(self) -> None:
        """The store was closed here. Whoever was the last to close it has taken the log away, and takes this too."""
        if not self._log.exists():
            self.release()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + "-ballast")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _take(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))
