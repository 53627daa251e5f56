"""Contract of `Tasks`: versions, leases with fences, the journal of steps, copies, and expiry."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect.errors import BadInput, Conflict, FencedOut, LeaseHeld, NotFound
from recollect.stores.base import Tasks
from recollect.stores.writes import Checkpoint, DropTask, Lease, Restore, SetStatus, Step, Task
from recollect.testing.factories import (
    ADA,
    ADA_ELSEWHERE,
    HOSTILE_TEXTS,
    MINUTE,
    SECOND,
    TASKS,
    AsyncContract,
    ManualClock,
    list_ids,
    make_note,
    make_save,
)

TEN_YEARS = timedelta(days=3653)


async def _read_task(store: Tasks) -> Task:
    task = await store.task(TASKS, "t")
    assert task is not None
    return task


async def read_whole_task(store: Tasks) -> tuple[Task, list[Checkpoint], list[Step]]:
    """Return the sample task with its versions and its journal."""
    return await _read_task(store), await store.checkpoints(TASKS, "t"), await store.steps(TASKS, "t")


async def list_states(store: Tasks, *, hidden: bool = False) -> list[str]:
    return [checkpoint.state for checkpoint in await store.checkpoints(TASKS, "t", hidden=hidden)]


class TaskWorkContract(AsyncContract):
    """Checkpoints, leases and the journal."""

    async def test_checkpoint_returns_the_saved_state(self, store: Tasks, clock: ManualClock) -> None:
        state = '{"text": "nul \\u0000, 漢字, 👩‍👩‍👧"}'
        await store.write(make_save(state, schema=3))
        found = await store.checkpoint(TASKS, "t")
        assert found is not None
        assert (found.version, found.schema, found.state, found.at, found.intact) == (1, 3, state, clock.now, True)
        task = await _read_task(store)
        assert (task.id, task.status, task.version, task.owner) == ("t", "ready", 1, None)
        assert (task.created_at, task.updated_at) == (clock.now, clock.now)

    async def test_missing_task_is_none(self, store: Tasks) -> None:
        assert await store.task(TASKS, "t") is None
        assert await store.checkpoint(TASKS, "t") is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []
        assert await store.tasks(TASKS) == []
        await store.claim(TASKS, "t", "w1", MINUTE)
        assert await store.checkpoint(TASKS, "t") is None

    async def test_last_versions_are_kept(self, store: Tasks) -> None:
        for n in range(1, 7):
            await store.write(make_save(f"[{n}]", keep=3))
        assert await list_states(store) == ["[6]", "[5]", "[4]"]
        fifth = await store.checkpoint(TASKS, "t", version=5)
        assert fifth is not None
        assert fifth.state == "[5]"
        assert await store.checkpoint(TASKS, "t", version=3) is None
        assert await store.checkpoint(TASKS, "t", version=7) is None
        await store.write(make_save("[7]", keep=1))
        assert [checkpoint.version for checkpoint in await store.checkpoints(TASKS, "t")] == [7]

    async def test_every_version_is_kept_without_a_limit(self, store: Tasks) -> None:
        for n in range(1, 21):
            await store.write(make_save(f"[{n}]", keep=None))
        # Mutant: None is the default of 3 versions.
        assert await list_states(store) == [f"[{n}]" for n in range(20, 0, -1)]
        for n in range(1, 21):
            found = await store.checkpoint(TASKS, "t", version=n)
            assert found is not None
            assert (found.version, found.state, found.intact) == (n, f"[{n}]", True)
        # Mutant: one version more or less is kept.
        await store.write(make_save("[21]", keep=2))
        assert [saved.version for saved in await store.checkpoints(TASKS, "t")] == [21, 20]
        await store.write(make_save("[22]", keep=None))
        assert [saved.version for saved in await store.checkpoints(TASKS, "t")] == [22, 21, 20]

    async def test_stale_version_raises_conflict(self, store: Tasks) -> None:
        await store.write(make_save("[1]", expect=0))
        await store.write(make_save("[2]", expect=1))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(make_save("[3]", expect=stale))
        assert await list_states(store) == ["[2]", "[1]"]

    async def test_concurrent_saves_of_a_version_have_one_winner(self, store: Tasks) -> None:
        await store.write(make_save("[0]"))
        results = await asyncio.gather(
            *(store.write(make_save(f"[{n}]", expect=1)) for n in range(20)), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert all(isinstance(result, Conflict) for result in results if result is not None)
        assert (await _read_task(store)).version == 2

    async def test_save_returns_distinct_versions(self, store: Tasks) -> None:
        assert await store.save(make_save()) == 1
        assert await store.save(make_save(expect=1)) == 2
        await store.write(make_save())
        assert sorted(await asyncio.gather(*(store.save(make_save()) for _ in range(8)))) == list(range(4, 12))
        with pytest.raises(Conflict):
            await store.save(make_save(expect=2))
        lease = await store.claim(TASKS, "t", "worker", MINUTE)
        with pytest.raises(LeaseHeld):
            await store.save(make_save())
        assert await store.save(make_save(fence=lease.fence)) == 12

    async def test_concurrent_claims_have_one_winner(self, store: Tasks) -> None:
        results = await asyncio.gather(
            *(store.claim(TASKS, "t", f"w{n}", MINUTE) for n in range(20)), return_exceptions=True
        )
        [lease] = [result for result in results if isinstance(result, Lease)]
        assert sum(isinstance(result, LeaseHeld) for result in results) == 19
        task = await _read_task(store)
        assert (task.owner, task.fence, task.status) == (lease.owner, lease.fence, "running")

    async def test_lease_expires(self, store: Tasks, clock: ManualClock) -> None:
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

    async def test_fence_is_never_reused(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(DropTask(TASKS, "t"))
        reborn = await store.claim(TASKS, "t", "w2", MINUTE)
        assert reborn.fence > zombie.fence
        await store.write(make_save("[1]", fence=reborn.fence, ttl=MINUTE))
        clock.forward(2 * MINUTE)
        third = await store.claim(TASKS, "t", "w3", MINUTE)
        assert third.fence > reborn.fence
        with pytest.raises(FencedOut):
            await store.write(make_save("[9]", fence=reborn.fence))

    async def test_stale_fence_cannot_write(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(make_save("[1]", fence=zombie.fence), make_note("first", zombie.fence))
        clock.forward(MINUTE)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        before = await read_whole_task(store)
        for write in (
            make_save("[9]", fence=zombie.fence),
            make_save("[9]", fence=zombie.fence, expect=1),
            make_save("[9]", fence=lease.fence + 1),
            make_note("first", zombie.fence, "completed"),
            make_note("second", zombie.fence),
            SetStatus(space=TASKS, task="t", status="done", fence=zombie.fence),
        ):
            with pytest.raises(FencedOut):
                await store.write(make_note("third", lease.fence), write)
        with pytest.raises(FencedOut):
            await store.renew(zombie, MINUTE)
        await store.release(zombie)
        assert await read_whole_task(store) == before
        await store.write(make_save("[2]", fence=lease.fence, expect=1))

    async def test_fenced_write_to_a_missing_task_raises(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(DropTask(TASKS, "t"))
        for write in (make_save(fence=lease.fence), make_note("a", lease.fence)):
            with pytest.raises(FencedOut, match="deleted"):
                await store.write(write)
        with pytest.raises(FencedOut):
            await store.renew(lease, MINUTE)
        await store.release(lease)
        with pytest.raises(NotFound):
            await store.write(SetStatus(space=TASKS, task="t", status="done"))
        assert await store.task(TASKS, "t") is None

    async def test_save_without_fence_raises_while_leased(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(make_save("[1]"))
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        for bare in (make_save("[2]"), make_save("[2]", expect=1)):
            with pytest.raises(LeaseHeld, match="w1"):
                await store.write(bare)
        await store.release(lease)
        await store.write(make_save("[2]"))
        await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(MINUTE)
        await store.write(make_save("[3]"))
        assert await list_states(store) == ["[3]", "[2]", "[1]"]

    async def test_renew_extends_the_lease(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        for _ in range(4):
            clock.forward(MINUTE / 2)
            lease = await store.renew(lease, MINUTE)
            assert lease.expires_at == clock.now + MINUTE
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(2 * MINUTE)  # expired, but not claimed by another worker
        await store.renew(lease, MINUTE)
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)

    async def test_released_lease_can_be_claimed(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.release(lease)
        task = await _read_task(store)
        assert (task.owner, task.status) == (None, "ready")
        with pytest.raises(FencedOut):
            await store.renew(lease, MINUTE)
        taken = await store.claim(TASKS, "t", "w2", MINUTE)
        await store.release(lease)  # too late: another worker has the lease
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w3", MINUTE)
        await store.release(taken)
        await store.release(taken)

    async def test_lease_from_the_future_is_expired(self, store: Tasks, clock: ManualClock) -> None:
        clock.forward(TEN_YEARS)
        ahead = await store.claim(TASKS, "t", "w1", MINUTE)
        clock.back(TEN_YEARS)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        assert lease.fence > ahead.fence
        with pytest.raises(FencedOut):
            await store.write(make_save(fence=ahead.fence))
        await store.write(make_save(fence=lease.fence))

    async def test_journal_keeps_the_newest_note_of_each_step(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(make_note("b", lease.fence), make_note("a", lease.fence))
        clock.back(SECOND)
        await store.write(make_note("c", lease.fence, input_sha="00"))
        await store.write(make_note("b", lease.fence, "completed", attempts=2, result='{"ok": true}'))
        await store.write(make_note("a", lease.fence, "failed", error="it broke"))
        b, a, c = await store.steps(TASKS, "t")
        assert (b.key, b.status, b.attempts, b.result, b.error) == ("b", "completed", 2, '{"ok": true}', None)
        assert (a.key, a.status, a.attempts, a.result, a.error) == ("a", "failed", 1, None, "it broke")
        assert (c.key, c.status, c.input_sha, c.idempotency_key) == ("c", "started", "00", "key of c")
        assert (c.fence, c.at) == (lease.fence, clock.now)

    async def test_step_and_checkpoint_are_atomic(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(make_note("a", lease.fence))
        with pytest.raises(Conflict):
            await store.write(make_note("a", lease.fence, "completed"), make_save("[1]", fence=lease.fence, expect=5))
        assert [step.status for step in await store.steps(TASKS, "t")] == ["started"]
        assert await store.checkpoint(TASKS, "t") is None
        await store.write(
            make_note("a", lease.fence, "completed"), make_save("[1]", fence=lease.fence, expect=0, status="done")
        )
        assert [step.status for step in await store.steps(TASKS, "t")] == ["completed"]
        task = await _read_task(store)
        assert (task.version, task.status) == (1, "done")

    async def test_status_persists_until_changed(self, store: Tasks) -> None:
        await store.write(make_save(status="failed"))
        lease = await store.claim(TASKS, "t", "w1", MINUTE, plan_hash="p1")
        await store.write(make_save(fence=lease.fence))
        task = await _read_task(store)
        assert (task.status, task.plan_hash) == ("failed", "p1")
        await store.write(SetStatus(space=TASKS, task="t", status="compensating", fence=lease.fence))
        await store.release(lease)
        await store.write(SetStatus(space=TASKS, task="t", status="poisoned"))
        assert (await _read_task(store)).status == "poisoned"

    async def test_plan_hash_persists_until_replaced(self, store: Tasks) -> None:
        seen = []
        for plan in ("p1", None, "p2"):
            await store.claim(TASKS, "t", "w1", MINUTE, plan_hash=plan)
            task = await _read_task(store)
            seen.append(task.plan_hash)
        assert seen == ["p1", "p1", "p2"]

    async def test_tasks_are_listed_by_id_and_status(self, store: Tasks) -> None:
        for n in range(7):
            await store.write(make_save(task=f"t{n}", status="done" if n % 2 else "failed"))
        seen: list[str] = []
        page = await store.tasks(TASKS, limit=3)
        while page:
            seen += [task.id for task in page]
            page = await store.tasks(TASKS, limit=3, after=seen[-1])
        assert seen == [f"t{n}" for n in range(7)]
        assert [task.id for task in await store.tasks(TASKS, status="done", after="t1")] == ["t3", "t5"]
        assert await store.tasks(TASKS, status="poisoned") == []

    async def test_tasks_are_listed_by_prefix(self, store: Tasks) -> None:
        await store.write(
            *(make_save(task=id, status="done" if n % 2 else "failed") for n, id in enumerate(HOSTILE_TEXTS))
        )
        done = {id for n, id in enumerate(HOSTILE_TEXTS) if n % 2}
        # Mutants: the prefix is a pattern of LIKE; the range of ids includes its end.
        for prefix in (*HOSTILE_TEXTS, "", "missing", "x" * 400):
            expected = sorted(id for id in HOSTILE_TEXTS if id.startswith(prefix))
            assert list_ids(await store.tasks(TASKS, prefix=prefix)) == expected
            found = await store.tasks(TASKS, status="done", prefix=prefix)
            assert list_ids(found) == [id for id in expected if id in done]
            seen: list[str] = []
            while page := await store.tasks(TASKS, prefix=prefix, limit=2, after=seen[-1] if seen else None):
                seen += list_ids(page)
            assert seen == expected
        assert list_ids(await store.tasks(TASKS, prefix="a", after="A", limit=1)) == ["a"]
        assert await store.tasks(TASKS, prefix="a", after="b") == []

    async def test_tasks_are_isolated(self, store: Tasks) -> None:
        spaces = [scope.space("checkpoints") for scope in (ADA, ADA_ELSEWHERE, replace(ADA, agent="other"))]
        leases = [await store.claim(space, "t", f"w{n}", MINUTE) for n, space in enumerate(spaces)]
        for n, (space, lease) in enumerate(zip(spaces, leases, strict=True)):
            await store.write(make_save(f"[{n}]", space=space, fence=lease.fence, expect=0))
            await store.write(replace(make_note(f"s{n}", lease.fence), space=space))
        await store.write(DropTask(spaces[1], "t"))
        for n, space in enumerate(spaces):
            gone = n == 1
            assert [checkpoint.state for checkpoint in await store.checkpoints(space, "t")] == (
                [] if gone else [f"[{n}]"]
            )
            assert [step.key for step in await store.steps(space, "t")] == ([] if gone else [f"s{n}"])
            assert [task.owner for task in await store.tasks(space)] == ([] if gone else [f"w{n}"])

    async def test_dropped_task_leaves_nothing(self, store: Tasks) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE)
        await store.write(make_save(fence=lease.fence), make_note("a", lease.fence), make_save(task="t2"))
        await store.write(DropTask(TASKS, "t"), DropTask(TASKS, "missing"))
        assert await store.task(TASKS, "t") is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []
        await store.write(make_save("[1]", expect=0))
        assert await store.steps(TASKS, "t") == []
        assert len(await store.tasks(TASKS)) == 2

    async def test_invalid_task_writes_raise_bad_input(self, store: Tasks) -> None:
        wrong: list[dict[str, Any]] = [{"task": ""}, {"keep": 0}, {"ttl": timedelta(0)}, {"ttl": timedelta.max}]
        for bad in (make_save("\ud800"), *(make_save(**fields) for fields in wrong)):
            with pytest.raises(BadInput):
                await store.write(make_save("[1]"), bad)
        for ttl in (timedelta(0), -SECOND, timedelta.max):
            with pytest.raises(BadInput):
                await store.claim(TASKS, "t", "w1", ttl)
        with pytest.raises(BadInput):
            await store.claim(TASKS, "", "w1", MINUTE)
        assert await store.tasks(TASKS) == []

    async def test_restored_task_is_equal(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", MINUTE, plan_hash="p")
        await store.write(
            make_save("[1]", fence=lease.fence, ttl=MINUTE), make_note("a", lease.fence), make_note("b", lease.fence)
        )
        await store.write(make_save("[2]", fence=lease.fence), make_note("a", lease.fence, "completed", result="1"))
        known, kept, steps = await read_whole_task(store)
        clock.forward(SECOND)
        await store.write(DropTask(TASKS, "t"))
        await store.write(Restore(TASKS, known, tuple(kept), tuple(steps)))
        free = replace(known, owner=None, renewed_at=None, lease_ttl=None)
        assert await read_whole_task(store) == (free, kept, steps)
        assert (await store.claim(TASKS, "t", "w2", MINUTE)).fence > lease.fence

    async def test_fences_exceed_those_of_a_restored_task(self, store: Tasks, clock: ManualClock) -> None:
        known = _make_task(clock, fence=41)
        await store.write(Restore(TASKS, known, (Checkpoint(7, 40, 1, "[7]", clock.now, intact=True),)))
        assert (await store.claim(TASKS, "other", "w", MINUTE)).fence == 42
        assert (await store.claim(TASKS, "t", "w", MINUTE)).fence == 43
        await store.write(make_save("[8]", expect=7, fence=43))
        assert [checkpoint.version for checkpoint in await store.checkpoints(TASKS, "t")] == [8, 7]

    async def test_restore_of_an_existing_task_raises_conflict(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(make_save("[1]"))
        with pytest.raises(Conflict, match="already"):
            await store.write(make_save("[x]", task="u"), Restore(TASKS, _make_task(clock)))
        assert await store.task(TASKS, "u") is None
        assert (await read_whole_task(store))[0].version == 1

    async def test_restore_of_a_corrupt_checkpoint_raises(self, store: Tasks, clock: ManualClock) -> None:
        with pytest.raises(BadInput, match="corrupt"):
            await store.write(Restore(TASKS, _make_task(clock), (Checkpoint(1, 1, 1, "[", clock.now, intact=False),)))
        assert await store.task(TASKS, "t") is None

    async def test_restored_expired_task_is_hidden(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(Restore(TASKS, replace(_make_task(clock), expires_at=clock.now - SECOND, ttl=MINUTE)))
        assert await store.task(TASKS, "t") is None
        assert [task.id for task in await store.expired(TASKS, clock.now)] == ["t"]
        assert await store.tenants() == [ADA.tenant]


def _make_task(clock: ManualClock, fence: int = 3) -> Task:
    return Task(
        "t", clock.now, clock.now, "running", 7, fence, owner="w", renewed_at=clock.now, lease_ttl=MINUTE, plan_hash="p"
    )


async def start_work(store: Tasks) -> Lease:
    """Start a task with a lease and a ttl of one minute."""
    lease = await store.claim(TASKS, "t", "w1", SECOND, plan_hash="p")
    await store.write(make_save("[1]", ttl=MINUTE, fence=lease.fence, status="poisoned"), make_note("a", lease.fence))
    return lease


class ExpiryContract(AsyncContract):
    """Expired tasks."""

    async def test_expired_task_is_hidden(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(make_save("[1]", ttl=MINUTE), make_save("[2]"))
        assert (await _read_task(store)).expires_at == clock.now + MINUTE
        clock.forward(MINUTE)
        assert await store.task(TASKS, "t") is None
        assert await store.tasks(TASKS) == []
        assert await store.tasks(TASKS, status="ready") == []
        assert await store.checkpoint(TASKS, "t") is None
        assert await store.checkpoint(TASKS, "t", version=1) is None
        assert await store.checkpoints(TASKS, "t") == []
        assert await store.steps(TASKS, "t") == []

    async def test_hidden_task_is_readable_with_hidden(self, store: Tasks, clock: ManualClock) -> None:
        await start_work(store)
        seen = await store.task(TASKS, "t")
        clock.forward(2 * MINUTE)
        assert await store.task(TASKS, "t", hidden=True) == seen
        newest = await store.checkpoint(TASKS, "t", hidden=True)
        assert newest is not None
        assert await store.checkpoint(TASKS, "t", version=1, hidden=True) == newest
        assert await store.checkpoints(TASKS, "t", hidden=True) == [newest]
        assert [step.key for step in await store.steps(TASKS, "t", hidden=True)] == ["a"]
        assert await store.task(TASKS, "missing", hidden=True) is None

    async def test_save_revives_an_expired_task(self, store: Tasks, clock: ManualClock) -> None:
        """A worker with a fast clock does not destroy the work of others."""
        await start_work(store)
        clock.forward(2 * MINUTE)
        await store.write(make_save("[2]"))
        assert await list_states(store) == ["[2]", "[1]"]
        task = await _read_task(store)
        assert (task.version, task.status, task.plan_hash, task.ttl) == (2, "poisoned", "p", MINUTE)
        assert task.expires_at == clock.now + MINUTE
        assert [step.key for step in await store.steps(TASKS, "t")] == ["a"]
        clock.back(2 * MINUTE)  # workers with a correct clock see everything
        assert await list_states(store) == ["[2]", "[1]"]

    async def test_save_of_a_new_task_conflicts_with_an_expired_one(self, store: Tasks, clock: ManualClock) -> None:
        await start_work(store)
        clock.forward(2 * MINUTE)
        with pytest.raises(Conflict, match=r"at version 1, not 0; it expired on 2026-01-01 at 00:01 UTC.*delete"):
            await store.write(make_save("[new]", expect=0))
        assert await store.task(TASKS, "t") is None  # a read does not revive it
        await store.write(make_save("[2]", expect=1))
        assert await list_states(store) == ["[2]", "[1]"]

    async def test_claim_revives_an_expired_task(self, store: Tasks, clock: ManualClock) -> None:
        old = await start_work(store)
        clock.forward(2 * MINUTE)
        lease = await store.claim(TASKS, "t", "w2", MINUTE)
        assert lease.fence > old.fence
        task = await _read_task(store)
        assert (task.version, task.status, task.plan_hash) == (1, "poisoned", "p")
        assert await list_states(store) == ["[1]"]
        assert [step.key for step in await store.steps(TASKS, "t")] == ["a"]
        with pytest.raises(FencedOut):
            await store.write(make_save("[9]", fence=old.fence))

    async def test_owner_continues_after_a_clock_jump(self, store: Tasks, clock: ManualClock) -> None:
        lease = await start_work(store)
        clock.forward(60 * MINUTE)
        await store.write(make_save("[2]", fence=lease.fence, expect=1), make_note("a", lease.fence, "completed"))
        assert await list_states(store) == ["[2]", "[1]"]
        clock.forward(60 * MINUTE)
        await store.renew(lease, MINUTE)
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", MINUTE)
        clock.forward(60 * MINUTE)
        await store.release(lease)
        task = await _read_task(store)
        assert (task.owner, task.version) == (None, 2)
        clock.forward(60 * MINUTE)
        await store.write(SetStatus(space=TASKS, task="t", status="failed"))
        assert await list_states(store) == ["[2]", "[1]"]

    async def test_leased_task_does_not_expire(self, store: Tasks, clock: ManualClock) -> None:
        lease = await store.claim(TASKS, "t", "w1", 10 * MINUTE)
        await store.write(make_save("[1]", ttl=MINUTE, fence=lease.fence))
        clock.forward(5 * MINUTE)
        assert await store.task(TASKS, "t") is not None
        assert len(await store.tasks(TASKS)) == 1
        assert await store.expired(TASKS, clock.now) == []
        with pytest.raises(Conflict):
            await store.write(DropTask(TASKS, "t", expired_by=clock.now))
        await store.write(make_save("[2]", fence=lease.fence, expect=1))

    async def test_every_write_extends_the_expiry(self, store: Tasks, clock: ManualClock) -> None:
        await store.write(make_save("[1]", ttl=MINUTE))
        clock.forward(MINUTE - SECOND)
        lease = await store.claim(TASKS, "t", "w1", SECOND)
        clock.forward(MINUTE - SECOND)
        lease = await store.renew(lease, SECOND)
        clock.forward(MINUTE - SECOND)
        await store.write(make_save("[2]", fence=lease.fence))
        clock.forward(MINUTE - SECOND)
        assert await store.task(TASKS, "t") is not None
        clock.forward(SECOND)
        assert await store.task(TASKS, "t") is None

    async def test_expired_tasks_are_listed_by_expiry(self, store: Tasks, clock: ManualClock) -> None:
        for n, ttl in enumerate((3, 1, 2, 1, 9)):
            await store.write(make_save(task=f"t{n}", ttl=ttl * MINUTE))
        await store.write(make_save(task="forever"))
        await store.write(make_save(task="t1", space=ADA_ELSEWHERE.space("checkpoints"), ttl=MINUTE))
        assert await store.expired(TASKS, clock.now + 60 * MINUTE) == []  # nothing has expired yet
        clock.forward(5 * MINUTE)
        found = await store.expired(TASKS, clock.now)
        assert list_ids(found) == ["t1", "t3", "t2", "t0"]
        assert found[0] == await store.task(TASKS, "t1", hidden=True)
        assert list_ids(await store.expired(TASKS, clock.now - 3 * MINUTE)) == ["t1", "t3", "t2"]
        assert list_ids(await store.expired(TASKS, clock.now - 3 * MINUTE - SECOND)) == ["t1", "t3"]
        assert list_ids(await store.expired(TASKS, clock.now + 60 * MINUTE)) == ["t1", "t3", "t2", "t0"]
        seen: list[Task] = []
        while page := await store.expired(TASKS, clock.now, limit=1, after=seen[-1] if seen else None):
            seen += page
        assert seen == found
        assert await store.expired(ADA.space("procedural"), clock.now) == []

    async def test_drop_by_expiry_deletes_expired_tasks(self, store: Tasks, clock: ManualClock) -> None:
        await start_work(store)
        await store.write(make_save("[1]", task="u", ttl=2 * MINUTE))
        clock.forward(2 * MINUTE)
        await store.write(DropTask(TASKS, "t", expired_by=clock.now - MINUTE))
        for drop in (DropTask(TASKS, "u", expired_by=clock.now - SECOND), DropTask(TASKS, "t", expired_by=clock.now)):
            with pytest.raises(Conflict):
                await store.write(drop)
        assert await store.task(TASKS, "t", hidden=True) is None
        assert await list_states(store, hidden=True) == []
        assert await store.steps(TASKS, "t", hidden=True) == []
        assert list_ids(await store.expired(TASKS, clock.now)) == ["u"]
        await store.write(make_save("[new]", expect=0))
        assert await list_states(store) == ["[new]"]

    async def test_drop_by_expiry_keeps_revived_tasks(self, store: Tasks, clock: ManualClock) -> None:
        """The drop checks the expiry again in its own transaction: the task may have been claimed since."""
        for name in ("saved", "claimed", "left"):
            await store.write(make_save("[1]", task=name, ttl=MINUTE))
        clock.forward(2 * MINUTE)
        assert list_ids(await store.expired(TASKS, clock.now)) == ["claimed", "left", "saved"]
        await store.write(make_save("[2]", task="saved"))
        await store.claim(TASKS, "claimed", "w1", MINUTE)
        for name in ("saved", "claimed"):
            # The batch is refused as a whole.
            with pytest.raises(Conflict, match="not expired"):
                await store.write(*(DropTask(TASKS, task, expired_by=clock.now) for task in ("left", name)))
        assert list_ids(await store.tasks(TASKS)) == ["claimed", "saved"]
        assert list_ids(await store.expired(TASKS, clock.now)) == ["left"]
        assert await store.checkpoint(TASKS, "left", hidden=True) is not None

    async def test_concurrent_drops_by_expiry_have_one_winner(self, store: Tasks, clock: ManualClock) -> None:
        await start_work(store)
        clock.forward(2 * MINUTE)
        drop = DropTask(TASKS, "t", expired_by=clock.now - MINUTE)
        results = await asyncio.gather(*(store.write(drop) for _ in range(8)), return_exceptions=True)
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, Conflict) for result in results) == 7

    async def test_stale_fence_of_a_dropped_task_cannot_write(self, store: Tasks, clock: ManualClock) -> None:
        zombie = await start_work(store)
        clock.forward(2 * MINUTE)
        await store.write(DropTask(TASKS, "t", expired_by=clock.now))
        with pytest.raises(FencedOut, match="deleted"):
            await store.write(make_save("[9]", fence=zombie.fence))
        assert (await store.claim(TASKS, "t", "w2", MINUTE)).fence > zombie.fence

    async def test_task_spaces_include_expired_tasks(self, store: Tasks, clock: ManualClock) -> None:
        assert await store.task_spaces("acme") == []
        other = replace(ADA, agent="another").space("checkpoints")
        for write in (
            make_save(ttl=MINUTE),
            make_save(space=other),
            make_save(space=ADA_ELSEWHERE.space("checkpoints")),
        ):
            await store.write(write)
        clock.forward(2 * MINUTE)
        assert await store.task_spaces("acme") == [other, TASKS]
        await store.write(DropTask(other, "t"))
        assert await store.task_spaces("acme") == [TASKS]
