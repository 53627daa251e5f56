"""Damaged values in Redis: every read returns valid values or raises StoreCorrupt, and other values stay readable."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from recollect.stores.base import TailLimits
from recollect.stores.erasure import ErasureSelection
from recollect.stores.redis import RedisStore
from recollect.stores.redis.codec import (
    build_key,
    build_owner_prefix,
    build_task_key,
)
from recollect.testing.factories import ADA, LOG, START, TASKS, list_ids, make_append, make_note, make_save
from recollect.testing.whole_store import make_erasure
from tests.safety.hostile_inputs import mutate
from tests.safety.shape_checks import classify_read
from tests.servers.redis import RedisServer

ROWS, COUNTS, SALT = (b"recollect:{erasures}:" + name for name in (b"rows", b"counts", b"salt"))
VALUES: tuple[Any, ...] = (None, True, -1, 10**40, "x", [], {})
INVALID_JSON = (b"", b"{", b"[1,", b"\x00", b"\xff\xfe")
SECRET = "hello"

Read = Callable[[RedisStore], Awaitable[Any]]


async def _tails(store: RedisStore) -> list[Any]:
    return [
        entry
        for tail in await store.read_tails(LOG, TailLimits(own_entries=9, other_logs=9, entries_per_log=9))
        for entry in tail
    ]


LOG_READS: tuple[Read, ...] = (
    lambda s: s.entries(LOG, "e1", "e2"),
    lambda s: s.recent(LOG, limit=9),
    lambda s: s.read(LOG, hidden=True),
    _tails,
)
TASK_READS: tuple[Read, ...] = (
    lambda s: s.task(TASKS, "t"),
    lambda s: s.tasks(TASKS),
    lambda s: s.checkpoint(TASKS, "t"),
    lambda s: s.checkpoints(TASKS, "t"),
    lambda s: s.steps(TASKS, "t"),
)
OWNER_READS: tuple[Read, ...] = (
    lambda s: s.owners("acme"),
    lambda s: s.last_seqs("acme"),
    lambda s: s.tenants(),
    lambda s: s.task_spaces("acme"),
    lambda s: s.list_traced_spaces(),
)
# For each kind: its hash and field, the length of the prefix and the suffix of its JSON, and the reads of it.
PLACES: dict[str, tuple[bytes, bytes, int, bytes, tuple[Read, ...]]] = {
    "an entry": (build_key(b"data", LOG), b"e1", 20, b"", LOG_READS),
    "a task": (build_key(b"tasks", TASKS), b"t", 0, b"", TASK_READS),
    "a checkpoint": (
        build_task_key(b"versions", (TASKS, "t")),
        b"1",
        64,
        b'\n{"a":1}',
        (*TASK_READS[2:4], lambda s: s.check()),
    ),
    "a step": (build_task_key(b"steps", (TASKS, "t")), b"s", 0, b"", TASK_READS[4:]),
    "an owner of logs": (build_owner_prefix(LOG) + b"owner", b"names", 0, b"", OWNER_READS),
    "an owner of tasks": (build_owner_prefix(TASKS) + b"owner", b"names", 0, b"", OWNER_READS),
    "an erasure": (ROWS, b"e1", 0, b"", (lambda s: s.ledger(), lambda s: s.mark_deleted("e1", START))),
    "counts of a deletion": (COUNTS, b"d", 0, b"", (lambda s: s.ledger(),)),
}


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    redis_server.client().flushall()
    opened = await RedisStore.open(redis_server.url)
    await opened.write(make_append("e1", content=SECRET, metadata={"a": {"b": 1}}), make_append("e2"))
    await opened.write(make_save('{"a":1}'), make_save('{"b":1}', task="other"))
    lease = await opened.claim(TASKS, "t", "w", timedelta(minutes=1))
    await opened.write(make_note("s", lease.fence, "completed", result="1"))
    await opened.release(lease)
    await opened.add_erasure(make_erasure())
    yield opened
    await opened.close()


def iterate_damages(raw: bytes, before: int, suffix: bytes) -> Iterator[bytes]:
    """Yield copies of the value with one damage each, invalid JSON first."""
    parsed = json.loads(raw[before : len(raw) - len(suffix)])
    for text in INVALID_JSON:
        yield raw[:before] + text + suffix
    for changed in mutate(parsed, VALUES):
        yield raw[:before] + json.dumps(changed).encode() + suffix
    yield raw[: len(raw) // 2]


@pytest.mark.parametrize("kind", PLACES)
async def test_damaged_value_is_read_whole_or_raises_store_corrupt(
    kind: str, store: RedisStore, redis_server: RedisServer
):
    """Mutants: `decode_int` accepts a text; `decode_choice` accepts anything; parts of an erasure are not checked."""
    client = redis_server.client()
    key, field, before, suffix, reads = PLACES[kind]
    client.hset(COUNTS, b"d", b'["e1", {"conversation": 1}]')
    whole = client.hget(key, field)
    assert isinstance(whole, bytes)
    refused, faults = 0, set()
    for damaged in iterate_damages(whole, before, suffix):
        client.hset(key, field, damaged)
        for number, read in enumerate(reads):
            came = await classify_read(partial(read, store), SECRET)
            refused += came == "refused"
            faults |= set() if came in ("whole", "refused") else {f"{number}: {came}"}
        if kind == "an entry":
            assert list_ids(await store.entries(LOG, "e2")) == ["e2"]
        if kind == "a task":
            assert (await store.task(TASKS, "other")) is not None
    assert faults == set()
    if kind == "a checkpoint":  # it has a checksum, and an older checkpoint is used
        assert [checkpoint.intact for checkpoint in await store.checkpoints(TASKS, "t")] == [False]
    else:
        assert refused > 20


@pytest.mark.parametrize("change", ["claim", "save", "note"])
async def test_damaged_task_row_is_not_overwritten(change: str, store: RedisStore, redis_server: RedisServer):
    """Mutant: an unreadable row is treated as a missing task."""
    client = redis_server.client()
    client.hset(build_key(b"tasks", TASKS), b"t", b'["1"]')
    store._committer.cached_rows.clear()
    calls: dict[str, Read] = {
        "claim": lambda s: s.claim(TASKS, "t", "w", timedelta(minutes=1)),
        "save": lambda s: s.write(make_save('{"a":2}')),
        "note": lambda s: s.write(make_note("s", 1)),
    }
    assert await classify_read(partial(calls[change], store), SECRET) == "refused"
    assert client.hget(build_key(b"tasks", TASKS), b"t") == b'["1"]'


async def test_entry_missing_from_log_data_raises_store_corrupt(store: RedisStore, redis_server: RedisServer):
    """Mutant: missing entries are skipped."""
    redis_server.client().hdel(build_key(b"data", LOG), b"e1")
    for read in (LOG_READS[1], LOG_READS[2], LOG_READS[3]):
        assert await classify_read(partial(read, store), SECRET) == "refused"
    assert list_ids(await store.entries(LOG, "e2")) == ["e2"]


async def test_foreign_member_in_log_order_raises_store_corrupt(store: RedisStore, redis_server: RedisServer):
    redis_server.client().zadd(build_key(b"order", LOG), {b"x": 3})
    for read in LOG_READS[1:]:
        assert await classify_read(partial(read, store), SECRET) == "refused"


async def test_invalid_ledger_salt_raises_store_corrupt(store: RedisStore, redis_server: RedisServer):
    redis_server.client().set(SALT, b"zz")
    store._salt = b""
    assert await classify_read(store.salt, SECRET) == "refused"


async def test_damaged_entries_can_be_erased(store: RedisStore, redis_server: RedisServer):
    """Mutant: an unreadable entry makes the erasure fail."""
    redis_server.client().hset(build_key(b"data", LOG), b"e1", b"{")
    await store.wipe("e1", ErasureSelection(spaces=(ADA.space("conversation"),)))
    assert await store.read(LOG, hidden=True) == []
