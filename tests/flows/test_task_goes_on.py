"""A task outlives the process that began it: the next one in the same session goes on where it stopped."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, BadInput
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

TASK = "Export the invoices of 2025"
ROOT = Path(__file__).resolve().parent.parent.parent


async def opened(path: Path, **options: Any) -> AgentMemory:
    return await AgentMemory.open(path / "agent.db", **{"session": "s1", "embedder": HashEmbedder(), **options})


async def begun(path: Path, **options: Any) -> str:
    """Two steps of a task, by a memory that is gone afterwards."""
    async with await opened(path, **options) as memory:
        await memory.procedural.save("export.monthly", "Split it by month.")
        task = await memory.start_task(TASK)
        memory.working.set_variable("units", "metric")
        memory.working.push_subgoal("find the invoices")
        await memory.record_step("All at once.", "export all rows", TimeoutError("60 s"))
        await memory.record_step("By month.", "export.monthly", {"files": 3})
    return task


async def test_steps_and_lesson_go_on_in_the_next_process(tmp_path: Path):
    task = await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        step = await memory.record_step("The rest.", "export the other months", "9 files")
        assert step.number == 3
        working = memory.working
        assert (working.task, working.subgoals, working.variables) == (TASK, ["find the invoices"], {"units": "metric"})
        assert working.results == {"step_1": "TimeoutError: 60 s", "step_2": '{"files": 3}', "step_3": "9 files"}
        assert working.scratchpad == ["All at once.", "By month.", "The rest."]
        assert len(working.items) == 3
        ended = await memory.end_task(False, "Two months were missing.")
        assert (ended.task_id, ended.steps) == (task, 3)
        assert "Tried: export all rows; export.monthly; export the other months." in ended.learned.content
        assert "TimeoutError: 60 s" in ended.learned.content
        assert len(ended.learned.derived_from) == 5
        # The step that followed it went well, so the failure of the task is its second trial.
        assert (await memory.procedural.success_rate("export.monthly")).trials == 2


async def test_a_process_that_was_killed_leaves_its_task_too(tmp_path: Path):
    program = f"""
import asyncio, os
from tests.flows.test_task_goes_on import opened
from pathlib import Path

async def work():
    memory = await opened(Path({str(tmp_path)!r}))
    await memory.start_task({TASK!r})
    await memory.record_step("Hm.", "look", "nothing")
    os._exit(9)

asyncio.run(work())
"""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, said = await running.communicate()
    assert running.returncode == 9, said.decode()
    async with await opened(tmp_path) as memory:
        assert (await memory.end_task(True, "Done.")).steps == 1


async def test_recall_shows_it_at_once(tmp_path: Path):
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        context = await memory.recall("what now?")
        assert any(TASK in line for line in context.sections["Current session"])
        assert 'step_2: {"files": 3}' in str(context)


async def test_what_came_to_mind_before_it_was_taken_up_stays(tmp_path: Path):
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        memory.working.set_variable("units", "imperial")
        memory.working.set_variable("colour", "red")
        await memory.working.add("A thought of today.")
        await memory.recall("anything")
        assert memory.working.variables == {"units": "imperial", "colour": "red"}
        assert memory.working.items[-1] == "A thought of today."
        assert len(memory.working.items) == 3


async def test_a_task_that_has_ended_is_not_taken_up(tmp_path: Path):
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        await memory.end_task(True, "Done.")
    async with await opened(tmp_path) as memory:
        assert "Current session" not in (await memory.recall("what now?", min_relevance=0.9)).sections
        with pytest.raises(BadInput, match="start_task"):
            await memory.end_task(True, "Done.")


async def test_another_session_user_or_agent_has_nothing_to_do_with_it(tmp_path: Path):
    await begun(tmp_path)
    for other in ({"session": "s2"}, {"session": None}, {"user": "bob"}, {"agent": "x"}, {"tenant": "t"}):
        async with await opened(tmp_path, **other) as memory:
            await memory.recall("what now?")
            with pytest.raises(BadInput, match="no task is under way"):
                await memory.record_step("x", "y", "z")


async def test_two_objects_of_one_memory_have_a_task_each(tmp_path: Path):
    async with await opened(tmp_path) as memory:
        await memory.start_task(TASK)
        with pytest.raises(BadInput, match="no task is under way"):
            await memory.scoped().record_step("x", "y", "z")
        assert (await memory.record_step("x", "y", "z")).number == 1


async def test_one_that_is_begun_over_it_gives_it_up(tmp_path: Path):
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        await memory.start_task("Something else")
        happened = [one.content for one in await memory.episodic.get_recent()]
        assert f"Task '{TASK}' was given up for another after 2 steps." in happened
        assert memory.working.variables == {"units": "metric"}
        assert memory.working.results == {}
    async with await opened(tmp_path) as memory:
        assert (await memory.end_task(True, "Done.")).task == "Something else"


async def test_only_the_newest_state_is_kept(tmp_path: Path):
    async with await opened(tmp_path, clock=ManualClock()) as memory:
        await memory.start_task(TASK)
        for n in range(20):
            await memory.record_step("hm", f"look at page {n}", "nothing")
        log = memory._parts.stores.log("episodic")
        assert len(await log.read(memory.scope.space("working"))) == 1
        await memory.end_task(True, "Done.")
        assert await log.read(memory.scope.space("working")) == []
        assert len(await memory.episodic.get_recent(100)) == 22


async def test_what_is_no_json_stays_behind_and_the_task_goes_on(tmp_path: Path):
    async with await opened(tmp_path) as memory:
        await memory.start_task(TASK)
        memory.working.variables["file"] = object()
        await memory.record_step("hm", "look", "nothing")
    async with await opened(tmp_path) as memory:
        assert (await memory.record_step("hm", "look again", "nothing")).number == 2
        assert memory.working.task == TASK


async def test_a_task_that_was_imported_can_be_ended(tmp_path: Path):
    async with await opened(tmp_path) as memory:
        await memory.start_task(TASK)
        await memory.record_step("hm", "look", "nothing")
        await memory.export(tmp_path / "out.jsonl")
        other = memory.scoped(user="grace", session="elsewhere")
        await other.import_from(tmp_path / "out.jsonl")
        assert (await other.record_step("hm", "look again", "nothing")).number == 2
        ended = await other.end_task(True, "Done.")
        assert (ended.task, ended.results) == (TASK, {"step_1": "nothing", "step_2": "nothing"})
        assert (await memory.end_task(True, "Done.")).steps == 1


async def test_a_task_that_was_left_is_exported(tmp_path: Path):
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        assert (await memory.export(tmp_path / "out.jsonl")).lines["working"] == 1
        other = memory.scoped(session="s2")
        await other.import_from(tmp_path / "out.jsonl")
        assert (await other.end_task(True, "Done.")).steps == 2


async def test_what_was_left_here_is_not_replaced_by_an_import(tmp_path: Path):
    async with await opened(tmp_path, session="s2") as memory:
        await memory.start_task("Something else")
        await memory.export(tmp_path / "out.jsonl")
    await begun(tmp_path)
    async with await opened(tmp_path) as memory:
        assert (await memory.import_from(tmp_path / "out.jsonl")).present["working"] == 1
        assert (await memory.end_task(True, "Done.")).task == TASK
