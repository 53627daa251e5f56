"""Pipelines to a PostgreSQL server: round trips per call, failed statements, and timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import psycopg
import pytest

from recollect.errors import StoreUnavailable
from recollect.stores.base import TailLimits
from recollect.stores.postgres import PostgresStore, connections, transactions
from recollect.stores.postgres.connections import PostgresConnection, Rows, SqlStatement
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Append, Entry
from recollect.testing.factories import ADA, EVERYTHING, LOG, SPACE, START, make_put, make_save
from tests.servers.postgres import Server

ONE, BROKEN = SqlStatement("select %(n)s::int", {"n": 1}), SqlStatement("select 1 / %(n)s::int", {"n": 0})


@pytest.fixture(scope="session")
def pipelines_url(postgres: Server) -> str:
    return postgres.create("pipelines")


@pytest.fixture
async def connection(pipelines_url: str) -> AsyncIterator[PostgresConnection]:
    async with await PostgresConnection.connect(pipelines_url, autocommit=True, prepare_threshold=None) as made:
        await connections._configure_connection(made)
        yield made


@pytest.fixture
async def taken(pipelines_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresStore, list[int]]]:
    """Open a store, use it, and record the number of statements of each later round trip."""
    store = await PostgresStore.open(pipelines_url)
    for number in range(2):
        entry = Entry(id=f"e{number}", kind="user", content="x", at=START)
        await store.write(make_put("a", [1, 0, 0, 0], "apple"), Append(space=LOG, entry=entry), make_save("[1]"))
    statement_counts: list[int] = []

    run_pipeline = PostgresConnection.run_pipeline

    async def counted(connection: PostgresConnection, statements: Sequence[SqlStatement]) -> list[Rows]:
        statement_counts.append(len(statements))
        return await run_pipeline(connection, statements)

    monkeypatch.setattr(PostgresConnection, "run_pipeline", counted)
    yield store, statement_counts
    await store.close()


async def test_read_and_search_take_one_round_trip(taken: tuple[PostgresStore, list[int]]):
    # Mutant: `read` opens a transaction first, or a search reads the space first.
    store, statement_counts = taken
    assert len(await store.get(SPACE, "a")) == 1
    await store.entries(LOG, "e0")
    assert [await store.get(SPACE), await store.entries(LOG)] == [[], []]  # no round trip for nothing
    await store.read_tails(LOG, TailLimits(own_entries=5, other_logs=5, entries_per_log=5))
    assert statement_counts == [2, 2, 2]
    statement_counts.clear()
    assert [item.id for item in await store.find(EVERYTHING)] == ["a"]
    await asyncio.gather(store.last_turns(SPACE, "s"), store.paths(SPACE))
    assert statement_counts == [2, 2, 2]
    statement_counts.clear()
    found = await store.gather(
        EvidenceQuery(EVERYTHING, None, ("apple",), 10, 1), lambda _, lookup: lookup.items(["a"])["a"]
    )
    assert (found.id, statement_counts) == ("a", [2])


async def test_search_of_a_space_that_was_empty_finds_new_items(taken: tuple[PostgresStore, list[int]]):
    # Mutant: a space that was empty once is taken to be empty forever, or is never remembered as empty.
    store, statement_counts = taken
    scope = replace(ADA, user="new")
    question = EvidenceQuery(replace(EVERYTHING, space=scope.space("semantic")), None, ("apple",), 10, 1)
    evidence = [await store.gather(question, lambda found, _: found) for _ in range(2)]
    assert [(len(found), found.weights.tolist(), found.speakers) for found in evidence] == [(0, [0.0], frozenset())] * 2
    assert statement_counts == [2, 2]
    await store.write(make_put("a", [1, 0, 0, 0], "apple", scope=scope))
    statement_counts.clear()
    found = [await store.gather(question, lambda found, _: [brief.id for brief in found.briefs]) for _ in range(2)]
    assert (found, statement_counts) == ([["a"], ["a"]], [2, 2, 2])


async def test_batch_takes_two_round_trips(taken: tuple[PostgresStore, list[int]]):
    store, statement_counts = taken
    entry = Entry(id="e9", kind="user", content="x", at=START)
    await store.write(make_put("b", [1, 0, 0, 0], "pear"), Append(space=LOG, entry=entry), make_save("[2]"))
    assert len(statement_counts) == 2


async def test_failed_statement_aborts_the_pipeline_and_frees_the_connection(
    connection: PostgresConnection,
):
    # Mutant: the results of the aborted statements stay unread on the connection.
    await connection.run_pipeline([SqlStatement("create temporary table done (n int)", {})])
    insert = SqlStatement("insert into done values (%(n)s)", {"n": 1})
    connection.prepared = None
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await connection.run_pipeline([ONE, BROKEN, insert])
    assert await connection.run_pipeline([ONE, SqlStatement("select count(*) from done", {})]) == [[(1,)], [(0,)]]


async def test_statement_is_prepared_once(connection: PostgresConnection):
    for _ in range(3):
        assert await connection.run_pipeline([ONE, ONE]) == [[(1,)], [(1,)]]
    count_prepared = SqlStatement("select count(*) from pg_prepared_statements where statement = 'select $1::int'", {})
    assert await connection.run_pipeline([count_prepared]) == [[(1,)]]


async def test_connection_is_closed_if_a_new_statement_fails(connection: PostgresConnection):
    # Mutant: marked as prepared although it failed; the next execution then finds no such statement.
    with pytest.raises(psycopg.errors.UndefinedColumn):
        await connection.run_pipeline([SqlStatement("select nonsense", {}), ONE])
    assert connection.closed


async def test_cancelled_pipeline_closes_its_connection(connection: PostgresConnection, pipelines_url: str):
    # Mutant: the connection is kept; its new statements may then be prepared or not.
    await connection.run_pipeline([ONE])
    sleep = asyncio.create_task(connection.run_pipeline([ONE, SqlStatement("select pg_sleep(60)", {})]))
    async with await psycopg.AsyncConnection.connect(pipelines_url, autocommit=True) as watching:
        while not await (
            await watching.execute("select from pg_stat_activity where wait_event = 'PgSleep'")
        ).fetchall():
            pass
    sleep.cancel()
    await asyncio.wait([sleep])
    assert sleep.cancelled()
    assert connection.closed


async def test_timeout_cancels_only_the_late_connection(pipelines_url: str):
    # Mutants: the timer fires only once; it cancels connections in time; it ignores cleared deadlines.
    patient, pool = (connections.PostgresPool(pipelines_url, 3) for _ in range(2))
    pool._idle = [await patient.acquire(60.0) for _ in range(3)]  # connect first: that may take long
    first, slow = await pool.acquire(0.3), await pool.acquire(0.3)
    slow.abort_after(None)
    await first.run_pipeline([sleep(0.1)])
    late, taken_at = await pool.acquire(0.3), asyncio.get_running_loop().time()
    await pool.release(first)
    sleeping = asyncio.create_task(slow.run_pipeline([sleep(1), ONE]))
    async with asyncio.timeout(30):
        with pytest.raises(psycopg.OperationalError):
            await late.run_pipeline([sleep(60)])
        assert asyncio.get_running_loop().time() - taken_at >= 0.29  # not at the deadline of the first
        assert await pool.acquire(0.3) is first
        with pytest.raises(psycopg.OperationalError):  # the timer had stopped, and was started again
            await first.run_pipeline([sleep(60)])
        assert (await sleeping)[1] == [(1,)]
    for connection in (late, first, slow):
        await pool.release(connection)
    assert pool._idle == [slow]
    await pool.close()


async def test_reads_have_a_shorter_timeout_than_writes(pipelines_url: str, monkeypatch: pytest.MonkeyPatch):
    # Mutants: the timer ignores an earlier deadline of a later connection; reads use the timeout of writes.
    pool = connections.PostgresPool(pipelines_url, 2)
    slow, quick = await pool.acquire(60.0), await pool.acquire(0.2)
    sleeping = asyncio.create_task(slow.run_pipeline([sleep(1), ONE]))
    async with asyncio.timeout(30):
        with pytest.raises(psycopg.OperationalError):
            await quick.run_pipeline([sleep(60)])
        assert (await sleeping)[1] == [(1,)]
    for connection in (slow, quick):
        await pool.release(connection)
    await pool.close()
    monkeypatch.setattr(transactions, "_READ_TIMEOUT_SECONDS", 0.2)
    server = await transactions.PostgresServer.open(pipelines_url, connections=2, clock=None)
    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await server.read("t", *sleep(60))
        async with server.begin_write("t") as work:
            await work.execute(*sleep(0.5))
    await server.close()


def sleep(seconds: float) -> SqlStatement:
    return SqlStatement("select pg_sleep(%(seconds)s)", {"seconds": seconds})


async def test_failed_transaction_is_rolled_back_and_returns_its_connection(pipelines_url: str):
    # Mutants: the end of a transaction ignores the error, or does not translate it.
    server = await transactions.PostgresServer.open(pipelines_url, connections=1, clock=None)

    async def run_transaction(then: Callable[[transactions.PostgresTransaction], Awaitable[object]]) -> None:
        async with server.begin_write("t") as work:
            await work.execute("create table recollect.unfinished (n int)", {})
            await then(work)

    async def raise_lookup_error(_: transactions.PostgresTransaction) -> None:
        raise LookupError("changed my mind")

    with pytest.raises(LookupError, match="changed my mind"):
        await run_transaction(raise_lookup_error)
    # The table was rolled back, and the only connection is free.
    with pytest.raises(StoreUnavailable, match="division by zero"):
        await run_transaction(lambda work: work.execute(*BROKEN))
    async with server.begin_read("t") as work:
        assert await work.fetch_rows(*ONE) == [(1,)]
    await server.close()
