"""E1 to E3 on PostgreSQL: no erased byte is left in the tables, or anywhere on the server after a thorough erasure."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from recollect import AgentMemory
from recollect.durable.failpoints import ERASURE_POINTS, FAILPOINTS_VARIABLE
from recollect.erasure import ledger
from recollect.stores.erasure import ErasureReceipt
from recollect.stores.filters import Where
from recollect.stores.postgres import PostgresStore, erasure
from recollect.testing.factories import find_nearest
from tests.crash import canaries
from tests.crash.canaries import DIM, EACH, Canary, CanaryScanner, make_scope
from tests.crash.erase_worker import resume_erasure
from tests.crash.process_launcher import ROOT, command, environment
from tests.crash.result_table import Table
from tests.embedders import HashEmbedder
from tests.servers.postgres import IN_A_HURRY, Server

ASKED = FEW = 10
# Everything in the database except the planner statistics.
_LIST_TABLE_FILES = """
    select pg_relation_filepath(c.oid)
    from pg_class c
    where pg_relation_filepath(c.oid) like 'base/%' and pg_relation_size(c.oid) > 0
        and 'pg_catalog.pg_statistic'::regclass not in (c.oid, coalesce((
            select t.oid from pg_class t where t.reltoastrelid = c.oid
        ), 0))
"""
NAME = b"session-of-ada"
_numbers = count()


@dataclass(frozen=True)
class Filled:
    """A database of canaries that each test copies; the scans skip the original."""

    server: Server
    name: str
    ada: dict[str, list[Canary]]
    bob: dict[str, list[Canary]]

    @property
    def each(self) -> int:
        """Return the number of canaries of each user."""
        return sum(map(len, self.ada.values()))

    def copy(self) -> str:
        name = f"copy{next(_numbers)}"
        self.server.copy(self.name, name)
        return name

    def left(self, *databases: str) -> int:
        """Return how many of ada's canaries (and her name) are in the server's files, without other databases."""
        return self._count_left(lambda: self._files(*databases))

    def left_in_tables(self, *databases: str) -> int:
        """Return how many of ada's canaries (and her name) are in the files of the tables and indexes."""
        return self._count_left(lambda: [file for name in databases for file in self._table_files(name)])

    def _count_left(self, list_files: Callable[[], list[Path]]) -> int:
        while True:
            try:
                files = list_files()
                words = {word for some in CanaryScanner(self.ada).scan(files).values() for word in some}
                return len(words) + any(NAME in file.read_bytes() for file in files)
            except FileNotFoundError:  # the server renamed a file: read all again
                continue

    def kept(self, database: str) -> int:
        """Return how many of bob's canaries are in the files of a database."""
        self.flush()
        oid = self._oid(database)
        files = (self.server.data / "base" / oid).iterdir()
        return len({word for some in CanaryScanner(self.bob).scan(files).values() for word in some})

    def flush(self) -> None:
        """Write the server's memory to its files. Not after an erasure: a checkpoint may clean up after a mutant."""
        with self.server.admin() as admin:
            admin.execute("checkpoint")

    def _files(self, *databases: str) -> list[Path]:
        """Return all files of the server except those of other tests' databases."""
        every = [file for file in self.server.data.rglob("*") if file.is_file()]
        with self.server.admin() as admin:
            rows = admin.execute("select oid::text from pg_database where datname ~ '^(filled|few|copy)'").fetchall()
        others = {oid for (oid,) in rows} - {self._oid(name) for name in databases}
        return [file for file in every if file.parent.parent.name != "base" or file.parent.name not in others]

    def _table_files(self, database: str) -> list[Path]:
        with self.server.admin(database) as admin:
            rows = admin.execute(_LIST_TABLE_FILES).fetchall()
        return [self.server.data / path for (path,) in rows]

    def _oid(self, database: str) -> str:
        with self.server.admin() as admin:
            [oid] = admin.execute("select oid::text from pg_database where datname = %s", (database,)).fetchone() or ()
        return str(oid)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server for this module, whose files are all scanned."""
    # Copies of databases fill the log; a small limit keeps few recycled files.
    started = Server((*IN_A_HURRY, "max_wal_size=32MB"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def filled(server: Server) -> Filled:
    """Create a database with a hundred canaries of each kind."""
    return _filled(server, "filled", EACH)


@pytest.fixture(scope="module")
def few(server: Server) -> Filled:
    """Create a database with ten canaries of each kind, for tests that copy it often."""
    return _filled(server, "few", FEW)


def _filled(server: Server, name: str, each: int) -> Filled:
    canaries_by_user = asyncio.run(_fill(server.create(name), each))
    with server.admin(name) as admin:
        admin.execute("analyze")  # like autovacuum, which copies values into the statistics
    return Filled(server, name, canaries_by_user["ada"], canaries_by_user["bob"])


async def _fill(url: str, each: int) -> dict[str, dict[str, list[Canary]]]:
    store = await PostgresStore.open(url, connections=1)
    canaries_by_user = await canaries.fill_stores(store, store, "ada", "bob", each=each, long=True)
    await store.close()
    return canaries_by_user


async def erase(url: str, *, thorough: bool = False, **subject: str) -> ErasureReceipt:
    async with AgentMemory.open(url, tenant="acme", embedder=HashEmbedder()) as memory:
        return await memory.erase(**(subject or {"user": "ada"}), thorough=thorough)


@pytest.mark.promise("E1")
async def test_erase_leaves_no_canary_beside_open_reader(filled: Filled, table: Table):
    database = filled.copy()
    reader = await PostgresStore.open(filled.server.url(database), connections=2)
    theirs, others = (Where(make_scope(user).space("semantic")) for user in ("ada", "bob"))
    assert len(await find_nearest(reader, theirs, np.ones(DIM, np.float32), limit=5)) == 5
    filled.flush()
    assert filled.left(database) == filled.each + 1
    receipt = await erase(filled.server.url(database))
    assert filled.left_in_tables(database) == 0
    assert any("write-ahead log" in place for place in receipt.scan.unseen)
    thorough = await erase(filled.server.url(database), thorough=True)
    found = filled.left(database)
    assert not any("write-ahead log" in place for place in thorough.scan.unseen)
    table.add_result(
        "E1", f"PostgreSQL: {filled.each} canaries of {len(filled.ada)} kinds erased beside an open reader", found
    )
    assert (receipt.status, found, sum(receipt.erased.values())) == ("complete", 0, filled.each)
    assert len(await find_nearest(reader, theirs, np.ones(DIM, np.float32), limit=5)) == 0
    assert len(await find_nearest(reader, others, np.ones(DIM, np.float32), limit=5)) == 5
    assert await reader.check() == []
    await reader.close()
    assert filled.kept(database) == filled.each
    # The receipt says that the role may not read the server's files.
    assert (receipt.scan.files, "may not read" in receipt.scan.unseen[0]) == (0, True)


@pytest.mark.promise("E1")
async def test_erase_by_administrator_scans_every_server_file(few: Filled, table: Table):
    database = few.copy()
    receipt = await erase(few.server.url(database, "postgres"), thorough=True)
    found = few.left(database)
    table.add_result("E1", "PostgreSQL: erased by an administrator, who may scan the server's files", found)
    assert (receipt.status, found) == ("complete", 0)
    assert receipt.scan.bytes > sum(file.stat().st_size for file in (few.server.data / "pg_wal").iterdir())
    assert not any("may not read" in text for text in receipt.scan.unseen)


@pytest.mark.promise("E1")
async def test_erase_is_pending_until_open_snapshot_ends(few: Filled, table: Table):
    database = few.copy()
    url = few.server.url(database)
    with psycopg.connect(url) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from recollect.records")
        receipt = await erase(url)
        waiting = await resume_erasure(url)
        reader.rollback()
    done = await resume_erasure(url)
    found = few.left_in_tables(database)
    table.add_result("E1", "PostgreSQL: erased while a reader held an older snapshot: pending, then complete", found)
    assert (receipt.status, waiting["receipts"]) == ("pending_physical", [])
    assert "can still see the deleted rows" in receipt.scan.waits[0]
    assert [receipt_data["status"] for receipt_data in done["receipts"]] == ["complete"]
    assert (done["holds"], done["faults"], found) == ([True], [], 0)


async def _nothing(*_: Any) -> None:
    return None


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "tables are not rewritten": (erasure, "_rewrite_tables", _nothing),
    "touched partitions are not recorded": (erasure, "note_partitions", _nothing),
    "the server's statistics are left as they are": (erasure, "renew_statistics", _nothing),
    "the server's log is left as it is": (erasure, "overwrite_wal", _nothing),
    "recycled files of the server's log are left": (erasure, "_MAX_WAL_SWITCHES", 0),
    "statistics of the tables are left": (erasure, "_LIST_ANALYZED_TABLES", "select '' where false"),
}


@pytest.mark.mutant("E1")
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_erase_mutant_leaves_canaries(few: Filled, table: Table, monkeypatch: pytest.MonkeyPatch, mutant: str):
    database = few.copy()
    monkeypatch.setattr(*MUTANTS[mutant])
    receipt = await erase(few.server.url(database, "postgres"), thorough=True)
    found = few.left(database)
    table.add_mutant("E1", f"PostgreSQL: {mutant}", found)
    assert found > 0
    # The scan of the erasure, where it may read the files, has found it too, or the receipt names the place.
    assert receipt.status == "pending_physical" or "not overwritten" in str(receipt.scan.unseen)


@pytest.mark.mutant("E1")
@pytest.mark.promise("E1")
async def test_erase_of_tenant_with_own_partition_leaves_nothing(
    few: Filled, table: Table, monkeypatch: pytest.MonkeyPatch
):
    # The server keeps the statistics of tables that are empty now.
    database, mutated = few.copy(), few.copy()
    assert (await erase(few.server.url(database), tenant="acme", thorough=True)).complete
    found = few.left(database)
    table.add_result("E1", "PostgreSQL: a tenant erased, its tables are empty afterwards", found)
    assert (found, few.kept(database)) == (0, 0)
    monkeypatch.setattr(erasure, "_FIND_PLACEHOLDER_TENANTS", "select array[]::text[]")
    await erase(few.server.url(mutated), tenant="acme", thorough=True)
    found = few.left(mutated)
    table.add_mutant("E1", "PostgreSQL: empty tables are skipped", found)
    assert found > 0


async def _kill(several: asyncio.Semaphore, url: str, rules: str) -> None:
    async with several:
        program, *arguments = command("erase_worker", "erase", url)
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=ROOT, env={**environment(), FAILPOINTS_VARIABLE: rules}, stdout=subprocess.DEVNULL
        )
        assert await process.wait() == -9, rules


@pytest.mark.promise("E2")
async def test_erase_killed_in_any_phase_is_finished_by_next_process(few: Filled, tmp_path: Path, table: Table):
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
        done = await resume_erasure(url)
        faults += [f"{point}: {fault}" for fault in _find_faults(done, Path(url.partition("receipts=")[2]), few)]
    if left := few.left_in_tables(*places.values()):
        faults.append(f"{left} canaries are left")
    for point, name in places.items():
        if (kept := few.kept(name)) != few.each:
            faults.append(f"{point}: {kept} canaries of the other user are there")
    seen = set(visited.read_text().split())
    table.add_result("E2", f"PostgreSQL: killed at each of {len(seen)} points of an erasure, then resumed", len(faults))
    assert faults == []
    assert seen == set(ERASURE_POINTS)


def _find_faults(done: dict[str, Any], receipts: Path, few: Filled) -> Iterator[str]:
    yield from done["faults"]
    if [receipt_data["status"] for receipt_data in done["receipts"]] != ["complete"] or done["holds"] != [True]:
        yield f"the receipts are {done['receipts']}, and hold: {done['holds']}"
    elif sum(done["receipts"][0]["erased"].values()) != few.each:
        yield f"the receipt counts {done['receipts'][0]['erased']}"
    known = ledger.read_receipt_file(receipts)
    if known is None or len(known.erasures) != 1 or len(known.receipts) != 1:
        yield "the receipt file does not list the one erasure"


class TestRestoring:
    """E3: a dump restored with pg_restore."""

    @pytest.fixture
    async def restored(self, few: Filled, tmp_path: Path) -> tuple[str, Path]:
        """Restore the dump of a database from before its erasure; return the database and the receipt file."""
        database, receipts = few.copy(), tmp_path / "erasures.jsonl"
        dump = Path(few.server.data.parent) / f"{database}.dump"
        few.server.dump(database, dump)
        assert (await erase(f"{few.server.url(database)}?receipts={receipts}")).complete
        few.server.drop(database)
        few.server.create(database, extension=False)
        few.server.restore(dump, database)
        dump.unlink()
        return database, receipts

    @pytest.mark.promise("E3")
    async def test_restored_dump_replays_erasure_before_reads(
        self, few: Filled, restored: tuple[str, Path], table: Table
    ):
        database, receipts = restored
        url = f"{few.server.url(database)}?receipts={receipts}"
        found = await self._count_recalled(url, few)
        table.add_result("E3", f"PostgreSQL: {3 * ASKED} recalls from a dump restored beside the receipts", found)
        assert (found, few.left_in_tables(database)) == (0, 0)
        assert few.kept(database) == few.each
        assert [receipt_data["status"] for receipt_data in (await resume_erasure(url))["receipts"]] == ["complete"]

    @pytest.mark.mutant("E3")
    async def test_restored_dump_without_receipts_returns_erased_data(
        self, few: Filled, restored: tuple[str, Path], table: Table
    ):
        found = await self._count_recalled(few.server.url(restored[0]), few)
        table.add_mutant("E3", "PostgreSQL: nothing is replayed", found)
        assert found > 0

    async def _count_recalled(self, url: str, few: Filled) -> int:
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
