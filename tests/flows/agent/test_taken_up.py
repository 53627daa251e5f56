"""A run that is taken up again and again has one life in memory, whatever came between."""

from __future__ import annotations

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import journal
from recollect.errors import ModelFailed
from recollect.runtime.failpoints import FailPointReached, armed
from tests.flows.agent.scripted import Scripted, call, says, wants
from tests.flows.conftest import Opener

TASK = "Find it."


def look(what: str) -> str:
    """Look for something."""
    return f"found {what}"


def looking(what: str) -> object:
    return wants(call("look", what=what))


async def left(memory: AgentMemory, *lines: object) -> None:
    """A run up to where its model is gone."""
    with pytest.raises(ModelFailed):
        await AgentWithMemory(memory, [look], Scripted(*lines, OSError("down"))).run(TASK, task_id="t")  # type: ignore[arg-type]


async def steps_of(memory: AgentMemory) -> list[str]:
    return [one.content for one in await memory.episodic.get_recent(50) if "look(" in one.content]


async def test_every_step_is_there_once_although_another_task_came_between(opener: Opener, place: str):
    # Mutant: the id under which it was begun again is forgotten. Mutant: only the newest id counts.
    memory = await opener(user="ada", session="s")
    await left(memory, looking("1"))
    await memory.start_task("Something else.")
    await memory.record_step("Well.", "do", "done")
    await left(memory, looking("2"))
    await left(memory, looking("3"))
    if place != "memory://":
        memory = await opener(user="ada", session="s")
    await left(memory, looking("4"))
    agent = AgentWithMemory(memory, [look], Scripted(says("Here.")))
    assert await agent.run(TASK, task_id="t") == "Here."
    told = await steps_of(memory)
    assert [one.split("→ ")[1] for one in told] == [f"found {n}" for n in (1, 2, 3, 4)]
    outcomes = [one.content for one in await memory.episodic.get_recent(50) if one.kind == "outcome"]
    assert outcomes == [
        f"Task '{TASK}' was given up for another after 1 steps.",
        "Task 'Something else.' was given up for another after 1 steps.",
        f"Task '{TASK}' succeeded: Here.",
    ]


async def test_also_when_nobody_was_told_that_it_was_begun_again(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    # Mutant: what is under way has the id that the journal knows.
    await left(memory, looking("1"))
    await memory.start_task("Something else.")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "reach", armed("completion.before=raise@1"))
        with pytest.raises(FailPointReached):
            await AgentWithMemory(memory, [look], Scripted()).run(TASK, task_id="t")
    await left(memory, looking("2"))
    await left(memory, looking("3"))
    assert await AgentWithMemory(memory, [look], Scripted(says("Here."))).run(TASK, task_id="t") == "Here."
    assert len(await steps_of(memory)) == 3


async def test_a_run_that_was_killed_as_it_began_begins_once(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    # Mutant: each attempt gives up the one before.
    memory = await opener(user="ada", session="s")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "reach", armed("completion.before=raise"))
        for _ in range(3):
            with pytest.raises(FailPointReached):
                await AgentWithMemory(memory, [look], Scripted()).run(TASK, task_id="t")
    assert await AgentWithMemory(memory, [look], Scripted(says("Here."))).run(TASK, task_id="t") == "Here."
    happened = [(one.kind, one.content) for one in await memory.episodic.get_recent()]
    assert happened == [("decision", f"Task begun: {TASK}"), ("outcome", f"Task '{TASK}' succeeded: Here.")]


async def test_a_task_that_was_begun_again_before_its_first_step_is_that_task(memory: AgentMemory):
    # Mutant: also after a step. Mutant: also in other words.
    first = await memory.start_task(TASK)
    assert await memory.start_task(TASK) == first
    other = await memory.start_task("Another one.")
    again = await memory.start_task(TASK)
    assert len({first, other, again}) == 3
    await memory.record_step("Well.", "do", "done")
    assert await memory.start_task(TASK) != again
