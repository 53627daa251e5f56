"""Row-level security of PostgreSQL: another role with its own statements sees no tenant that it does not name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from recollect import AgentMemory, ResumableAgent
from tests.embedders import HashEmbedder
from tests.servers.postgres import PASSWORD, Server

TABLES = ("spaces", "records", "paths", "vectors", "postings", "entries", "tasks", "checkpoints", "steps")


@pytest.fixture
async def guest(postgres: Server) -> AsyncIterator[str]:
    """Create a database with two tenants, and yield the URL of a role with all grants and no ownership."""
    url = postgres.create("rows")
    for tenant in ("acme", "globex"):
        async with AgentMemory.open(url, tenant=tenant, user="ada", session="s", embedder=HashEmbedder()) as memory:
            await memory.remember(f"The vault of {tenant} is blue.", metadata={"a": 1})
            await memory.record_turn("Hello.", "Hi.")
            await memory.checkpoints.checkpoint("job", {"a": 1})
            await ResumableAgent(memory).run("run", [_step])
    with psycopg.connect(url) as owner:
        if not _has_guest(owner):
            with psycopg.connect(postgres.url("postgres", "postgres"), autocommit=True) as admin:
                admin.execute(sql.SQL("create role guest login password {}").format(PASSWORD))
        owner.execute("grant usage on schema recollect to guest")
        owner.execute("grant all on all tables in schema recollect to guest")
    yield postgres.url("rows", "guest")
    postgres.drop("rows")


async def _step(state: dict[str, Any]) -> str:
    return "done"


def _has_guest(connection: psycopg.Connection) -> bool:
    return connection.execute("select 1 from pg_roles where rolname = 'guest'").fetchone() is not None


def _rows(connection: psycopg.Connection, table: str) -> list[tuple[str]]:
    asked = sql.SQL("select tenant from recollect.{}").format(sql.Identifier(table))
    return connection.execute(asked).fetchall()


@pytest.mark.promise("S1")
async def test_raw_query_without_tenant_sees_and_changes_nothing(guest: str):
    """Mutant: row security is not enabled on one table."""
    with psycopg.connect(guest) as connection:
        for table in TABLES:
            assert _rows(connection, table) == [], table
            name = sql.Identifier(table)
            deleted = connection.execute(sql.SQL("delete from recollect.{}").format(name)).rowcount
            changed = connection.execute(sql.SQL("update recollect.{} set tenant = 'acme'").format(name)).rowcount
            assert (deleted, changed) == (0, 0), table
        counted = connection.execute("select count(*) from recollect.records").fetchone()
        assert counted == (0,)


@pytest.mark.promise("S1")
async def test_owner_query_without_tenant_sees_nothing(guest: str, postgres: Server):
    """Mutant: row security is not forced, and does not apply to the owner, which is the role of recollect."""
    with psycopg.connect(postgres.url("rows")) as connection:
        [owner] = connection.execute("select tableowner from pg_tables where tablename = 'records'").fetchone() or ("",)
        assert connection.execute("select current_user").fetchone() == (owner,)
        for table in TABLES:
            assert _rows(connection, table) == [], table


async def test_query_with_tenant_sees_only_that_tenant(guest: str):
    with psycopg.connect(guest) as connection:
        connection.execute("set local recollect.tenant = 'acme'")
        for table in ("spaces", "records", "paths", "vectors", "postings", "entries", "tasks", "checkpoints", "steps"):
            assert {tenant for (tenant,) in _rows(connection, table)} == {"acme"}, table
        found = connection.execute("select content from recollect.records where content like '%globex%'").fetchall()
        assert found == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("update recollect.records set tenant = 'globex'")


async def test_tenant_setting_ends_with_its_transaction(guest: str):
    with psycopg.connect(guest, autocommit=True) as connection:
        with connection.transaction():
            connection.execute("set local recollect.tenant = 'acme'")
            assert _rows(connection, "records")
        assert _rows(connection, "records") == []


async def test_partitions_are_not_readable_directly(guest: str):
    with psycopg.connect(guest) as connection:
        connection.execute("set local recollect.everyone = 'on'")
        for part in range(16):
            for table in TABLES:
                assert _rows(connection, f"{table}_{part}") == []
