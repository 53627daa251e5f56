"""Throughput under load: concurrent agents that record a turn, recall and run a durable step, with the local model.

Each agent is a user of its own and loops without a pause, in one process or in several that share a store. Every turn
and every question is a new text, so the model embeds each of them. A warm-up of a quarter of the time is not counted.

After each case the same process embeds a sample of the same texts in full batches. "Of the batch rate" is the share of
that rate which the loops used: loops per second × embeddings per loop ÷ texts per second. The rest is the work of the
library, the store and the event loop on the same processors.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The PostgreSQL server of the tests is used; it starts on a free port of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from corpora import Scope, load_own_corpora
from report import create_progress, format_ms, print_table, save_json, summarize

from recollect import AgentMemory, ResumableAgent
from recollect.models.minilm import MiniLM
from recollect.settings import Settings

CALLS = ("record_turn", "recall", "step")
_POSTGRES_OPTIONS = ("max_connections=200",)
_SAMPLED_TEXTS = 1024
_RATE_SECONDS = 2.0
_READY_TIMEOUT = 120.0
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: a store, and agents that are spread over processes."""

    store: str
    agents: int
    processes: int


class CountingModel:
    """The local model, with a sample of the texts and the seconds that it ran."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name, self.dim, self.fingerprint = model.name, model.dim, model.fingerprint
        self.clear()

    def clear(self) -> None:
        self.runs, self.texts, self.seconds = 0, 0, 0.0
        self.sample: list[str] = []

    def embed_batch(self, texts: Sequence[str]) -> Any:
        started = time.perf_counter()
        try:
            return self._model.embed_batch(texts)
        finally:
            self.seconds += time.perf_counter() - started
            self.runs += 1
            self.texts += len(texts)
            self.sample += texts[: _SAMPLED_TEXTS - len(self.sample)]

    def measure_batch_rate(self, size: int) -> float:
        """Return texts per second in batches of `size`, with the texts of the load in random order."""
        random.Random(len(self.sample)).shuffle(self.sample)
        batches = [self.sample[at : at + size] for at in range(0, len(self.sample), size)]
        embedded, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < _RATE_SECONDS:
            batch = batches[embedded // size % len(batches)]
            self._model.embed_batch(batch)
            embedded += len(batch)
        return embedded / seconds


@dataclass(slots=True)
class Counts:
    """Results of one process in the counted time."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {call: [] for call in CALLS})
    errors: Counter[str] = field(default_factory=Counter)
    texts: int = 0
    runs: int = 0
    model_seconds: float = 0.0
    batch_rate: float = 0.0
    cpu_seconds: float = 0.0
    drain_seconds: float = 0.0
    before_mib: float = 0.0
    peak_mib: float = 0.0


class Agent:
    """One user who talks, asks and works. `number` is unique over all processes."""

    def __init__(self, memory: AgentMemory, number: int, scope: Scope) -> None:
        self._memory = memory.scoped(user=f"u{number}", session="today")
        self._steps = ResumableAgent(memory)
        self._number = number
        turns = [item.text for item in scope.items]
        self._turns = list(zip(turns[::2], turns[1::2], strict=False))
        self._questions = [question.text for question in scope.questions]
        self._loops = number  # agents do not start with the same texts

    async def run(self, counts: Counts, counting: Any, deadline: float) -> None:
        while time.perf_counter() < deadline:
            at, self._loops = self._loops, self._loops + 1
            note = f"({self._number}.{at})"
            user, assistant = self._turns[at % len(self._turns)]
            question = self._questions[at % len(self._questions)]
            calls = (
                self._memory.record_turn(f"{user} {note}", f"{assistant} {note}"),
                self._memory.recall(f"{question} {note}"),
                self._steps.run(f"task {note}", [_note_answer], {"question": question}),
            )
            for name, call in zip(CALLS, calls, strict=True):
                await self._time(name, call, counts, counting)

    async def _time(self, name: str, call: Awaitable[object], counts: Counts, counting: Any) -> None:
        started = time.perf_counter()
        try:
            await call
        except Exception as error:  # noqa: BLE001 - every failure is counted
            counts.errors[f"{name}: {type(error).__name__}: {error}"] += 1
        else:
            if counting():
                counts.seconds[name].append(time.perf_counter() - started)


async def _note_answer(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"answer": f"about {state['question']}"}


async def _run_agents(store: str, numbers: Sequence[int], seconds: float, barrier: Any) -> Counts:
    counts, settings = Counts(), Settings.load()
    model = CountingModel(MiniLM(threads=settings.threads or None))
    scopes = load_own_corpora()[0].scopes
    async with AgentMemory.open(store, embedder=model) as memory:
        await memory.scoped(user=f"warm{numbers[0]}").recall("What is new?")  # loads the model
        agents = [Agent(memory, number, scopes[number % len(scopes)]) for number in numbers]
        await asyncio.to_thread(barrier.wait, _READY_TIMEOUT)
        counts.before_mib = psutil.Process().memory_info().rss / 2**20
        first = time.perf_counter() + seconds / 4
        deadline = first + seconds
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.run(counts, lambda: first <= time.perf_counter() <= deadline, deadline))
            await asyncio.sleep(max(0.0, first - time.perf_counter()))
            model.clear()
            cpu_seconds = time.process_time()
            await asyncio.sleep(max(0.0, deadline - time.perf_counter()))
            counts.cpu_seconds = time.process_time() - cpu_seconds
            counts.texts, counts.runs, counts.model_seconds = model.texts, model.runs, model.seconds
        started = time.perf_counter()
    counts.drain_seconds = time.perf_counter() - started
    counts.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await asyncio.to_thread(barrier.wait, _READY_TIMEOUT)  # no process measures the rate while others have load
    counts.batch_rate = model.measure_batch_rate(settings.embed_batch)
    return counts


def _run_process(store: str, numbers: Sequence[int], seconds: float, barrier: Any, results: Any) -> None:
    try:
        results.put(asyncio.run(_run_agents(store, numbers, seconds, barrier)))
    except BaseException as error:
        results.put(error)
        raise


def measure(case: Case, url: str, seconds: float) -> Figures:
    """Run one case in new processes, and return its figures."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(case.processes), context.Queue()
    processes = [
        context.Process(
            target=_run_process,
            args=(url, range(case.agents)[number :: case.processes], seconds, barrier, results),
        )
        for number in range(case.processes)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=2 * seconds + _READY_TIMEOUT) for _ in processes]
    for process in processes:
        process.join()
    if failures := [answer for answer in answers if isinstance(answer, BaseException)]:
        raise failures[0]
    return _build_figures(case, answers, seconds)


def _build_figures(case: Case, counts: Sequence[Counts], seconds: float) -> Figures:
    calls = {name: [value for one in counts for value in one.seconds[name]] for name in CALLS}
    # An agent's loop has one call of each kind; calls that ran at the end of the time are parts of a loop.
    loops = sum(map(len, calls.values())) / len(CALLS)
    texts = sum(one.texts for one in counts)
    # All processes measure it at the same time.
    batch_rate = sum(one.batch_rate for one in counts)
    return {
        "store": case.store,
        "agents": case.agents,
        "processes": case.processes,
        "loops_per_s": round(loops / seconds, 2),
        "calls": {name: {"count": len(values), **summarize(values)} for name, values in calls.items()},
        "texts_per_loop": round(texts / loops, 2) if loops else 0.0,
        "texts_per_run": round(texts / max(1, sum(one.runs for one in counts)), 2),
        "batch_rate": round(batch_rate, 1),
        "of_batch_rate": round(texts / seconds / batch_rate, 3),
        "model_busy": round(sum(one.model_seconds for one in counts) / seconds, 2),
        "processors": round(sum(one.cpu_seconds for one in counts) / seconds, 2),
        "drain_seconds": round(max(one.drain_seconds for one in counts), 1),
        "growth_mib": round(sum(one.peak_mib - one.before_mib for one in counts), 1),
        "peak_mib": round(sum(one.peak_mib for one in counts), 1),
        "errors": dict(sum((one.errors for one in counts), Counter[str]())),
    }


@contextmanager
def open_stores(names: Sequence[str], directory: Path) -> Iterator[Any]:
    """Yield a function that creates an empty store and returns its URL."""
    server: Any = None
    if "postgres" in names:
        from tests.servers.postgres import Server

        server = Server(_POSTGRES_OPTIONS)
    numbers = iter(range(1_000_000))

    def create(name: str) -> str:
        number = next(numbers)
        return str(server.create(f"load{number}")) if name == "postgres" else str(directory / f"load{number}.db")

    try:
        yield create
    finally:
        if server is not None:
            server.close()


def print_tables(figures: Sequence[Figures], seconds: float) -> None:
    rows = [
        (
            f"{case['store']}, {case['agents']} agents, {case['processes']} processes",
            f"{case['loops_per_s']:.1f}",
            *(" / ".join(format_ms(case["calls"][name][part]) for part in ("p50", "p95", "p99")) for name in CALLS),
            f"{sum(case['errors'].values())}",
        )
        for case in figures
    ]
    columns = ("", "loops/s", *(f"{name}, p50 / p95 / p99 ms" for name in CALLS), "errors")
    print_table(f"Load of {seconds:g} s", columns, rows)
    rows = [
        (
            row[0],
            f"{case['texts_per_loop']:.2f}",
            f"{case['texts_per_run']:.1f}",
            f"{case['batch_rate']:.0f}",
            f"{case['of_batch_rate']:.2f}",
            f"{case['model_busy']:.2f}",
            f"{case['processors']:.2f}",
            f"{case['peak_mib']:.0f} (+{case['growth_mib']:.0f})",
            f"{case['drain_seconds']:.1f}",
        )
        for row, case in zip(rows, figures, strict=True)
    ]
    columns = (
        "",
        "embeddings per loop",
        "per run of the model",
        "batch rate, texts/s",
        "of the batch rate (goal ≥ 0.80)",
        "model busy",
        "processors used",
        "peak memory, MiB",
        "close, s",
    )
    print_table("The local model", columns, rows)
    for case in figures:
        for error, count in case["errors"].items():
            print(f"{case['store']}, {case['agents']} agents: {count} × {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute: SQLite, 1 and 64 agents, one process")
    parser.add_argument("--agents", type=int, nargs="+", help="numbers of concurrent agents")
    parser.add_argument("--processes", type=int, nargs="+", help="numbers of processes that share the agents")
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"))
    parser.add_argument("--seconds", type=float, help="counted time of each case")
    parser.add_argument("--directory", type=Path, help="directory for the SQLite files; default: a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    quick = arguments.quick
    stores = arguments.stores or (["sqlite"] if quick else ["sqlite", "postgres"])
    seconds = arguments.seconds or (10.0 if quick else 20.0)
    cases = [
        Case(store, agents, processes)
        for store in stores
        for processes in arguments.processes or ([1] if quick else [1, 4])
        for agents in arguments.agents or ([1, 64] if quick else [1, 8, 64, 512])
        if agents >= processes
    ]
    figures: list[Figures] = []
    with (
        tempfile.TemporaryDirectory(prefix="recollect-load-", dir=arguments.directory) as directory,
        open_stores(stores, Path(directory)) as create,
        create_progress() as bar,
    ):
        for case in bar.track(cases, description="cases"):
            figures.append(measure(case, create(case.store), seconds))
    print_tables(figures, seconds)
    save_json({"seconds": seconds, "cases": figures}, arguments.json)


if __name__ == "__main__":
    main()
