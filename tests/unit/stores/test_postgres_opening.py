"""Opening a PostgreSQL database: refusals, their messages, migration, and concurrent opens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from psycopg import sql

from recollect.clock import system_clock
from recollect.errors import (
    BadSettings,
    BadVector,
    EmbeddingModelMismatch,
    SchemaTooNew,
    SchemaTooOld,
    StoreUnavailable,
    Unsupported,
)
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import transactions as opening
from recollect.stores.writes import Model, Put
from recollect.testing.factories import EVERYTHING, SPACE, find_nearest, list_ids, make_item, make_put
from tests.servers.postgres import PASSWORD, Server

names = (f"opening{n}" for n in itertools.count())


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    name = next(names)
    yield postgres.create(name)
    postgres.drop(name)


@pytest.fixture
def bare(postgres: Server) -> Iterator[str]:
    """Create a database without the extension, whose owner may not add it."""
    name = next(names)
    yield postgres.create(name, extension=False)
    postgres.drop(name)


async def test_wrong_password_raises_without_showing_it(postgres: Server, url: str):
    wrong = url.replace("tests%20only", "hunter2")
    with pytest.raises(StoreUnavailable, match=r"password of 'recollect'.*URL") as raised:
        await PostgresStore.open(wrong)
    assert "hunter2" not in str(raised.value)


async def test_unreachable_server_raises_with_a_hint(url: str):
    gone = url.replace(url.split(":")[-1].split("/")[0], "1")
    with pytest.raises(StoreUnavailable, match="host and port") as raised:
        await PostgresStore.open(gone)
    assert PASSWORD not in str(raised.value)


async def test_missing_database_names_the_command(postgres: Server):
    with pytest.raises(StoreUnavailable, match="createdb nowhere"):
        await PostgresStore.open(postgres.url("nowhere"))


async def test_user_without_privileges_is_told_the_grants(postgres: Server, url: str):
    # Mutant: the same fix for both errors.
    database, role = url.rsplit("/")[-1], f"guest_of_{url.rsplit('/')[-1]}"
    guest = postgres.url(database, role)
    with postgres.admin(database) as admin:
        admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(role), sql.Literal(PASSWORD)))
        with pytest.raises(StoreUnavailable, match=f"grant create on database {database} to USER"):
            await PostgresStore.open(guest)
        await (await PostgresStore.open(url)).close()
        with pytest.raises(StoreUnavailable, match=r"grant OWNER to USER \(OWNER: the user who created"):
            await PostgresStore.open(guest)
        admin.execute(sql.SQL("grant recollect to {}").format(sql.Identifier(role)))
        store = await PostgresStore.open(guest)
        await store.write(make_put("a", [1, 0, 0, 0]))
        assert list_ids(await store.find(EVERYTHING)) == ["a"]
        await store.close()
        admin.execute(sql.SQL("revoke recollect from {0}; drop role {0}").format(sql.Identifier(role)))


async def test_missing_extension_names_the_command(bare: str):
    with pytest.raises(StoreUnavailable, match=r"pgvector.*create extension vector"):
        await PostgresStore.open(bare)


async def test_superuser_open_creates_the_extension(postgres: Server, bare: str):
    store = await PostgresStore.open(bare.replace("recollect:", "postgres:"))
    await store.write(make_put("a", [1, 0, 0, 0]))
    assert list_ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


async def test_old_server_or_extension_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "_MIN_PGVECTOR_VERSION", (99, 0))
    with pytest.raises(Unsupported, match="alter extension vector update"):
        await PostgresStore.open(url)
    monkeypatch.setattr(opening, "_MIN_SERVER_VERSION", 990000)
    with pytest.raises(Unsupported, match="needs 99 or newer"):
        await PostgresStore.open(url)


async def test_server_with_fsync_off_is_refused_unless_allowed(postgres: Server, url: str):
    name = url.rsplit("/", 1)[-1]
    with psycopg.connect(postgres.url(name, "postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} set recollect.throwaway = off").format(sql.Identifier(name)))
    with pytest.raises(Unsupported, match=r"fsync = off.*alter system set fsync = on"):
        await PostgresStore.open(url)
    with psycopg.connect(postgres.url(name, "postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} set recollect.throwaway = on").format(sql.Identifier(name)))
    await (await PostgresStore.open(url)).close()


async def test_vectors_of_other_dimensions_reject_the_batch(url: str):
    store = await PostgresStore.open(url)
    await store.write(make_put("a", [1, 0, 0, 0]))
    with pytest.raises(EmbeddingModelMismatch, match="reembed"):
        await store.write(
            make_put("b"), Put(item=make_item("c"), vectors=np.ones((1, 3), np.float32), model=Model("m", 3, "f"))
        )
    with pytest.raises(BadVector, match="must have 4 dimensions; got 3"):
        await find_nearest(store, EVERYTHING, np.ones(3, np.float32))
    assert list_ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


async def test_newer_schema_is_refused_and_unchanged(url: str):
    await (await PostgresStore.open(url)).close()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("update recollect.meta set value = '999' where name = 'schema'")
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await PostgresStore.open(url)


async def test_older_schema_is_migrated_once_and_keeps_its_data(url: str):
    # Mutant: no lock, so that the second process fails on the tables of the first.
    store = await PostgresStore.open(url)
    await store.write(make_put("a", [1, 0, 0, 0]))
    await store.close()
    async with await psycopg.AsyncConnection.connect(url) as connection:  # the first schema
        await connection.execute("drop table recollect.erasures, recollect.wiped")
        await connection.execute("delete from recollect.meta where name = 'salt'")
        await connection.execute("update recollect.meta set value = '1' where name = 'schema'")
    with pytest.raises(SchemaTooOld, match=r"schema 1, .* without a backup: stop every program"):
        await PostgresStore.open(url, migrates=False)
    stores = await asyncio.gather(*(PostgresStore.open(url, connections=1) for _ in range(4)))
    for store in stores:
        assert list_ids(await store.find(EVERYTHING)) == ["a"]
        assert await store.ledger() == []
        await store.close()


async def test_concurrent_opens_create_the_schema_once(url: str):
    stores = await asyncio.gather(*(PostgresStore.open(url, connections=1) for _ in range(6)))
    await asyncio.gather(*(store.write(make_put(f"i{n}", [1, 0, 0, 0])) for n, store in enumerate(stores)))
    assert len(await stores[0].find(EVERYTHING)) == 6
    for store in stores:
        await store.close()


async def test_open_by_url_stores_all_tiers_in_one_store(url: str):
    stores = await open_stores(url, Settings(), system_clock)
    await stores.records("semantic").write(make_put("a"))
    assert list_ids(await stores.records("semantic").get(SPACE, "a")) == ["a"]
    assert len(stores.all_stores) == 1
    await stores.close()


async def test_invalid_url_is_refused():
    with pytest.raises(BadSettings, match="not a valid PostgreSQL URL"):
        await PostgresStore.open("postgresql://host:port:port/x y?nonsense=1")
