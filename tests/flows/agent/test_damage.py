"""A run whose journal is damaged: what was begun for one call is never told of another, and nothing is done twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.errors import ModelFailed, UnknownOutcome
from recollect.inference.chat import Reply
from recollect.stores.base import Lease
from recollect.stores.ops import Journal
from tests.flows.agent.scripted import Scripted, call, results, says, wants
from tests.flows.agent.test_resume import begun_without_end

TASK = "Pay them."


class Till:
    """What was paid, and under which keys."""

    def __init__(self) -> None:
        self.paid: list[tuple[str, int, str]] = []

    def tools(self) -> list[Any]:
        async def pay(to: str, amount: int, idempotency_key: str) -> str:
            """Pay somebody."""
            self.paid.append((to, amount, idempotency_key))
            return f"paid {amount} to {to}"

        async def give(to: str, idempotency_key: str) -> str:
            """Give somebody something."""
            self.paid.append((to, 0, idempotency_key))
            return f"gave to {to}"

        return [pay, give]


async def damage(memory: AgentMemory, task_id: str, step: str) -> None:
    """Make a note as a torn page leaves it."""
    checkpoints = memory.checkpoints
    lease = await checkpoints.store.claim(checkpoints.space, task_id, "dead", timedelta(seconds=30))
    [note] = [one for one in await checkpoints.steps(task_id) if one.key == step]
    assert note.result is not None
    await checkpoints.store.write(
        Journal(
            space=checkpoints.space,
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
    await checkpoints.store.release(lease)


async def stopped_after(memory: AgentMemory, till: Till, *replies: Reply) -> None:
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
async def test_a_reply_that_asks_for_something_else_is_not_acted_on(memory: AgentMemory, now: Reply, ended: bool):
    # Mutant: the result of one call is told of another. Mutant: another call under the key of the one that was begun.
    till = Till()
    await stopped_after(memory, till, wants(BOB))
    await damage(memory, "t", "reply_1")
    if not ended:
        await begun_without_end(memory, "t", "tool_1_0_pay")
    for _ in range(2):  # and it is not kept either
        with pytest.raises(UnknownOutcome, match=till.paid[0][2]):
            await AgentWithMemory(memory, till.tools(), Scripted(now, says("Done."))).run(TASK, task_id="t")
    assert [(to, amount) for to, amount, _ in till.paid] == [("bob", 10)]


async def test_a_reply_that_asks_for_the_same_goes_on_with_what_there_is(memory: AgentMemory):
    # Mutant: the call is begun anew, and what came of it forgotten. Mutant: the order of the arguments counts.
    till = Till()
    await stopped_after(memory, till, wants(BOB))
    await damage(memory, "t", "reply_1")
    again = wants(call("pay", "another_id", amount=10, to="bob"))
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, till.tools(), Scripted(again, OSError("down"))).run(TASK, task_id="t")
    model = Scripted(lambda messages: says(" | ".join(results(messages))))
    assert await AgentWithMemory(memory, till.tools(), model).run(TASK, task_id="t") == "paid 10 to bob"
    assert len(till.paid) == 1
    [note] = [one for one in await memory.checkpoints.steps("t") if one.key == "tool_1_0_pay"]
    assert (note.status, note.attempts) == ("completed", 1)
    assert note.input_sha is not None


def read(page: int) -> str:
    return f"Page {page} says that the code of room {page} is {page * 111}. " + "It goes on about the weather. " * 40


async def test_a_compaction_outlives_a_beginning_that_is_made_anew(memory: AgentMemory):
    # Mutant: places counted from the first message; a result without its call is refused by every provider.
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


async def test_a_compaction_that_parts_a_call_from_its_result_is_not_used(memory: AgentMemory):
    # Mutant: it is believed, whatever the dialogue is now.
    pages = [wants(call("read", f"c{page}", page=page)) for page in range(1, 19)]
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, [read], Scripted(*pages, OSError("down")), max_context=3000).run(
            "Read the book.", task_id="t"
        )
    keys = [one.key for one in await memory.checkpoints.steps("t")]
    made = sorted(int(key.removeprefix("compaction_")) for key in keys if key.startswith("compaction_"))
    assert len(made) > 1
    await damage(memory, "t", f"compaction_{made[0]}")  # those after it were made for the shorter dialogue
    model = Scripted(says("Read."))
    # With more room, or else it would be summed up anew, and nobody could see what was.
    await AgentWithMemory(memory, [read], model, max_context=100_000).run("Read the book.", task_id="t")
    waiting: list[str] = []
    for message in model.asked[0].messages:
        if message.role == "tool":
            assert message.call_id == waiting.pop(0)
        else:
            assert waiting == []
            waiting = [one.id for one in message.tool_calls]


async def test_a_run_that_is_cancelled_while_it_is_claimed_is_nobodys(
    memory: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    # Mutant: the claim is awaited as it is; whoever comes next waits until the lease has run out.
    store = memory.checkpoints.store
    claim = store.claim
    asked = asyncio.Event()

    async def slow(*given: Any, **more: Any) -> Lease:
        lease = await claim(*given, **more)
        asked.set()
        await asyncio.sleep(0)
        return lease

    monkeypatch.setattr(store, "claim", slow)
    running = asyncio.create_task(AgentWithMemory(memory, model=Scripted(says("Tea."))).run(TASK, task_id="t"))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    task = await memory.checkpoints.task("t")
    assert task is not None
    assert task.owner is None
    assert await AgentWithMemory(memory, model=Scripted(says("Tea."))).run(TASK, task_id="t") == "Tea."
