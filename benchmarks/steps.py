"""What surviving a crash costs: the time between two steps of a task, beside one raw SQLite commit with FULL sync.

Every step's body makes two raw commits of the same state to a file of its own and times them: one that blocks the event
loop, and one in a thread. What passes between the end of a body and the beginning of the next is what a step costs
here: result, checkpoint and the next intent, durable. So they take turns, and whatever else the machine does hits them
alike: read the ratios first.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
from report import ms, progress, save, show, summary, times
from synthetic import KnownVectors

from recollect import AgentMemory, ResumableAgent
from recollect.runtime.codec import written
from recollect.stores.sqlite.writer import Writer

_AIM = 1.5
_STEPS = 25
Figures = dict[str, Any]
Step = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """How large a task's state is when it begins."""

    name: str
    bytes: int


CASES = (Case("a state of 100 bytes", 100), Case("10 kB", 10_000), Case("100 kB", 100_000))


class RawCommit:
    """The floor: one row, one transaction, WAL and synchronous=FULL, and no thread or loop in between."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("pragma page_size = 8192")
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute(
            "create table states (task text, version integer, state text, primary key (task, version))"
        )

    def commit(self, task: str, version: int, state: str) -> None:
        self._connection.execute("begin immediate")
        self._connection.execute("insert into states values (?, ?, ?)", (task, version, state))
        self._connection.execute("delete from states where task = ? and version <= ?", (task, version - 3))
        self._connection.execute("commit")


@dataclass(slots=True)
class Timed:
    """The seconds of each raw commit, of each step, and of what a task costs besides its steps."""

    raw: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    commits: int = 0
    tasks: int = 0


@contextmanager
def counted(timed: Timed) -> Iterator[None]:
    """Counts the durable commits that the store's writer makes."""
    transact = Writer._transact

    def one(self: Writer, jobs: Any) -> None:
        timed.commits += any(job.durable for job in jobs)
        transact(self, jobs)

    Writer._transact = one  # type: ignore[method-assign]
    try:
        yield
    finally:
        Writer._transact = transact  # type: ignore[method-assign]


async def one_task(agent: ResumableAgent, raw: RawCommit, name: str, case: Case, timed: Timed) -> None:
    marks: list[tuple[float, float]] = []

    async def body(state: dict[str, Any]) -> int:
        began = time.perf_counter()
        text = written({"state": state})
        raw.commit(name, 2 * len(marks), text)
        between = time.perf_counter()
        await asyncio.to_thread(raw.commit, name, 2 * len(marks) + 1, text)
        timed.thread.append(time.perf_counter() - between)
        timed.raw.append(between - began)
        marks.append((began, time.perf_counter()))
        return len(marks)

    asked = time.perf_counter()
    await agent.run(name, [body] * _STEPS, {"text": "x" * case.bytes})
    ended = time.perf_counter()
    timed.step += [after[0] - before[1] for before, after in pairwise(marks)]
    timed.ends.append(marks[0][0] - asked + ended - marks[-1][1])
    timed.tasks += 1


async def run(directory: Path, tasks: int) -> list[Figures]:
    found = []
    with progress() as bar:
        for case in CASES:
            raw = RawCommit(directory / f"raw-{case.bytes}.db")
            async with AgentMemory.open(directory / f"ours-{case.bytes}.db", embedder=KnownVectors()) as memory:
                agent = ResumableAgent(memory)
                await one_task(agent, raw, "warm", case, Timed())
                timed = Timed()
                with counted(timed):
                    for number in bar.track(range(tasks), description=case.name):
                        await one_task(agent, raw, f"task-{number}", case, timed)
            found.append(figures_of(case, timed))
    return found


def figures_of(case: Case, timed: Timed) -> Figures:
    raw, step, ends = summary(timed.raw), summary(timed.step), summary(timed.ends)
    thread = summary(timed.thread)
    mean_raw, mean_step = sum(timed.raw) / len(timed.raw), sum(timed.step) / len(timed.step)
    return {
        "case": case.name,
        "steps": len(timed.raw),
        "raw_ms": raw,
        "raw_in_a_thread_ms": thread,
        "step_ms": step,
        "begin_and_end_ms": ends,
        "ratio_p50": step["p50"] / raw["p50"],
        "ratio_mean": mean_step / mean_raw,
        "ratio_thread_p50": step["p50"] / thread["p50"],
        "ratio_thread_mean": mean_step * len(timed.thread) / sum(timed.thread),
        "durable_commits_per_step": timed.commits / (timed.tasks * _STEPS),
        "durable_commits_per_task": timed.commits / timed.tasks,
        "steps_per_second": 1 / mean_step,
        "raw_per_second": 1 / mean_raw,
        "aim": _AIM,
    }


def print_tables(found: list[Figures]) -> None:
    show(
        f"A step beside one raw FULL commit ({_STEPS} steps a task; aim {times(_AIM)} or less)",
        ("", "p50", "mean", "in a thread: p50", "mean", "durable commits a step", "steps/s", "raw commits/s"),
        [
            (
                one["case"],
                times(one["ratio_p50"]),
                times(one["ratio_mean"]),
                times(one["ratio_thread_p50"]),
                times(one["ratio_thread_mean"]),
                f"{one['durable_commits_per_step']:.2f}",
                f"{one['steps_per_second']:,.0f}",
                f"{one['raw_per_second']:,.0f}",
            )
            for one in found
        ],
        "The raw commit blocks the event loop; `in a thread` it does not, as no step of ours ever does.\n"
        "A task makes three commits more than it has steps: its claim, the first intent, and giving the lease back.",
    )
    show(
        "Milliseconds",
        ("", "step p50", "p95", "p99", "raw p50", "p95", "p99", "in a thread p50", "begin and end p50"),
        [
            (
                one["case"],
                *(ms(one["step_ms"][name]) for name in ("p50", "p95", "p99")),
                *(ms(one["raw_ms"][name]) for name in ("p50", "p95", "p99")),
                ms(one["raw_in_a_thread_ms"]["p50"]),
                ms(one["begin_and_end_ms"]["p50"]),
            )
            for one in found
        ],
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--tasks", type=int, default=100, help=f"tasks of {_STEPS} steps for each size of state")
    parser.add_argument("--directory", type=Path, help="where the files are made: name a real disk, not a tmpfs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    given = options()
    with tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=given.directory) as directory:
        found = asyncio.run(run(Path(directory), given.tasks // 10 if given.quick else given.tasks))
    print_tables(found)
    save({"steps": found}, given.json)


if __name__ == "__main__":
    main()
