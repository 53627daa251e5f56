"""Opening a database: what is refused, what it says, and that many may come at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from psycopg import sql

from recollect.clock import system_clock
from recollect.errors import BadSettings, BadVector, EmbeddingModelMismatch, SchemaTooNew, StoreUnavailable, Unsupported
from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.stores.ops import Model, Put
from recollect.stores.postgres import PostgresStore
from recollect.stores.postgres import server as opening
from recollect.testing.samples import EVERYTHING, SPACE, ids, item, put
from tests.servers.postgres import PASSWORD, Server

names = (f"opening{n}" for n in itertools.count())


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    name = next(names)
    yield postgres.create(name)
    postgres.drop(name)


@pytest.fixture
def bare(postgres: Server) -> Iterator[str]:
    """A database without the extension, whose owner may not add it."""
    name = next(names)
    yield postgres.create(name, extension=False)
    postgres.drop(name)


async def test_a_wrong_password_is_told_and_not_shown(postgres: Server, url: str):
    wrong = url.replace("tests%20only", "hunter2")
    with pytest.raises(StoreUnavailable, match=r"password of 'recollect'.*URL") as raised:
        await PostgresStore.open(wrong)
    assert "hunter2" not in str(raised.value)


async def test_a_server_that_is_not_there_is_told(url: str):
    gone = url.replace(url.split(":")[-1].split("/")[0], "1")
    with pytest.raises(StoreUnavailable, match="host and port") as raised:
        await PostgresStore.open(gone)
    assert PASSWORD not in str(raised.value)


async def test_a_database_that_is_not_there_is_told(postgres: Server):
    with pytest.raises(StoreUnavailable, match="createdb nowhere"):
        await PostgresStore.open(postgres.url("nowhere"))


async def test_a_user_without_rights_is_told_which_and_with_them_it_works(postgres: Server, url: str):
    # Mutant: one way out for both.
    database, role = url.rsplit("/")[-1], f"guest_of_{url.rsplit('/')[-1]}"
    guest = postgres.url(database, role)
    with postgres.admin(database) as admin:
        admin.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(role), sql.Literal(PASSWORD)))
        with pytest.raises(StoreUnavailable, match=f"grant create on database {database} to USER"):
            await PostgresStore.open(guest)
        await (await PostgresStore.open(url)).close()
        with pytest.raises(StoreUnavailable, match=r"grant OWNER to USER \(OWNER: whoever opened"):
            await PostgresStore.open(guest)
        admin.execute(sql.SQL("grant recollect to {}").format(sql.Identifier(role)))
        store = await PostgresStore.open(guest)
        await store.write(put("a", [1, 0, 0, 0]))
        assert ids(await store.find(EVERYTHING)) == ["a"]
        await store.close()
        admin.execute(sql.SQL("revoke recollect from {0}; drop role {0}").format(sql.Identifier(role)))


async def test_a_missing_extension_is_told_with_the_command(bare: str):
    with pytest.raises(StoreUnavailable, match=r"pgvector.*create extension vector"):
        await PostgresStore.open(bare)


async def test_an_administrator_gets_the_extension_added(postgres: Server, bare: str):
    store = await PostgresStore.open(bare.replace("recollect:", "postgres:"))
    await store.write(put("a", [1, 0, 0, 0]))
    assert ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


async def test_an_old_server_or_extension_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "_OLDEST_VECTOR", (99, 0))
    with pytest.raises(Unsupported, match="alter extension vector update"):
        await PostgresStore.open(url)
    monkeypatch.setattr(opening, "_OLDEST_SERVER", 990000)
    with pytest.raises(Unsupported, match="needs 99 or newer"):
        await PostgresStore.open(url)


async def test_a_server_that_forgets_in_a_power_cut_is_refused_unless_it_may(postgres: Server, url: str):
    name = url.rsplit("/", 1)[-1]
    with psycopg.connect(postgres.url(name, "postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} set recollect.throwaway = off").format(sql.Identifier(name)))
    with pytest.raises(Unsupported, match=r"fsync = off.*alter system set fsync = on"):
        await PostgresStore.open(url)
    with psycopg.connect(postgres.url(name, "postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} set recollect.throwaway = on").format(sql.Identifier(name)))
    await (await PostgresStore.open(url)).close()


async def test_vectors_of_other_dimensions_are_refused_and_nothing_of_the_batch_is_kept(url: str):
    store = await PostgresStore.open(url)
    await store.write(put("a", [1, 0, 0, 0]))
    with pytest.raises(EmbeddingModelMismatch, match="reembed"):
        await store.write(put("b"), Put(item=item("c"), vectors=np.ones((1, 3), np.float32), model=Model("m", 3, "f")))
    with pytest.raises(BadVector, match="3 dimensions where 4"):
        await store.nearest(EVERYTHING, np.ones(3, np.float32))
    assert ids(await store.find(EVERYTHING)) == ["a"]
    await store.close()


async def test_a_newer_schema_is_refused_and_left_alone(url: str):
    await (await PostgresStore.open(url)).close()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("update recollect.meta set value = '999' where name = 'schema'")
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await PostgresStore.open(url)


async def test_an_older_schema_is_brought_up_to_date_once_and_keeps_what_it_has(url: str):
    # Mutant: no lock, and the second fails on what the first has made.
    store = await PostgresStore.open(url)
    await store.write(put("a", [1, 0, 0, 0]))
    await store.close()
    async with await psycopg.AsyncConnection.connect(url) as connection:  # as the first of our schemas was
        await connection.execute("drop table recollect.erasures, recollect.wiped")
        await connection.execute("delete from recollect.meta where name = 'salt'")
        await connection.execute("update recollect.meta set value = '1' where name = 'schema'")
    stores = await asyncio.gather(*(PostgresStore.open(url, connections=1) for _ in range(4)))
    for store in stores:
        assert ids(await store.find(EVERYTHING)) == ["a"]
        assert await store.ledger() == []
        await store.close()


async def test_many_who_open_a_new_database_make_it_once(url: str):
    stores = await asyncio.gather(*(PostgresStore.open(url, connections=1) for _ in range(6)))
    await asyncio.gather(*(store.write(put(f"i{n}", [1, 0, 0, 0])) for n, store in enumerate(stores)))
    assert len(await stores[0].find(EVERYTHING)) == 6
    for store in stores:
        await store.close()


async def test_a_url_opens_it_and_the_server_tells_the_time(url: str):
    stores = await connect(url, Settings(), system_clock)
    await stores.records("semantic").write(put("a"))
    assert ids(await stores.records("semantic").get(SPACE, "a")) == ["a"]
    assert len(stores.every) == 1
    await stores.close()


async def test_what_is_no_url_is_told():
    with pytest.raises(BadSettings, match="no address"):
        await PostgresStore.open("postgresql://host:port:port/x y?nonsense=1")
