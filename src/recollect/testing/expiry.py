"""What a store promises of tasks whose time is up: hidden at once, gone on with if asked to, dropped when told to."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recollect.errors import Conflict, FencedOut, LeaseHeld
from recollect.stores.base import Lease, Task, Tasks
from recollect.stores.ops import DropTask, SetStatus
from recollect.testing.clock import ManualClock
from recollect.testing.samples import ADA, ADA_ELSEWHERE, MINUTE, SECOND, TASKS, ids, note, save


async def worked_on(store: Tasks) -> Lease:
    """A task that was begun under a lease, with a minute to live."""
    lease = await store.claim(TASKS, "t", "w1", SECOND, plan_hash="p")
    await store.write(save("[1]", ttl=MINUTE, fence=lease.fence, status="poisoned"), note("a", lease.fence))
    return lease


async def states(store: Tasks, *, hidden: bool = False) -> list[str]:
    return [one.state for one in await store.checkpoints(TASKS, "t", hidden=hidden)]


class ExpiryContract:
    """Tasks whose time is up."""

    pytestmark = pytest.mark.asyncio

    async def test_an_expired_task_is_hidden(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(save("[1]", ttl=MINUTE), save("[2]"))
        task = await store.task(TASKS, "t")
        assert task is not None
        assert task.expires_at == clock.now + MINUTE
        clock.forward(MINUTE)
        assert await store.task(TASKS, "t") is None
        assert await store.tasks(TASKS) == []
        assert await store.tasks(TASKS, status="ready") == []
        assert await store.checkpoint(TASKS, "t") is None
        assert await store.checkpoint(TASKS, "t", version=1) is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []

    async def test_what_is_hidden_is_found_by_those_who_ask_for_it(self, store: Tasks, clock: ManualClock) -> None:
        await worked_on(store)
        seen = await store.task(TASKS, "t")
        clock.forward(2 * MINUTE)
        assert await store.task(TASKS, "t", hidden=True) == seen
        newest = await store.checkpoint(TASKS, "t", hidden=True)
        assert newest is not None
        assert await store.checkpoint(TASKS, "t", version=1, hidden=True) == newest
        assert await store.checkpoints(TASKS, "t", hidden=True) == [newest]
        assert [step.key for step in await store.steps(TASKS, "t", hidden=True)] == ["a"]
        assert await store.task(TASKS, "nobody", hidden=True) is None

    async def test_a_save_goes_on_with_an_expired_task(self, store: Tasks, clock: ManualClock) -> None:
        """Whoever saves may have a clock that runs fast: what the others did has to be there afterwards."""
        await worked_on(store)
        clock.forward(2 * MINUTE)
        await store.write(save("[2]"))
        assert await states(store) == ["[2]", "[1]"]
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.version, task.status, task.plan_hash, task.ttl) == (2, "poisoned", "p", MINUTE)
        assert task.expires_at == clock.now + MINUTE
        assert [step.key for step in await store.steps(TASKS, "t")] == ["a"]
        clock.back(2 * MINUTE)  # nor is anything gone for those whose clock is right
        assert await states(store) == ["[2]", "[1]"]

    async def test_a_save_that_expects_a_new_task_is_refused_while_the_old_one_is_kept(
        self, store: Tasks, clock: ManualClock
    ) -> None:
        await worked_on(store)
        clock.forward(2 * MINUTE)
        with pytest.raises(Conflict, match=r"at version 1, not 0; it expired on 2026-01-01 at 00:01 UTC.*delete"):
            await store.write(save("[new]", expect=0))
        assert await store.task(TASKS, "t") is None  # asking for it is no sign of life
        await store.write(save("[2]", expect=1))
        assert await states(store) == ["[2]", "[1]"]

    async def test_a_claim_goes_on_with_an_expired_task(self, store: Tasks, clock: ManualClock) -> None:
        old = await worked_on(store)
        clock.forward(2 * MINUTE)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        assert lease.fence > old.fence
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.version, task.status, task.plan_hash) == (1, "poisoned", "p")
        assert await states(store) == ["[1]"]
        assert [step.key for step in await store.steps(TASKS, "t")] == ["a"]
        with pytest.raises(FencedOut):
            await store.write(save("[9]", fence=old.fence))

    async def test_the_holder_goes_on_though_its_clock_leapt(self, store: Tasks, clock: ManualClock) -> None:
        lease = await worked_on(store)
        clock.forward(60 * MINUTE)
        await store.write(save("[2]", fence=lease.fence, expect=1), note("a", lease.fence, "completed"))
        assert await states(store) == ["[2]", "[1]"]
        clock.forward(60 * MINUTE)
        await store.renew(lease, MINUTE)
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(60 * MINUTE)
        await store.release(lease)
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.owner, task.version) == (None, 2)
        clock.forward(60 * MINUTE)
        await store.write(SetStatus(space=TASKS, task="t", status="failed"))
        assert await states(store) == ["[2]", "[1]"]

    async def test_a_leased_task_never_expires(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", 10 * MINUTE)
        await store.write(save("[1]", ttl=MINUTE, fence=lease.fence))
        clock.forward(5 * MINUTE)
        assert await store.task(TASKS, "t") is not None
        assert len(await store.tasks(TASKS)) == 1
        assert await store.expired(TASKS, clock.now) == []
        with pytest.raises(Conflict):
            await store.write(DropTask(TASKS, "t", expired_by=clock.now))
        await store.write(save("[2]", fence=lease.fence, expect=1))

    async def test_every_sign_of_life_puts_the_end_of_a_task_off(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(save("[1]", ttl=MINUTE))
        clock.forward(MINUTE - SECOND)
        lease = await store.claim(TASKS, "t", "w1", SECOND)
        clock.forward(MINUTE - SECOND)
        lease = await store.renew(lease, SECOND)
        clock.forward(MINUTE - SECOND)
        await store.write(save("[2]", fence=lease.fence))
        clock.forward(MINUTE - SECOND)
        assert await store.task(TASKS, "t") is not None
        clock.forward(SECOND)
        assert await store.task(TASKS, "t") is None

    async def test_expired_tasks_are_listed_by_their_end(self, store: Tasks, clock: ManualClock) -> None:
        for n, ttl in enumerate((3, 1, 2, 1, 9)):
            await store.write(save(task=f"t{n}", ttl=ttl * MINUTE))
        await store.write(save(task="forever"))
        await store.write(save(task="t1", space=ADA_ELSEWHERE.space("checkpoints"), ttl=MINUTE))
        assert await store.expired(TASKS, clock.now + 60 * MINUTE) == []  # none has, whatever is asked for
        clock.forward(5 * MINUTE)
        found = await store.expired(TASKS, clock.now)
        assert ids(found) == ["t1", "t3", "t2", "t0"]
        assert found[0] == await store.task(TASKS, "t1", hidden=True)
        assert ids(await store.expired(TASKS, clock.now - 3 * MINUTE)) == ["t1", "t3", "t2"]
        assert ids(await store.expired(TASKS, clock.now - 3 * MINUTE - SECOND)) == ["t1", "t3"]
        assert ids(await store.expired(TASKS, clock.now + 60 * MINUTE)) == ["t1", "t3", "t2", "t0"]
        seen: list[Task] = []
        while page := await store.expired(TASKS, clock.now, limit=1, after=seen[-1] if seen else None):
            seen += page
        assert seen == found
        assert await store.expired(ADA.space("procedural"), clock.now) == []

    async def test_what_has_expired_is_dropped_by_its_age(self, store: Tasks, clock: ManualClock) -> None:
        await worked_on(store)
        await store.write(save("[1]", task="u", ttl=2 * MINUTE))
        clock.forward(2 * MINUTE)
        await store.write(DropTask(TASKS, "t", expired_by=clock.now - MINUTE))
        for drop in (DropTask(TASKS, "u", expired_by=clock.now - SECOND), DropTask(TASKS, "t", expired_by=clock.now)):
            with pytest.raises(Conflict):
                await store.write(drop)
        assert await store.task(TASKS, "t", hidden=True) is None
        assert await states(store, hidden=True) == []
        assert await store.steps(TASKS, "t", hidden=True) == []
        assert ids(await store.expired(TASKS, clock.now)) == ["u"]
        await store.write(save("[new]", expect=0))
        assert await states(store) == ["[new]"]

    async def test_what_was_taken_up_meanwhile_is_not_dropped(self, store: Tasks, clock: ManualClock) -> None:
        """The drop looks again, in its own transaction: what was listed a moment ago may be somebody's work now."""
        for name in ("saved", "claimed", "left"):
            await store.write(save("[1]", task=name, ttl=MINUTE))
        clock.forward(2 * MINUTE)
        assert ids(await store.expired(TASKS, clock.now)) == ["claimed", "left", "saved"]
        await store.write(save("[2]", task="saved"))
        await store.claim(TASKS, "claimed", "w1", MINUTE)
        for name in ("saved", "claimed"):
            # Refused together, as every batch is.
            with pytest.raises(Conflict, match="not expired"):
                await store.write(*(DropTask(TASKS, one, expired_by=clock.now) for one in ("left", name)))
        assert ids(await store.tasks(TASKS)) == ["claimed", "saved"]
        assert ids(await store.expired(TASKS, clock.now)) == ["left"]
        assert await store.checkpoint(TASKS, "left", hidden=True) is not None

    async def test_of_many_who_drop_an_expired_task_one_does(self, store: Tasks, clock: ManualClock) -> None:
        await worked_on(store)
        clock.forward(2 * MINUTE)
        drop = DropTask(TASKS, "t", expired_by=clock.now - MINUTE)
        results = await asyncio.gather(*(store.write(drop) for _ in range(8)), return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 7

    async def test_a_zombie_of_a_dropped_task_cannot_write(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await worked_on(store)
        clock.forward(2 * MINUTE)
        await store.write(DropTask(TASKS, "t", expired_by=clock.now))
        with pytest.raises(FencedOut, match="gone"):
            await store.write(save("[9]", fence=zombie.fence))
        assert (await store.claim(TASKS, "t", "w2", MINUTE)).fence > zombie.fence

    async def test_it_is_known_where_there_are_tasks(self, store: Tasks, clock: ManualClock) -> None:
        assert await store.task_spaces("acme") == []
        other = replace(ADA, agent="another").space("checkpoints")
        for write in (save(ttl=MINUTE), save(space=other), save(space=ADA_ELSEWHERE.space("checkpoints"))):
            await store.write(write)
        clock.forward(2 * MINUTE)
        assert await store.task_spaces("acme") == [other, TASKS]
        await store.write(DropTask(other, "t"))
        assert await store.task_spaces("acme") == [TASKS]
