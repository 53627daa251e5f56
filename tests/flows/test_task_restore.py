"""Tasks across processes: the next process in the same session continues the open task."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

TASK = "Export the invoices of 2025"
ROOT = Path(__file__).resolve().parent.parent.parent


async def open_memory(path: Path, **options: Any) -> AgentMemory:
    return await AgentMemory.open(path / "agent.db", **{"session": "s1", "embedder": HashEmbedder(), **options})


async def begin_task(path: Path, **options: Any) -> str:
    """Record two steps of a task, close the memory and return the task id."""
    async with await open_memory(path, **options) as memory:
        await memory.procedural.save("export.monthly", "Split it by month.")
        task = await memory.start_task(TASK)
        memory.working.set_variable("units", "metric")
        memory.working.push_subgoal("find the invoices")
        await memory.record_step("All at once.", "export all rows", TimeoutError("60 s"))
        await memory.record_step("By month.", "export.monthly", {"files": 3})
    return task


async def test_next_process_continues_the_task_and_its_lesson(tmp_path: Path):
    task = await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
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
        # The step of the procedure succeeded, so the failed task is its second trial.
        assert (await memory.procedural.success_rate("export.monthly")).trials == 2


async def test_task_of_a_killed_process_is_restored(tmp_path: Path):
    program = f"""
import asyncio, os
from tests.flows.test_task_restore import open_memory
from pathlib import Path

async def work():
    memory = await open_memory(Path({str(tmp_path)!r}))
    await memory.start_task({TASK!r})
    await memory.record_step("Hm.", "look", "nothing")
    os._exit(9)

asyncio.run(work())
"""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, errors = await running.communicate()
    assert running.returncode == 9, errors.decode()
    async with await open_memory(tmp_path) as memory:
        assert (await memory.end_task(True, "Done.")).steps == 1


async def test_recall_shows_the_restored_task(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        context = await memory.recall("what now?")
        assert any(TASK in line for line in context.sections["Current session"])
        assert 'step_2: {"files": 3}' in str(context)


async def test_working_memory_set_before_the_restore_is_kept(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        memory.working.set_variable("units", "imperial")
        memory.working.set_variable("colour", "red")
        await memory.working.add("A thought of today.")
        await memory.recall("anything")
        assert memory.working.variables == {"units": "imperial", "colour": "red"}
        assert memory.working.items[-1] == "A thought of today."
        assert len(memory.working.items) == 3


async def test_ended_task_is_not_restored(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        await memory.end_task(True, "Done.")
    async with await open_memory(tmp_path) as memory:
        assert "Current session" not in (await memory.recall("what now?", min_relevance=0.9)).sections
        with pytest.raises(BadInput, match="start_task"):
            await memory.end_task(True, "Done.")


async def test_task_is_not_restored_in_another_scope(tmp_path: Path):
    await begin_task(tmp_path)
    for other in ({"session": "s2"}, {"session": None}, {"user": "bob"}, {"agent": "x"}, {"tenant": "t"}):
        async with await open_memory(tmp_path, **other) as memory:
            await memory.recall("what now?")
            with pytest.raises(BadInput, match="no task is open"):
                await memory.record_step("x", "y", "z")


async def test_memory_objects_have_separate_tasks(tmp_path: Path):
    async with await open_memory(tmp_path) as memory:
        await memory.start_task(TASK)
        with pytest.raises(BadInput, match="no task is open"):
            await memory.scoped().record_step("x", "y", "z")
        assert (await memory.record_step("x", "y", "z")).number == 1


async def test_start_task_abandons_the_restored_task(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        await memory.start_task("Something else")
        happened = [episode.content for episode in await memory.episodic.get_recent()]
        assert f"Task '{TASK}' was given up for another after 2 steps." in happened
        assert memory.working.variables == {"units": "metric"}
        assert memory.working.results == {}
    async with await open_memory(tmp_path) as memory:
        assert (await memory.end_task(True, "Done.")).task == "Something else"


async def test_only_the_newest_working_state_is_stored(tmp_path: Path):
    async with await open_memory(tmp_path, clock=ManualClock()) as memory:
        await memory.start_task(TASK)
        for n in range(20):
            await memory.record_step("hm", f"look at page {n}", "nothing")
        log = memory._engine.stores.log("episodic")
        assert len(await log.read(memory.scope.space("working"))) == 1
        await memory.end_task(True, "Done.")
        assert await log.read(memory.scope.space("working")) == []
        assert len(await memory.episodic.get_recent(100)) == 22


async def test_variable_that_is_not_json_is_dropped_and_the_task_continues(tmp_path: Path):
    async with await open_memory(tmp_path) as memory:
        await memory.start_task(TASK)
        memory.working.variables["file"] = object()
        await memory.record_step("hm", "look", "nothing")
    async with await open_memory(tmp_path) as memory:
        assert (await memory.record_step("hm", "look again", "nothing")).number == 2
        assert memory.working.task == TASK


async def test_imported_task_can_be_ended(tmp_path: Path):
    async with await open_memory(tmp_path) as memory:
        await memory.start_task(TASK)
        await memory.record_step("hm", "look", "nothing")
        await memory.export(tmp_path / "out.jsonl")
        other = memory.scoped(user="grace", session="elsewhere")
        await other.import_from(tmp_path / "out.jsonl")
        assert (await other.record_step("hm", "look again", "nothing")).number == 2
        ended = await other.end_task(True, "Done.")
        assert (ended.task, ended.results) == (TASK, {"step_1": "nothing", "step_2": "nothing"})
        assert (await memory.end_task(True, "Done.")).steps == 1


async def test_unfinished_task_is_exported(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        assert (await memory.export(tmp_path / "out.jsonl")).lines["working"] == 1
        other = memory.scoped(session="s2")
        await other.import_from(tmp_path / "out.jsonl")
        assert (await other.end_task(True, "Done.")).steps == 2


async def test_import_does_not_replace_an_unfinished_task(tmp_path: Path):
    async with await open_memory(tmp_path, session="s2") as memory:
        await memory.start_task("Something else")
        await memory.export(tmp_path / "out.jsonl")
    await begin_task(tmp_path)
    async with await open_memory(tmp_path) as memory:
        assert (await memory.import_from(tmp_path / "out.jsonl")).present["working"] == 1
        assert (await memory.end_task(True, "Done.")).task == TASK


async def test_recall_does_not_resume_a_task_and_resume_task_does(tmp_path: Path):
    await begin_task(tmp_path)
    async with await open_memory(tmp_path, session="other") as memory:
        view = memory.scoped(session="s1")
        await view.recall("what now?")
        assert view.working.task == ""
        task_id = await view.resume_task()
        assert task_id is not None
        assert view.working.task == TASK
        assert await view.resume_task() == task_id
        assert await memory.resume_task() is None
