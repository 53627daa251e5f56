"""Runs with a damaged journal: no call gets the result of another, and no effect is repeated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.errors import ModelFailed, UnknownOutcome
from recollect.models.chat import Reply
from recollect.stores.writes import Journal, Lease
from tests.flows.agent.scripted import Scripted, call, results, says, wants
from tests.flows.agent.test_resume import interrupt_call

TASK = "Pay them."


class Till:
    """Payments with their idempotency keys."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int, str]] = []

    def tools(self) -> list[Any]:
        async def pay(to: str, amount: int, idempotency_key: str) -> str:
            """Pay a person."""
            self.paid.append((to, amount, idempotency_key))
            return f"paid {amount} to {to}"

        async def give(to: str, idempotency_key: str) -> str:
            """Give a person something."""
            self.paid.append((to, 0, idempotency_key))
            return f"gave to {to}"

        return [pay, give]


async def damage(memory: AgentMemory, task_id: str, step: str) -> None:
    """Truncate the result of a journal entry, as a torn page would."""
    checkpoints = memory.checkpoints
    lease = await checkpoints._store.claim(checkpoints._space, task_id, "dead", timedelta(seconds=30))
    [note] = [entry for entry in await checkpoints.steps(task_id) if entry.key == step]
    assert note.result is not None
    await checkpoints._store.write(
        Journal(
            space=checkpoints._space,
            task=task_id,
            step=step,
            status=note.status,
            fence=lease.fence,
            attempts=note.attempts,
            idempotency_key=note.idempotency_key,
            input_sha=note.input_sha,
            result=note.result[:-20],
        )
    )
    await checkpoints._store.release(lease)


async def run_until_failure(memory: AgentMemory, till: Till, *replies: Reply) -> None:
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, till.tools(), Scripted(*replies, OSError("down"))).run(TASK, task_id="t")


BOB = call("pay", to="bob", amount=10)


@pytest.mark.parametrize(
    "now",
    [
        wants(call("pay", to="carol", amount=99)),
        wants(call("pay", to="bob", amount=99)),
        wants(call("give", to="bob")),
        wants(replace(BOB, malformed="it ends in the middle")),
        says("There is nothing to pay."),
    ],
    ids=["another", "other arguments", "another tool", "unreadable", "none"],
)
@pytest.mark.parametrize("ended", [True, False], ids=["completed", "begun"])
async def test_different_call_after_a_damaged_reply_raises(memory: AgentMemory, now: Reply, ended: bool):
    # Mutant: a call gets the result of another. Mutant: another call uses the key of the interrupted one.
    till = Till()
    await run_until_failure(memory, till, wants(BOB))
    await damage(memory, "t", "reply_1")
    if not ended:
        await interrupt_call(memory, "t", "tool_1_0_pay")
    for _ in range(2):  # the new reply is not journaled either
        with pytest.raises(UnknownOutcome, match=till.paid[0][2]):
            await AgentWithMemory(memory, till.tools(), Scripted(now, says("Done."))).run(TASK, task_id="t")
    assert [(to, amount) for to, amount, _ in till.paid] == [("bob", 10)]


async def test_same_call_after_a_damaged_reply_reuses_its_result(memory: AgentMemory):
    # Mutant: the call is repeated and its result lost. Mutant: the order of the arguments matters.
    till = Till()
    await run_until_failure(memory, till, wants(BOB))
    await damage(memory, "t", "reply_1")
    again = wants(call("pay", "another_id", amount=10, to="bob"))
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, till.tools(), Scripted(again, OSError("down"))).run(TASK, task_id="t")
    model = Scripted(lambda messages: says(" | ".join(results(messages))))
    assert await AgentWithMemory(memory, till.tools(), model).run(TASK, task_id="t") == "paid 10 to bob"
    assert len(till.paid) == 1
    [note] = [entry for entry in await memory.checkpoints.steps("t") if entry.key == "tool_1_0_pay"]
    assert (note.status, note.attempts) == ("completed", 1)
    assert note.input_sha is not None


def read(page: int) -> str:
    return f"Page {page} says that the code of room {page} is {page * 111}. " + "It goes on about the weather. " * 40


async def test_compaction_is_valid_after_a_damaged_beginning(memory: AgentMemory):
    # Mutant: positions are counted from the first message; providers reject a result without its call.
    pages = [wants(call("read", f"c{page}", page=page)) for page in range(1, 9)]
    first = Scripted(*pages, OSError("down"))
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, [read], first, max_context=3000).run("Read the book.", task_id="t")
    await damage(memory, "t", "begin")
    await memory.record_turn("Hello.", "Hello Ada.")
    second = Scripted(says("Read."))
    await AgentWithMemory(memory, [read], second, max_context=3000).run("Read the book.", task_id="t")
    before, after = first.asked[-1].messages, second.asked[0].messages
    assert len(after) > len(before)
    assert after[-len(before) :] == before


async def test_compaction_that_splits_a_call_from_its_result_is_ignored(memory: AgentMemory):
    # Mutant: the compaction is used without checking the dialogue.
    pages = [wants(call("read", f"c{page}", page=page)) for page in range(1, 19)]
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, [read], Scripted(*pages, OSError("down")), max_context=3000).run(
            "Read the book.", task_id="t"
        )
    keys = [entry.key for entry in await memory.checkpoints.steps("t")]
    compactions = sorted(int(key.removeprefix("compaction_")) for key in keys if key.startswith("compaction_"))
    assert len(compactions) > 1
    await damage(memory, "t", f"compaction_{compactions[0]}")  # later ones were made for the shorter dialogue
    model = Scripted(says("Read."))
    # A larger limit, so that the dialogue is not compacted again.
    await AgentWithMemory(memory, [read], model, max_context=100_000).run("Read the book.", task_id="t")
    waiting: list[str] = []
    for message in model.asked[0].messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [entry.id for entry in message.tool_calls]


async def test_run_cancelled_during_the_claim_releases_the_lease(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    # Mutant: the claim is awaited without protection; the next run waits until the lease expires.
    store = memory.checkpoints._store
    claim = store.claim
    claimed = asyncio.Event()

    async def slow(*given: Any, **more: Any) -> Lease:
        lease = await claim(*given, **more)
        claimed.set()
        await asyncio.sleep(0)
        return lease

    monkeypatch.setattr(store, "claim", slow)
    running = asyncio.create_task(AgentWithMemory(memory, model=Scripted(says("Tea."))).run(TASK, task_id="t"))
    await claimed.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert task.owner is None
    assert await AgentWithMemory(memory, model=Scripted(says("Tea."))).run(TASK, task_id="t") == "Tea."
