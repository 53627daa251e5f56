"""Cost of a call on every backend, and the share of it that is ours rather than the engine's.

Every backend holds the same items of many users (a backend for logs: the same number of entries). Vectors are known in
advance and looked up on the event loop, and the time of the lookup is subtracted. Each of our calls runs in alternation
with these, so that load on the machine affects all of them equally:

- **engine**: the statements that our call sent, sent again to a copy of the database by the plain driver, with the same
  values, transactions and number of connections (`backends_replay.py`). This is the cost of the same work without a
  memory. "Our share" is the rest of our call, in percent. A negative share means that our call ends before the driver
  alone would: its cursors need a round trip for each statement, and our pipelines do not. Chroma's driver blocks its
  thread, so there the time inside of the driver is taken during the call.
- **own statements**: the same statements sent to another copy as our stores send them, several in one round trip. The
  "remaining share" of our call is everything before, between and after the statements.
- **by hand**: a program for the rows alone (`backends_baselines.py`), with another schema: without an index of turns,
  versions, checks, row-level security and ranking. It shows the cost for a user who needs none of these. For Chroma it
  is one `upsert` and one `query` with a filter; the goal is at most 1.5 times its p50.

Fewer and better statements make a call faster and our share larger, so compare milliseconds before shares. Background
work (indexing a turn, counting accesses) ends between calls; calls per second include all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The servers of the tests are used; they start on free ports of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import backends_replay as replay
from backends_setup import ENGINE, NAMES, OWN_STATEMENTS, Backend, prepare_backends
from report import create_progress, format_ms, format_ratio, print_table, save_json, summarize
from rich.progress import Progress
from synthetic import Collection, InlineKnownVectors, build_collection

from recollect import AgentMemory
from recollect.stores.redis import RedisStore
from recollect.stores.writes import Append, Entry
from recollect.types import Scope

_MAX_SHARE = 30.0
"""The goal for our share, in percent."""
_MAX_RATIOS = {"Chroma": 1.5}
"""The goal for the ratio of our call to the program written by hand."""
_SEED = 20260101
_CONCURRENCY = 16
_WARMUP_CALLS = 10
_EARLIER_TURNS = 12
_EARLIER_TURN_OFFSET = 10_000_000
_STATE = {"notes": "a line of notes in the state of a task, " * 20, "done": list(range(20))}
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Figures = dict[str, Any]
Call = Callable[[int], Awaitable[object]]
Replicas = dict[str, replay.Replica]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of the stores and number of calls."""

    users: int = 1000
    items: int = 100
    rounds: int = 200
    active_users: int = 50
    """Users with calls; the others only have data."""


QUICK = Sizes(users=20, items=100, rounds=40, active_users=10)


class Calls:
    """The calls of both sides, by name: ours, and the same for the baseline."""

    def __init__(self, memory: AgentMemory, backend: Backend, collections: Sequence[Collection]) -> None:
        self._memory = memory
        self._baseline: Any = backend.baseline
        self._collections = collections
        self._scoped = [memory.scoped(user=collection.user, session="today") for collection in collections]

    def get(self, name: str) -> tuple[Call, Call]:
        """Return our call and the baseline's; both take the number of the call."""
        return getattr(self, f"_{name}"), getattr(self, f"_baseline_{name}")

    def _select_user(self, nth: int) -> int:
        return nth % len(self._collections)

    def _build_turn(self, nth: int) -> tuple[str, str]:
        texts = self._collections[self._select_user(nth)].texts
        return f"{texts[nth % len(texts)]} {nth}", f"Noted, {texts[(nth + 1) % len(texts)]} {nth}"

    def _select_question(self, nth: int) -> tuple[str, Any]:
        collection = self._collections[self._select_user(nth)]
        at = nth // len(self._collections) % len(collection.questions)
        return collection.questions[at], collection.question_rows[at]

    def _build_fact(self, nth: int) -> tuple[str, Any]:
        collection = self._collections[self._select_user(nth)]
        at = nth % len(collection.texts)
        return f"{collection.texts[at]} again {nth}", collection.rows[at]

    async def _remember(self, nth: int) -> None:
        await self._scoped[self._select_user(nth)].remember(self._build_fact(nth)[0], importance=0.5)

    async def _baseline_remember(self, nth: int) -> None:
        await self._baseline.remember(self._select_user(nth), *self._build_fact(nth))

    async def _recall(self, nth: int, tiers: tuple[str, ...] | None = None) -> None:
        await self._scoped[self._select_user(nth)].recall(self._select_question(nth)[0], tiers=tiers)

    async def _baseline_recall(self, nth: int) -> None:
        await self._baseline.recall(self._select_user(nth), *self._select_question(nth))

    async def _recall_facts(self, nth: int) -> None:
        await self._recall(nth, ("semantic",))

    _baseline_recall_facts = _baseline_recall

    async def _recall_episodes(self, nth: int) -> None:
        await self._recall(nth, ("episodic",))

    async def _baseline_recall_episodes(self, nth: int) -> None:
        await self._baseline.recall_episodes(self._select_user(nth))

    async def _recall_sessions(self, nth: int) -> None:
        await self._recall(nth, ("conversation", "episodic"))

    _baseline_recall_sessions = _baseline_recall

    async def _record_turn(self, nth: int) -> None:
        await self._scoped[self._select_user(nth)].record_turn(*self._build_turn(nth))

    async def _baseline_record_turn(self, nth: int) -> None:
        await self._baseline.record_turn(self._select_user(nth), *self._build_turn(nth))

    async def _checkpoint(self, nth: int) -> None:
        await self._memory.checkpoints.checkpoint(f"task {self._select_user(nth)}", {**_STATE, "at": nth})

    async def _baseline_checkpoint(self, nth: int) -> None:
        await self._baseline.checkpoint(f"task {self._select_user(nth)}", nth, {**_STATE, "at": nth})


class Benchmark:
    """One run: its sizes, its vectors and its progress bars."""

    def __init__(self, sizes: Sizes, bar: Progress) -> None:
        self.sizes = sizes
        self.bar = bar
        self.embedder = InlineKnownVectors()

    async def run(self, backend: Backend) -> Figures:
        """Fill the backend, copy it, and time every call."""
        active = [self._build_collection(number) for number in range(self.sizes.active_users)]
        memory, replicas = await self._open(backend), Replicas()
        try:
            started = time.perf_counter()
            await self._fill(memory, backend)
            fill_seconds = time.perf_counter() - started
            self._add_vectors(active)
            calls = Calls(memory, backend, active)
            await self._record_earlier_turns(calls, backend)
            if backend.copy is not None:  # a PostgreSQL database is copied only while it has no connections
                await memory.close()
                replicas = await backend.copy()
                memory = await self._open(backend)
                calls = Calls(memory, backend, active)
            replay.take_background()
            timed = {name: await self._time(calls, name, backend, replicas) for name in backend.calls}
        finally:
            await memory.close()
            self.embedder.clear()
        figures: Figures = {"backend": backend.name, "fill_seconds": round(fill_seconds, 1), "calls": timed}
        for way, replica in replicas.items():
            figures[way] = {"statements": replica.statements, "differences": replica.differences}
        return figures

    async def _open(self, backend: Backend) -> AgentMemory:
        return await AgentMemory.open(backend.store, embedder=self.embedder)

    def _build_collection(self, number: int) -> Collection:
        return build_collection(f"u{number}", self.sizes.items, questions=20)

    def _add_vectors(self, collections: Sequence[Collection]) -> None:
        for collection in collections:
            self.embedder.add(collection.questions, collection.question_rows)
            self.embedder.add(collection.texts, collection.rows)

    async def _fill(self, memory: AgentMemory, backend: Backend) -> None:
        """Write the items of all users to our store and to the baseline."""
        task = self.bar.add_task(f"{backend.name}: filling", total=self.sizes.users)
        log = None if backend.log_url is None else await RedisStore.open(backend.log_url)
        for number in range(self.sizes.users):
            collection = self._build_collection(number)
            if log is not None:
                if number >= self.sizes.active_users:  # active users record their turns with our calls
                    await log.write(*_build_entries(collection))
            else:
                self._add_vectors([collection])
                await memory.scoped(user=collection.user).semantic.add_many(collection.build_facts())
                self.embedder.clear()
            if backend.baseline is not None and log is None:
                await backend.baseline.fill(number, collection.texts, collection.rows)  # type: ignore[union-attr]
            self.bar.advance(task)
        if log is not None:
            await log.close()
        self.bar.remove_task(task)

    async def _record_earlier_turns(self, calls: Calls, backend: Backend) -> None:
        """Record earlier turns of the active users: as many entries as items if the backend has logs only."""
        if "record_turn" not in backend.calls:
            return
        turns = _EARLIER_TURNS if backend.log_url is None else self.sizes.items // 4
        total = turns * self.sizes.active_users
        for nth in self.bar.track(range(total), description=f"{backend.name}: earlier turns"):
            for call in calls.get("record_turn")[: 1 if backend.baseline is None else 2]:
                await call(nth + _EARLIER_TURN_OFFSET)
        await _wait_until_idle()

    async def _time(self, calls: Calls, name: str, backend: Backend, replicas: Replicas) -> Figures:
        our_call, baseline_call = calls.get(name)
        order = random.Random(f"{_SEED} {name}")
        sides = ["ours", "baseline"] if backend.baseline is not None else ["ours"]
        seconds: dict[str, list[float]] = {}
        for nth in self.bar.track(range(_WARMUP_CALLS + self.sizes.rounds), description=f"{backend.name}: {name}"):
            timed: dict[str, float] = {}
            for side in order.sample(sides, len(sides)):
                if side == "ours":
                    timed |= await self._time_our_call(our_call, nth, backend, replicas)
                else:
                    timed["baseline"] = await _measure_seconds(baseline_call(nth))
            if nth >= _WARMUP_CALLS:
                for side, value in timed.items():
                    seconds.setdefault(side, []).append(value)
        figures = {side: summarize(values) for side, values in seconds.items()}
        first, recorded = _WARMUP_CALLS + self.sizes.rounds, _RecordedCall(our_call)
        figures["ours"]["per_second"] = await self._measure_throughput(recorded, first)
        background = replay.take_background()
        for way, replica in replicas.items():
            replayed = _ReplayedCall(replica, recorded.recordings, background)
            figures[way]["per_second"] = await self._measure_throughput(replayed, 0)
        if backend.baseline is not None:
            figures["baseline"]["per_second"] = await self._measure_throughput(baseline_call, first)
        return figures

    async def _time_our_call(self, call: Call, nth: int, backend: Backend, replicas: Replicas) -> dict[str, float]:
        """Return the seconds of our call, and of each replay of its statements."""
        with replay.record_call() as recording, replay.record_blocked_time(recording):
            embedding_seconds = self.embedder.seconds
            seconds = await _measure_seconds(call(nth))
            timed = {"ours": seconds - (self.embedder.seconds - embedding_seconds)}
        if backend.blocks:
            timed[ENGINE] = recording.blocked_seconds
        await _wait_until_idle()
        background = replay.take_background()
        for way, replica in replicas.items():
            timed[way] = await _measure_seconds(replica.play(recording))
            await replica.play(background)
        return timed

    async def _measure_throughput(self, call: Call, first: int) -> float:
        """Return calls per second of several concurrent workers, including background work."""
        numbers = iter(range(first, first + 2 * self.sizes.rounds))

        async def work() -> None:
            for nth in numbers:
                await call(nth)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(_CONCURRENCY)))
        await _wait_until_idle()
        return round(2 * self.sizes.rounds / (time.perf_counter() - started), 1)


class _RecordedCall:
    """A call whose statements are recorded each time."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.recordings: list[replay.Recording] = []

    async def __call__(self, nth: int) -> None:
        with replay.record_call() as recording:
            await self._call(nth)
        self.recordings.append(recording)


class _ReplayedCall:
    """A replay of recorded calls in their order; the background work follows the last call."""

    def __init__(
        self, replica: replay.Replica, recordings: Sequence[replay.Recording], background: replay.Recording
    ) -> None:
        self._replica = replica
        self._recordings = recordings
        self._background = background

    async def __call__(self, nth: int) -> None:
        await self._replica.play(self._recordings[nth])
        if nth == len(self._recordings) - 1:
            await self._replica.play(self._background)


async def _measure_seconds(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def _wait_until_idle() -> None:
    """Wait for all background work of the calls."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def _build_entries(collection: Collection) -> list[Append]:
    """Return a user's items as log entries: half of them messages, half of them episodes."""
    spaces = [Scope(user=collection.user, session="before").space(tier) for tier in ("conversation", "episodic")]
    return [
        Append(
            space=spaces[at % 2],
            entry=Entry(id=f"{collection.user}-{at}", kind=("user", "turn")[at % 2], content=text, at=_NOON),
        )
        for at, text in enumerate(collection.texts)
    ]


async def run(sizes: Sizes, names: Sequence[str], directory: Path, latency_ms: float, bar: Progress) -> Figures:
    replay.install_recorders()
    benchmark = Benchmark(sizes, bar)
    async with prepare_backends(directory, names, _CONCURRENCY, latency_ms) as starts:
        figures = [await benchmark.run(await start()) for start in starts]
    return {
        "users": sizes.users,
        "items": sizes.users * sizes.items,
        "latency_ms": latency_ms,
        "backends": figures,
    }


def print_tables(figures: Figures) -> None:
    rows = [
        _build_row(backend["backend"], name, timed)
        for backend in figures["backends"]
        for name, timed in backend["calls"].items()
    ]
    columns = (
        "",
        "Recollect p50 / p95",
        "engine p50 / p95",
        "our share",
        f"goal ≤ {_MAX_SHARE:g} %",
        "own statements",
        "remaining share",
        "by hand",
        "Recollect ÷ by hand",
        "calls/s: Recollect, engine, by hand",
    )
    latency = f"; round trip {figures['latency_ms']:g} ms" if figures["latency_ms"] else ""
    print_table(
        f"{figures['items']:,} items of {figures['users']:,} users, in ms{latency}; {_CONCURRENCY} concurrent calls",
        columns,
        rows,
        note="the goal is for servers: the cost of an engine in our own process cannot be separated from ours",
    )


def _build_row(backend: str, name: str, timed: Figures) -> tuple[str, ...]:
    share, remaining_share = (_compute_share(timed, way) for way in (ENGINE, OWN_STATEMENTS))
    return (
        f"{backend}: {name.replace('recall_', 'recall, ')}",
        *(
            f"{format_ms(timed[side]['p50'])} / {format_ms(timed[side]['p95'])}" if side in timed else "–"
            for side in ("ours", ENGINE)
        ),
        _format_percent(share),
        "–" if share is None else "ok" if share <= _MAX_SHARE else "missed",
        format_ms(timed[OWN_STATEMENTS]["p50"]) if OWN_STATEMENTS in timed else "–",
        _format_percent(remaining_share),
        format_ms(timed["baseline"]["p50"]) if "baseline" in timed else "–",
        _format_baseline_ratio(backend, timed),
        ", ".join(
            f"{timed[side]['per_second']:,.0f}" if "per_second" in timed.get(side, ()) else "–"
            for side in ("ours", ENGINE, "baseline")
        ),
    )


def _compute_share(timed: Figures, way: str) -> float | None:
    """Return the percentage of our call that the replay does not explain; None without a replay."""
    return 100.0 * (1.0 - timed[way]["p50"] / timed["ours"]["p50"]) if way in timed else None


def _format_baseline_ratio(backend: str, timed: Figures) -> str:
    """Return the ratio to the program written by hand, with the verdict if there is a goal."""
    if "baseline" not in timed:
        return "–"
    ratio, goal = timed["ours"]["p50"] / timed["baseline"]["p50"], _MAX_RATIOS.get(backend)
    verdict = "" if goal is None else f" (goal ≤ {goal:g}×: {'ok' if ratio <= goal else 'missed'})"
    return f"{format_ratio(ratio)}{verdict}"


def _format_percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0f} %"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: 20 users")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="measure only these backends")
    parser.add_argument("--users", type=int, help="number of users, each with 100 items")
    parser.add_argument("--rounds", type=int, help="number of timed calls of each kind")
    parser.add_argument(
        "--latency", type=float, default=0.0, metavar="MS", help="round-trip time that is added to PostgreSQL and Redis"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    base = QUICK if arguments.quick else Sizes()
    users = arguments.users or base.users
    sizes = Sizes(
        users=users,
        items=base.items,
        rounds=arguments.rounds or base.rounds,
        active_users=min(base.active_users, users),
    )
    with create_progress() as bar, tempfile.TemporaryDirectory(prefix="recollect-backends-") as directory:
        figures = asyncio.run(run(sizes, arguments.only, Path(directory), arguments.latency, bar))
    print_tables(figures)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
