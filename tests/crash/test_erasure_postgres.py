"""E1 to E3 on PostgreSQL: what was erased is in no byte of the server's data directory, its log included."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from recollect import AgentMemory
from recollect.lifecycle import beside
from recollect.runtime.failpoints import ERASURE_POINTS, VARIABLE
from recollect.stores.postgres import PostgresStore, log_files, settling, statistics, wiped
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.where import Where
from tests.crash import canaries
from tests.crash.canaries import DIM, EACH, Canary, Sieve, scope_of
from tests.crash.eraser import again
from tests.crash.processes import ROOT, command, environment
from tests.crash.table import Table
from tests.embedders import HashEmbedder
from tests.servers.postgres import IN_A_HURRY, Server

ASKED = FEW = 10
NAME = b"session-of-ada"
_numbers = count()


@dataclass(frozen=True)
class Filled:
    """A database of canaries, of which each test takes a copy; the originals are not looked at."""

    server: Server
    name: str
    ada: dict[str, list[Canary]]
    bob: dict[str, list[Canary]]

    @property
    def each(self) -> int:
        """How many each of the two has."""
        return sum(map(len, self.ada.values()))

    def copy(self) -> str:
        name = f"copy{next(_numbers)}"
        self.server.copy(self.name, name)
        return name

    def left(self, *databases: str) -> int:
        """How many of ada's canaries any byte gives away that is not of other databases; her name counts as one."""
        while True:
            try:
                files = self._files(*databases)
                words = {word for some in Sieve(self.ada).found(files).values() for word in some}
                return len(words) + any(NAME in file.read_bytes() for file in files)
            except FileNotFoundError:  # the server has renamed one meanwhile: all are read again
                continue

    def kept(self, database: str) -> int:
        """How many of bob's are in the files of a database."""
        self.flush()
        oid = self._oid(database)
        files = (self.server.data / "base" / oid).iterdir()
        return len({word for some in Sieve(self.bob).found(files).values() for word in some})

    def flush(self) -> None:
        """What is only in memory would not be seen. Not for what was erased: this might tidy up after a mutant."""
        with self.server.admin() as admin:
            admin.execute("checkpoint")

    def _files(self, *databases: str) -> list[Path]:
        """All there are, but those of other tests' databases."""
        every = [file for file in self.server.data.rglob("*") if file.is_file()]
        with self.server.admin() as admin:
            rows = admin.execute("select oid::text from pg_database where datname ~ '^(filled|few|copy)'").fetchall()
        others = {oid for (oid,) in rows} - {self._oid(name) for name in databases}
        return [file for file in every if file.parent.parent.name != "base" or file.parent.name not in others]

    def _oid(self, database: str) -> str:
        with self.server.admin() as admin:
            [oid] = admin.execute("select oid::text from pg_database where datname = %s", (database,)).fetchone() or ()
        return str(oid)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Of these tests alone: every file of it is looked at."""
    # Copies of databases fill its log; of the files that it keeps for later there need not be many.
    started = Server((*IN_A_HURRY, "max_wal_size=32MB"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def filled(server: Server) -> Filled:
    """With a hundred canaries of each kind."""
    return _filled(server, "filled", EACH)


@pytest.fixture(scope="module")
def few(server: Server) -> Filled:
    """With ten, for those who do it over and over."""
    return _filled(server, "few", FEW)


def _filled(server: Server, name: str, each: int) -> Filled:
    told = asyncio.run(_fill(server.create(name), each))
    with server.admin(name) as admin:
        admin.execute("analyze")  # as autovacuum does in the wild: words come into the statistics
    return Filled(server, name, told["ada"], told["bob"])


async def _fill(url: str, each: int) -> dict[str, dict[str, list[Canary]]]:
    store = await PostgresStore.open(url, connections=1)
    told = await canaries.fill_stores(store, store, "ada", "bob", each=each, long=True)
    await store.close()
    return told


async def erase(url: str, **whom: str) -> ErasureReceipt:
    async with AgentMemory.open(url, tenant="acme", embedder=HashEmbedder()) as memory:
        return await memory.erase(**(whom or {"user": "ada"}))


async def test_of_a_hundred_canaries_a_tier_none_is_left_while_others_look_on(filled: Filled, table: Table):
    database = filled.copy()
    onlooker = await PostgresStore.open(filled.server.url(database), connections=2)
    theirs, others = (Where(scope_of(user).space("semantic")) for user in ("ada", "bob"))
    assert len(await onlooker.nearest(theirs, np.ones(DIM, np.float32), limit=5)) == 5
    filled.flush()
    assert filled.left(database) == filled.each + 1
    receipt = await erase(filled.server.url(database))
    found = filled.left(database)
    table.held(
        "E1", f"PostgreSQL: {filled.each} canaries of {len(filled.ada)} kinds erased beside an open reader", found
    )
    assert (receipt.status, found, sum(receipt.erased.values())) == ("complete", 0, filled.each)
    assert len(await onlooker.nearest(theirs, np.ones(DIM, np.float32), limit=5)) == 0
    assert len(await onlooker.nearest(others, np.ones(DIM, np.float32), limit=5)) == 5
    assert await onlooker.check() == []
    await onlooker.close()
    assert filled.kept(database) == filled.each
    # Who may not read the server's files says so.
    assert (receipt.scan.files, "may not read" in receipt.scan.unseen[0]) == (0, True)


async def test_who_may_read_the_servers_files_has_looked_at_every_byte(few: Filled, table: Table):
    database = few.copy()
    receipt = await erase(few.server.url(database, "postgres"))
    found = few.left(database)
    table.held("E1", "PostgreSQL: erased by an administrator, who has looked at the server's files", found)
    assert (receipt.status, found) == ("complete", 0)
    assert receipt.scan.bytes > sum(file.stat().st_size for file in (few.server.data / "pg_wal").iterdir())
    assert not any("may not read" in said for said in receipt.scan.unseen)


async def test_a_reader_at_an_earlier_moment_makes_it_pending_until_it_has_its_answer(few: Filled, table: Table):
    database = few.copy()
    url = few.server.url(database)
    with psycopg.connect(url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from recollect.records")
        receipt = await erase(url)
        waiting = await again(url)
        reader.rollback()
    done = await again(url)
    found = few.left(database)
    table.held("E1", "PostgreSQL: erased while a reader stood at an earlier moment: pending, then complete", found)
    assert (receipt.status, waiting["receipts"]) == ("pending_physical", [])
    assert "still sees what was deleted" in receipt.scan.waits[0]
    assert [one["status"] for one in done["receipts"]] == ["complete"]
    assert (done["holds"], done["faults"], found) == ([True], [], 0)


async def _nothing(*_: Any) -> None:
    return None


async def _far(*_: Any) -> str:
    return "F" * 16


_NO_ROWS = "select '' where false"

MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "tables are not written anew": (settling, "_rewritten", _nothing),
    "the server's statistics are left as they are": (statistics, "renewed", _nothing),
    "the server's log is left as it is": (log_files, "passed", _nothing),
    "files of the log that wait to be written over are left": (log_files, "_here", _far),
    "statistics of whole tables are left, over all partitions": (statistics, "_WHOLES", _NO_ROWS),
    "nobody notes which partition was touched": (wiped, "note", _nothing),
}


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_mutants_leave_canaries_behind(few: Filled, table: Table, monkeypatch: pytest.MonkeyPatch, mutant: str):
    database = few.copy()
    monkeypatch.setattr(*MUTANTS[mutant])
    receipt = await erase(few.server.url(database, "postgres"))
    found = few.left(database)
    table.seen("E1", f"PostgreSQL: {mutant}", found)
    assert found > 0
    # And the product's own look at the bytes, where it may look, has seen it too.
    assert receipt.status == "pending_physical"


async def test_of_a_tenant_who_had_a_partition_alone_nothing_is_left(
    few: Filled, table: Table, monkeypatch: pytest.MonkeyPatch
):
    """Of tables that are empty now the server would keep what it has noted."""
    database, again = few.copy(), few.copy()
    assert (await erase(few.server.url(database), tenant="acme")).complete
    found = few.left(database)
    table.held("E1", "PostgreSQL: a tenant erased, whose tables are empty then", found)
    assert (found, few.kept(database)) == (0, 0)
    monkeypatch.setattr(statistics, "_EMPTY", f"{_NO_ROWS} and %s::text[] is not null")
    await erase(few.server.url(again), tenant="acme")
    found = few.left(again)
    table.seen("E1", "PostgreSQL: tables that are empty are passed over", found)
    assert found > 0


async def _kill(several: asyncio.Semaphore, url: str, rules: str) -> None:
    async with several:
        program, *arguments = command("eraser", "erase", url)
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=ROOT, env={**environment(), VARIABLE: rules}, stdout=subprocess.DEVNULL
        )
        assert await process.wait() == -9, rules


async def test_killed_in_any_phase_the_next_process_ends_what_was_begun(few: Filled, tmp_path: Path, table: Table):
    visited, faults = tmp_path / "visited", []
    places = {point: few.copy() for point in ERASURE_POINTS}
    urls = {
        point: f"{few.server.url(name)}?receipts={tmp_path / name}.erasures.jsonl" for point, name in places.items()
    }
    two = asyncio.Semaphore(2)
    async with asyncio.TaskGroup() as group:
        for point, url in urls.items():
            group.create_task(_kill(two, url, f"visited={visited};{point}=kill9@1"))
    for point, url in urls.items():
        done = await again(url)
        faults += [f"{point}: {fault}" for fault in _faults(done, Path(url.partition("receipts=")[2]), few)]
    if left := few.left(*places.values()):
        faults.append(f"{left} canaries are left")
    for point, name in places.items():
        if (kept := few.kept(name)) != few.each:
            faults.append(f"{point}: {kept} canaries of the other are there")
    seen = set(visited.read_text().split())
    table.held("E2", f"PostgreSQL: killed at each of {len(seen)} points of an erasure, then gone on with", len(faults))
    assert faults == []
    assert seen == set(ERASURE_POINTS)


def _faults(done: dict[str, Any], receipts: Path, few: Filled) -> Iterator[str]:
    yield from done["faults"]
    if [one["status"] for one in done["receipts"]] != ["complete"] or done["holds"] != [True]:
        yield f"the receipts are {done['receipts']}, and hold: {done['holds']}"
    elif sum(done["receipts"][0]["erased"].values()) != few.each:
        yield f"the receipt counts {done['receipts'][0]['erased']}"
    known = beside.read(receipts)
    if known is None or len(known.entered) != 1 or len(known.receipts) != 1:
        yield "the file of receipts does not tell of the one erasure"


class TestRestoring:
    """E3: a dump is put back where the database was, by the server's own tools."""

    @pytest.fixture
    async def restored(self, few: Filled, tmp_path: Path) -> tuple[str, Path]:
        """A database as it was before the erasure, and the file of receipts that knows of it."""
        database, receipts = few.copy(), tmp_path / "erasures.jsonl"
        dump = Path(few.server.data.parent) / f"{database}.dump"
        few.server.dump(database, dump)
        assert (await erase(f"{few.server.url(database)}?receipts={receipts}")).complete
        few.server.drop(database)
        few.server.create(database, extension=False)
        few.server.restore(dump, database)
        dump.unlink()
        return database, receipts

    async def test_a_restored_dump_forgets_before_it_serves(
        self, few: Filled, restored: tuple[str, Path], table: Table
    ):
        database, receipts = restored
        url = f"{few.server.url(database)}?receipts={receipts}"
        found = await self._recalled(url, few)
        table.held("E3", f"PostgreSQL: {3 * ASKED} recalls from a dump restored beside the receipts", found)
        assert (found, few.left(database)) == (0, 0)
        assert few.kept(database) == few.each
        assert [one["status"] for one in (await again(url))["receipts"]] == ["complete"]

    async def test_without_the_receipts_it_remembers(self, few: Filled, restored: tuple[str, Path], table: Table):
        found = await self._recalled(few.server.url(restored[0]), few)
        table.seen("E3", "PostgreSQL: nothing is replayed", found)
        assert found > 0

    async def _recalled(self, url: str, few: Filled) -> int:
        found = 0
        async with AgentMemory.open(
            url, tenant="acme", user="ada", agent="helper", session="session-of-ada", embedder=HashEmbedder()
        ) as memory:
            for tier in ("semantic items", "conversation entries", "episodic entries"):
                for canary in few.ada[tier][:ASKED]:
                    answers = (
                        await memory.recall(canary.text),
                        await memory.conversation.search(canary.word),
                        await memory.episodic.search(canary.word),
                    )
                    found += any(canary.word in str(answer) for answer in answers)
        return found
