"""Baselines for `backends.py`: the same rows written and read by hand, with each driver as its manual shows.

They store what a memory has to store: an item with its vector and terms, a turn in two logs, and a state with its
version. They have no validation, no access control, and no scope except the number of the user.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import redis.asyncio
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async
from synthetic import DIM, Rows

from recollect.language.analysis import analyze

_CANDIDATES = 25
_RECENT_ENTRIES = 24
_KEPT_VERSIONS = 5
_LOGS = ("messages", "episodes")


class SqliteBaseline:
    """SQLite through the standard library, with WAL, synchronous=FULL and one connection."""

    _SCHEMA = """
        create table items (user integer, id integer primary key, content text, metadata text);
        create index items_user on items (user);
        create table vectors (user integer, id integer, data blob, primary key (user, id)) without rowid;
        create virtual table terms using fts5 (content, user unindexed);
        create table entries (log text, user integer, seq integer, content text, primary key (log, user, seq));
        create table states (task text, version integer, state text, primary key (task, version));
    """

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.executescript(f"pragma journal_mode = wal; pragma synchronous = full; {self._SCHEMA}")

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        await self._transact(lambda: [self._put(user, text, row) for text, row in zip(texts, rows, strict=True)])

    async def remember(self, user: int, text: str, row: Rows) -> None:
        await self._transact(lambda: self._put(user, text, row))

    async def recall(self, user: int, question: str, row: Rows) -> None:
        await self._transact(lambda: self._search(user, question, row))

    async def record_turn(self, user: int, question: str, answer: str) -> None:
        await self._transact(lambda: [self._append(log, user, text) for log in _LOGS for text in (question, answer)])

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        def save() -> None:
            self._connection.execute("insert into states values (?, ?, ?)", (task, version, json.dumps(state)))
            self._connection.execute(
                "delete from states where task = ? and version <= ?", (task, version - _KEPT_VERSIONS)
            )

        await self._transact(save)

    async def close(self) -> None:
        self._connection.close()

    async def _transact(self, work: Callable[[], object]) -> None:
        def run() -> None:
            self._connection.execute("begin immediate")
            work()
            self._connection.execute("commit")

        async with self._lock:
            await self._loop.run_in_executor(None, run)

    def _put(self, user: int, text: str, row: Rows) -> None:
        added = self._connection.execute(
            "insert into items (user, content, metadata) values (?, ?, '{}')", (user, text)
        )
        self._connection.execute("insert into vectors values (?, ?, ?)", (user, added.lastrowid, row.astype("<f2")))
        self._connection.execute(
            "insert into terms (rowid, content, user) values (?, ?, ?)",
            (added.lastrowid, " ".join(analyze(text)), user),
        )

    def _append(self, log: str, user: int, text: str) -> None:
        self._connection.execute(
            """
            insert into entries
            select ?1, ?2, 1 + coalesce(max(seq), 0), ?3 from entries where log = ?1 and user = ?2
            """,
            (log, user, text),
        )

    def _search(self, user: int, question: str, row: Rows) -> None:
        execute = self._connection.execute
        vectors = execute("select id, data from vectors where user = ?", (user,)).fetchall()
        scores = np.frombuffer(b"".join(data for _, data in vectors), "<f2").reshape(-1, DIM).astype(np.float32) @ row
        by_vector = [vectors[at][0] for at in np.argsort(-scores)[:_CANDIDATES]]
        match = " OR ".join(f'"{term}"' for term in analyze(question))
        by_terms = execute(
            "select rowid from terms where terms match ? and user = ? order by rank limit ?",
            (match, user, _CANDIDATES),
        ).fetchall()
        ids = json.dumps([*by_vector, *(id for (id,) in by_terms)])
        execute("select * from items where id in (select value from json_each(?))", (ids,)).fetchall()
        for log in _LOGS:
            execute(
                "select * from entries where log = ? and user = ? order by seq desc limit ?",
                (log, user, _RECENT_ENTRIES),
            ).fetchall()


class PostgresBaseline:
    """psycopg and pgvector; each call is one transaction in one pipeline."""

    _SCHEMA = f"""
        create table items (owner int, id bigserial, content text, metadata jsonb, primary key (owner, id));
        create table vectors (owner int, id bigint, data halfvec({DIM}), primary key (owner, id));
        create table terms (owner int, term text, id bigint, count int, length int, primary key (owner, term, id));
        create table entries (log text, owner int, seq bigserial, content text, primary key (log, owner, seq));
        create table states (task text, version int, state bytea, primary key (task, version));
    """

    def __init__(self, connections: asyncio.Queue[psycopg.AsyncConnection[Any]]) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, url: str, connections: int) -> PostgresBaseline:
        idle: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
        for number in range(connections):
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
            if not number:
                await connection.execute(cls._SCHEMA)
            await register_vector_async(connection)
            idle.put_nowait(connection)
        return cls(idle)

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        async with self._transaction() as connection:
            for text, row in zip(texts, rows, strict=True):
                await self._put(connection, user, text, row)

    async def remember(self, user: int, text: str, row: Rows) -> None:
        async with self._transaction() as connection:
            await self._put(connection, user, text, row)

    async def recall(self, user: int, question: str, row: Rows) -> None:
        async with self._transaction() as connection:
            by_vector = await connection.execute(
                """
                select items.*, nearest.distance
                from (
                    select id, data <=> %(row)s as distance
                    from vectors where owner = %(user)s
                    order by data <=> %(row)s limit %(limit)s
                ) nearest join items on items.owner = %(user)s and items.id = nearest.id
                """,
                {"row": HalfVector(row), "user": user, "limit": _CANDIDATES},
            )
            by_terms = await connection.execute(
                """
                select items.*, matching.score
                from (
                    select id, sum(count::float / (count + 0.9 * length)) as score
                    from terms where owner = %(user)s and term = any(%(terms)s)
                    group by id order by score desc limit %(limit)s
                ) matching join items on items.owner = %(user)s and items.id = matching.id
                """,
                {"user": user, "terms": analyze(question), "limit": _CANDIDATES},
            )
            logs = [
                await connection.execute(
                    "select * from entries where log = %s and owner = %s order by seq desc limit %s",
                    (log, user, _RECENT_ENTRIES),
                )
                for log in _LOGS
            ]
            for cursor in (by_vector, by_terms, *logs):
                await cursor.fetchall()

    async def record_turn(self, user: int, question: str, answer: str) -> None:
        logs = [log for log in _LOGS for _ in range(2)]
        async with self._transaction() as connection:
            await connection.execute(
                "insert into entries (log, owner, content) select * from unnest(%s::text[], %s::int[], %s::text[])",
                (logs, [user] * 4, [question, answer] * 2),
            )

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        async with self._transaction() as connection:
            await connection.execute(
                "insert into states values (%s, %s, %s)", (task, version, json.dumps(state).encode())
            )
            await connection.execute(
                "delete from states where task = %s and version <= %s", (task, version - _KEPT_VERSIONS)
            )

    async def close(self) -> None:
        while not self._connections.empty():
            await self._connections.get_nowait().close()

    async def _put(self, connection: psycopg.AsyncConnection[Any], user: int, text: str, row: Rows) -> None:
        terms = analyze(text)
        await connection.execute(
            """
            with added as (insert into items (owner, content, metadata) values (%(user)s, %(text)s, '{}') returning id),
                 vector as (insert into vectors select %(user)s, id, %(row)s from added)
            insert into terms
            select %(user)s, term, added.id, count(*), %(length)s
            from added, unnest(%(terms)s::text[]) as term group by term, added.id
            """,
            {"user": user, "text": text, "row": HalfVector(row), "terms": terms, "length": len(terms)},
        )

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        connection = await self._connections.get()
        try:
            async with connection.pipeline(), connection.transaction():
                yield connection
        finally:
            self._connections.put_nowait(connection)


class RedisBaseline:
    """redis-py; each call is one MULTI."""

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url)

    async def recall(self, user: int, question: str, row: Rows) -> None:
        async with self._client.pipeline() as pipeline:
            for log in _LOGS:
                pipeline.lrange(f"baseline:{log}:{user}", -_RECENT_ENTRIES, -1)
            await pipeline.execute()

    async def recall_episodes(self, user: int) -> None:
        await self._client.lrange(f"baseline:episodes:{user}", -_RECENT_ENTRIES, -1)

    async def record_turn(self, user: int, question: str, answer: str) -> None:
        async with self._client.pipeline() as pipeline:
            for log in _LOGS:
                pipeline.rpush(f"baseline:{log}:{user}", question, answer)
            await pipeline.execute()

    async def checkpoint(self, task: str, version: int, state: dict[str, Any]) -> None:
        async with self._client.pipeline() as pipeline:
            pipeline.hset(f"baseline:task:{task}", str(version), json.dumps(state))
            pipeline.hdel(f"baseline:task:{task}", str(version - _KEPT_VERSIONS))
            await pipeline.execute()

    async def close(self) -> None:
        await self._client.aclose()


class ChromaBaseline:
    """chromadb's own client: one collection, one `upsert` for a write, one `query` with a filter for a recall."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._next_id = 0

    @classmethod
    async def open(cls, port: int) -> ChromaBaseline:
        import chromadb

        client = await chromadb.AsyncHttpClient(host="127.0.0.1", port=port)
        cosine = {"hnsw": {"space": "cosine"}}
        return cls(await client.create_collection("baseline", configuration=cosine, embedding_function=None))

    async def fill(self, user: int, texts: Sequence[str], rows: Rows) -> None:
        ids = [str(self._next_id + at) for at in range(len(texts))]
        self._next_id += len(texts)
        metadatas = [{"user": user}] * len(texts)
        await self._collection.upsert(ids=ids, documents=list(texts), embeddings=list(rows), metadatas=metadatas)

    async def remember(self, user: int, text: str, row: Rows) -> None:
        await self.fill(user, [text], row[np.newaxis])

    async def recall(self, user: int, question: str, row: Rows) -> None:
        await self._collection.query(query_embeddings=[row], n_results=_CANDIDATES, where={"user": user})

    async def close(self) -> None:
        return
