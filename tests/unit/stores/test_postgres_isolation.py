"""Tenants on one server: a statement that forgets its tenant finds nothing of another, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from recollect.stores.ops import Append, Entry
from recollect.stores.postgres import PostgresStore
from recollect.testing.samples import ADA_ELSEWHERE, LOG, START, put, save
from tests.servers.postgres import Server

TABLES = ("spaces", "records", "paths", "vectors", "postings", "entries", "tasks", "checkpoints", "steps")


@pytest.fixture(scope="session")
def isolation_url(postgres: Server) -> str:
    return postgres.create("isolation")


@pytest.fixture
async def store(isolation_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(isolation_url, connections=1)
    for scope in (None, ADA_ELSEWHERE):
        more = {} if scope is None else {"scope": scope}
        await opened.write(put("a", [1, 0, 0, 0], "apple", metadata={"p": 1}, **more))
    await opened.write(Append(space=LOG, entry=Entry(id="e", kind="user", content="x", at=START)), save("[1]"))
    yield opened
    await opened.close()


async def test_the_owner_of_the_tables_sees_nothing_without_naming_a_tenant(store: PostgresStore, isolation_url: str):
    async with await psycopg.AsyncConnection.connect(isolation_url) as connection:
        for table in TABLES:
            rows = await (await connection.execute(f"select * from recollect.{table}".encode())).fetchall()  # noqa: S608
            assert rows == [], table
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(
                "insert into recollect.paths (tenant, space, handle, path) values ('acme', 1, 'x', 'x')"
            )


async def test_a_statement_that_forgets_its_tenant_sees_the_one_it_was_begun_for(store: PostgresStore):
    async with store._server.reading("acme") as work:
        for table in ("spaces", "records", "paths", "vectors", "postings"):
            rows = await work.rows(f"select distinct tenant from recollect.{table}", {})  # noqa: S608
            assert rows == [("acme",)], table


async def test_a_partition_is_not_read_past_its_table(store: PostgresStore, isolation_url: str):
    async with await psycopg.AsyncConnection.connect(isolation_url) as connection:
        await connection.execute("set recollect.everyone = 'on'")
        for part in range(16):
            rows = await (await connection.execute(f"select 1 from recollect.records_{part}".encode())).fetchall()  # noqa: S608
            assert rows == []


async def test_a_reading_of_one_journey_sees_the_tenant_it_is_for_alone(store: PostgresStore):
    for table in ("spaces", "records", "paths", "vectors", "postings"):
        rows = await store._server.read("acme", f"select distinct tenant from recollect.{table}", {})  # noqa: S608
        assert rows == [("acme",)], table
