"""Throughput under load: concurrent agents that record a turn, recall and run a durable step, with the local model.

Each agent is a user of its own and loops without a pause, in one process or in several that share a store. Every turn
and every question is a new text, so the model embeds each of them. A warm-up of a quarter of the time is not counted.

Two others run the same loops with the same texts, in alternation with ours:

- **rival**: a program written by hand on pgvector and Redis (`load_rival.py`), with the same model.
- **before** (`--before`): another checkout of Recollect, such as `git worktree add /tmp/before COMMIT`.

After each case the same process embeds a sample of the same texts in full batches. "Of the batch rate" is the share of
that rate which the loops used: loops per second × embeddings per loop ÷ texts per second. The rest is the work of the
library, the store and the event loop on the same processors.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

# The PostgreSQL server of the tests is used; it starts on a free port of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from corpora import Scope, load_own_corpora
from load_rival import Rival
from report import create_progress, format_ms, format_ratio, print_table, save_json, summarize

import recollect
from recollect import AgentMemory, ResumableAgent
from recollect.settings import Settings

try:
    from recollect.models.minilm import MiniLM
except ImportError:  # its place in earlier versions, which `--before` measures
    from recollect.inference.minilm import MiniLM  # type: ignore[import-not-found, no-redef]

CALLS = ("record_turn", "recall", "step")
STORES = ("sqlite", "postgres", "rival")
_POSTGRES_OPTIONS = ("max_connections=200",)
# Redis as most programs configure it, which may lose a second of writes. Ours waits for the disk.
_REDIS_OPTIONS = ("--appendonly", "yes", "--appendfsync", "everysec")
_BATCH_SIZE = 64
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
    calls: tuple[str, ...] = CALLS
    checkout: Path | None = None
    """Another checkout whose `src` is measured."""

    @property
    def label(self) -> str:
        before = " before" if self.checkout else ""
        return f"{self.store}{before}, {self.agents} agents, {self.processes} processes"


class CountingModel:
    """The local model, with a sample of the texts and the seconds that it ran."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name, self.dim, self.fingerprint = model.name, model.dim, model.fingerprint
        self.clear()

    def clear(self) -> None:
        self.runs, self.texts, self.seconds = 0, 0, 0.0
        self.sample: list[str] = []

    def embed(self, text: str) -> Any:
        """Return one vector; only earlier versions require this method."""
        return self.embed_batch([text])[0]

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


class User(Protocol):
    """The memory of one agent."""

    async def record_turn(self, user: str, assistant: str) -> object: ...

    async def recall(self, question: str) -> object: ...

    async def step(self, task: str, question: str) -> object: ...


class RecollectUser:
    """A user of a memory, which all users of a process share."""

    def __init__(self, memory: AgentMemory, number: int) -> None:
        self._memory = memory.scoped(user=f"u{number}", session="today")
        self._agent = ResumableAgent(memory)
        self.record_turn, self.recall = self._memory.record_turn, self._memory.recall

    async def step(self, task: str, question: str) -> object:
        return await self._agent.run(task, [_note_answer], {"question": question})


async def _note_answer(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"answer": f"about {state['question']}"}


@asynccontextmanager
async def open_users(case: Case, url: str, model: CountingModel) -> AsyncIterator[Callable[[int], User]]:
    """Yield a function that returns the user with a number."""
    if case.store == "rival":
        async with Rival.open(url, model, _note_answer) as rival:
            yield rival.get_user
    else:
        async with AgentMemory.open(url, embedder=model) as memory:
            yield functools.partial(RecollectUser, memory)


class Agent:
    """One user who talks, asks and works. `number` is unique over all processes."""

    def __init__(self, user: User, number: int, scope: Scope, calls: Sequence[str]) -> None:
        self._user = user
        self._number = number
        self._calls = calls
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
            arguments = {
                "record_turn": (f"{user} {note}", f"{assistant} {note}"),
                "recall": (f"{question} {note}",),
                "step": (f"task {note}", question),
            }
            for name in self._calls:
                await self._time(name, getattr(self._user, name)(*arguments[name]), counts, counting)

    async def _time(self, name: str, call: Awaitable[object], counts: Counts, counting: Any) -> None:
        started = time.perf_counter()
        try:
            await call
        except Exception as error:  # noqa: BLE001 - every failure is counted
            counts.errors[f"{name}: {type(error).__name__}: {error}"] += 1
        else:
            if counting():
                counts.seconds[name].append(time.perf_counter() - started)


async def _run_agents(case: Case, url: str, numbers: Sequence[int], seconds: float, barrier: Any) -> Counts:
    counts = Counts()
    model = CountingModel(MiniLM(threads=Settings.load().threads or None))
    scopes = load_own_corpora()[0].scopes
    async with open_users(case, url, model) as get_user:
        await get_user(10_000_000 + numbers[0]).recall("What is new?")  # loads the model
        agents = [Agent(get_user(number), number, scopes[number % len(scopes)], case.calls) for number in numbers]
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
    counts.batch_rate = model.measure_batch_rate(_BATCH_SIZE)
    return counts


def _run_process(case: Case, url: str, numbers: Sequence[int], seconds: float, barrier: Any, results: Any) -> None:
    try:
        if case.checkout is not None and not Path(recollect.__file__).is_relative_to(case.checkout):
            raise RuntimeError(f"expected recollect in {case.checkout}, got {recollect.__file__}")
        results.put(asyncio.run(_run_agents(case, url, numbers, seconds, barrier)))
    except BaseException as error:
        results.put(error)
        raise


@contextmanager
def _importing_from(checkout: Path | None) -> Iterator[None]:
    """Let processes that start in the block import another checkout: they get a copy of the path of this process."""
    paths = [] if checkout is None else [str(checkout / "src")]
    sys.path[:0] = paths
    try:
        yield
    finally:
        del sys.path[: len(paths)]


def measure(case: Case, url: str, seconds: float) -> list[Counts]:
    """Run one case in new processes, and return the counts of each."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(case.processes), context.Queue()
    processes = [
        context.Process(
            target=_run_process,
            args=(case, url, range(case.agents)[number :: case.processes], seconds, barrier, results),
        )
        for number in range(case.processes)
    ]
    with _importing_from(case.checkout):
        for process in processes:
            process.start()
    answers = [results.get(timeout=2 * seconds + _READY_TIMEOUT) for _ in processes]
    for process in processes:
        process.join()
    if failures := [answer for answer in answers if isinstance(answer, BaseException)]:
        raise failures[0]
    return answers


def build_figures(case: Case, rounds: Sequence[Sequence[Counts]], seconds: float) -> Figures:
    """Return the figures of a case; a round has the counts of each process."""
    counts = [one for processes in rounds for one in processes]
    calls = {name: [value for one in counts for value in one.seconds[name]] for name in case.calls}
    # An agent's loop has one call of each kind; calls that ran at the end of the time are parts of a loop.
    loops = sum(map(len, calls.values())) / len(calls)
    texts = sum(one.texts for one in counts)
    # All processes measure it at the same time.
    batch_rate = fmean(sum(one.batch_rate for one in processes) for processes in rounds)
    total_seconds = seconds * len(rounds)
    return {
        "store": case.store,
        "before": case.checkout is not None,
        "agents": case.agents,
        "processes": case.processes,
        "loops_per_s": round(loops / total_seconds, 2),
        "loops_per_s_by_round": [_count_loops(case, processes, seconds) for processes in rounds],
        "calls": {name: {"count": len(values), **summarize(values)} for name, values in calls.items()},
        "texts_per_loop": round(texts / loops, 2) if loops else 0.0,
        "texts_per_run": round(texts / max(1, sum(one.runs for one in counts)), 2),
        "batch_rate": round(batch_rate, 1),
        "of_batch_rate": round(texts / total_seconds / batch_rate, 3),
        "model_busy": round(sum(one.model_seconds for one in counts) / total_seconds, 2),
        "processors": round(sum(one.cpu_seconds for one in counts) / total_seconds, 2),
        "drain_seconds": round(max(one.drain_seconds for one in counts), 1),
        "growth_mib": max(round(sum(one.peak_mib - one.before_mib for one in processes), 1) for processes in rounds),
        "peak_mib": max(round(sum(one.peak_mib for one in processes), 1) for processes in rounds),
        "errors": dict(sum((one.errors for one in counts), Counter[str]())),
    }


def _count_loops(case: Case, processes: Sequence[Counts], seconds: float) -> float:
    return round(sum(len(one.seconds[name]) for one in processes for name in case.calls) / len(case.calls) / seconds, 2)


@contextmanager
def open_stores(names: Sequence[str], directory: Path) -> Iterator[Callable[[str], str]]:
    """Yield a function that creates an empty store and returns its URL; the rival has two URLs."""
    numbers = iter(range(1_000_000))
    with ExitStack() as stack:
        server: Any = None
        if {"postgres", "rival"} & set(names):
            from tests.servers.postgres import Server

            server = Server(_POSTGRES_OPTIONS)
            stack.callback(server.close)

        def create(name: str) -> str:
            number = next(numbers)
            if name == "sqlite":
                return str(directory / f"load{number}.db")
            url = str(server.create(f"load{number}"))
            return url if name == "postgres" else f"{url} {start_redis(number)}"

        def start_redis(number: int) -> str:
            from tests.servers.redis import RedisServer

            redis = RedisServer(directory / f"redis{number}", *_REDIS_OPTIONS, durable=False).start()
            stack.callback(redis.stop)
            return str(redis.url)

        yield create


def print_tables(cases: Sequence[Case], figures: Sequence[Figures], seconds: float) -> None:
    checkout = next((case.checkout for case in cases if case.checkout), None)
    rates = {case: figure["loops_per_s"] for case, figure in zip(cases, figures, strict=True)}
    rows = [
        (
            case.label,
            f"{figure['loops_per_s']:.1f}",
            f"{min(figure['loops_per_s_by_round']):.1f}–{max(figure['loops_per_s_by_round']):.1f}",
            _format_rate_ratio(rates, case, replace(case, store="rival", checkout=None)),
            _format_rate_ratio(rates, case, replace(case, checkout=checkout)),
            *(_format_percentiles(figure["calls"].get(name)) for name in CALLS),
            f"{sum(figure['errors'].values())}",
            f"{figure['peak_mib']:.0f} (+{figure['growth_mib']:.0f})",
        )
        for case, figure in zip(cases, figures, strict=True)
    ]
    columns = ("", "loops/s", "by round", "÷ rival", "÷ before", *(f"{name} p50 / p95 / p99 ms" for name in CALLS))
    print_table(f"Load of {seconds:g} s in each round", (*columns, "errors", "peak memory, MiB"), rows)
    rows = [
        (
            case.label,
            f"{figure['texts_per_loop']:.2f}",
            f"{figure['texts_per_run']:.1f}",
            f"{figure['batch_rate']:.0f}",
            f"{figure['of_batch_rate']:.2f}",
            f"{figure['model_busy']:.2f}",
            f"{figure['processors']:.2f}",
            f"{figure['drain_seconds']:.1f}",
        )
        for case, figure in zip(cases, figures, strict=True)
    ]
    columns = (
        "",
        "embeddings per loop",
        "per run of the model",
        "batch rate, texts/s",
        "of the batch rate (goal ≥ 0.80)",
        "model busy",
        "processors used",
        "close, s",
    )
    print_table("The local model", columns, rows)
    for case, figure in zip(cases, figures, strict=True):
        for error, count in figure["errors"].items():
            print(f"{case.label}: {count} × {error}")


def _format_rate_ratio(rates: Mapping[Case, float], case: Case, other: Case) -> str:
    return format_ratio(rates[case] / rates[other]) if other in rates and other != case else "–"


def _format_percentiles(call: Figures | None) -> str:
    return "–" if call is None else " / ".join(format_ms(call[part]) for part in ("p50", "p95", "p99"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute: SQLite, 1 and 64 agents, one process")
    parser.add_argument("--agents", type=int, nargs="+", help="numbers of concurrent agents")
    parser.add_argument("--processes", type=int, nargs="+", help="numbers of processes that share the agents")
    parser.add_argument("--stores", nargs="+", choices=STORES)
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=CALLS, help="calls of a loop")
    parser.add_argument("--before", type=Path, metavar="DIRECTORY", help="also measure another checkout")
    parser.add_argument("--seconds", type=float, help="counted time of each case in each round")
    parser.add_argument("--rounds", type=int, help="rounds of all cases; one with --quick, otherwise two")
    parser.add_argument("--directory", type=Path, help="directory for the SQLite files; default: a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def build_cases(arguments: argparse.Namespace) -> list[Case]:
    quick = arguments.quick
    cases = [
        Case(store, agents, processes, tuple(arguments.calls))
        for processes in arguments.processes or ([1] if quick else [1, 4])
        for agents in arguments.agents or ([1, 64] if quick else [1, 8, 64, 512])
        for store in arguments.stores or (["sqlite"] if quick else STORES)
        if agents >= processes
    ]
    if arguments.before is None:
        return cases
    checkout = arguments.before.resolve()
    before = {case: [replace(case, checkout=checkout)] if case.store != "rival" else [] for case in cases}
    return [both for case in cases for both in (*before[case], case)]


def main() -> None:
    arguments = parse_arguments()
    cases = build_cases(arguments)
    seconds = arguments.seconds or 10.0
    rounds: dict[Case, list[list[Counts]]] = {case: [] for case in cases}
    with (
        tempfile.TemporaryDirectory(prefix="recollect-load-", dir=arguments.directory) as directory,
        open_stores([case.store for case in cases], Path(directory)) as create,
        create_progress() as bar,
    ):
        for case in bar.track(cases * (arguments.rounds or (1 if arguments.quick else 2)), description="cases"):
            rounds[case].append(measure(case, create(case.store), seconds))
    figures = [build_figures(case, rounds[case], seconds) for case in cases]
    print_tables(cases, figures, seconds)
    save_json({"seconds": seconds, "cases": figures}, arguments.json)


if __name__ == "__main__":
    main()
