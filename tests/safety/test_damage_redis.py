"""Every kind of value that Redis keeps for us, damaged in every way: told of as damage, and nothing else is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from recollect.stores.erasing import Doomed
from recollect.stores.redis import RedisStore
from recollect.stores.redis.keys import data, of_task, order, owner, table
from recollect.stores.redis.ledger import Ledger, Plan
from recollect.stores.tails import Reach
from recollect.testing.erasing import erasure
from recollect.testing.samples import ADA, LOG, TASKS, append, ids, note, save
from tests.safety.hostile import confused
from tests.safety.shaped import outcome
from tests.servers.redis import RedisServer

ROWS, PLANS, SALT = (b"recollect:{erasures}:" + name for name in (b"rows", b"plans", b"salt"))
VALUES: tuple[Any, ...] = (None, True, -1, 10**40, "x", [], {})
NO_JSON = (b"", b"{", b"[1,", b"\x00", b"\xff\xfe")
SECRET = "hello"

Read = Callable[[RedisStore], Awaitable[Any]]


async def _tails(store: RedisStore) -> list[Any]:
    return [entry for tail in await store.tails(LOG, Reach(own=9, others=9, of_each=9)) for entry in tail]


OF_LOGS: tuple[Read, ...] = (
    lambda s: s.entries(LOG, "e1", "e2"),
    lambda s: s.recent(LOG, limit=9),
    lambda s: s.read(LOG, hidden=True),
    _tails,
)
OF_TASKS: tuple[Read, ...] = (
    lambda s: s.task(TASKS, "t"),
    lambda s: s.tasks(TASKS),
    lambda s: s.checkpoint(TASKS, "t"),
    lambda s: s.checkpoints(TASKS, "t"),
    lambda s: s.steps(TASKS, "t"),
)
OF_OWNERS: tuple[Read, ...] = (
    lambda s: s.owners("acme"),
    lambda s: s.counted("acme"),
    lambda s: s.tenants(),
    lambda s: s.task_spaces("acme"),
    lambda s: s.holdings(),
)
# Each kind of value: the hash it lies in, its field, what stands before and behind the JSON in it, and who reads it.
PLACES: dict[str, tuple[bytes, bytes, int, bytes, tuple[Read, ...]]] = {
    "an entry": (data(LOG), b"e1", 20, b"", OF_LOGS),
    "a task": (table(TASKS), b"t", 0, b"", OF_TASKS),
    "a checkpoint": (of_task(b"versions", (TASKS, "t")), b"1", 64, b'\n{"a":1}', (*OF_TASKS[2:4], lambda s: s.check())),
    "a step": (of_task(b"steps", (TASKS, "t")), b"s", 0, b"", OF_TASKS[4:]),
    "an owner of logs": (owner(LOG), b"names", 0, b"", OF_OWNERS),
    "an owner of tasks": (owner(TASKS), b"names", 0, b"", OF_OWNERS),
    "an erasure": (ROWS, b"e1", 0, b"", (lambda s: s.ledger(), lambda s: s.deleted("e1"))),
    "a plan": (PLANS, b"p", 0, b"", (lambda s: s.deleted("e1"),)),
}


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    redis_server.client().flushall()
    opened = await RedisStore.open(redis_server.url)
    await opened.write(append("e1", content=SECRET, metadata={"a": {"b": 1}}), append("e2"))
    await opened.write(save('{"a":1}'), save('{"b":1}', task="other"))
    lease = await opened.claim(TASKS, "t", "w", timedelta(minutes=1))
    await opened.write(note("s", lease.fence, "completed", result="1"))
    await opened.release(lease)
    await opened.enter(erasure())
    yield opened
    await opened.close()


def damages(raw: bytes, before: int, behind: bytes) -> Iterator[bytes]:
    """The value with something else in it, each in its turn; first what is no JSON at all."""
    told = json.loads(raw[before : len(raw) - len(behind)])
    for text in NO_JSON:
        yield raw[:before] + text + behind
    for changed in confused(told, VALUES):
        yield raw[:before] + json.dumps(changed).encode() + behind
    yield raw[: len(raw) // 2]


@pytest.mark.parametrize("kind", PLACES)
async def test_whatever_is_read_of_it_is_whole_or_called_damaged(
    kind: str, store: RedisStore, redis_server: RedisServer
):
    """Mutants: `whole` takes a text; `one_of` takes anything; the parts of an erasure are taken as they come."""
    client = redis_server.client()
    key, field, before, behind, reads = PLACES[kind]
    if kind == "a plan":
        field = (await Ledger(store._server).plan(Plan("e1", b"recollect:mark", {"conversation": 1}), b"")).encode()
    whole = client.hget(key, field)
    assert isinstance(whole, bytes)
    refused, faults = 0, set()
    for damaged in damages(whole, before, behind):
        client.hset(key, field, damaged)
        for number, read in enumerate(reads):
            came = await outcome(partial(read, store), SECRET)
            refused += came == "refused"
            faults |= set() if came in ("whole", "refused") else {f"{number}: {came}"}
        if kind == "an entry":
            assert ids(await store.entries(LOG, "e2")) == ["e2"]
        if kind == "a task":
            assert (await store.task(TASKS, "other")) is not None
    assert faults == set()
    if kind == "a checkpoint":  # its damage is told by the value itself, and an older one is used
        assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False]
    else:
        assert refused > 20


@pytest.mark.parametrize("change", ["claim", "save", "note"])
async def test_a_task_whose_row_is_damaged_is_not_written_over(
    change: str, store: RedisStore, redis_server: RedisServer
):
    """Mutant: a row that cannot be read counts as no task."""
    client = redis_server.client()
    client.hset(table(TASKS), b"t", b'["1"]')
    store._committer.forget()
    calls: dict[str, Read] = {
        "claim": lambda s: s.claim(TASKS, "t", "w", timedelta(minutes=1)),
        "save": lambda s: s.write(save('{"a":2}')),
        "note": lambda s: s.write(note("s", 1)),
    }
    assert await outcome(partial(calls[change], store), SECRET) == "refused"
    assert client.hget(table(TASKS), b"t") == b'["1"]'


async def test_what_stands_in_the_order_of_a_log_alone_is_missed(store: RedisStore, redis_server: RedisServer):
    """Mutant: what is gone is passed over."""
    redis_server.client().hdel(data(LOG), b"e1")
    for read in (OF_LOGS[1], OF_LOGS[2], OF_LOGS[3]):
        assert await outcome(partial(read, store), SECRET) == "refused"
    assert ids(await store.entries(LOG, "e2")) == ["e2"]


async def test_an_order_that_is_not_ours_is_called_damaged(store: RedisStore, redis_server: RedisServer):
    redis_server.client().zadd(order(LOG), {b"x": 3})
    for read in OF_LOGS[1:]:
        assert await outcome(partial(read, store), SECRET) == "refused"


async def test_a_key_of_the_ledger_that_is_none(store: RedisStore, redis_server: RedisServer):
    redis_server.client().set(SALT, b"zz")
    again = Ledger(store._server)
    assert await outcome(again.salt, SECRET) == "refused"


async def test_damaged_entries_can_be_erased(store: RedisStore, redis_server: RedisServer):
    """Mutant: an entry that cannot be read keeps its owner from being erased."""
    redis_server.client().hset(data(LOG), b"e1", b"{")
    await store.wipe("e1", Doomed(spaces=(ADA.space("conversation"),)))
    assert await store.read(LOG, hidden=True) == []
