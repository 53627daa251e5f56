"""What lies between the cells of a page: bytes that SQLite has moved elsewhere and left where they were.

`secure_delete` blanks what is deleted. A row that was moved, when its page was divided, was not deleted: its old bytes
stay in the unused part of the page until another row happens to be written over them. So they are blanked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from recollect.stores.sqlite.backup import copy_pages
from recollect.stores.sqlite.connection import begin_immediate, checkpointed
from recollect.stores.sqlite.file import connected
from recollect.stores.sqlite.key import Key
from recollect.stores.sqlite.pages import file_of, read_file

COPY = "-blanked"
"""The ending of the copy that an encrypted store is blanked in, encrypted like it."""

_HEADER_OF_FILE = 100
_LEAVES = (0x0A, 0x0D)
_BRANCHES = (0x02, 0x05)
_BUSY_MILLISECONDS = 100
# Other pages begin with the number of a page, whose first byte is that of a tree only in a file beyond 256 GB.
_MOST_PAGES = 1 << 25
_PAGES_AT_ONCE = 1024

_NOTE = """
    insert into meta (name, value)
    values ('scrubbed', '1')
    on conflict do update
    set value = cast(cast(value as integer) + 1 as text)
"""


def blank(path: Path, key: Key | None = None) -> bool:
    """Overwrite the unused parts of all pages; False while somebody is in the way."""
    try:
        return _in_place(path) if key is None else _anew(path, key)
    except apsw.BusyError:
        return False


@contextmanager
def _opened(path: Path, key: Key | None = None) -> Iterator[apsw.Connection]:
    connection = connected(path, key)
    try:
        connection.set_busy_timeout(_BUSY_MILLISECONDS)
        yield connection
    finally:
        connection.close()


def _in_place(path: Path) -> bool:
    """In the file itself, a few pages at a time, so that nobody waits long to write.

    Which pages to look at is found out while others write. What they leave in the others meanwhile is nothing that was
    deleted before, and whoever calls this looks at every byte afterwards.
    """
    with _opened(path) as connection:
        if not checkpointed(connection):
            return False
        few = int(connection.pragma("page_count")) < _MOST_PAGES
        places = [at for at, _ in _dirty(connection)] if few else []
    return all(
        _wiped_over(path, places[start : start + _PAGES_AT_ONCE]) for start in range(0, len(places), _PAGES_AT_ONCE)
    )


def _wiped_over(path: Path, places: Sequence[int]) -> bool:
    """Blank some pages, through a connection that has none of them in mind.

    What is unused means nothing to anybody, so that it may be written without a log. But it must not come back: with
    the write lock held and the log empty nobody else writes to the file, and the commit that follows makes everybody,
    in every process, read its pages anew before it writes one.
    """
    with _opened(path) as connection:
        if not checkpointed(connection):
            return False
        begin_immediate(connection)
        if _has_log(path):  # somebody came in between
            return False
        file = file_of(connection)
        for at in places:
            clean = _cleaned(file.read(at, file.size_of_page), first=at == 0)
            if clean is not None:
                file.write(at, clean)
        file.sync()
        connection.execute(_NOTE)
        connection.execute("commit")
        return True


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def _anew(path: Path, key: Key) -> bool:
    """A blanked copy, written back by SQLite in one commit.

    Of an encrypted page every byte changes with any: if the power failed while it was written in its place, all of it
    would be lost. So it goes through the log, and because SQLite writes no single pages for others, the whole file
    does. It is left alone when it is blank already.
    """
    if _has_log(path):
        return False
    aside = path.with_name(path.name + COPY)
    with _opened(path, key) as connection:
        if not any(True for _ in _dirty(connection)):
            return True
        seen = connection.pragma("data_version")
        aside.unlink(missing_ok=True)
        try:
            with _opened(aside, key) as copied:
                copy_pages(connection, copied)
                _blanked(copied)
                return _written_back(path, key, copied, lambda: bool(connection.pragma("data_version") == seen))
        finally:
            aside.unlink(missing_ok=True)


def _written_back(path: Path, key: Key, copied: apsw.Connection, still: Callable[[], bool]) -> bool:
    """False when somebody wrote since the copy was made: it would take that back."""
    with _opened(path, key) as into, into.backup("main", copied, "main") as work:
        work.step(1)  # from here on nobody else writes
        if not still():
            return False
        while not work.done:
            work.step(_PAGES_AT_ONCE)
    return True


def _blanked(connection: apsw.Connection) -> None:
    """All pages of a file that nobody else has."""
    file = file_of(connection)
    for at, page in _dirty(connection):
        file.write(at, page)
    file.sync()


def _dirty(connection: apsw.Connection) -> Iterator[tuple[int, bytes]]:
    """Where a page lies that has something in its unused parts, and what it is without."""
    at, size = 0, int(connection.pragma("page_size"))
    for data in read_file(connection):
        for page in range(0, len(data), size):
            clean = _cleaned(data[page : page + size], first=at + page == 0)
            if clean is not None:
                yield at + page, clean
        at += len(data)


def _cleaned(page: bytes, *, first: bool) -> bytes | None:
    """The page with its unused parts blank; None when they are."""
    clean: bytearray | None = None
    for start, end in unused(page, first=first):
        if page[start:end].strip(b"\0"):
            clean = bytearray(page) if clean is None else clean
            clean[start:end] = bytes(end - start)
    return None if clean is None else bytes(clean)


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
