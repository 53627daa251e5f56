"""Rows that somebody else has written under our names: told of as damage, by an error of ours."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

from recollect.errors import StoreCorrupt
from recollect.stores.postgres import PostgresStore
from recollect.stores.redis import RedisStore
from recollect.stores.sqlite import SqliteStore
from recollect.testing.samples import LOG, SPACE, append, put
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

NO_JSON = ["", "{", "nul", "[1,", "\x00"]


@pytest.mark.parametrize("written", NO_JSON)
async def test_a_row_of_sqlite(tmp_path: Path, written: str):
    # Mutant: the decoder's own error is let through.
    path = tmp_path / "store.db"
    store = SqliteStore.open(path)
    await store.write(put("a", terms="apple"))
    raw = apsw.Connection(str(path))
    raw.execute("update records set metadata = ?", (written,))
    raw.close()
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await store.get(SPACE, "a")
    await store.close()


async def test_a_row_of_postgresql(postgres: Server):
    url = postgres.create("damage")
    store = await PostgresStore.open(url)
    await store.write(put("a", terms="apple"))
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
        await raw.execute("select set_config('recollect.everyone', 'on', false)")
        await raw.execute("update recollect.records set metadata = '{'")
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await store.get(SPACE, "a")
    await store.close()


async def test_a_value_of_redis(redis_server: RedisServer):
    redis_server.client().flushall()
    store = await RedisStore.open(redis_server.url)
    await store.write(append("e1", content="hello"))
    client = redis_server.client()
    for key in client.keys("*"):
        if client.type(key) == b"hash":
            for name, value in client.hgetall(key).items():
                if b"hello" in value:
                    client.hset(key, name, value[:-3])
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await store.entries(LOG, "e1")
    await store.close()
