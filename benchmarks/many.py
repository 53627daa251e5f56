"""Many tasks in one file: what each takes on disk, and whether listing and resuming stay as fast as with a few.

Tasks of twenty steps run side by side, as in a worker that serves many. One in twenty is cut short in its eighteenth
step, as by a worker that is told to stop. The same is asked when the first few tasks are there, and when all are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from report import ms, progress, show, summary, times
from rich.progress import Progress
from synthetic import KnownVectors

from recollect import AgentMemory, ResumableAgent

_STEPS = 20
_CUT_AT = 18
_EVERY = 20
LEAST = 1000
_TOGETHER = 64
_PAGE = 100
_FEW = 10
_ASKED = 100
_STATE = {"text": "x" * 100}
Figures = dict[str, Any]


def _name(number: int) -> str:
    return f"task-{number:07}"


async def _one(agent: ResumableAgent, number: int) -> None:
    done = 0

    async def body(state: dict[str, Any]) -> int:
        nonlocal done
        done += 1
        if done == _CUT_AT and number % _EVERY == 0:
            running = asyncio.current_task()
            if running is not None:
                running.cancel()
            await asyncio.sleep(0)
        return done

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.create_task(agent.run(_name(number), [body] * _STEPS, _STATE))


async def _build(agent: ResumableAgent, numbers: range, bar: Progress) -> float:
    waiting = iter(bar.track(numbers, description=f"tasks of {_STEPS} steps"))

    async def worker() -> None:
        for number in waiting:
            await _one(agent, number)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(_TOGETHER)))
    return time.perf_counter() - began


async def _resumed(agent: ResumableAgent, number: int) -> tuple[float, int]:
    """Seconds until the first body runs again, and how many bodies ran."""
    marks: list[float] = []

    async def body(state: dict[str, Any]) -> int:
        marks.append(time.perf_counter())
        return len(marks)

    asked = time.perf_counter()
    await agent.run(_name(number), [body] * _STEPS, _STATE)
    return marks[0] - asked, len(marks)


async def _timed(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[float]:
    seconds = []
    for call in calls:
        began = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - began)
    return seconds


async def _asked(memory: AgentMemory, agent: ResumableAgent, there: int, cut: Sequence[int]) -> Figures:
    held = memory.checkpoints
    names = [_name(number * there // _ASKED) for number in range(_ASKED)]
    found: Figures = {
        "tasks": there,
        "first_page_ms": summary(await _timed([lambda: held.tasks(limit=_PAGE)] * _ASKED)),
        "later_page_ms": summary(await _timed([partial(held.tasks, limit=_PAGE, after=name) for name in names])),
        "unfinished_page_ms": summary(await _timed([lambda: held.tasks("ready", limit=_FEW)] * _ASKED)),
        "restore_ms": summary(await _timed([partial(held.restore, name) for name in names])),
        "versions_kept": max([len(await held.history(name)) for name in names]),
        "journal_notes": max([len(await held.steps(name)) for name in names]),
    }
    resumed = [await _resumed(agent, number) for number in cut]
    found["resume_ms"] = summary([seconds for seconds, _ in resumed])
    found["steps_run_by_a_resume"] = max(bodies for _, bodies in resumed)
    return found


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


async def run(directory: Path, tasks: int) -> Figures:
    """Figures with a few of the tasks, the same with all of them, and what all of them take on disk."""
    # Of every step that was cut short there would be a warning, and those are on purpose.
    logging.getLogger("recollect").setLevel(logging.ERROR)
    path = directory / "many.db"
    few = LEAST // 5
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        agent = ResumableAgent(memory)
        # The last cut task of each part stays unfinished, for the listing of those.
        with progress() as bar:
            await _build(agent, range(few), bar)
            first = await _asked(memory, agent, few, range(0, few - _EVERY, _EVERY))
            seconds = await _build(agent, range(few, tasks), bar)
            last = await _asked(memory, agent, tasks, range(few, tasks - _EVERY, _EVERY))
    size = _size(path)
    return {
        "steps": _STEPS,
        "bytes": size,
        "bytes_per_task": size / tasks,
        "steps_per_second": (tasks - few) * _STEPS / seconds,
        "side_by_side": _TOGETHER,
        "with": [first, last],
    }


def print_table(found: Figures) -> None:
    few, all_of_them = found["with"]
    timed = {
        "first page of the list": "first_page_ms",
        "a page further on": "later_page_ms",
        "page of the unfinished": "unfinished_page_ms",
        "restore": "restore_ms",
        "resume, until a step runs": "resume_ms",
    }
    show(
        f"{all_of_them['tasks']:,} tasks of {found['steps']} steps in one file: milliseconds",
        ("", f"with {few['tasks']:,}: p50", "p95", f"with {all_of_them['tasks']:,}: p50", "p95", "all ÷ few, p50"),
        [
            (
                label,
                *(ms(held[key][name]) for held in (few, all_of_them) for name in ("p50", "p95")),
                times(all_of_them[key]["p50"] / few[key]["p50"]),
            )
            for label, key in timed.items()
        ],
        f"{found['bytes'] / 1e6:,.1f} MB, {found['bytes_per_task']:,.0f} bytes a task; at most "
        f"{all_of_them['versions_kept']} versions and {all_of_them['journal_notes']} notes kept of a task.\n"
        f"Resumed in step {_CUT_AT}: {all_of_them['steps_run_by_a_resume']} steps ran. "
        f"{found['steps_per_second']:,.0f} steps/s with {found['side_by_side']} tasks side by side. "
        f"A page: {_PAGE} tasks, {_FEW} of the unfinished.",
    )
