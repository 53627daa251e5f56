"""Isolation of tenants on one server by row-level security."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from recollect.stores.postgres import PostgresStore
from recollect.stores.writes import Append, Entry
from recollect.testing.factories import ADA_ELSEWHERE, LOG, START, make_put, make_save
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
        await opened.write(make_put("a", [1, 0, 0, 0], "apple", metadata={"p": 1}, **more))
    await opened.write(Append(space=LOG, entry=Entry(id="e", kind="user", content="x", at=START)), make_save("[1]"))
    yield opened
    await opened.close()


async def test_table_owner_without_a_tenant_sees_no_rows(store: PostgresStore, isolation_url: str):
    async with await psycopg.AsyncConnection.connect(isolation_url) as connection:
        for table in TABLES:
            rows = await (await connection.execute(f"select * from recollect.{table}".encode())).fetchall()  # noqa: S608
            assert rows == [], table
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(
                "insert into recollect.paths (tenant, space, handle, path) values ('acme', 1, 'x', 'x')"
            )


async def test_statement_without_a_tenant_condition_sees_its_own_tenant(store: PostgresStore):
    async with store._server.begin_read("acme") as work:
        for table in ("spaces", "records", "paths", "vectors", "postings"):
            rows = await work.fetch_rows(f"select distinct tenant from recollect.{table}", {})  # noqa: S608
            assert rows == [("acme",)], table


async def test_partitions_enforce_row_level_security(store: PostgresStore, isolation_url: str):
    async with await psycopg.AsyncConnection.connect(isolation_url) as connection:
        await connection.execute("set recollect.everyone = 'on'")
        for part in range(16):
            rows = await (await connection.execute(f"select 1 from recollect.records_{part}".encode())).fetchall()  # noqa: S608
            assert rows == []


async def test_single_statement_read_sees_only_its_tenant(store: PostgresStore):
    for table in ("spaces", "records", "paths", "vectors", "postings"):
        rows = await store._server.read("acme", f"select distinct tenant from recollect.{table}", {})  # noqa: S608
        assert rows == [("acme",)], table
