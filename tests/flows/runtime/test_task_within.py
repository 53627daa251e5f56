"""A task that goes through the steps of an agent is one task, whoever tells of it: the memory or `ctx.memory`."""

from __future__ import annotations

from typing import Any

import pytest

from recollect import AgentMemory, BadInput
from tests.flows.runtime.working import Killed


async def lessons(memory: AgentMemory) -> list[Any]:
    return [hit.item for hit in await memory.semantic.search("Task", 10, min_relevance=0.0)]


async def test_a_step_goes_on_with_the_task_that_was_begun_outside(memory: AgentMemory, agent):
    # Mutant: `_as_kept` that gives what this object holds (the steps then are of another task, and not learned from).
    task_id = await memory.start_task("Export the invoices")
    first = await memory.record_step("Look first.", "count", "812")

    async def export(state, ctx):
        taken = await ctx.memory.record_step("By month.", "export january", OSError("the line is busy"))
        return [taken.number, taken.episode.id]

    async def again(state, ctx):
        taken = await ctx.memory.record_step("Again.", "export january once more", "done")
        return [taken.number, taken.episode.id]

    state = await agent().run("t", [export, again])
    told = list(state["results"].values())
    assert [number for number, _ in told] == [2, 3]
    last = await memory.record_step("And tell.", "notify", "told")
    assert last.number == 4
    ended = await memory.end_task(True, "One file.")
    assert (ended.task_id, ended.steps) == (task_id, 4)
    assert {first.episode.id, last.episode.id, *(id for _, id in told)} <= set(ended.learned.derived_from)
    assert "the line is busy" in ended.learned.content


async def test_a_task_may_be_begun_taken_and_ended_in_steps(memory: AgentMemory, agent):
    # Mutant: a task of a name is another one in each step.
    async def begin(state, ctx):
        return await ctx.memory.start_task("Export the invoices")

    async def take(state, ctx):
        await ctx.memory.record_step("One.", "export january", "done")
        return (await ctx.memory.record_step("Two.", "export february", "done")).number

    async def end(state, ctx):
        ended = await ctx.memory.end_task(True, "All exported.")
        return [ended.task_id, ended.steps]

    state = await agent().run("t", [begin, take, end])
    begun, taken, ended = state["results"].values()
    assert (taken, ended) == (2, [begun, 2])
    with pytest.raises(BadInput, match="no task is under way"):
        await memory.end_task(True, "Again.")
    assert len(await lessons(memory)) == 1


async def test_a_task_that_a_step_ended_is_over_outside_too(memory: AgentMemory, agent):
    # Mutant: no look for the outcome.
    await memory.start_task("Export the invoices")

    async def end(state, ctx):
        await ctx.memory.end_task(True, "All exported.")

    await agent().run("t", [end])
    for more in (memory.end_task(False, "It failed."), memory.record_step("On.", "export march", "done")):
        with pytest.raises(BadInput, match="no task is under way"):
            await more
    assert len(await lessons(memory)) == 1


async def test_a_task_that_a_step_begins_takes_the_place_of_the_one_outside(memory: AgentMemory, agent):
    # Mutant: `start` that gives up only what its own object holds.
    old = await memory.start_task("Export the invoices")

    async def begin(state, ctx):
        return await ctx.memory.start_task("Send the invoices")

    new = (await agent().run("t", [begin]))["results"]["step_0_begin"]
    given_up = [one for one in await memory.episodic.get_recent() if one.kind == "outcome"]
    assert [one.metadata["task"] for one in given_up] == [old]
    assert (await memory.end_task(True, "Sent.")).task_id == new


async def test_what_a_failed_attempt_told_of_the_task_did_not_happen(memory: AgentMemory, agent):
    await memory.start_task("Export the invoices")

    async def export(state, ctx):
        taken = await ctx.memory.record_step("By month.", f"attempt {ctx.attempt}", "done")
        if ctx.attempt < 3:
            raise OSError("the line is busy")
        return taken.number

    state = await agent().run("t", [export])
    assert state["results"] == {"step_0_export": 1}
    ended = await memory.end_task(True, "Done.")
    assert ended.steps == 1
    assert "attempt 3" in ended.learned.content
    assert "attempt 1" not in ended.learned.content


async def test_a_task_goes_on_in_the_process_that_resumes(opener, place: str, agent):
    # Mutant: a resumed step that knows the task from working memory alone.
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
