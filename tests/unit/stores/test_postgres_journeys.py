"""Journeys to a PostgreSQL server: how many a call takes, and what is left on the line when a statement fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from recollect.errors import StoreUnavailable
from recollect.stores.evidence import Ask
from recollect.stores.ops import Append, Entry
from recollect.stores.postgres import PostgresStore, connections, server
from recollect.stores.postgres.journey import Rows, Statement, journey
from recollect.stores.tails import Reach
from recollect.testing.samples import EVERYTHING, LOG, SPACE, START, put, save
from tests.servers.postgres import Server

ONE, BROKEN = Statement("select %(n)s::int", {"n": 1}), Statement("select 1 / %(n)s::int", {"n": 0})


@pytest.fixture(scope="session")
def journeys_url(postgres: Server) -> str:
    return postgres.create("journeys")


@pytest.fixture
async def connection(journeys_url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(journeys_url, autocommit=True, prepare_threshold=None) as made:
        await connections._made_ready(made)
        yield made


@pytest.fixture
async def taken(journeys_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[PostgresStore, list[int]]]:
    """A store that has been used before, and how many statements each of its journeys carries from then on."""
    store = await PostgresStore.open(journeys_url)
    for number in range(2):
        entry = Entry(id=f"e{number}", kind="user", content="x", at=START)
        await store.write(put("a", [1, 0, 0, 0], "apple"), Append(space=LOG, entry=entry), save("[1]"))
    carried: list[int] = []

    async def counted(connection: psycopg.AsyncConnection[Any], statements: Sequence[Statement]) -> list[Rows]:
        carried.append(len(statements))
        return await journey(connection, statements)

    monkeypatch.setattr(server, "journey", counted)
    yield store, carried
    await store.close()


async def test_a_reading_is_one_journey_and_so_is_a_question(taken: tuple[PostgresStore, list[int]]):
    # Mutant: `read` by way of `reading`, or a question that asks first what the space holds.
    store, carried = taken
    assert len(await store.get(SPACE, "a")) == 1
    await store.entries(LOG, "e0")
    assert [await store.get(SPACE), await store.entries(LOG)] == [[], []]  # no journey for nothing
    await store.tails(LOG, Reach(own=5, others=5, of_each=5))
    assert carried == [2, 2, 2]
    carried.clear()
    assert [item.id for item in await store.find(EVERYTHING)] == ["a"]
    await asyncio.gather(store.last_turns(SPACE, "s"), store.around(EVERYTHING, [("s", 1.0)]), store.paths(SPACE))
    assert carried == [2, 2, 2, 2]
    carried.clear()
    found = await store.gather(Ask(EVERYTHING, None, ("apple",), 10, 1), lambda _, lookup: lookup.items(["a"])["a"])
    assert (found.id, carried) == ("a", [2])


async def test_a_batch_is_two_journeys(taken: tuple[PostgresStore, list[int]]):
    store, carried = taken
    entry = Entry(id="e9", kind="user", content="x", at=START)
    await store.write(put("b", [1, 0, 0, 0], "pear"), Append(space=LOG, entry=entry), save("[2]"))
    assert len(carried) == 2


async def test_after_a_statement_that_fails_none_is_done_and_the_line_is_free(
    connection: psycopg.AsyncConnection[Any],
):
    # Mutant: the answers of those that were not tried are left on the line.
    await journey(connection, [Statement("create temporary table done (n int)", {})])
    insert = Statement("insert into done values (%(n)s)", {"n": 1})
    for _ in range(2):
        with pytest.raises(psycopg.errors.DivisionByZero):
            await journey(connection, [ONE, BROKEN, insert])
    assert await journey(connection, [ONE, Statement("select count(*) from done", {})]) == [[(1,)], [(0,)]]


async def test_a_statement_is_remembered_once_and_only_if_the_server_could_read_it(
    connection: psycopg.AsyncConnection[Any],
):
    # Mutant: known although it failed; the next one is then told that there is no such statement.
    nonsense = Statement("select nonsense", {})
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            await journey(connection, [nonsense, ONE])
    for _ in range(3):
        assert await journey(connection, [ONE, ONE]) == [[(1,)], [(1,)]]
    said = Statement("select count(*) from pg_prepared_statements where statement = 'select $1::int'", {})
    assert await journey(connection, [said]) == [[(1,)]]


async def test_one_who_is_called_off_does_not_go_on_with_what_the_server_may_not_know(
    connection: psycopg.AsyncConnection[Any], journeys_url: str
):
    # Mutant: the line is kept; statements that were new are then unknown there, or known already.
    await journey(connection, [ONE])
    asleep = asyncio.create_task(journey(connection, [ONE, Statement("select pg_sleep(60)", {})]))
    async with await psycopg.AsyncConnection.connect(journeys_url, autocommit=True) as watching:
        while not await (
            await watching.execute("select from pg_stat_activity where wait_event = 'PgSleep'")
        ).fetchall():
            pass
    asleep.cancel()
    await asyncio.wait([asleep])
    assert asleep.cancelled()
    assert connection.closed


async def test_whoever_takes_too_long_is_cut_off_and_nobody_else(journeys_url: str):
    # Mutants: a watch that looks once and never again, one that cuts who is in time, one that leaves nobody alone.
    patient, some = (connections.Connections(journeys_url, 3, seconds) for seconds in (60.0, 0.3))
    some._idle = [await patient.take() for _ in range(3)]  # made beforehand, however long that takes
    first, slow = await some.take(), await some.take()
    some.leave_alone(slow)
    await journey(first, [asleep(0.1)])
    late, taken_at = await some.take(), asyncio.get_running_loop().time()
    await some.give_back(first)
    resting = asyncio.create_task(journey(slow, [asleep(1), ONE]))
    async with asyncio.timeout(30):
        with pytest.raises(psycopg.OperationalError):
            await journey(late, [asleep(60)])
        assert asyncio.get_running_loop().time() - taken_at >= 0.29  # not when the time of the first was up
        assert await some.take() is first
        with pytest.raises(psycopg.OperationalError):  # the watch had run down, and was wound up again
            await journey(first, [asleep(60)])
        assert (await resting)[1] == [(1,)]
    for connection in (late, first, slow):
        await some.give_back(connection)
    assert some._idle == [slow]
    await some.close()


async def test_whoever_only_reads_is_waited_for_less_long(journeys_url: str, monkeypatch: pytest.MonkeyPatch):
    # Mutants: a watch that is not set forward for who came later and has less time; a reading with everybody's time.
    some = connections.Connections(journeys_url, 2, 60.0)
    slow, quick = await some.take(), await some.take(0.2)
    resting = asyncio.create_task(journey(slow, [asleep(1), ONE]))
    async with asyncio.timeout(30):
        with pytest.raises(psycopg.OperationalError):
            await journey(quick, [asleep(60)])
        assert (await resting)[1] == [(1,)]
    for connection in (slow, quick):
        await some.give_back(connection)
    await some.close()
    monkeypatch.setattr(server, "_READING_SECONDS", 0.2)
    one = await server.Server.open(journeys_url, connections=2, clock=None)
    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await one.read("t", *asleep(60))
        async with one.writing("t") as work:
            await work.run(*asleep(0.5))
    await one.close()


def asleep(seconds: float) -> Statement:
    return Statement("select pg_sleep(%(seconds)s)", {"seconds": seconds})


async def test_what_fails_on_the_way_is_undone_told_in_our_words_and_gives_its_connection_back(journeys_url: str):
    # Mutants: the end of a transaction that does not look at the error, or does not translate it.
    one = await server.Server.open(journeys_url, connections=1, clock=None)

    async def begun(then: Callable[[server.Work], Awaitable[object]]) -> None:
        async with one.writing("t") as work:
            await work.run("create table recollect.unfinished (n int)", {})
            await then(work)

    async def changes_its_mind(_: server.Work) -> None:
        raise LookupError("changed my mind")

    with pytest.raises(LookupError, match="changed my mind"):
        await begun(changes_its_mind)
    # The table is not there, and the only connection is free.
    with pytest.raises(StoreUnavailable, match="division by zero"):
        await begun(lambda work: work.run(*BROKEN))
    async with one.reading("t", ONE) as work:
        assert work.first == [(1,)]
    await one.close()
