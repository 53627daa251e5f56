"""Several processes on one file: lost writes, stale reads, and the time of calls.

Each process writes, forgets and searches in the same scope as fast as it can. A writer publishes a number after its
write has returned. A reader reads the number first and searches afterwards, so a missing item is an error.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from report import create_progress, format_ms, print_table, save_json, summarize
from synthetic import KnownVectors

from recollect import AgentMemory
from recollect.errors import RecollectError

_BATCH = 10
Numbers = Sequence["Synchronized[int]"]


@dataclass(slots=True)
class Counts:
    """Results of one process."""

    written: int = 0
    forgotten: int = 0
    reads: int = 0
    missed: int = 0
    resurrected: int = 0
    """Forgotten items that a search still found."""
    errors: Counter[str] = field(default_factory=Counter)
    write_seconds: list[float] = field(default_factory=list)
    read_seconds: list[float] = field(default_factory=list)


class Worker:
    """Work of one process.

    The items of each process are numbered from 1. `committed` and `forgotten` hold the last number of each process.
    """

    def __init__(self, number: int, committed: Numbers, forgotten: Numbers) -> None:
        self._number = number
        self._committed = committed
        self._forgotten = forgotten
        self._random = random.Random(number)
        self._ids: list[str] = []
        self.counts = Counts()

    async def run(self, memory: AgentMemory, seconds: float, write_share: float) -> None:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            is_write = self._random.random() < write_share
            try:
                await (self._write(memory) if is_write else self._read(memory))
            except RecollectError as error:
                self.counts.errors[f"{type(error).__name__}: {error}"] += 1
            timings = self.counts.write_seconds if is_write else self.counts.read_seconds
            timings.append(time.perf_counter() - started)

    async def _write(self, memory: AgentMemory) -> None:
        forgotten = self._forgotten[self._number]
        if self._random.random() < 0.2 and forgotten.value < len(self._ids) - _BATCH:
            await memory.forget(self._ids[forgotten.value])
            forgotten.value += 1
            self.counts.forgotten += 1
            return
        count = _BATCH if self._random.random() < 0.2 else 1
        texts = [build_text(self._number, len(self._ids) + 1 + at) for at in range(count)]
        self._ids += [item.id for item in await memory.semantic.add_many({"content": text} for text in texts)]
        self._committed[self._number].value = len(self._ids)
        self.counts.written += count

    async def _read(self, memory: AgentMemory) -> None:
        process = self._random.randrange(len(self._committed))
        committed, forgotten = self._committed[process].value, self._forgotten[process].value
        self.counts.reads += 1
        if forgotten and self._random.random() < 0.2:
            self.counts.resurrected += await self._is_found(memory, build_text(process, forgotten))
        elif committed:
            is_found = await self._is_found(memory, build_text(process, committed))
            # The item is not missing if its process has forgotten it meanwhile.
            self.counts.missed += not is_found and self._forgotten[process].value < committed

    async def _is_found(self, memory: AgentMemory, text: str) -> bool:
        mode = "dense" if self._random.random() < 0.5 else "hybrid"
        hits = await memory.semantic.search(text, 3, mode=mode, min_relevance=0.0)
        return any(hit.item.content == text for hit in hits)


def build_text(process: int, number: int) -> str:
    return f"process{process} wrote note{process}n{number} about delivery {number % 97}"


async def _run_worker(
    number: int, path: Path, committed: Numbers, forgotten: Numbers, arguments: argparse.Namespace
) -> Counts:
    worker = Worker(number, committed, forgotten)
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        await worker.run(memory, arguments.seconds, arguments.writes)
    return worker.counts


def _run_process(
    number: int, path: Path, numbers: tuple[Numbers, Numbers], arguments: argparse.Namespace, results: Any
) -> None:
    results.put(asyncio.run(_run_worker(number, path, *numbers, arguments)))


async def count_lost(path: Path, committed: Numbers, forgotten: Numbers) -> int:
    """Open the file again and return the number of committed items that are not in it."""
    expected = {
        build_text(process, number)
        for process, last in enumerate(committed)
        for number in range(forgotten[process].value + 1, last.value + 1)
    }
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        # A stored text is not added again, so the number of items grows by the number of lost items.
        count = (await memory.stats()).items
        await memory.semantic.add_many({"content": text} for text in expected)
        return (await memory.stats()).items - count


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    path = directory / "shared.db"
    asyncio.run(_create(path))
    numbers = tuple([context.Value("q", 0) for _ in range(arguments.processes)] for _ in range(2))
    results: Any = context.Queue()
    processes = [
        context.Process(target=_run_process, args=(number, path, numbers, arguments, results))
        for number in range(arguments.processes)
    ]
    for process in processes:
        process.start()
    with create_progress() as bar:
        for _ in bar.track(range(int(arguments.seconds)), description=f"{arguments.processes} processes"):
            time.sleep(1)
    counts: list[Counts] = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return _build_figures(counts, asyncio.run(count_lost(path, *numbers)))


async def _create(path: Path) -> None:
    """Create the file before the processes start, so that they do not race to create it."""
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        await memory.semantic.add("The first note.")


def _build_figures(counts: list[Counts], lost: int) -> dict[str, Any]:
    errors: Counter[str] = sum((process.errors for process in counts), Counter())
    return {
        "items written": sum(process.written for process in counts),
        "items forgotten": sum(process.forgotten for process in counts),
        "writes": summarize([seconds for process in counts for seconds in process.write_seconds]),
        "write calls": sum(len(process.write_seconds) for process in counts),
        "reads": summarize([seconds for process in counts for seconds in process.read_seconds]),
        "read calls": sum(process.reads for process in counts),
        "lost": lost,
        "committed but not found": sum(process.missed for process in counts),
        "forgotten but still found": sum(process.resurrected for process in counts),
        "errors": dict(errors),
    }


def print_tables(figures: dict[str, Any], arguments: argparse.Namespace) -> None:
    title = f"{arguments.processes} processes, {arguments.seconds:g} s, one file, one scope"
    rows = [
        (
            kind,
            f"{figures[f'{kind[:-1]} calls']:,}",
            *(format_ms(figures[kind][percentile]) for percentile in ("p50", "p95", "p99")),
        )
        for kind in ("writes", "reads")
    ]
    print_table(title, ("", "calls", "p50 ms", "p95 ms", "p99 ms"), rows)
    promises = ("lost", "committed but not found", "forgotten but still found")
    violations = [(name, f"{figures[name]:,}", "0") for name in promises]
    totals = [(name, f"{figures[name]:,}", "") for name in ("items written", "items forgotten")]
    errors = [("errors", f"{sum(figures['errors'].values()):,}", "0")]
    print_table("Promises", ("", "count", "promised"), [*totals, *violations, *errors])
    for error, number in figures["errors"].items():
        print(f"{number} × {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--writes", type=float, default=0.3, help="fraction of calls that write; the others search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recollect-processes-") as directory:
        figures = run(arguments, Path(directory))
    print_tables(figures, arguments)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
