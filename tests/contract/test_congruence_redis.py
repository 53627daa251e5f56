"""Random histories of logs and tasks on Redis, compared with the reference."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.stores.base import TailLimits
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.redis import RedisStore
from recollect.stores.writes import Drop, Lease, Write
from recollect.testing import ManualClock
from recollect.testing.factories import SECOND, START
from recollect.types import Space
from tests.contract.test_congruence import (
    NAMES,
    SCOPES,
    conditional_appends,
    limits,
    log_writes,
    logs,
    maybe_moments,
    seconds,
    statuses,
    task_names,
    task_spaces,
    task_writes,
)

drops = st.builds(Drop, logs, st.lists(st.integers(1, 6), max_size=3).map(tuple))
# Redis compares the tasks of a batch before its logs, so a batch has only one kind of write that may be refused.
batches = st.lists(st.one_of(log_writes, log_writes, drops, task_writes, task_writes), min_size=1, max_size=4)
log_batches = st.lists(st.one_of(log_writes, drops, conditional_appends, conditional_appends), min_size=1, max_size=4)
workers = st.sampled_from(["w1", "w2"])
questions = st.one_of(
    st.tuples(st.just("log"), logs, limits, st.integers(0, 4), maybe_moments, maybe_moments),
    st.tuples(st.just("claim"), task_spaces, task_names, workers, seconds),
    st.tuples(st.just("renew"), st.integers(0, 5), seconds),
    st.tuples(st.just("release"), st.integers(0, 5)),
    st.tuples(st.just("task"), task_spaces, task_names, statuses),
    st.tuples(st.just("clock"), st.integers(-2, 2)),
)
scripts = st.lists(st.tuples(st.just("write"), batches | log_batches) | questions, min_size=5, max_size=25)
tenants = itertools.count()

Answering = RedisStore | InMemoryStore


@dataclass
class StorePair:
    """Redis store, the clock that it shares with its reference, and their event loop."""

    runner: asyncio.Runner
    redis: RedisStore
    clock: ManualClock
    of_one_owner: bool


@pytest.fixture(scope="module", params=["redis_server", "redis_cluster"])
def both(request: pytest.FixtureRequest) -> Iterator[StorePair]:
    clock = ManualClock(START)
    with asyncio.Runner() as runner:
        redis = runner.run(RedisStore.open(request.getfixturevalue(request.param).url, clock=clock))
        yield StorePair(runner, redis, clock, of_one_owner=request.param == "redis_cluster")
        runner.run(redis.close())


@given(script=scripts)
def test_redis_answers_like_the_reference(both: StorePair, script: list[Any]) -> None:
    both.clock.now = START
    reference = InMemoryStore(clock=both.clock)
    # Every example has its own tenant, so that fences and sequences restart.
    both.runner.run(_play(both, reference, f"tenant{next(tenants)}", script))


async def _play(both: StorePair, reference: InMemoryStore, tenant: str, script: list[Any]) -> None:
    leases: list[Lease] = []
    for line in script:
        match line:
            case ("clock", moved):
                both.clock.forward(timedelta(seconds=moved))
            case ("write", writes):
                for batch in _batches([_move_to_tenant(tenant, write) for write in writes], both.of_one_owner):
                    got, expected = await _outcome(both.redis.write(*batch)), await _outcome(reference.write(*batch))
                    assert got == expected, batch
            case (method, *rest):
                arguments = [_move_to_tenant(tenant, one) for one in rest]
                got, expected = [
                    await _outcome(_ask(one, method, arguments, leases)) for one in (both.redis, reference)
                ]
                assert got == expected, line
                if isinstance(expected, Lease):
                    leases.append(expected)
    for store in (both.redis, reference):
        assert await store.owners(tenant) == await reference.owners(tenant)
        assert await store.task_spaces(tenant) == await reference.task_spaces(tenant)
    for scope in SCOPES:
        space = replace(scope.space("conversation"), tenant=tenant)
        assert await both.redis.entries(space, *NAMES) == await reference.entries(space, *NAMES)
        assert await both.redis.read(space, hidden=True) == await reference.read(space, hidden=True)
        assert await both.redis.logs(space, hidden=True) == await reference.logs(space, hidden=True)


async def _ask(store: Answering, method: str, arguments: list[Any], leases: list[Lease]) -> Any:
    match method, arguments:
        case "log", [space, limit, after, since, until]:
            return (
                await store.recent(space, limit=limit, kinds="k" * (after % 2)),
                await store.read(space, after=after, limit=limit, since=since, until=until),
                await store.logs(space),
                [(tail.space, list(tail)) for tail in await store.read_tails(space, TailLimits(limit, after, limit))],
            )
        case "claim", [space, task, owner, ttl]:
            return await store.claim(space, task, owner, ttl)
        case "renew", [which, ttl]:
            return await store.renew(leases[which % len(leases)], ttl) if leases else None
        case "release", [which]:
            return await store.release(leases[which % len(leases)]) if leases else None
        case "task", [space, task, status]:
            return await _of_task(store, space, task, status)
    raise AssertionError(method)


async def _of_task(store: Answering, space: Space, task: str, status: Any) -> list[Any]:
    ended = await store.expired(space, START + SECOND)
    return [
        ended,
        await store.expired(space, START + SECOND, limit=1, after=ended[0]) if ended else [],
        await store.task(space, task),
        await store.task(space, task, hidden=True),
        await store.tasks(space),
        await store.tasks(space, status=status, limit=1),
        await store.tasks(space, after="t"),
        await store.tasks(space, prefix=task),
        await store.checkpoint(space, task),
        await store.checkpoint(space, task, version=1),
        await store.checkpoints(space, task, hidden=True),
        await store.steps(space, task),
        await store.steps(space, task, hidden=True),
    ]


def _batches(writes: list[Write], of_one_owner: bool) -> list[list[Write]]:
    """Return the batch, or one batch per owner on a cluster."""
    if not of_one_owner:
        return [writes]
    by_owner: dict[tuple[str, str], list[Write]] = {}
    for write in writes:
        by_owner.setdefault((write.space.user, write.space.agent), []).append(write)
    return list(by_owner.values())


async def _outcome(work: Any) -> Any:
    try:
        return await work
    except RecollectError as error:
        return type(error), str(error)


def _move_to_tenant(tenant: str, value: Any) -> Any:
    """Return the value in another tenant."""
    if isinstance(value, Space):
        return replace(value, tenant=tenant)
    if hasattr(value, "space"):
        return replace(value, space=replace(value.space, tenant=tenant))
    return value
