"""The rival of `load.py`: the same loop, written by hand on pgvector, Redis and the same model.

It does what such a program has to do: the session of a user is a list in Redis, each message is embedded and stored in
pgvector, a recall reads the nearest messages of the user and the last ones of the session, and a step saves its state
so that it is not run twice. It has no versions, checks, row-level security, full-text search, tiers, budget or erasure.

Concurrent calls share the work, as a good engineer would arrange it: whatever arrives while the model runs is the next
batch of the model, and so are the inserts, the searches and the commands to Redis. Decision 023 lists what else was
tried to make it faster.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import psycopg
import redis.asyncio
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async

_DIM = 384
_RECENT = 24
_MODEL_BATCH = 64
_POSTGRES_BATCH = 64
_REDIS_BATCH = 256
_SCHEMA = f"""
    create table if not exists messages (
        owner text, id bigint generated always as identity, role text, content text, embedding halfvec({_DIM}),
        primary key (owner, id)
    );
    alter table messages alter embedding set storage plain;
"""
_INSERT = """
    insert into messages (owner, role, content, embedding)
    select * from unnest(%s::text[], %s::text[], %s::text[], %s::halfvec[])
"""
# All messages of one user are read by the primary key and sorted: exact, and faster than an HNSW index with a filter.
_SEARCH = """
    select asked.number, found.role, found.content
    from unnest(%s::text[], %s::halfvec[]) with ordinality as asked (owner, embedding, number),
    lateral (
        select role, content from messages
        where owner = asked.owner order by embedding <=> asked.embedding limit 10
    ) found
"""
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")
Step = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class Batcher(Generic[_Work, _Result]):
    """Runs one batch at a time; what arrives meanwhile is the next batch."""

    def __init__(self, run: Callable[[list[_Work]], Awaitable[Sequence[_Result]]], size: int) -> None:
        self._run_batch = run
        self._size = size
        self._waiting: list[tuple[_Work, asyncio.Future[_Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, work: _Work) -> _Result:
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            try:
                results: Sequence[Any] = await self._run_batch([work for work, _ in batch])
            except Exception as error:  # noqa: BLE001 - raised by the callers
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._task = None


class Rival:
    """One process: the model, a Redis client, and connections to PostgreSQL for writing and for reading."""

    def __init__(self, model: Any, client: Any, writer: Any, reader: Any, step: Step) -> None:
        self._model = model
        self._client = client
        self._writer = writer
        self._reader = reader
        self.run_step = step
        self.model: Batcher[str, Any] = Batcher(self._embed, _MODEL_BATCH)
        self.messages: Batcher[tuple[Any, ...], None] = Batcher(self._insert, _POSTGRES_BATCH)
        self.searches: Batcher[tuple[Any, ...], list[Any]] = Batcher(self._search, _POSTGRES_BATCH)
        self.redis: Batcher[tuple[Any, ...], Any] = Batcher(self._send, _REDIS_BATCH)
        self._background: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, urls: str, model: Any, step: Step) -> AsyncIterator[Rival]:
        postgres, redis_url = urls.split()
        connections = [await psycopg.AsyncConnection.connect(postgres, autocommit=True) for _ in range(2)]
        await _create_schema(connections[0])
        for connection in connections:
            await register_vector_async(connection)
            connection.prepare_threshold = 0
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            rival = cls(model, client, *connections, step)
            yield rival
            await asyncio.gather(*rival._background)
            if rival._failures:
                raise rival._failures[0]
        for connection in connections:
            await connection.close()

    def get_user(self, number: int) -> RivalUser:
        return RivalUser(self, f"u{number}")

    def start(self, work: Awaitable[Any]) -> None:
        """Run work that a call does not wait for."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _embed(self, texts: list[str]) -> Any:
        return await asyncio.to_thread(self._model.embed_batch, texts)

    async def _insert(self, rows: list[tuple[Any, ...]]) -> list[None]:
        await self._writer.execute(_INSERT, [list(column) for column in zip(*rows, strict=True)])
        return [None] * len(rows)

    async def _search(self, questions: list[tuple[Any, ...]]) -> list[list[Any]]:
        columns = [list(column) for column in zip(*questions, strict=True)]
        cursor = await self._reader.execute(_SEARCH, columns, binary=True)
        found: list[list[Any]] = [[] for _ in questions]
        for number, role, content in await cursor.fetchall():
            found[number - 1].append((role, content))
        return found

    async def _send(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))


class RivalUser:
    """One user's session, memory and tasks."""

    def __init__(self, rival: Rival, name: str) -> None:
        self._rival = rival
        self._name = name

    async def record_turn(self, user: str, assistant: str) -> None:
        messages = {"user": user, "assistant": assistant}
        lines = [json.dumps({"role": role, "content": text}) for role, text in messages.items()]
        await self._rival.redis.submit(("RPUSH", f"session:{self._name}", *lines))
        for role, text in messages.items():
            self._rival.start(self._store(role, text))

    async def _store(self, role: str, text: str) -> None:
        vector = await self._rival.model.submit(text)
        await self._rival.messages.submit((self._name, role, text, HalfVector(vector)))

    async def recall(self, question: str) -> str:
        recent, found = await asyncio.gather(
            self._rival.redis.submit(("LRANGE", f"session:{self._name}", -_RECENT, -1)), self._find(question)
        )
        messages = [json.loads(line) for line in recent]
        lines = [
            *(f"{role}: {text}" for role, text in found),
            *(f"{one['role']}: {one['content']}" for one in messages),
        ]
        return "\n".join(lines)

    async def _find(self, question: str) -> list[Any]:
        vector = await self._rival.model.submit(question)
        return await self._rival.searches.submit((self._name, HalfVector(vector)))

    async def step(self, task: str, question: str) -> Mapping[str, Any]:
        """Return the saved state of a finished step, or run the step and save its state."""
        key = f"task:{self._name}:{task}"
        if saved := await self._rival.redis.submit(("HGET", key, "1")):
            state: Mapping[str, Any] = json.loads(saved)
            return state
        state = {"question": question}
        state = {**state, **await self._rival.run_step(state)}
        await self._rival.redis.submit(("HSET", key, "1", json.dumps(state), "status", "done"))
        return state


async def _create_schema(connection: psycopg.AsyncConnection[Any]) -> None:
    """Create the table once, although several processes start at the same time."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(1)")
        await connection.execute(_SCHEMA)
