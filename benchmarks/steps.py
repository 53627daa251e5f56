"""What surviving a crash costs: the time between two steps of a task, beside one raw SQLite commit with FULL sync.

Every step's body makes raw commits to files of their own and times them: of the state alone, and of the same rows as a
step has to write, once blocking the event loop and once in a thread. What passes between the end of a body and the
beginning of the next is what a step costs here: result, checkpoint and the next intent, durable. The peers run the same
task in the same rounds, with a raw commit in each body. So all take turns, and whatever else the machine does hits them
alike: read the ratios first.
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
import many
from durable import Peer, installed
from report import console, ms, progress, save, show, summary, times
from rich.progress import Progress
from synthetic import KnownVectors

from recollect import AgentMemory, ResumableAgent
from recollect.runtime.codec import written
from recollect.stores.sqlite.writer import Writer

_AIM = 1.5
_STEPS = 25
_SEED = 20260101
Figures = dict[str, Any]
Step = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """How large a task's state is when it begins."""

    name: str
    bytes: int


CASES = (Case("a state of 100 bytes", 100), Case("10 kB", 10_000), Case("100 kB", 100_000))


class RawCommit:
    """One transaction by hand, WAL and synchronous=FULL, and no thread or loop in between."""

    schema = "create table states (task text, version integer, state text, primary key (task, version))"

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("pragma page_size = 8192")
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute(self.schema)

    def commit(self, task: str, version: int, state: str) -> None:
        self._connection.execute("begin immediate")
        self.rows(self._connection, task, version, state)
        self._connection.execute("commit")

    def rows(self, connection: apsw.Connection, task: str, version: int, state: str) -> None:
        """A state, and none of its versions but the last three."""
        connection.execute("insert into states values (?, ?, ?)", (task, version, state))
        connection.execute("delete from states where task = ? and version <= ?", (task, version - 3))

    def timed(self, task: str, version: int, state: str) -> float:
        began = time.perf_counter()
        self.commit(task, version, state)
        return time.perf_counter() - began


class RawStep(RawCommit):
    """The floor: the same with all that a step has to write, which is its result and the next intent as well."""

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

    def rows(self, connection: apsw.Connection, task: str, version: int, state: str) -> None:
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
class Timed:
    """The seconds of each raw commit, of each step, and of what a task costs besides its steps."""

    one_row: list[float] = field(default_factory=list)
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


@dataclass(slots=True)
class Marks:
    """When each body of one task began and ended."""

    asked: float = field(default_factory=time.perf_counter)
    bodies: list[tuple[float, float]] = field(default_factory=list)

    def add_to(self, timed: Timed) -> None:
        ended = time.perf_counter()
        timed.step += [after[0] - before[1] for before, after in pairwise(self.bodies)]
        timed.ends.append(self.bodies[0][0] - self.asked + ended - self.bodies[-1][1])
        timed.tasks += 1


@dataclass(frozen=True, slots=True)
class Floors:
    """What everybody is measured against, each in a file of its own."""

    one_row: RawCommit
    raw: RawStep


async def one_task(agent: ResumableAgent, floors: Floors, name: str, case: Case, timed: Timed) -> None:
    marks, raw, chance = Marks(), floors.raw, random.Random(name)

    async def body(state: dict[str, Any]) -> int:
        began = time.perf_counter()
        done = len(marks.bodies)
        text = written({"state": state})
        # In any order: the first after a wait is slower, as is whatever a thread does that was asleep.
        for turn in chance.sample(("one row", "raw", "thread"), 3):
            if turn == "one row":
                timed.one_row.append(floors.one_row.timed(name, done, text))
            elif turn == "raw":
                timed.raw.append(raw.timed(name, 2 * done, text))
            else:
                between = time.perf_counter()
                await asyncio.to_thread(raw.commit, name, 2 * done + 1, text)
                timed.thread.append(time.perf_counter() - between)
        marks.bodies.append((began, time.perf_counter()))
        return done + 1

    await agent.run(name, [body] * _STEPS, state_of(case))
    marks.add_to(timed)


def one_of_a_peer(peer: Peer, floors: Floors, name: str, case: Case, timed: Timed) -> None:
    before = peer.commits
    marks, raw = Marks(), floors.raw

    def body(state: dict[str, Any]) -> int:
        began = time.perf_counter()
        done = len(marks.bodies)
        timed.raw.append(raw.timed(f"{peer.name} {name}", done, written({"state": state})))
        marks.bodies.append((began, time.perf_counter()))
        return done + 1

    peer.run(name, state_of(case), body)
    marks.add_to(timed)
    timed.commits += peer.commits - before


def state_of(case: Case) -> dict[str, Any]:
    return {"text": "x" * case.bytes}


async def run(directory: Path, rounds: int, peers: list[Peer]) -> list[Figures]:
    found = []
    with progress() as bar:
        for case in CASES:
            floors = Floors(RawCommit(directory / f"row-{case.bytes}.db"), RawStep(directory / f"raw-{case.bytes}.db"))
            async with AgentMemory.open(directory / f"ours-{case.bytes}.db", embedder=KnownVectors()) as memory:
                for number, peer in enumerate(peers):
                    peer.open(directory / f"peer-{number}-{case.bytes}.db")
                try:
                    ours, theirs = await _rounds(ResumableAgent(memory), peers, floors, case, rounds, bar)
                finally:
                    for peer in peers:
                        peer.close()
            found.append(figures_of(case, ours, theirs) | {"settings": {peer.name: peer.settings for peer in peers}})
    return found


async def _rounds(
    agent: ResumableAgent, peers: list[Peer], floors: Floors, case: Case, rounds: int, bar: Progress
) -> tuple[Timed, dict[str, Timed]]:
    """Everybody runs one task a round, in a new order each time; the first round is not counted."""
    chance = random.Random(_SEED)
    ours, theirs = Timed(), {peer.name: Timed() for peer in peers}
    for number in bar.track(range(-1, rounds), description=case.name):
        if number == 0:
            ours, theirs = Timed(), {peer.name: Timed() for peer in peers}
        turns: list[Peer | None] = [None, *peers]
        chance.shuffle(turns)
        for peer in turns:
            if peer is None:
                with counted(ours):
                    await one_task(agent, floors, f"task-{number}", case, ours)
            else:
                await asyncio.to_thread(one_of_a_peer, peer, floors, f"task-{number}", case, theirs[peer.name])
    return ours, theirs


def figures_of(case: Case, timed: Timed, theirs: dict[str, Timed]) -> Figures:
    raw, step, ends = summary(timed.raw), summary(timed.step), summary(timed.ends)
    thread, one_row = summary(timed.thread), summary(timed.one_row)
    mean_raw, mean_step = sum(timed.raw) / len(timed.raw), sum(timed.step) / len(timed.step)
    return {
        "case": case.name,
        "steps": len(timed.raw),
        "one_row_ms": one_row,
        "raw_ms": raw,
        "raw_in_a_thread_ms": thread,
        "step_ms": step,
        "begin_and_end_ms": ends,
        "ratio_p50": step["p50"] / raw["p50"],
        "ratio_mean": mean_step / mean_raw,
        "ratio_one_row_p50": step["p50"] / one_row["p50"],
        "ratio_thread_p50": step["p50"] / thread["p50"],
        "ratio_thread_mean": mean_step * len(timed.thread) / sum(timed.thread),
        "durable_commits_per_step": timed.commits / (timed.tasks * _STEPS),
        "durable_commits_per_task": timed.commits / timed.tasks,
        "steps_per_second": 1 / mean_step,
        "raw_per_second": 1 / mean_raw,
        "aim": _AIM,
        "peers": {name: figures_of_a_peer(timed, peer) for name, peer in theirs.items()},
    }


def figures_of_a_peer(ours: Timed, peer: Timed) -> Figures:
    raw, step = summary(peer.raw), summary(peer.step)
    return {
        "raw_ms": raw,
        "step_ms": step,
        "begin_and_end_ms": summary(peer.ends),
        "ratio_p50": step["p50"] / raw["p50"],
        "commits_per_step": peer.commits / (peer.tasks * _STEPS),
        "ours_to_peer_p50": summary(ours.step)["p50"] / step["p50"],
        "ours_to_peer_mean": sum(ours.step) / sum(peer.step),
        "ours_to_peer_task_mean": (sum(ours.step) + sum(ours.ends)) / (sum(peer.step) + sum(peer.ends)),
    }


def print_tables(found: list[Figures]) -> None:
    show(
        f"A step beside a raw FULL commit of the same rows ({_STEPS} steps a task; aim {times(_AIM)} or less)",
        ("", "p50", "mean", "in a thread: p50", "mean", "of one row: p50", "commits a step", "steps/s", "raw/s"),
        [
            (
                one["case"],
                times(one["ratio_p50"]),
                times(one["ratio_mean"]),
                times(one["ratio_thread_p50"]),
                times(one["ratio_thread_mean"]),
                times(one["ratio_one_row_p50"]),
                f"{one['durable_commits_per_step']:.2f}",
                f"{one['steps_per_second']:,.0f}",
                f"{one['raw_per_second']:,.0f}",
            )
            for one in found
        ],
        "The raw commit blocks the event loop; `in a thread` it does not, as no step of ours ever does. `Of one row`: "
        "the state alone.\n"
        "A task makes three commits more than it has steps: its claim, the first intent, and giving the lease back.",
    )
    show(
        "Milliseconds",
        ("", "step p50", "p95", "p99", "raw p50", "p95", "p99", "in a thread p50", "one row p50", "begin and end p50"),
        [
            (
                one["case"],
                *(ms(one["step_ms"][name]) for name in ("p50", "p95", "p99")),
                *(ms(one["raw_ms"][name]) for name in ("p50", "p95", "p99")),
                ms(one["raw_in_a_thread_ms"]["p50"]),
                ms(one["one_row_ms"]["p50"]),
                ms(one["begin_and_end_ms"]["p50"]),
            )
            for one in found
        ],
    )
    if any(one["peers"] for one in found):
        print_peers(found)


def print_peers(found: list[Figures]) -> None:
    columns = (
        "",
        "",
        "step p50 ms",
        "p95",
        "raw p50",
        "× raw",
        "commits a step",
        "ours ÷ it: p50",
        "mean",
        "whole task",
    )
    rows: list[tuple[str, ...]] = []
    for one in found:
        step, raw, commits = one["step_ms"], one["raw_ms"]["p50"], one["durable_commits_per_step"]
        times_raw = times(one["ratio_p50"])
        rows.append(
            (one["case"], "ours", ms(step["p50"]), ms(step["p95"]), ms(raw), times_raw, f"{commits:.2f}", *"---")
        )
        for name, peer in one["peers"].items():
            ratios = (peer[f"ours_to_peer_{which}"] for which in ("p50", "mean", "task_mean"))
            rows.append(
                (
                    "",
                    name,
                    ms(peer["step_ms"]["p50"]),
                    ms(peer["step_ms"]["p95"]),
                    ms(peer["raw_ms"]["p50"]),
                    times(peer["ratio_p50"]),
                    f"{peer['commits_per_step']:.2f}",
                    *map(times, ratios),
                )
            )
    held = "; ".join(f"{name}: {settings}" for name, settings in found[0]["settings"].items())
    show(
        f"Beside the peers ({_STEPS} steps a task, in a new order each round; below 1.00× we are quicker)",
        columns,
        rows,
        f"Journal and sync, as their connections say: {held}; ours and raw: wal, full. "
        f"SQLite: theirs {sqlite3.sqlite_version}, ours and raw {apsw.sqlite_lib_version()}.\n"
        "`raw` is what a raw commit took in each one's own turns. `Whole task` counts its beginning and end, too.",
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument(
        "--rounds", type=int, default=100, help=f"a task of {_STEPS} steps for each, for each size of state"
    )
    parser.add_argument("--as-installed", action="store_true", help="leave DBOS its rollback journal instead of WAL")
    parser.add_argument("--no-peers", action="store_true", help="ours beside the raw commit alone")
    parser.add_argument("--tasks", type=int, default=0, help="then as many tasks in one file, such as 10000")
    parser.add_argument("--directory", type=Path, help="where the files are made: name a real disk, not a tmpfs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    given = options()
    if given.tasks and given.tasks < many.LEAST:
        raise SystemExit(f"--tasks takes {many.LEAST:,} or more, so that there is something to compare with")
    peers, missing = ([], []) if given.no_peers else installed(_STEPS, wal=not given.as_installed)
    for line in missing:
        console.print(line)
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=given.directory) as directory:
        rounds = max(given.rounds // 10, 1) if given.quick else given.rounds
        figures["steps"] = asyncio.run(run(Path(directory), rounds, peers))
        print_tables(figures["steps"])
        if given.tasks:
            figures["tasks"] = asyncio.run(many.run(Path(directory), given.tasks))
            many.print_table(figures["tasks"])
    save(figures, given.json)


if __name__ == "__main__":
    main()
