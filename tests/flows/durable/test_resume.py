"""Resuming tasks: completed steps never run again."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from recollect import AgentMemory, step
from recollect.errors import BadInput, StepFailed, TaskError, UnknownOutcome
from tests.flows.durable.working import Killed, kill


async def test_every_step_runs_once_and_its_result_is_in_the_state(memory: AgentMemory, agent, trail):
    state = await agent().run("t", trail.steps("a b c"), {"given": 1})
    assert state == {
        "given": 1,
        "completed": ["step_0_a", "step_1_b", "step_2_c"],
        "results": {"step_0_a": "A", "step_1_b": "B", "step_2_c": "C"},
    }
    assert trail.ran == ["a", "b", "c"]
    [task] = await memory.checkpoints.tasks("done")
    assert (task.id, task.owner, task.status) == ("t", None, "done")
    assert await memory.checkpoints.restore("t") == state


async def test_done_task_is_returned_without_running(memory: AgentMemory, agent, trail):
    first = await agent().run("t", trail.steps("a b"))
    before = await memory.checkpoints.task("t")
    assert await agent().run("t", trail.steps("a b"), {"ignored": True}) == first
    assert trail.ran == ["a", "b"]
    assert await memory.checkpoints.task("t") == before


async def test_killed_task_resumes_at_the_interrupted_step(memory: AgentMemory, agent, trail, watch):
    # Mutant: `pending` lists every step of the plan.
    names = [f"s{n}" for n in range(25)]
    dying = [trail.step(name, kill if name == "s17" else None) for name in names]
    with pytest.raises(Killed):
        await agent().run("t", dying, {"topic": "x"})
    state = await agent().run("t", [trail.step(name) for name in names])
    assert trail.ran == [*names[:18], *names[17:]]
    assert state["completed"] == [f"step_{n}_{name}" for n, name in enumerate(names)]
    assert state["topic"] == "x"
    assert trail.keys[17] == trail.keys[18]  # the same key for both attempts
    assert len(set(trail.keys)) == 25
    assert ("unknown", "step_17_s17") in watch.select("unknown")
    assert watch.select("skipped") == [("skipped", f"step_{n}_{name}") for n, name in enumerate(names[:17])]


async def test_intent_is_durable_before_the_body_runs(memory: AgentMemory, agent, trail):
    # Mutant: `begin` writes nothing. Mutant: a completion does not include the next intent.
    seen: list[Any] = []

    async def look(state, ctx):
        for note in await memory.checkpoints.steps("t"):
            if note.key == ctx.step:
                task = await memory.checkpoints.task("t")
                assert task is not None
                seen.append(
                    (note.status, note.attempts, note.idempotency_key == ctx.idempotency_key, note.fence == task.fence)
                )
                checkpoint = await memory.checkpoints._store.checkpoint(memory.checkpoints._space, "t")
                assert checkpoint is not None
                assert note.input_sha == hashlib.sha256(checkpoint.state.encode()).hexdigest()

    await agent().run("t", [look, look, look])
    assert seen == [("started", 1, True, True)] * 3


async def test_journal_has_an_entry_for_every_step(memory: AgentMemory, agent, trail):
    await agent().run("t", trail.steps("a b"))
    notes = await memory.checkpoints.steps("t")
    assert [(note.key, note.status, note.attempts, note.result) for note in notes] == [
        ("step_0_a", "completed", 1, '"A"'),
        ("step_1_b", "completed", 1, '"B"'),
    ]


async def test_step_may_change_the_state_and_a_failed_attempt_changes_nothing(agent):
    # Mutant: the body gets the state itself instead of a copy.
    tries: list[int] = []

    @step(retries=1)
    async def change(state):
        state["list"].append(len(tries))
        tries.append(1)
        if len(tries) == 1:
            raise OSError
        return "done"

    async def hand_on(state):
        state["more"] = True
        return state

    state = await agent().run("t", [change, hand_on], {"list": []})
    assert state["list"] == [1]
    assert state["more"] is True
    assert state["results"] == {"step_0_change": "done", "step_1_hand_on": None}


async def test_completed_list_cannot_be_changed_by_a_step(agent):
    async def forge(state):
        state["completed"] = ["step_1_next"]
        return 1

    async def next(state):
        return 2

    state = await agent().run("t", [forge, next])
    assert state["completed"] == ["step_0_forge", "step_1_next"]


async def test_steps_may_be_any_kind_of_callable(agent):
    class Callable:
        async def __call__(self, state):
            return "object"

    def plain(state):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # it runs in a thread, where it does not block the loop
        return "thread"

    def plain_with_context(state, ctx):
        return ctx.task_id

    async def with_default(state, times=3):
        return times

    state = await agent().run("t", [Callable(), plain, plain_with_context, with_default])
    assert list(state["results"].values()) == ["object", "thread", "t", 3]
    assert state["completed"][0] == "step_0_Callable"


async def test_unknown_outcome_is_retried_by_default_and_counted(memory: AgentMemory, agent, trail):
    attempts: list[int] = []

    def note(_, ctx):
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            raise Killed

    with pytest.raises(Killed):
        await agent().run("t", [trail.step("a", note)])
    await agent().run("t", [trail.step("a", note)])
    assert attempts == [1, 2]


async def test_unknown_outcome_with_skip_counts_as_done(memory: AgentMemory, agent, watch):
    # Mutant: "skip" is treated as "retry".
    ran: list[str] = []

    @step(on_unknown="skip")
    async def pay(state):
        ran.append("pay")
        raise Killed

    async def mail(state):
        ran.append("mail")
        return "sent"

    with pytest.raises(Killed):
        await agent().run("t", [pay, mail])
    state = await agent().run("t", [pay, mail])
    assert ran == ["pay", "mail"]
    assert state["results"] == {"step_0_pay": None, "step_1_mail": "sent"}
    assert watch.select("unknown", "skipped") == [("unknown", "step_0_pay"), ("skipped", "step_0_pay")]
    [done] = await memory.checkpoints.tasks("done")
    assert done.id == "t"


@pytest.mark.parametrize("answer", ["retry", "skip"])
async def test_unknown_outcome_with_ask_waits_for_retry_or_skip(memory: AgentMemory, agent, answer: str):
    ran: list[int] = []

    @step(on_unknown="ask")
    async def pay(state, ctx):
        ran.append(ctx.attempt)
        if len(ran) == 1:
            raise Killed
        return "paid here"

    with pytest.raises(Killed):
        await agent().run("t", [pay])
    for _ in range(2):
        with pytest.raises(UnknownOutcome, match=r"idempotency key [0-9a-f]{64}"):
            await agent().run("t", [pay])
    assert ran == [1]
    if answer == "retry":
        assert await memory.checkpoints.retry("t")
        assert (await agent().run("t", [pay]))["results"] == {"step_0_pay": "paid here"}
        assert ran == [1, 1]  # retry gives it all its attempts again
    else:
        assert await memory.checkpoints.skip("t", {"paid": "there"}) == "step_0_pay"
        assert (await agent().run("t", [pay]))["results"] == {"step_0_pay": {"paid": "there"}}
        assert ran == [1]


async def test_task_without_steps_is_done(memory: AgentMemory, agent):
    assert await agent().run("t", [], {"a": 1}) == {"a": 1, "completed": [], "results": {}}
    assert [task.id for task in await memory.checkpoints.tasks("done")] == ["t"]


async def test_longer_plan_continues_a_done_task(memory: AgentMemory, agent, trail):
    await agent().run("t", trail.steps("a b"))
    seen: list[str] = []

    async def look(state, ctx):
        seen.extend(task.status for task in await memory.checkpoints.tasks())
        return "C"

    state = await agent().run("t", [*trail.steps("a b"), trail.step("c", look)])
    assert trail.ran == ["a", "b", "c"]
    assert seen == ["running"]
    assert state["results"]["step_2_c"] == "C"


async def test_cancelled_task_waits_for_retry(memory: AgentMemory, agent, trail):
    with pytest.raises(Killed):
        await agent().run("t", [trail.step("a"), trail.step("b", kill)])
    assert await memory.checkpoints.cancel("t")
    assert not await memory.checkpoints.cancel("t")
    with pytest.raises(StepFailed, match="retry"):
        await agent().run("t", trail.steps("a b"))
    assert await memory.checkpoints.retry("t")
    await agent().run("t", trail.steps("a b"))
    assert trail.ran == ["a", "b", "b"]


async def test_cancelled_caller_releases_the_lease(memory: AgentMemory, agent, trail):
    begun = asyncio.Event()

    async def long(state):
        begun.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(agent().run("t", [long]))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert (task.owner, task.status) == (None, "ready")


@pytest.mark.parametrize(
    ("task_id", "steps", "initial"),
    [
        ("", [], None),
        (7, [], None),
        ("t", ["no function"], None),
        ("t", [], {"completed": 3}),
        ("t", [], {"results": []}),
    ],
)
async def test_run_bad_input_raises_and_writes_nothing(
    memory: AgentMemory, agent, task_id: Any, steps: Any, initial: Any
):
    with pytest.raises(BadInput):
        await agent().run(task_id, steps, initial)
    assert await memory.checkpoints.tasks() == []


def test_step_failed_is_a_task_error():
    assert issubclass(StepFailed, TaskError)
