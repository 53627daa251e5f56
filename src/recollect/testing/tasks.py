"""What a store promises of tasks: versions by compare and swap, leases with fences, and a journal of steps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from recollect.errors import BadInput, Conflict, FencedOut, LeaseHeld, NotFound
from recollect.stores.base import Lease, Tasks
from recollect.stores.ops import DropTask, SetStatus
from recollect.testing.clock import ManualClock
from recollect.testing.samples import ADA, ADA_ELSEWHERE, MINUTE, SECOND, TASKS, note, save

YEARS = timedelta(days=3653)


class WorkContract:
    """Checkpoints, leases, journal."""

    pytestmark = pytest.mark.asyncio

    async def test_a_checkpoint_comes_back_as_it_was_saved(self, store: Tasks, clock: ManualClock) -> None:
        state = '{"text": "nul \\u0000, 漢字, 👩‍👩‍👧"}'
        await store.write(save(state, schema=3))
        found = await store.checkpoint(TASKS, "t")
        assert found is not None
        assert (found.version, found.schema, found.state, found.at, found.intact) == (1, 3, state, clock.now, True)
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.id, task.status, task.version, task.owner) == ("t", "ready", 1, None)
        assert (task.created_at, task.updated_at) == (clock.now, clock.now)

    async def test_what_is_not_there_is_none(self, store: Tasks) -> None:
        assert await store.task(TASKS, "t") is None
        assert await store.checkpoint(TASKS, "t") is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []
        assert await store.tasks(TASKS) == []
        await store.claim(TASKS, "t", "w1", MINUTE)
        assert await store.checkpoint(TASKS, "t") is None

    async def test_the_last_versions_are_kept(self, store: Tasks) -> None:
        for n in range(1, 7):
            await store.write(save(f"[{n}]", keep=3))
        assert [(one.version, one.state) for one in await store.checkpoints(TASKS, "t")] == [
            (6, "[6]"),
            (5, "[5]"),
            (4, "[4]"),
        ]
        fifth = await store.checkpoint(TASKS, "t", version=5)
        assert fifth is not None
        assert fifth.state == "[5]"
        assert await store.checkpoint(TASKS, "t", version=3) is None
        assert await store.checkpoint(TASKS, "t", version=7) is None
        await store.write(save("[7]", keep=1))
        assert [one.version for one in await store.checkpoints(TASKS, "t")] == [7]

    async def test_a_stale_expect_is_refused(self, store: Tasks) -> None:
        await store.write(save("[1]", expect=0))
        await store.write(save("[2]", expect=1))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(save("[3]", expect=stale))
        assert [one.state for one in await store.checkpoints(TASKS, "t")] == ["[2]", "[1]"]

    async def test_of_many_who_save_the_next_version_one_does(self, store: Tasks) -> None:
        await store.write(save("[0]"))
        results = await asyncio.gather(
            *(store.write(save(f"[{n}]", expect=1)) for n in range(20)), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert all(isinstance(result, Conflict) for result in results if result is not None)
        task = await store.task(TASKS, "t")
        assert task is not None
        assert task.version == 2

    async def test_saving_tells_the_version_and_many_who_save_have_one_each(self, store: Tasks) -> None:
        assert await store.save(save()) == 1
        assert await store.save(save(expect=1)) == 2
        await store.write(save())
        assert sorted(await asyncio.gather(*(store.save(save()) for _ in range(8)))) == list(range(4, 12))
        with pytest.raises(Conflict):
            await store.save(save(expect=2))
        lease = await store.claim(TASKS, "t", "worker", MINUTE)
        with pytest.raises(LeaseHeld):
            await store.save(save())
        assert await store.save(save(fence=lease.fence)) == 12

    async def test_of_many_who_claim_one_gets_the_lease(self, store: Tasks) -> None:
        results = await asyncio.gather(
            *(store.claim(TASKS, "t", f"w{n}", MINUTE) for n in range(20)), return_exceptions=True
        )
        [lease] = [result for result in results if isinstance(result, Lease)]
        assert sum(isinstance(result, LeaseHeld) for result in results) == 19
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.owner, task.fence, task.status) == (lease.owner, lease.fence, "running")

    async def test_a_lease_ends_with_its_time(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        assert lease.expires_at == clock.now + MINUTE
        clock.forward(MINUTE - SECOND)
        with pytest.raises(LeaseHeld, match=r"w1.*until"):
            await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(SECOND)
        assert (await store.claim(TASKS, "t", "w2", MINUTE)).owner == "w2"

    async def test_fences_strictly_increase(self, store: Tasks, clock: ManualClock) -> None:
        fences = []
        for n in range(5):
            lease = await store.claim(TASKS, "t", f"w{n}", MINUTE)
            fences.append(lease.fence)
            if n % 2:
                await store.release(lease)
            clock.forward(MINUTE)
        lease = await store.claim(TASKS, "t", "w", MINUTE)
        again = await store.claim(TASKS, "t", "w", MINUTE)  # the same worker, perhaps restarted
        fences += [lease.fence, again.fence]
        assert fences == sorted(set(fences))

    async def test_a_fence_is_never_given_twice(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(DropTask(TASKS, "t"))
        reborn = await store.claim(TASKS, "t", "w2", MINUTE)
        assert reborn.fence > zombie.fence
        await store.write(save("[1]", fence=reborn.fence, ttl=MINUTE))
        clock.forward(2 * MINUTE)
        third = await store.claim(TASKS, "t", "w3", MINUTE)
        assert third.fence > reborn.fence
        with pytest.raises(FencedOut):
            await store.write(save("[9]", fence=reborn.fence))

    async def test_a_zombie_cannot_write(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(save("[1]", fence=zombie.fence), note("first", zombie.fence))
        clock.forward(MINUTE)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        before = (await store.task(TASKS, "t"), await store.checkpoints(TASKS, "t"), await store.steps(TASKS, "t"))
        for write in (
            save("[9]", fence=zombie.fence),
            save("[9]", fence=zombie.fence, expect=1),
            save("[9]", fence=lease.fence + 1),
            note("first", zombie.fence, "completed"),
            note("second", zombie.fence),
            SetStatus(space=TASKS, task="t", status="done", fence=zombie.fence),
        ):
            with pytest.raises(FencedOut):
                await store.write(note("third", lease.fence), write)
        with pytest.raises(FencedOut):
            await store.renew(zombie, MINUTE)
        await store.release(zombie)
        after = (await store.task(TASKS, "t"), await store.checkpoints(TASKS, "t"), await store.steps(TASKS, "t"))
        assert after == before
        await store.write(save("[2]", fence=lease.fence, expect=1))

    async def test_a_write_with_a_fence_needs_its_task(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(DropTask(TASKS, "t"))
        for write in (save(fence=lease.fence), note("a", lease.fence)):
            with pytest.raises(FencedOut, match="gone"):
                await store.write(write)
        with pytest.raises(FencedOut):
            await store.renew(lease, MINUTE)
        await store.release(lease)
        with pytest.raises(NotFound):
            await store.write(SetStatus(space=TASKS, task="t", status="done"))
        assert await store.task(TASKS, "t") is None

    async def test_a_bare_save_is_refused_while_somebody_holds_the_lease(
        self, store: Tasks, clock: ManualClock
    ) -> None:
        await store.write(save("[1]"))
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        for bare in (save("[2]"), save("[2]", expect=1)):
            with pytest.raises(LeaseHeld, match="w1"):
                await store.write(bare)
        await store.release(lease)
        await store.write(save("[2]"))
        await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(MINUTE)
        await store.write(save("[3]"))
        assert [one.state for one in await store.checkpoints(TASKS, "t")] == ["[3]", "[2]", "[1]"]

    async def test_renewing_puts_the_end_off(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        for _ in range(4):
            clock.forward(MINUTE / 2)
            lease = await store.renew(lease, MINUTE)
            assert lease.expires_at == clock.now + MINUTE
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(2 * MINUTE)  # overdue, but nobody has taken it
        await store.renew(lease, MINUTE)
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)

    async def test_a_lease_given_back_is_free(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.release(lease)
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.owner, task.status) == (None, "ready")
        with pytest.raises(FencedOut):
            await store.renew(lease, MINUTE)
        taken = await store.claim(TASKS, "t", "w2", MINUTE)
        await store.release(lease)  # too late: it is another's now
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w3", MINUTE)
        await store.release(taken)
        await store.release(taken)

    async def test_a_lease_from_the_future_counts_as_expired(self, store: Tasks, clock: ManualClock) -> None:
        clock.forward(YEARS)
        ahead = await store.claim(TASKS, "t", "w1", MINUTE)
        clock.back(YEARS)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        assert lease.fence > ahead.fence
        with pytest.raises(FencedOut):
            await store.write(save(fence=ahead.fence))
        await store.write(save(fence=lease.fence))

    async def test_the_journal_keeps_the_newest_note_of_each_step_in_order(
        self, store: Tasks, clock: ManualClock
    ) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(note("b", lease.fence), note("a", lease.fence))
        clock.back(SECOND)
        await store.write(note("c", lease.fence, input_sha="00"))
        await store.write(note("b", lease.fence, "completed", attempts=2, result='{"ok": true}'))
        await store.write(note("a", lease.fence, "failed", error="it broke"))
        b, a, c = await store.steps(TASKS, "t")
        assert (b.key, b.status, b.attempts, b.result, b.error) == ("b", "completed", 2, '{"ok": true}', None)
        assert (a.key, a.status, a.attempts, a.result, a.error) == ("a", "failed", 1, None, "it broke")
        assert (c.key, c.status, c.input_sha, c.fence, c.idempotency_key) == (
            "c",
            "started",
            "00",
            lease.fence,
            "key of c",
        )
        assert c.at == clock.now

    async def test_a_step_completes_with_its_checkpoint_or_not_at_all(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(note("a", lease.fence))
        with pytest.raises(Conflict):
            await store.write(note("a", lease.fence, "completed"), save("[1]", fence=lease.fence, expect=5))
        assert [step.status for step in await store.steps(TASKS, "t")] == ["started"]
        assert await store.checkpoint(TASKS, "t") is None
        await store.write(note("a", lease.fence, "completed"), save("[1]", fence=lease.fence, expect=0, status="done"))
        assert [step.status for step in await store.steps(TASKS, "t")] == ["completed"]
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.version, task.status) == (1, "done")

    async def test_a_status_lasts_until_it_is_changed(self, store: Tasks) -> None:
        await store.write(save(status="failed"))
        lease = await store.claim(TASKS, "t", "w1", MINUTE, plan_hash="p1")
        await store.write(save(fence=lease.fence))
        task = await store.task(TASKS, "t")
        assert task is not None
        assert (task.status, task.plan_hash) == ("failed", "p1")
        await store.write(SetStatus(space=TASKS, task="t", status="compensating", fence=lease.fence))
        await store.release(lease)
        await store.write(SetStatus(space=TASKS, task="t", status="poisoned"))
        task = await store.task(TASKS, "t")
        assert task is not None
        assert task.status == "poisoned"

    async def test_a_plan_is_kept_until_another_is_named(self, store: Tasks) -> None:
        seen = []
        for plan in ("p1", None, "p2"):
            await store.claim(TASKS, "t", "w1", MINUTE, plan_hash=plan)
            task = await store.task(TASKS, "t")
            assert task is not None
            seen.append(task.plan_hash)
        assert seen == ["p1", "p1", "p2"]

    async def test_tasks_are_listed_by_id_and_status(self, store: Tasks) -> None:
        for n in range(7):
            await store.write(save(task=f"t{n}", status="done" if n % 2 else "failed"))
        seen: list[str] = []
        page = await store.tasks(TASKS, limit=3)
        while page:
            seen += [task.id for task in page]
            page = await store.tasks(TASKS, limit=3, after=seen[-1])
        assert seen == [f"t{n}" for n in range(7)]
        assert [task.id for task in await store.tasks(TASKS, status="done", after="t1")] == ["t3", "t5"]
        assert await store.tasks(TASKS, status="poisoned") == []

    async def test_a_task_never_sees_its_neighbour(self, store: Tasks) -> None:
        spaces = [scope.space("checkpoints") for scope in (ADA, ADA_ELSEWHERE, replace(ADA, agent="other"))]
        leases = [await store.claim(space, "t", f"w{n}", MINUTE) for n, space in enumerate(spaces)]
        for n, (space, lease) in enumerate(zip(spaces, leases, strict=True)):
            await store.write(save(f"[{n}]", space=space, fence=lease.fence, expect=0))
            await store.write(replace(note(f"s{n}", lease.fence), space=space))
        await store.write(DropTask(spaces[1], "t"))
        for n, space in enumerate(spaces):
            gone = n == 1
            assert [one.state for one in await store.checkpoints(space, "t")] == ([] if gone else [f"[{n}]"])
            assert [step.key for step in await store.steps(space, "t")] == ([] if gone else [f"s{n}"])
            assert [task.owner for task in await store.tasks(space)] == ([] if gone else [f"w{n}"])

    async def test_dropping_leaves_nothing(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(save(fence=lease.fence), note("a", lease.fence), save(task="t2"))
        await store.write(DropTask(TASKS, "t"), DropTask(TASKS, "nobody"))
        assert await store.task(TASKS, "t") is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []
        await store.write(save("[1]", expect=0))
        assert await store.steps(TASKS, "t") == []
        assert len(await store.tasks(TASKS)) == 2

    async def test_what_cannot_be_meant_is_refused(self, store: Tasks) -> None:
        for bad in (save(task=""), save(keep=0), save(ttl=timedelta(0)), save(ttl=timedelta.max), save("\ud800")):
            with pytest.raises(BadInput):
                await store.write(save("[1]"), bad)
        for ttl in (timedelta(0), -SECOND, timedelta.max):
            with pytest.raises(BadInput):
                await store.claim(TASKS, "t", "w1", ttl)
        with pytest.raises(BadInput):
            await store.claim(TASKS, "", "w1", MINUTE)
        assert await store.tasks(TASKS) == []
