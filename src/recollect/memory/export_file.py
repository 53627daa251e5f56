"""The file of an export: written whole or not at all, readable by its owner alone, and nothing but a plain file.

The program that calls us may write wherever it may write, so no directory is forbidden here; whoever takes a path from
somebody else has to choose the directory. What is confined is what a name can turn out to be: never a link, a device or
a pipe, never another's file, and never a file that is not an export.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from recollect.errors import BadInput, NotFound, RecollectError, StoreFull, StoreUnavailable

MARK = "recollect-export"

_OWNER_ONLY = 0o600
# With what is put behind it while it is being written, within what file systems take.
_LONGEST_NAME = 220
_LONGEST_PATH = 4_000
# Not on every system; where they are missing, the look at the file before it is opened has to do.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# File systems without hard links say one of these.
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def checked_path(path: Any) -> Path:
    """A path that could name a file."""
    if not isinstance(path, str | os.PathLike) or not str(path).strip() or "\x00" in str(path):
        raise BadInput(f"a path names a file, such as 'memory.jsonl', not {path!r:.80}")
    found = Path(os.fsdecode(path))
    try:
        longest = max(len(os.fsencode(part)) for part in (found.name, *found.parts))
    except UnicodeEncodeError as error:
        raise BadInput(
            f"a path has half a character (a lone surrogate) at {error.start}; decode it properly"
        ) from error
    if longest > _LONGEST_NAME or len(str(found)) > _LONGEST_PATH:
        raise BadInput(f"a path has at most {_LONGEST_PATH:,} characters, and a name in it {_LONGEST_NAME}; shorten it")
    if not found.name or found.name in (".", ".."):
        raise BadInput(f"{str(path)!r:.200} names no file")
    return found


def check_new(path: Path) -> None:
    """Refuse a name that is taken, be it by a link that leads nowhere."""
    if os.path.lexists(path):
        raise BadInput(f"{path} exists already; name a new file")


class NewFile:
    """A file on its way: it has its name only once it is complete. Its methods block; call them in a thread."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        with _translated(path):
            _check_target(path, overwrite)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
            self._file: BinaryIO = os.fdopen(os.open(self._partial, flags, _OWNER_ONLY), "wb")

    def write(self, lines: list[dict[str, Any]]) -> None:
        with _translated(self._path):
            self._file.write(b"".join(encoded(line) for line in lines))

    def finish(self) -> None:
        """On disk, and then under its name; somebody else's file of that name is never replaced."""
        with _translated(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if self._overwrite:
                _check_target(self._path, overwrite=True)
                os.replace(self._partial, self._path)
            else:
                put_in_place(self._partial, self._path)
            _sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Leave nothing behind; after `finish` there is nothing to leave."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


def copied(source: Path, target: Path) -> None:
    """A copy of a plain file as a new one, which is its owner's alone."""
    with _translated(target):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
        with opened(source) as given, os.fdopen(os.open(target, flags, _OWNER_ONLY), "wb") as file:
            shutil.copyfileobj(given, file)


def opened(path: Path) -> BinaryIO:
    """An export to read. A link, a device or a pipe is refused, and never waited for."""
    with _translated(path):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            raise NotFound(f"there is no file at {path}; `export` makes one") from None
        _check_plain(path, found)
        descriptor = os.open(path, os.O_RDONLY | _NO_LINK | _NO_WAIT)
        try:
            _check_plain(path, os.fstat(descriptor))
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


def encoded(line: dict[str, Any]) -> bytes:
    """The same line for the same value, always."""
    return json.dumps(line, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _check_plain(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise BadInput(f"{path} is a link; name the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path} is not a plain file; name one")


def _check_target(path: Path, overwrite: bool) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    _check_plain(path, found)
    if not overwrite:
        raise BadInput(f"{path} exists already; name a new file, or say overwrite=True to replace an older export")
    with opened(path) as file:
        if not file.readline(200).startswith(b'{"' + MARK.encode()):
            raise BadInput(f"{path} is not an export; only an older export is ever overwritten")


def put_in_place(partial: Path, path: Path) -> None:
    """Give a file its name, and take it from nobody."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise BadInput(f"{path} appeared while it was being written; name a new file") from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _check_target(path, overwrite=False)
        os.rename(partial, path)
    else:
        os.unlink(partial)


def _sync_directory(directory: Path) -> None:
    """The name is a line in the directory, and has to reach the disk too."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """What the system says, as an error of ours."""
    try:
        yield
    except RecollectError:
        raise
    except OSError as error:
        told = f"{path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise StoreFull(f"{told}; free some space and export again") from error
        raise StoreUnavailable(told) from error
