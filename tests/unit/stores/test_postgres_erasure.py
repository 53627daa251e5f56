"""Erasure on PostgreSQL: locks, missing privileges, and writes during a wipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from recollect.errors import BadSettings, FencedOut, StoreUnavailable
from recollect.stores.erasure import ErasureSelection
from recollect.stores.postgres import PostgresStore, erasure
from recollect.stores.postgres import erasure as notes
from recollect.stores.postgres.connections import split_url
from recollect.stores.postgres.transactions import build_task_locks
from recollect.stores.writes import DropTask
from recollect.testing.factories import LOG, SPACE, TASKS, make_put, make_save
from recollect.testing.whole_store import fill_store, make_erasure
from tests.servers.postgres import EMPTY, OWNER, Server

_WAITING = "select 1 from pg_locks where locktype = 'advisory' and not granted"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server of its own: the tests revoke privileges."""
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="module")
def database(server: Server) -> str:
    server.create("erasing")
    return "erasing"


@pytest.fixture
async def wiped(server: Server, database: str) -> AsyncIterator[PostgresStore]:
    """Open a store with a wiped space that is not purged yet."""
    store = await PostgresStore.open(server.url(database), connections=2)
    async with await psycopg.AsyncConnection.connect(server.url(database)) as connection:
        await connection.execute(EMPTY)
    await fill_store(store)
    await store.add_erasure(make_erasure())
    await store.wipe("e1", ErasureSelection((SPACE, LOG)))
    yield store
    await store.close()


async def get_wait_reason(store: PostgresStore) -> str:
    """Try to purge, and return the reason why the erasure is pending."""
    assert not await store.purge_copies()
    [row] = await store.ledger()
    scan = await store.scan(row.evidence, row.key)
    assert not scan.is_clean
    [reason] = scan.waits
    return reason


async def test_purge_does_not_wait_for_a_table_lock(
    server: Server, database: str, wiped: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(erasure, "SET_LOCK_TIMEOUT", "set local lock_timeout = '100ms'")
    with psycopg.connect(server.url(database, "postgres")) as other:
        other.execute("select count(*) from recollect.spaces")
        assert "lock timeout" in await get_wait_reason(wiped)
    assert await wiped.purge_copies()


async def get_uncleared(store: PostgresStore) -> str:
    """Clear statistics and log, and return what the scan says about them; empty if both are clear."""
    await store.purge_copies(thorough=True)
    [row] = await store.ledger()
    return next((place for place in (await store.scan(row.evidence, row.key)).unseen if "write-ahead log" in place), "")


async def test_scan_after_purge_names_statistics_and_log(wiped: PostgresStore):
    assert await wiped.purge_copies()
    [row] = await wiped.ledger()
    scan = await wiped.scan(row.evidence, row.key)
    assert (scan.is_clean, "thorough=True" in str(scan.unseen)) == (True, True)
    assert await get_uncleared(wiped) == ""


@pytest.mark.parametrize(
    ("taken", "given", "lacking"),
    [
        ("revoke pg_monitor from {}", "grant pg_monitor to {}", "pg_ls_waldir"),
        ("revoke pg_checkpoint from {}", "grant pg_checkpoint to {}", "CHECKPOINT"),
        (
            "revoke execute on function pg_switch_wal() from {}",
            "grant execute on function pg_switch_wal() to {}",
            "pg_switch_wal",
        ),
    ],
)
async def test_clear_without_a_privilege_names_the_grant(
    server: Server, database: str, wiped: PostgresStore, taken: str, given: str, lacking: str
):
    with server.admin(database) as admin:
        admin.execute(taken.format(OWNER).encode())
        reason = await get_uncleared(wiped)
        admin.execute(given.format(OWNER).encode())
    assert (lacking in reason, "grant pg_checkpoint, pg_monitor to USER" in reason) == (True, True)
    assert await get_uncleared(wiped) == ""


async def test_clear_names_wal_files_that_a_replica_needs(server: Server, database: str, wiped: PostgresStore):
    with server.admin(database) as admin:
        admin.execute("select pg_create_physical_replication_slot('replica', true)")
        try:
            assert "older WAL files are kept" in await get_uncleared(wiped)
            [row] = await wiped.ledger()
            assert any("replicas" in reason for reason in (await wiped.scan(row.evidence, row.key)).unseen)
        finally:
            admin.execute("select pg_drop_replication_slot('replica')")
    assert await get_uncleared(wiped) == ""


async def test_clear_by_a_user_who_does_not_own_the_database_names_the_cause(
    server: Server, database: str, wiped: PostgresStore
):
    with server.admin(database) as admin:
        admin.execute(f"alter database {database} owner to postgres".encode())
        assert "only the owner of the database" in await get_uncleared(wiped)
        admin.execute(f"alter database {database} owner to {OWNER}".encode())


async def test_purge_on_another_server_rewrites_the_tables_again(server: Server, database: str, wiped: PostgresStore):
    with server.admin(database) as admin:
        admin.execute("update recollect.wiped set server = 7, xid = '4000000000'")
        before = admin.execute("select relfilenode from pg_class where relname ~ '^spaces_[0-9]+$'").fetchall()
        assert await wiped.purge_copies()
        after = admin.execute("select relfilenode from pg_class where relname ~ '^spaces_[0-9]+$'").fetchall()
    assert len(set(before) - set(after)) == 1


async def test_purge_of_a_wiped_store_leaves_no_spaces_or_tenants(wiped: PostgresStore):
    await wiped.wipe("e1", ErasureSelection(tuple(await wiped.list_traced_spaces())))
    assert await wiped.purge_copies()
    assert (await wiped.list_traced_spaces(), await wiped.tenants(), await wiped.check()) == ([], [], [])


async def test_purge_drops_the_vector_index_of_a_deleted_space(server: Server, database: str, wiped: PostgresStore):
    with server.admin(database) as admin:
        part = admin.execute("select part from recollect.wiped").fetchall()[0][0]
        admin.execute(f"create index near_1_a_4 on recollect.vectors_{part} (space) where space = 1".encode())
        assert await wiped.purge_copies()
        assert admin.execute("select to_regclass('recollect.near_1_a_4')").fetchone() == (None,)


@pytest.mark.parametrize("task", ["a", "brand new"])
async def test_task_write_waits_for_a_concurrent_wipe(wiped: PostgresStore, task: str):
    """A task write that has read the id of the space would otherwise write orphaned rows."""
    await wiped.write(make_save("[1]", task="a"))
    async with wiped._server.begin_write(TASKS.tenant, build_task_locks(TASKS, task)) as writer:
        erasing = asyncio.create_task(wiped.wipe("e1", ErasureSelection((TASKS,))))
        while not erasing.done() and not await writer.fetch_rows(_WAITING, {}):
            pass
        assert not erasing.done()
    await erasing
    assert TASKS not in await wiped.list_traced_spaces()


async def test_wipe_fences_out_a_worker_that_holds_the_task(wiped: PostgresStore):
    lease = await wiped.claim(TASKS, "a", "worker", timedelta(minutes=5))
    await wiped.wipe("e1", ErasureSelection((), (DropTask(TASKS, "a"),)))
    with pytest.raises(FencedOut):
        await wiped.renew(lease, timedelta(minutes=5))


async def test_failed_wipe_is_rolled_back(
    server: Server, database: str, wiped: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    await wiped.write(make_put("a9", [1, 0, 0, 0], "rare"))

    async def failing(*_: object) -> None:
        raise psycopg.OperationalError("the line is cut")

    monkeypatch.setattr(notes, "note_partitions", failing)
    with pytest.raises(StoreUnavailable):
        await wiped.wipe("e1", ErasureSelection((SPACE,)))
    assert [item.id for item in await wiped.get(SPACE, "a9")] == ["a9"]


class TestSplitUrl:
    def test_url_with_receipts_returns_the_path(self, tmp_path: Path):
        path = tmp_path / "a b.jsonl"
        url = f"postgresql://host/db?sslmode=require&receipts={str(path).replace(' ', '%20')}&connect_timeout=3"
        assert split_url(url) == ("postgresql://host/db?sslmode=require&connect_timeout=3", path)
        assert split_url(f"postgresql://host/db?receipts={tmp_path}/r") == ("postgresql://host/db", tmp_path / "r")

    def test_url_without_receipts_is_unchanged(self):
        assert split_url("postgresql://host/db?sslmode=require") == ("postgresql://host/db?sslmode=require", None)

    def test_empty_receipts_path_is_refused(self):
        with pytest.raises(BadSettings, match="names no file"):
            split_url("postgresql://host/db?receipts=")
