"""Erasing on PostgreSQL: who is in the way and who lacks a right is told, nobody writes into what is being wiped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from recollect.errors import BadSettings, FencedOut, StoreUnavailable
from recollect.stores.erasing import Doomed
from recollect.stores.ops import DropTask
from recollect.stores.postgres import PostgresStore, settling
from recollect.stores.postgres import wiped as notes
from recollect.stores.postgres.address import parted
from recollect.stores.postgres.locks import task_lock
from recollect.testing.erasing import erasure, filled
from recollect.testing.samples import LOG, SPACE, TASKS, put, save
from tests.servers.postgres import EMPTY, OWNER, Server

_WAITING = "select 1 from pg_locks where locktype = 'advisory' and not granted"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Rights of users are taken away here."""
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="module")
def database(server: Server) -> str:
    server.create("erasing")
    return "erasing"


@pytest.fixture
async def wiped(server: Server, database: str) -> AsyncIterator[PostgresStore]:
    """A store from which a space has been deleted, and nothing else done yet."""
    store = await PostgresStore.open(server.url(database), connections=2)
    async with await psycopg.AsyncConnection.connect(server.url(database)) as connection:
        await connection.execute(EMPTY)
    await filled(store)
    await store.enter(erasure())
    await store.wipe("e1", Doomed((SPACE, LOG)))
    yield store
    await store.close()


async def waits(store: PostgresStore) -> str:
    """What an attempt to settle is waiting for."""
    assert not await store.settle()
    [row] = await store.ledger()
    scan = await store.scan(row.evidence)
    assert not scan.clean
    [said] = scan.waits
    return said


async def test_somebody_who_holds_a_table_is_not_waited_for(
    server: Server, database: str, wiped: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settling, "LOCK_WAIT", "set local lock_timeout = '100ms'")
    with psycopg.connect(server.url(database, "postgres")) as other:
        other.execute("select count(*) from recollect.spaces")
        assert "lock timeout" in await waits(wiped)
    assert await wiped.settle()


@pytest.mark.parametrize(
    ("taken", "given", "lacking"),
    [
        ("revoke pg_monitor from {}", "grant pg_monitor to {}", "look at the list"),
        ("revoke pg_checkpoint from {}", "grant pg_checkpoint to {}", "make a checkpoint"),
        (
            "revoke execute on function pg_switch_wal() from {}",
            "grant execute on function pg_switch_wal() to {}",
            "go on to its next file",
        ),
    ],
)
async def test_without_a_right_it_is_pending_and_says_which_to_grant(
    server: Server, database: str, wiped: PostgresStore, taken: str, given: str, lacking: str
):
    with server.admin(database) as admin:
        admin.execute(taken.format(OWNER).encode())
        said = await waits(wiped)
        assert (lacking in said, "grant pg_checkpoint, pg_monitor to recollect" in said) == (True, True)
        again = await waits(wiped)
        admin.execute(given.format(OWNER).encode())
    assert again == said
    assert await wiped.settle()


async def test_what_another_has_to_do_is_seen_once_it_is_done(server: Server, database: str, wiped: PostgresStore):
    """Without the right to a checkpoint or another file, the server's own doing is enough."""
    with server.admin(database) as admin:
        admin.execute(f"revoke execute on function pg_switch_wal() from {OWNER}".encode())
        await waits(wiped)
        for _ in range(60):
            admin.execute("select pg_current_xact_id(); select pg_switch_wal(); checkpoint")
            if await wiped.settle():
                break
        admin.execute(f"grant execute on function pg_switch_wal() to {OWNER}".encode())
        assert admin.execute("select count(*) from recollect.wiped").fetchone() == (0,)


async def test_files_of_the_log_that_a_replica_needs_are_waited_for(
    server: Server, database: str, wiped: PostgresStore
):
    with server.admin(database) as admin:
        admin.execute("select pg_create_physical_replication_slot('replica', true)")
        try:
            assert "older files of the server's log are kept" in await waits(wiped)
            [row] = await wiped.ledger()
            assert any("replicas" in said for said in (await wiped.scan(row.evidence)).unseen)
        finally:
            admin.execute("select pg_drop_replication_slot('replica')")
    assert await wiped.settle()


async def test_whoever_does_not_own_the_database_is_told_what_its_owner_has_to_do(
    server: Server, database: str, wiped: PostgresStore
):
    with server.admin(database) as admin:
        admin.execute(f"alter database {database} owner to postgres".encode())
        assert "vacuum full pg_catalog.pg_statistic" in await waits(wiped)
        admin.execute("vacuum full pg_catalog.pg_statistic")
        assert await wiped.settle()
        admin.execute(f"alter database {database} owner to {OWNER}".encode())


async def test_on_another_server_everything_is_done_once_more(server: Server, database: str, wiped: PostgresStore):
    with server.admin(database) as admin:
        admin.execute("update recollect.wiped set server = 7, xid = '4000000000', ended = 'FF/FF'")
        before = admin.execute("select relfilenode from pg_class where relname ~ '^spaces_[0-9]+$'").fetchall()
        assert await wiped.settle()
        after = admin.execute("select relfilenode from pg_class where relname ~ '^spaces_[0-9]+$'").fetchall()
    assert len(set(before) - set(after)) == 1


async def test_a_row_of_nobodys_is_not_left_in_a_table_that_is_empty(wiped: PostgresStore):
    await wiped.wipe("e1", Doomed(tuple(await wiped.holdings())))
    assert await wiped.settle()
    assert (await wiped.holdings(), await wiped.tenants(), await wiped.check()) == ([], [], [])


async def test_an_index_by_meaning_of_a_space_that_is_gone_goes_too(
    server: Server, database: str, wiped: PostgresStore
):
    with server.admin(database) as admin:
        part = admin.execute("select part from recollect.wiped").fetchall()[0][0]
        admin.execute(f"create index near_1_a_4 on recollect.vectors_{part} (space) where space = 1".encode())
        assert await wiped.settle()
        assert admin.execute("select to_regclass('recollect.near_1_a_4')").fetchone() == (None,)


@pytest.mark.parametrize("task", ["a", "brand new"])
async def test_nobody_writes_a_task_into_a_space_that_is_being_wiped(wiped: PostgresStore, task: str):
    """Whoever has read the space's number and not written yet would write rows that nobody finds again."""
    await wiped.write(save("[1]", task="a"))
    async with wiped._server.writing(TASKS.tenant, task_lock(TASKS, task)) as writer:
        erasing = asyncio.create_task(wiped.wipe("e1", Doomed((TASKS,))))
        while not erasing.done() and not await writer.rows(_WAITING, {}):
            pass
        assert not erasing.done()
    await erasing
    assert TASKS not in await wiped.holdings()


async def test_a_task_in_somebodys_hands_is_taken_from_them(wiped: PostgresStore):
    lease = await wiped.claim(TASKS, "a", "worker", timedelta(minutes=5))
    await wiped.wipe("e1", Doomed((), (DropTask(TASKS, "a"),)))
    with pytest.raises(FencedOut):
        await wiped.renew(lease, timedelta(minutes=5))


async def test_a_deletion_that_fails_in_the_middle_leaves_everything(
    server: Server, database: str, wiped: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    await wiped.write(put("a9", [1, 0, 0, 0], "rare"))

    async def failing(*_: object) -> None:
        raise psycopg.OperationalError("the line is cut")

    monkeypatch.setattr(notes, "note", failing)
    with pytest.raises(StoreUnavailable):
        await wiped.wipe("e1", Doomed((SPACE,)))
    assert [item.id for item in await wiped.get(SPACE, "a9")] == ["a9"]


class TestTheAddress:
    def test_receipts_are_named_in_it(self, tmp_path: Path):
        path = tmp_path / "a b.jsonl"
        url = f"postgresql://host/db?sslmode=require&receipts={str(path).replace(' ', '%20')}&connect_timeout=3"
        assert parted(url) == ("postgresql://host/db?sslmode=require&connect_timeout=3", path)
        assert parted(f"postgresql://host/db?receipts={tmp_path}/r") == ("postgresql://host/db", tmp_path / "r")

    def test_without_them_it_is_as_it_was(self):
        assert parted("postgresql://host/db?sslmode=require") == ("postgresql://host/db?sslmode=require", None)

    def test_no_name_is_refused(self):
        with pytest.raises(BadSettings, match="names no file"):
            parted("postgresql://host/db?receipts=")
