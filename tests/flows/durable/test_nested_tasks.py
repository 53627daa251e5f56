"""Tasks across the steps of an agent: the same task through the memory and through `ctx.memory`."""

from __future__ import annotations

from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from tests.flows.durable.working import Killed


async def lessons(memory: AgentMemory) -> list[Any]:
    return [hit.item for hit in await memory.semantic.search("Task", 10, min_relevance=0.0)]


async def test_steps_continue_the_task_started_outside(memory: AgentMemory, agent):
    # Mutant: the task of this object is used instead of the stored one (its steps are then not learned from).
    task_id = await memory.start_task("Export the invoices")
    first = await memory.record_step("Look first.", "count", "812")

    async def export(state, ctx):
        recorded = await ctx.memory.record_step("By month.", "export january", OSError("the line is busy"))
        return [recorded.number, recorded.episode.id]

    async def again(state, ctx):
        recorded = await ctx.memory.record_step("Again.", "export january once more", "done")
        return [recorded.number, recorded.episode.id]

    state = await agent().run("t", [export, again])
    recorded_steps = list(state["results"].values())
    assert [number for number, _ in recorded_steps] == [2, 3]
    last = await memory.record_step("And tell.", "notify", "told")
    assert last.number == 4
    ended = await memory.end_task(True, "One file.")
    assert (ended.task_id, ended.steps) == (task_id, 4)
    assert {first.episode.id, last.episode.id, *(id for _, id in recorded_steps)} <= set(ended.learned.derived_from)
    assert "the line is busy" in ended.learned.content


async def test_task_can_be_started_recorded_and_ended_in_steps(memory: AgentMemory, agent):
    # Mutant: each step has a separate task.
    async def begin(state, ctx):
        return await ctx.memory.start_task("Export the invoices")

    async def take(state, ctx):
        await ctx.memory.record_step("One.", "export january", "done")
        return (await ctx.memory.record_step("Two.", "export february", "done")).number

    async def end(state, ctx):
        ended = await ctx.memory.end_task(True, "All exported.")
        return [ended.task_id, ended.steps]

    state = await agent().run("t", [begin, take, end])
    begun, recorded, ended = state["results"].values()
    assert (recorded, ended) == (2, [begun, 2])
    with pytest.raises(BadInput, match="no task is open"):
        await memory.end_task(True, "Again.")
    assert len(await lessons(memory)) == 1


async def test_task_ended_in_a_step_is_ended_outside(memory: AgentMemory, agent):
    # Mutant: the stored outcome is not checked.
    await memory.start_task("Export the invoices")

    async def end(state, ctx):
        await ctx.memory.end_task(True, "All exported.")

    await agent().run("t", [end])
    for more in (memory.end_task(False, "It failed."), memory.record_step("On.", "export march", "done")):
        with pytest.raises(BadInput, match="no task is open"):
            await more
    assert len(await lessons(memory)) == 1


async def test_task_started_in_a_step_replaces_the_one_outside(memory: AgentMemory, agent):
    # Mutant: `start` abandons only the task of its own object.
    old = await memory.start_task("Export the invoices")

    async def begin(state, ctx):
        return await ctx.memory.start_task("Send the invoices")

    new = (await agent().run("t", [begin]))["results"]["step_0_begin"]
    given_up = [entry for entry in await memory.episodic.get_recent() if entry.kind == "outcome"]
    assert [entry.metadata["task"] for entry in given_up] == [old]
    assert (await memory.end_task(True, "Sent.")).task_id == new


async def test_failed_attempt_records_nothing_in_the_task(memory: AgentMemory, agent):
    await memory.start_task("Export the invoices")

    async def export(state, ctx):
        recorded = await ctx.memory.record_step("By month.", f"attempt {ctx.attempt}", "done")
        if ctx.attempt < 3:
            raise OSError("the line is busy")
        return recorded.number

    state = await agent().run("t", [export])
    assert state["results"] == {"step_0_export": 1}
    ended = await memory.end_task(True, "Done.")
    assert ended.steps == 1
    assert "attempt 3" in ended.learned.content
    assert "attempt 1" not in ended.learned.content


async def test_task_started_in_a_step_continues_after_a_resume(opener, place: str, agent):
    # Mutant: a resumed step knows the task only from working memory.
    memory = await opener(user="ada", session="s")

    async def begin(state, ctx):
        task_id = await ctx.memory.start_task("Export the invoices")
        await ctx.memory.record_step("One.", "export january", OSError("the line is busy"))
        return task_id

    async def end(state, ctx):
        raise Killed

    with pytest.raises(Killed):
        await agent(memory=memory).run("t", [begin, end])
    later = memory.scoped() if place == "memory://" else await opener(user="ada", session="s")

    async def resumed(state, ctx):
        ended = await ctx.memory.end_task(True, "All exported.")
        return [ended.task_id, ended.steps, ended.learned.content]

    resumed.__name__ = "end"
    results = (await agent(memory=later).run("t", [begin, resumed]))["results"]
    task_id, steps, learned = results["step_1_end"]
    assert (task_id, steps) == (results["step_0_begin"], 1)
    assert "the line is busy" in learned
