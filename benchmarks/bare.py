"""The engines without us: the same rows written and read by hand through each bare driver, as its manual shows.

What a memory keeps has to be kept by whoever does without one, so that is what these do: an item with its vector and
the words it is found by, a turn in two logs, a state with its version. They check nothing, scope nothing but by a
number, and tell nobody anything.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import redis.asyncio
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async
from synthetic import DIM, Rows

from recollect.words import analyse

_NEAREST = 25
_TAIL = 24
_VERSIONS = 5


class BareSqlite:
    """SQLite through the standard library, WAL and synchronous=FULL, in the one thread that its connection has."""

    _SCHEMA = """
        create table items (user integer, id integer primary key, content text, metadata text);
        create index items_user on items (user);
        create table vectors (user integer, id integer, data blob, primary key (user, id)) without rowid;
        create virtual table words using fts5 (content, user unindexed);
        create table entries (log text, user integer, seq integer, content text, primary key (log, user, seq));
        create table states (task text, version integer, state text, primary key (task, version));
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.executescript(f"pragma journal_mode = wal; pragma synchronous = full; {self._SCHEMA}")

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        await self._do(lambda: [self._put(user, text, row) for text, row in zip(texts, rows, strict=True)])

    async def remember(self, user: int, text: str, row: Rows) -> None:
        await self._do(lambda: self._put(user, text, row))

    async def recall(self, user: int, question: str, row: Rows) -> None:
        await self._do(lambda: self._found(user, question, row))

    async def record_turn(self, user: int, said: str, answered: str) -> None:
        await self._do(
            lambda: [self._say(log, user, text) for log in ("said", "happened") for text in (said, answered)]
        )

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        def save() -> None:
            self._connection.execute("insert into states values (?, ?, ?)", (task, version, json.dumps(state)))
            self._connection.execute("delete from states where task = ? and version <= ?", (task, version - _VERSIONS))

        await self._do(save)

    async def close(self) -> None:
        self._connection.close()

    async def _do(self, act: Any) -> None:
        def in_a_transaction() -> None:
            self._connection.execute("begin immediate")
            act()
            self._connection.execute("commit")

        async with self._turn:
            await self._loop.run_in_executor(None, in_a_transaction)

    def _put(self, user: int, text: str, row: Rows) -> None:
        kept = self._connection.execute("insert into items (user, content, metadata) values (?, ?, '{}')", (user, text))
        self._connection.execute("insert into vectors values (?, ?, ?)", (user, kept.lastrowid, row.astype("<f2")))
        self._connection.execute(
            "insert into words (rowid, content, user) values (?, ?, ?)", (kept.lastrowid, " ".join(analyse(text)), user)
        )

    def _say(self, log: str, user: int, text: str) -> None:
        self._connection.execute(
            """
            insert into entries
            select ?1, ?2, 1 + coalesce(max(seq), 0), ?3 from entries where log = ?1 and user = ?2
            """,
            (log, user, text),
        )

    def _found(self, user: int, question: str, row: Rows) -> None:
        ask = self._connection.execute
        held = ask("select id, data from vectors where user = ?", (user,)).fetchall()
        scores = np.frombuffer(b"".join(data for _, data in held), "<f2").reshape(-1, DIM).astype(np.float32) @ row
        near = [held[at][0] for at in np.argsort(-scores)[:_NEAREST]]
        match = " OR ".join(f'"{term}"' for term in analyse(question))
        said = ask(
            "select rowid from words where words match ? and user = ? order by rank limit ?", (match, user, _NEAREST)
        ).fetchall()
        ids = json.dumps([*near, *(one for (one,) in said)])
        ask("select * from items where id in (select value from json_each(?))", (ids,)).fetchall()
        for log in ("said", "happened"):
            ask(
                "select * from entries where log = ? and user = ? order by seq desc limit ?", (log, user, _TAIL)
            ).fetchall()


class BarePostgres:
    """psycopg and pgvector, every call one transaction sent in one go."""

    _SCHEMA = f"""
        create table items (owner int, id bigserial, content text, metadata jsonb, primary key (owner, id));
        create table vectors (owner int, id bigint, data halfvec({DIM}), primary key (owner, id));
        create table words (owner int, term text, id bigint, count int, length int, primary key (owner, term, id));
        create table entries (log text, owner int, seq bigserial, content text, primary key (log, owner, seq));
        create table states (task text, version int, state bytea, primary key (task, version));
    """

    def __init__(self, connections: asyncio.Queue[psycopg.AsyncConnection[Any]]) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, url: str, connections: int) -> BarePostgres:
        idle: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
        for number in range(connections):
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
            if not number:
                await connection.execute(cls._SCHEMA)
            await register_vector_async(connection)
            idle.put_nowait(connection)
        return cls(idle)

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        async with self._at_once() as connection:
            for text, row in zip(texts, rows, strict=True):
                await self._put(connection, user, text, row)

    async def remember(self, user: int, text: str, row: Rows) -> None:
        async with self._at_once() as connection:
            await self._put(connection, user, text, row)

    async def recall(self, user: int, question: str, row: Rows) -> None:
        async with self._at_once() as connection:
            near = await connection.execute(
                """
                select items.*, near.distance
                from (
                    select id, data <=> %(row)s as distance
                    from vectors where owner = %(user)s
                    order by data <=> %(row)s limit %(most)s
                ) near join items on items.owner = %(user)s and items.id = near.id
                """,
                {"row": HalfVector(row), "user": user, "most": _NEAREST},
            )
            said = await connection.execute(
                """
                select items.*, said.score
                from (
                    select id, sum(count::float / (count + 0.9 * length)) as score
                    from words where owner = %(user)s and term = any(%(terms)s)
                    group by id order by score desc limit %(most)s
                ) said join items on items.owner = %(user)s and items.id = said.id
                """,
                {"user": user, "terms": analyse(question), "most": _NEAREST},
            )
            logs = [
                await connection.execute(
                    "select * from entries where log = %s and owner = %s order by seq desc limit %s", (log, user, _TAIL)
                )
                for log in ("said", "happened")
            ]
            for answer in (near, said, *logs):
                await answer.fetchall()

    async def record_turn(self, user: int, said: str, answered: str) -> None:
        async with self._at_once() as connection:
            await connection.execute(
                "insert into entries (log, owner, content) select * from unnest(%s::text[], %s::int[], %s::text[])",
                (["said", "said", "happened", "happened"], [user] * 4, [said, answered] * 2),
            )

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        async with self._at_once() as connection:
            await connection.execute(
                "insert into states values (%s, %s, %s)", (task, version, json.dumps(state).encode())
            )
            await connection.execute(
                "delete from states where task = %s and version <= %s", (task, version - _VERSIONS)
            )

    async def close(self) -> None:
        while not self._connections.empty():
            await self._connections.get_nowait().close()

    async def _put(self, connection: psycopg.AsyncConnection[Any], user: int, text: str, row: Rows) -> None:
        terms = analyse(text)
        await connection.execute(
            """
            with kept as (insert into items (owner, content, metadata) values (%(user)s, %(text)s, '{}') returning id),
                 placed as (insert into vectors select %(user)s, id, %(row)s from kept)
            insert into words
            select %(user)s, term, kept.id, count(*), %(length)s
            from kept, unnest(%(terms)s::text[]) as term group by term, kept.id
            """,
            {"user": user, "text": text, "row": HalfVector(row), "terms": terms, "length": len(terms)},
        )

    @asynccontextmanager
    async def _at_once(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        connection = await self._connections.get()
        try:
            async with connection.pipeline(), connection.transaction():
                yield connection
        finally:
            self._connections.put_nowait(connection)


class BareRedis:
    """redis-py, every call one MULTI."""

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url)

    async def recall(self, user: int, question: str, row: Rows) -> None:
        async with self._client.pipeline() as together:
            for log in ("said", "happened"):
                together.lrange(f"bare:{log}:{user}", -_TAIL, -1)
            await together.execute()

    async def recall_episodes(self, user: int) -> None:
        await self._client.lrange(f"bare:happened:{user}", -_TAIL, -1)

    async def record_turn(self, user: int, said: str, answered: str) -> None:
        async with self._client.pipeline() as together:
            for log in ("said", "happened"):
                together.rpush(f"bare:{log}:{user}", said, answered)
            await together.execute()

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        async with self._client.pipeline() as together:
            together.hset(f"bare:task:{task}", str(version), json.dumps(state))
            together.hdel(f"bare:task:{task}", str(version - _VERSIONS))
            await together.execute()

    async def close(self) -> None:
        await self._client.aclose()


class BareChroma:
    """chromadb's own client, a collection for each user: one for all takes two hundred milliseconds to filter."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._next = 0
        self._collections: dict[int, Any] = {}

    @classmethod
    async def open(cls, port: int) -> BareChroma:
        import chromadb

        return cls(await chromadb.AsyncHttpClient(host="127.0.0.1", port=port))

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        collection = await self._collection(user)
        ids = [str(self._next + at) for at in range(len(texts))]
        self._next += len(texts)
        metadatas = [{"terms": " ".join(analyse(text))} for text in texts]
        await collection.add(ids=ids, documents=list(texts), embeddings=list(rows), metadatas=metadatas)

    async def remember(self, user: int, text: str, row: Rows) -> None:
        await self.fill(user, [text], row[np.newaxis])

    async def recall(self, user: int, question: str, row: Rows) -> None:
        collection = await self._collection(user)
        await collection.query(
            query_embeddings=[row], n_results=_NEAREST, include=["documents", "metadatas", "distances"]
        )

    async def close(self) -> None:
        return

    async def _collection(self, user: int) -> Any:
        if user not in self._collections:
            self._collections[user] = await self._client.get_or_create_collection(
                f"bare-{user}", embedding_function=None
            )
        return self._collections[user]
