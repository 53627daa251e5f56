"""What lies between the cells of a page: bytes that SQLite has moved elsewhere and left where they were.

`secure_delete` blanks what is deleted. A row that was moved, when its page was divided, was not deleted: its old bytes
stay in the unused part of the page until another row happens to be written over them. So they are blanked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from recollect.stores.sqlite.connection import begin_immediate

_HEADER_OF_FILE = 100
_LEAVES = (0x0A, 0x0D)
_BRANCHES = (0x02, 0x05)
_BYTES_AT_ONCE = 1 << 22
_BUSY_MILLISECONDS = 100
# Other pages begin with the number of a page, whose first byte is that of a tree only in a file beyond 256 GB.
_MOST_PAGES = 1 << 25

_NOTE = """
    insert into meta (name, value)
    values ('scrubbed', '1')
    on conflict do update
    set value = cast(cast(value as integer) + 1 as text)
"""


def read_file(path: Path) -> Iterator[bytes]:
    """The bytes of the main file, in large pieces.

    Through SQLite: a program that opens the file itself and closes it gives up every lock that its process has on it.
    """
    file = _opened(path, apsw.SQLITE_OPEN_READONLY)
    try:
        size, at = file.xFileSize(), 0
        while at < size:
            yield file.xRead(min(_BYTES_AT_ONCE, size - at), at)
            at += _BYTES_AT_ONCE
    finally:
        file.xClose()


def blank(path: Path) -> bool:
    """Overwrite the unused parts of all pages in the file itself; False while somebody is in the way.

    What is unused means nothing to anybody, so that it may be written without a log. But it must not come back: with
    the write lock held and the log empty nobody else writes to the file, and the commit that follows makes everybody,
    in every process, read its pages anew before it writes one.
    """
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(_BUSY_MILLISECONDS)
        begin_immediate(connection)
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            connection.execute("rollback")
            return False
        few = int(connection.pragma("page_count")) < _MOST_PAGES
        if few and _blanked(path, int(connection.pragma("page_size"))):
            connection.execute(_NOTE)
            connection.execute("commit")
        return True
    except apsw.BusyError:
        return False
    finally:
        connection.close()


def _blanked(path: Path, size: int) -> int:
    """How many parts were not blank and are now."""
    count = at = 0
    file = _opened(path, apsw.SQLITE_OPEN_READWRITE)
    try:
        for data in read_file(path):
            for page in range(0, len(data), size):
                for start, end in unused(data[page : page + size], first=at + page == 0):
                    if data[page + start : page + end].strip(b"\0"):
                        file.xWrite(bytes(end - start), at + page + start)
                        count += 1
            at += len(data)
        if count:
            file.xSync(apsw.SQLITE_SYNC_FULL)
        return count
    finally:
        file.xClose()


def unused(page: bytes, *, first: bool = False) -> Iterator[tuple[int, int]]:
    """The parts of a page of a tree that hold nothing: between its directory and its cells, and inside free blocks."""
    header = _HEADER_OF_FILE if first else 0
    kind = page[header]
    if kind not in (*_LEAVES, *_BRANCHES):
        return
    cells = _number(page, header + 3)
    content = _number(page, header + 5) or 1 << 16
    directory = header + (8 if kind in _LEAVES else 12) + 2 * cells
    if directory < content <= len(page):
        yield directory, content
    block = _number(page, header + 1)
    while 0 < block <= len(page) - 4:
        size, following = _number(page, block + 2), _number(page, block)
        if size > 4 and block + size <= len(page):
            yield block + 4, block + size
        if following <= block:  # free blocks stand in order; anything else is not one
            return
        block = following


def _number(page: bytes, at: int) -> int:
    return int.from_bytes(page[at : at + 2], "big")


def _opened(path: Path, how: int) -> apsw.VFSFile:
    return apsw.VFSFile("", str(path), [how | apsw.SQLITE_OPEN_MAIN_DB, 0])
