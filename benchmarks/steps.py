"""Cost of a durable step: the time between two steps of a task, as a ratio to a raw SQLite commit with FULL sync.

The body of every step makes raw commits to separate files and times them: of the state alone, and of the same rows as
a step writes, once on the event loop and once in a thread. A step lasts from the end of one body to the start of the
next; meanwhile its result, the checkpoint and the next intent become durable. The other systems run the same task in
the same rounds, with a raw commit in each body. So load on the machine affects all equally. Compare ratios before
times.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import steps_many_tasks
from report import console, create_progress, format_ms, format_ratio, print_table, save_json, summarize
from rich.progress import Progress
from steps_systems import Peer, load_installed
from synthetic import KnownVectors

from recollect import AgentMemory, ResumableAgent
from recollect.durable.state_codec import encode_json
from recollect.stores.sqlite.threads import SqliteWriter

_MAX_RATIO = 1.5
"""The goal for the ratio of a step to a raw commit."""
_STEPS = 25
_SEED = 20260101
Figures = dict[str, Any]
Step = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """Size of a task's state at its start."""

    name: str
    bytes: int


CASES = (Case("a state of 100 bytes", 100), Case("10 kB", 10_000), Case("100 kB", 100_000))


class RawCommit:
    """One transaction by hand with WAL and synchronous=FULL, in the calling thread."""

    schema = "create table states (task text, version integer, state text, primary key (task, version))"

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("pragma page_size = 8192")
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute(self.schema)

    def commit(self, task: str, version: int, state: str) -> None:
        self._connection.execute("begin immediate")
        self.write_rows(self._connection, task, version, state)
        self._connection.execute("commit")

    def write_rows(self, connection: apsw.Connection, task: str, version: int, state: str) -> None:
        """Write a version of the state and delete all but the last three."""
        connection.execute("insert into states values (?, ?, ?)", (task, version, state))
        connection.execute("delete from states where task = ? and version <= ?", (task, version - 3))

    def measure(self, task: str, version: int, state: str) -> float:
        """Commit and return the seconds."""
        started = time.perf_counter()
        self.commit(task, version, state)
        return time.perf_counter() - started


class RawStep(RawCommit):
    """Lower bound of a step: a raw commit that also writes the result and the next intent."""

    schema = """
        create table tasks (id text primary key, version integer, at real) without rowid;
        create table states (
            task text, version integer, fence integer, state text, sha256 blob, at real, unique (task, version)
        );
        create table notes (
            task text, step text, status text, attempts integer, fence integer, key text, input text, result text,
            at real, unique (task, step)
        );
    """

    def write_rows(self, connection: apsw.Connection, task: str, version: int, state: str) -> None:
        now, digest = time.time(), hashlib.sha256(state.encode())
        connection.execute(
            "insert into tasks values (?, ?, ?) on conflict do update set version = excluded.version, at = excluded.at",
            (task, version, now),
        )
        connection.execute("insert into states values (?, ?, 1, ?, ?, ?)", (task, version, state, digest.digest(), now))
        connection.execute("delete from states where task = ? and version <= ?", (task, version - 3))
        note = "insert or replace into notes values (?, ?, ?, 1, 1, ?, ?, ?, ?)"
        key = hashlib.sha256(f"{task} {version}".encode()).hexdigest()
        connection.execute(note, (task, f"step_{version}", "completed", key, None, "1", now))
        connection.execute(note, (task, f"step_{version + 1}", "started", key, digest.hexdigest(), None, now))


@dataclass(slots=True)
class Timings:
    """Seconds of each raw commit, of each step, and of the start and end of each task."""

    one_row: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    thread: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    commits: int = 0
    tasks: int = 0


@contextmanager
def count_commits(timings: Timings) -> Iterator[None]:
    """Count the durable commits of the store's writer."""
    transact = SqliteWriter._transact

    def transact_and_count(self: SqliteWriter, jobs: Any) -> None:
        timings.commits += any(job.durable for job in jobs)
        transact(self, jobs)

    SqliteWriter._transact = transact_and_count  # type: ignore[method-assign]
    try:
        yield
    finally:
        SqliteWriter._transact = transact  # type: ignore[method-assign]


@dataclass(slots=True)
class BodyTimes:
    """Start and end of each body of one task."""

    called: float = field(default_factory=time.perf_counter)
    bodies: list[tuple[float, float]] = field(default_factory=list)

    def add_to(self, timings: Timings) -> None:
        returned = time.perf_counter()
        timings.step += [following[0] - body[1] for body, following in pairwise(self.bodies)]
        timings.ends.append(self.bodies[0][0] - self.called + returned - self.bodies[-1][1])
        timings.tasks += 1


@dataclass(frozen=True, slots=True)
class Baselines:
    """The raw commits, each in a separate file."""

    one_row: RawCommit
    raw: RawStep


async def run_task(agent: ResumableAgent, baselines: Baselines, name: str, case: Case, timings: Timings) -> None:
    times, raw, rng = BodyTimes(), baselines.raw, random.Random(name)

    async def body(state: dict[str, Any]) -> int:
        started = time.perf_counter()
        done = len(times.bodies)
        text = encode_json({"state": state})
        # In random order: the first commit after a wait is slower, and so is one in a thread that slept.
        for kind in rng.sample(("one row", "raw", "thread"), 3):
            if kind == "one row":
                timings.one_row.append(baselines.one_row.measure(name, done, text))
            elif kind == "raw":
                timings.raw.append(raw.measure(name, 2 * done, text))
            else:
                submitted = time.perf_counter()
                await asyncio.to_thread(raw.commit, name, 2 * done + 1, text)
                timings.thread.append(time.perf_counter() - submitted)
        times.bodies.append((started, time.perf_counter()))
        return done + 1

    await agent.run(name, [body] * _STEPS, build_state(case))
    times.add_to(timings)


def run_peer_task(peer: Peer, baselines: Baselines, name: str, case: Case, timings: Timings) -> None:
    before = peer.commits
    times, raw = BodyTimes(), baselines.raw

    def body(state: dict[str, Any]) -> int:
        started = time.perf_counter()
        done = len(times.bodies)
        timings.raw.append(raw.measure(f"{peer.name} {name}", done, encode_json({"state": state})))
        times.bodies.append((started, time.perf_counter()))
        return done + 1

    peer.run(name, build_state(case), body)
    times.add_to(timings)
    timings.commits += peer.commits - before


def build_state(case: Case) -> dict[str, Any]:
    return {"text": "x" * case.bytes}


async def run(directory: Path, rounds: int, peers: list[Peer]) -> list[Figures]:
    figures = []
    with create_progress() as bar:
        for case in CASES:
            one_row, raw = RawCommit(directory / f"row-{case.bytes}.db"), RawStep(directory / f"raw-{case.bytes}.db")
            baselines = Baselines(one_row, raw)
            async with AgentMemory.open(directory / f"ours-{case.bytes}.db", embedder=KnownVectors()) as memory:
                for number, peer in enumerate(peers):
                    peer.open(directory / f"peer-{number}-{case.bytes}.db")
                try:
                    ours, theirs = await _run_rounds(ResumableAgent(memory), peers, baselines, case, rounds, bar)
                finally:
                    for peer in peers:
                        peer.close()
            settings = {peer.name: peer.settings for peer in peers}
            figures.append(build_figures(case, ours, theirs) | {"settings": settings})
    return figures


async def _run_rounds(
    agent: ResumableAgent, peers: list[Peer], baselines: Baselines, case: Case, rounds: int, bar: Progress
) -> tuple[Timings, dict[str, Timings]]:
    """Run a task on each system per round, in a new order each time; the first round does not count."""
    rng = random.Random(_SEED)
    ours, theirs = Timings(), {peer.name: Timings() for peer in peers}
    for number in bar.track(range(-1, rounds), description=case.name):
        if number == 0:
            ours, theirs = Timings(), {peer.name: Timings() for peer in peers}
        systems: list[Peer | None] = [None, *peers]
        rng.shuffle(systems)
        for peer in systems:
            if peer is None:
                with count_commits(ours):
                    await run_task(agent, baselines, f"task-{number}", case, ours)
            else:
                await asyncio.to_thread(run_peer_task, peer, baselines, f"task-{number}", case, theirs[peer.name])
    return ours, theirs


def build_figures(case: Case, timings: Timings, theirs: dict[str, Timings]) -> Figures:
    raw, step, ends = summarize(timings.raw), summarize(timings.step), summarize(timings.ends)
    thread, one_row = summarize(timings.thread), summarize(timings.one_row)
    mean_raw, mean_step = sum(timings.raw) / len(timings.raw), sum(timings.step) / len(timings.step)
    return {
        "case": case.name,
        "steps": len(timings.raw),
        "one_row_ms": one_row,
        "raw_ms": raw,
        "raw_in_a_thread_ms": thread,
        "step_ms": step,
        "start_and_end_ms": ends,
        "ratio_p50": step["p50"] / raw["p50"],
        "ratio_mean": mean_step / mean_raw,
        "ratio_one_row_p50": step["p50"] / one_row["p50"],
        "ratio_thread_p50": step["p50"] / thread["p50"],
        "ratio_thread_mean": mean_step * len(timings.thread) / sum(timings.thread),
        "durable_commits_per_step": timings.commits / (timings.tasks * _STEPS),
        "durable_commits_per_task": timings.commits / timings.tasks,
        "steps_per_second": 1 / mean_step,
        "raw_per_second": 1 / mean_raw,
        "goal": _MAX_RATIO,
        "peers": {name: build_peer_figures(timings, peer) for name, peer in theirs.items()},
    }


def build_peer_figures(ours: Timings, peer: Timings) -> Figures:
    raw, step = summarize(peer.raw), summarize(peer.step)
    return {
        "raw_ms": raw,
        "step_ms": step,
        "start_and_end_ms": summarize(peer.ends),
        "ratio_p50": step["p50"] / raw["p50"],
        "commits_per_step": peer.commits / (peer.tasks * _STEPS),
        "ours_to_peer_p50": summarize(ours.step)["p50"] / step["p50"],
        "ours_to_peer_mean": sum(ours.step) / sum(peer.step),
        "ours_to_peer_task_mean": (sum(ours.step) + sum(ours.ends)) / (sum(peer.step) + sum(peer.ends)),
    }


def print_tables(cases: list[Figures]) -> None:
    print_table(
        f"A step ÷ a raw FULL commit of the same rows ({_STEPS} steps per task; goal ≤ {format_ratio(_MAX_RATIO)})",
        ("", "p50", "mean", "in a thread: p50", "mean", "one row: p50", "commits per step", "steps/s", "raw/s"),
        [
            (
                case["case"],
                format_ratio(case["ratio_p50"]),
                format_ratio(case["ratio_mean"]),
                format_ratio(case["ratio_thread_p50"]),
                format_ratio(case["ratio_thread_mean"]),
                format_ratio(case["ratio_one_row_p50"]),
                f"{case['durable_commits_per_step']:.2f}",
                f"{case['steps_per_second']:,.0f}",
                f"{case['raw_per_second']:,.0f}",
            )
            for case in cases
        ],
        "The raw commit blocks the event loop; `in a thread` it does not, and neither do our steps. "
        "`One row` is a commit of the state alone.\n"
        "A task makes three commits in addition to those of its steps: the claim, the first intent, and the release.",
    )
    print_table(
        "Milliseconds",
        ("", "step p50", "p95", "p99", "raw p50", "p95", "p99", "in a thread p50", "one row p50", "start and end p50"),
        [
            (
                case["case"],
                *(format_ms(case["step_ms"][name]) for name in ("p50", "p95", "p99")),
                *(format_ms(case["raw_ms"][name]) for name in ("p50", "p95", "p99")),
                format_ms(case["raw_in_a_thread_ms"]["p50"]),
                format_ms(case["one_row_ms"]["p50"]),
                format_ms(case["start_and_end_ms"]["p50"]),
            )
            for case in cases
        ],
    )
    if any(case["peers"] for case in cases):
        print_peers(cases)


def print_peers(cases: list[Figures]) -> None:
    columns = (
        "",
        "",
        "step p50 ms",
        "p95",
        "raw p50",
        "× raw",
        "commits per step",
        "ours ÷ its: p50",
        "mean",
        "whole task",
    )
    rows: list[tuple[str, ...]] = []
    for case in cases:
        step, raw, commits = case["step_ms"], case["raw_ms"]["p50"], case["durable_commits_per_step"]
        values = format_ms(step["p50"]), format_ms(step["p95"]), format_ms(raw), format_ratio(case["ratio_p50"])
        rows.append((case["case"], "ours", *values, f"{commits:.2f}", *"---"))
        for name, peer in case["peers"].items():
            ratios = (peer[f"ours_to_peer_{which}"] for which in ("p50", "mean", "task_mean"))
            rows.append(
                (
                    "",
                    name,
                    format_ms(peer["step_ms"]["p50"]),
                    format_ms(peer["step_ms"]["p95"]),
                    format_ms(peer["raw_ms"]["p50"]),
                    format_ratio(peer["ratio_p50"]),
                    f"{peer['commits_per_step']:.2f}",
                    *map(format_ratio, ratios),
                )
            )
    settings = "; ".join(f"{name}: {value}" for name, value in cases[0]["settings"].items())
    print_table(
        f"Other systems ({_STEPS} steps per task, in a new order each round; below 1.00× ours is faster)",
        columns,
        rows,
        f"Journal mode and synchronous level: {settings}; ours and raw: wal, full. "
        f"SQLite: theirs {sqlite3.sqlite_version}, ours and raw {apsw.sqlite_lib_version()}.\n"
        "`raw` is a raw commit within the same task. `Whole task` includes the start and the end.",
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a tenth of the rounds")
    parser.add_argument(
        "--rounds", type=int, default=100, help=f"rounds; each runs a task of {_STEPS} steps per system and state"
    )
    parser.add_argument("--as-installed", action="store_true", help="run DBOS with its rollback journal instead of WAL")
    parser.add_argument("--no-peers", action="store_true", help="do not measure other systems")
    parser.add_argument("--tasks", type=int, default=0, help="also measure this many tasks in one file, such as 10000")
    parser.add_argument("--directory", type=Path, help="directory for the files; use a real disk, not a tmpfs")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.tasks and arguments.tasks < steps_many_tasks.MIN_TASKS:
        raise SystemExit(f"--tasks must be at least {steps_many_tasks.MIN_TASKS}; got {arguments.tasks}")
    peers, missing = ([], []) if arguments.no_peers else load_installed(_STEPS, wal=not arguments.as_installed)
    for message in missing:
        console.print(message)
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=arguments.directory) as directory:
        rounds = max(arguments.rounds // 10, 1) if arguments.quick else arguments.rounds
        figures["steps"] = asyncio.run(run(Path(directory), rounds, peers))
        print_tables(figures["steps"])
        if arguments.tasks:
            figures["tasks"] = asyncio.run(steps_many_tasks.run(Path(directory), arguments.tasks))
            steps_many_tasks.print_figures(figures["tasks"])
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
