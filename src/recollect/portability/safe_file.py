"""Files that appear complete or not at all, readable by their owner only: exports and restored stores.

The caller decides about directories. These functions refuse names that turn out to be links, devices, pipes, other
files, or files that are not exports.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from recollect.errors import BadInput, NotFound, RecollectError, StoreFull, StoreUnavailable

EXPORT_MARK = "recollect-export"

_OWNER_ONLY = 0o600
# File systems allow 255 bytes; a partial file has up to 22 more than the name.
_MAX_NAME_BYTES = 220
_MAX_PATH_CHARACTERS = 4_000
# Missing on Windows, where only the check before opening applies.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors of file systems without hard links.
_NO_HARD_LINK_ERRORS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def parse_path(path: Any) -> Path:
    """Return the path if it can name a file; raise `BadInput` otherwise."""
    if not isinstance(path, str | os.PathLike) or not str(path).strip() or "\x00" in str(path):
        raise BadInput(f"path must name a file, such as 'memory.jsonl'; got {path!r:.80}")
    parsed = Path(os.fsdecode(path))
    try:
        longest = max(len(os.fsencode(part)) for part in (parsed.name, *parsed.parts))
    except UnicodeEncodeError as error:
        raise BadInput(f"path must not contain a lone surrogate; got one at position {error.start}") from error
    if longest > _MAX_NAME_BYTES or len(str(parsed)) > _MAX_PATH_CHARACTERS:
        raise BadInput(
            f"path must have at most {_MAX_PATH_CHARACTERS:,} characters and {_MAX_NAME_BYTES} bytes per name; "
            f"got {len(str(parsed)):,} and {longest:,}"
        )
    if not parsed.name or parsed.name in (".", ".."):
        raise BadInput(f"{str(path)!r:.200} names no file")
    return parsed


def check_path_is_new(path: Path) -> None:
    """Raise `BadInput` if the name is taken, also by a dangling link."""
    if os.path.lexists(path):
        raise BadInput(f"{path} exists already; name a new file")


class ExportFile:
    """A file that gets its name when it is complete. The methods block; call them in a thread."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        with _translate_os_errors(path):
            _check_target(path, overwrite)
            self._file = _create_file(self._partial)

    def write(self, lines: list[dict[str, Any]]) -> None:
        with _translate_os_errors(self._path):
            self._file.write(b"".join(encode_line(line) for line in lines))

    def finish(self) -> None:
        """Sync the file and give it its name. A file of that name that is not an export is never replaced."""
        with _translate_os_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if self._overwrite:
                _check_target(self._path, overwrite=True)
                os.replace(self._partial, self._path)
            else:
                move_into_place(self._partial, self._path)
            _sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Delete the partial file; a no-op after `finish`."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to a new one that only its owner can read."""
    with _translate_os_errors(target), open_export(source) as original, _create_file(target) as copy:
        shutil.copyfileobj(original, copy)


def open_export(path: Path) -> BinaryIO:
    """Open a regular file. Links, devices and pipes are refused without blocking."""
    with _translate_os_errors(path):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            raise NotFound(f"there is no file at {path}; `export` makes one") from None
        _check_regular(path, found)
        descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK)
        try:
            _check_regular(path, os.fstat(descriptor))
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


def encode_line(value: Any) -> bytes:
    """Encode a value as one line of JSON; equal values give equal lines."""
    text = json.dumps(
        value, default=_encode_plain, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    return text.encode() + b"\n"


def _encode_plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value / timedelta(microseconds=1)
        case Mapping():
            return dict(value)
        case _:
            return {field.name: getattr(value, field.name) for field in fields(value)}


def move_into_place(partial: Path, path: Path) -> None:
    """Give a file its name; raise `BadInput` if the name is taken."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise BadInput(f"{path} appeared while it was being written; name a new file") from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINK_ERRORS:
            raise
        _check_target(path, overwrite=False)
        os.rename(partial, path)
    else:
        os.unlink(partial)


def _create_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW, _OWNER_ONLY), "wb")


def _check_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise BadInput(f"{path} is a link; name the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path} is not a regular file")


def _check_target(path: Path, overwrite: bool) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    _check_regular(path, found)
    if not overwrite:
        raise BadInput(f"{path} exists already; name a new file, or pass overwrite=True to replace an older export")
    with open_export(path) as file:
        if not file.readline(200).startswith(b'{"' + EXPORT_MARK.encode()):
            raise BadInput(f"{path} is not an export; only an older export is overwritten")


def _sync_directory(directory: Path) -> None:
    """Sync the directory, so that the new name survives a power failure."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RecollectError:
        raise
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        if error.errno in _DISK_FULL_ERRORS:
            raise StoreFull(f"{message}; free some space and export again") from error
        raise StoreUnavailable(message) from error
