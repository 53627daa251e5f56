"""Many tasks in one file: bytes per task, and the time to list and resume with a few tasks and with all of them.

Tasks of 20 steps run concurrently, like in a worker with many tasks. Every 20th task is canceled in step 18, like by a
worker that stops. The same calls are timed after the first tasks and after all of them.
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

from report import create_progress, format_ms, format_ratio, print_table, summarize
from rich.progress import Progress
from synthetic import KnownVectors

from recollect import AgentMemory, ResumableAgent

_STEPS = 20
_CANCELED_STEP = 18
_CANCELED_EVERY = 20
MIN_TASKS = 1000
_CONCURRENCY = 64
_PAGE = 100
_UNFINISHED_PAGE = 10
_CALLS = 100
_STATE = {"text": "x" * 100}
Figures = dict[str, Any]


def _build_name(number: int) -> str:
    return f"task-{number:07}"


async def _run_task(agent: ResumableAgent, number: int) -> None:
    done = 0

    async def body(state: dict[str, Any]) -> int:
        nonlocal done
        done += 1
        if done == _CANCELED_STEP and number % _CANCELED_EVERY == 0:
            current = asyncio.current_task()
            if current is not None:
                current.cancel()
            await asyncio.sleep(0)
        return done

    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.create_task(agent.run(_build_name(number), [body] * _STEPS, _STATE))


async def _run_tasks(agent: ResumableAgent, numbers: range, bar: Progress) -> float:
    remaining = iter(bar.track(numbers, description=f"tasks of {_STEPS} steps"))

    async def work() -> None:
        for number in remaining:
            await _run_task(agent, number)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
    return time.perf_counter() - started


async def _resume(agent: ResumableAgent, number: int) -> tuple[float, int]:
    """Resume a task; return the seconds until its first step runs, and the number of steps that ran."""
    starts: list[float] = []

    async def body(state: dict[str, Any]) -> int:
        starts.append(time.perf_counter())
        return len(starts)

    called = time.perf_counter()
    await agent.run(_build_name(number), [body] * _STEPS, _STATE)
    return starts[0] - called, len(starts)


async def _time_calls(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[float]:
    seconds = []
    for call in calls:
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return seconds


async def _measure(memory: AgentMemory, agent: ResumableAgent, tasks: int, canceled: Sequence[int]) -> Figures:
    """Time the calls with `tasks` tasks in the file; resume the canceled ones."""
    checkpoints = memory.checkpoints
    names = [_build_name(number * tasks // _CALLS) for number in range(_CALLS)]
    figures: Figures = {
        "tasks": tasks,
        "first_page_ms": summarize(await _time_calls([lambda: checkpoints.tasks(limit=_PAGE)] * _CALLS)),
        "later_page_ms": summarize(
            await _time_calls([partial(checkpoints.tasks, limit=_PAGE, after=name) for name in names])
        ),
        "unfinished_page_ms": summarize(
            await _time_calls([lambda: checkpoints.tasks("ready", limit=_UNFINISHED_PAGE)] * _CALLS)
        ),
        "restore_ms": summarize(await _time_calls([partial(checkpoints.restore, name) for name in names])),
        "max_versions": max([len(await checkpoints.history(name)) for name in names]),
        "max_journal_entries": max([len(await checkpoints.steps(name)) for name in names]),
    }
    resumed = [await _resume(agent, number) for number in canceled]
    figures["resume_ms"] = summarize([seconds for seconds, _ in resumed])
    figures["max_resumed_steps"] = max(bodies for _, bodies in resumed)
    return figures


def _measure_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


async def run(directory: Path, tasks: int) -> Figures:
    """Return the figures with a fifth of `MIN_TASKS`, the figures with all tasks, and the size of the file."""
    # Each canceled step logs a warning; they are canceled on purpose.
    logging.getLogger("recollect").setLevel(logging.ERROR)
    path = directory / "tasks.db"
    few = MIN_TASKS // 5
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        agent = ResumableAgent(memory)
        # The last canceled task of each part stays unfinished, so that the list of unfinished tasks is not empty.
        with create_progress() as bar:
            await _run_tasks(agent, range(few), bar)
            first = await _measure(memory, agent, few, range(0, few - _CANCELED_EVERY, _CANCELED_EVERY))
            seconds = await _run_tasks(agent, range(few, tasks), bar)
            last = await _measure(memory, agent, tasks, range(few, tasks - _CANCELED_EVERY, _CANCELED_EVERY))
    size = _measure_size(path)
    return {
        "steps": _STEPS,
        "bytes": size,
        "bytes_per_task": size / tasks,
        "steps_per_second": (tasks - few) * _STEPS / seconds,
        "concurrency": _CONCURRENCY,
        "with": [first, last],
    }


def print_figures(figures: Figures) -> None:
    few, many = figures["with"]
    keys = {
        "first page of the list": "first_page_ms",
        "later page": "later_page_ms",
        "page of unfinished tasks": "unfinished_page_ms",
        "restore": "restore_ms",
        "resume, until a step runs": "resume_ms",
    }
    print_table(
        f"{many['tasks']:,} tasks of {figures['steps']} steps in one file: milliseconds",
        ("", f"{few['tasks']:,} tasks: p50", "p95", f"{many['tasks']:,} tasks: p50", "p95", "ratio of p50"),
        [
            (
                label,
                *(format_ms(part[key][percentile]) for part in (few, many) for percentile in ("p50", "p95")),
                format_ratio(many[key]["p50"] / few[key]["p50"]),
            )
            for label, key in keys.items()
        ],
        f"{figures['bytes'] / 1e6:,.1f} MB, {figures['bytes_per_task']:,.0f} bytes per task; at most "
        f"{many['max_versions']} versions and {many['max_journal_entries']} journal entries per task.\n"
        f"Resumed in step {_CANCELED_STEP}: at most {many['max_resumed_steps']} steps ran. "
        f"{figures['steps_per_second']:,.0f} steps/s with {figures['concurrency']} concurrent tasks. "
        f"A page has {_PAGE} tasks, or {_UNFINISHED_PAGE} unfinished ones.",
    )
