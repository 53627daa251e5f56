"""Runs resumed several times: each step and the outcome are stored once."""

from __future__ import annotations

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import journal
from recollect.durable.failpoints import FailPointReached, arm_failpoints
from recollect.errors import ModelFailed
from tests.flows.agent.scripted import Scripted, call, says, wants
from tests.flows.conftest import Opener

TASK = "Find it."


def look(what: str) -> str:
    """Look for something."""
    return f"found {what}"


def look_call(what: str) -> object:
    return wants(call("look", what=what))


async def run_until_failure(memory: AgentMemory, *lines: object) -> None:
    """Run the agent until its model fails."""
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, [look], Scripted(*lines, OSError("down"))).run(TASK, task_id="t")  # type: ignore[arg-type]


async def list_steps(memory: AgentMemory) -> list[str]:
    return [entry.content for entry in await memory.episodic.get_recent(50) if "look(" in entry.content]


async def test_resumed_run_records_every_step_once_after_another_task(opener: Opener, place: str):
    # Mutant: the id of the resumed task is not stored. Mutant: only the newest id counts.
    memory = await opener(user="ada", session="s")
    await run_until_failure(memory, look_call("1"))
    await memory.start_task("Something else.")
    await memory.record_step("Well.", "do", "done")
    await run_until_failure(memory, look_call("2"))
    await run_until_failure(memory, look_call("3"))
    if place != "memory://":
        memory = await opener(user="ada", session="s")
    await run_until_failure(memory, look_call("4"))
    agent = AgentWithMemory(memory, [look], Scripted(says("Here.")))
    assert await agent.run(TASK, task_id="t") == "Here."
    steps = await list_steps(memory)
    assert [entry.split("→ ")[1] for entry in steps] == [f"found {n}" for n in (1, 2, 3, 4)]
    outcomes = [entry.content for entry in await memory.episodic.get_recent(50) if entry.kind == "outcome"]
    assert outcomes == [
        f"Task '{TASK}' was given up for another after 1 steps.",
        "Task 'Something else.' was given up for another after 1 steps.",
        f"Task '{TASK}' succeeded: Here.",
    ]


async def test_resumed_run_records_every_step_once_after_a_crash_at_the_start(
    memory: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    # Mutant: the open task is assumed to have the id in the journal.
    await run_until_failure(memory, look_call("1"))
    await memory.start_task("Something else.")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "reach_failpoint", arm_failpoints("completion.before=raise@1"))
        with pytest.raises(FailPointReached):
            await AgentWithMemory(memory, [look], Scripted()).run(TASK, task_id="t")
    await run_until_failure(memory, look_call("2"))
    await run_until_failure(memory, look_call("3"))
    assert await AgentWithMemory(memory, [look], Scripted(says("Here."))).run(TASK, task_id="t") == "Here."
    assert len(await list_steps(memory)) == 3


async def test_run_killed_repeatedly_at_the_start_begins_once(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    # Mutant: each attempt abandons the one before.
    memory = await opener(user="ada", session="s")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "reach_failpoint", arm_failpoints("completion.before=raise"))
        for _ in range(3):
            with pytest.raises(FailPointReached):
                await AgentWithMemory(memory, [look], Scripted()).run(TASK, task_id="t")
    assert await AgentWithMemory(memory, [look], Scripted(says("Here."))).run(TASK, task_id="t") == "Here."
    happened = [(entry.kind, entry.content) for entry in await memory.episodic.get_recent()]
    assert happened == [("decision", f"Task begun: {TASK}"), ("outcome", f"Task '{TASK}' succeeded: Here.")]


async def test_start_task_again_before_its_first_step_returns_the_same_id(memory: AgentMemory):
    # Mutant: the same id after a step too. Mutant: the same id for another text too.
    first = await memory.start_task(TASK)
    assert await memory.start_task(TASK) == first
    other = await memory.start_task("Another one.")
    again = await memory.start_task(TASK)
    assert len({first, other, again}) == 3
    await memory.record_step("Well.", "do", "done")
    assert await memory.start_task(TASK) != again
