"""What SQLite leaves in its file: words in the index's pages, rows that were moved, and locks that must be kept."""

from __future__ import annotations

import asyncio
import random
import string
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from recollect.errors import NotEncrypted
from recollect.stores.erasing import Doomed
from recollect.stores.sqlite import Key, SqliteStore, gaps
from recollect.stores.sqlite.connection import begin_immediate, open_connection
from recollect.stores.sqlite.gaps import blank, unused
from recollect.stores.sqlite.leaves import terms_in, words_of
from recollect.stores.sqlite.pages import file_of, read_file
from recollect.stores.sqlite.physical import emptied_log
from recollect.testing.erasing import erasure
from recollect.testing.samples import ADA, BOB, SPACE, append, put

CLOSES = "import sys, apsw; c = apsw.Connection(sys.argv[1]); c.execute('select * from meta').fetchall(); c.close()"


def every_word(connection: apsw.Connection) -> set[str]:
    """Read from every page there is: slow, and plainly right."""
    pages = connection.execute("select id, block from words_data where id > ?", (1 << 37,))
    return {term[1:].decode() for _, block in pages for term in terms_in(block)}


async def test_the_words_of_a_space_are_read_from_the_pages_alone(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    chance = random.Random(3)
    for n in range(60):
        terms = " ".join("".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(40))
        scope = (ADA, BOB)[n % 2]
        await store.write(put(f"i{n}", [1, n, 0, 0], terms, scope=scope))
    connection = apsw.Connection(str(store.path))
    words = every_word(connection)
    spaces = [row[0] for row in connection.execute("select id from spaces")]
    for space in spaces:
        assert {*words_of(connection, space)} == {word for word in words if word.startswith(f"{space:x}_")}
    assert sum(len({*words_of(connection, space)}) for space in spaces) == len(words) > 2000
    connection.close()
    await store.close()


async def with_moved_rows(directory: Path) -> SqliteStore:
    store = SqliteStore.open(directory / "store.db")
    for n in range(300):  # by turns, so that rows come between others and pages are divided
        await store.write(*(append(f"{n}", content=f"moved {n} " * 9, space=s.space("episodic")) for s in (ADA, BOB)))
    return store


async def test_a_row_that_was_moved_leaves_no_bytes_behind(tmp_path: Path):
    store = await with_moved_rows(tmp_path)
    assert emptied_log(store.path)
    assert dirty(store.path) > 0
    assert blank(store.path)
    assert (dirty(store.path), await store.check()) == (0, [])
    assert len(await store.read(ADA.space("episodic"))) == 300
    await store.write(*(append(f"later {n}", space=ADA.space("episodic")) for n in range(50)))
    assert len(await store.read(ADA.space("episodic"))) == 350
    await store.close()


async def test_while_the_log_holds_something_nothing_is_overwritten(tmp_path: Path):
    """Mutant: the log is not looked at."""
    store = await with_moved_rows(tmp_path)
    assert emptied_log(store.path)
    reader = apsw.Connection(str(store.path))
    reader.execute("begin; select * from meta")
    await store.write(put("a", [1, 0, 0, 0]))  # the reader is at the moment before, so that the log cannot be emptied
    left = dirty(store.path)
    assert (blank(store.path), dirty(store.path)) == (False, left)
    reader.close()
    assert (blank(store.path), left > 0) == (True, True)
    await store.close()


@pytest.mark.parametrize("at_once", [1, 1000])
async def test_what_was_blanked_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int):
    """Mutants: nothing is committed with it; all lots of pages through one connection. Each writes what it had read."""
    store = await with_moved_rows(tmp_path)
    assert emptied_log(store.path)
    soil(store.path)
    other, begin = apsw.Connection(str(store.path)), begin_immediate

    def meanwhile(connection: apsw.Connection) -> None:
        other.execute("select * from meta").fetchall()  # it has a soiled page in mind from now on
        begin(connection)

    monkeypatch.setattr(gaps, "_PAGES_AT_ONCE", at_once)
    monkeypatch.setattr(gaps, "begin_immediate", meanwhile)
    assert blank(store.path)
    other.execute("insert into meta values ('told', 'later')")
    other.close()
    assert emptied_log(store.path)
    assert (dirty(store.path), await store.check()) == (0, [])
    await store.close()


def soil(path: Path) -> None:
    """Something in the unused parts of every page, as if rows had been moved out of all."""
    connection = apsw.Connection(str(path))
    file, at = file_of(connection), 0
    for data in read_file(connection):
        for start in range(0, len(data), file.size_of_page):
            page = bytearray(data[start : start + file.size_of_page])
            for begin, end in unused(bytes(page), first=at + start == 0):
                page[begin:end] = b"x" * (end - begin)
            file.write(at + start, bytes(page))
        at += len(data)
    connection.close()


async def test_looking_at_the_file_gives_up_no_lock(tmp_path: Path):
    """Where a process opens the file itself and closes it, its locks are lost: another may take the log away."""
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]))
    looking = open_connection(store.path, writes=False)
    assert sum(map(len, read_file(looking))) == store.path.stat().st_size
    looking.close()
    with pytest.raises(NotEncrypted):  # what a file is, is seen from its first bytes
        SqliteStore.open(store.path, key=Key("ab" * 32))
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CLOSES, str(store.path)], check=True)
    assert (tmp_path / "store.db-wal").exists()
    await store.close()


async def test_the_number_of_a_space_that_was_wiped_is_not_given_again(tmp_path: Path):
    """A copy in another process is known by that number."""
    store = SqliteStore.open(tmp_path / "store.db")
    await store.write(put("a", [1, 0, 0, 0]))
    await store.enter(erasure())
    await store.wipe("e1", Doomed((SPACE,)))
    await store.write(put("b", [1, 0, 0, 0], scope=BOB))
    connection = apsw.Connection(str(store.path))
    assert connection.execute("select id from spaces").fetchall() == [(2,)]
    connection.close()
    await store.close()


def dirty(path: Path) -> int:
    """How many unused parts of pages hold something."""
    data, size = path.read_bytes(), 8192
    pages = (data[at : at + size] for at in range(0, len(data), size))
    return sum(
        bool(page[start:end].strip(b"\0")) for n, page in enumerate(pages) for start, end in unused(page, first=n == 0)
    )
