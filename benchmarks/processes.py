"""Several processes on one file: is every write kept, and does every reader see what others have committed?

Each process writes, forgets and searches in the same scope as fast as it can. After a write has returned, its number
is published; a reader looks at a number first and asks afterwards, so what it then misses is a broken promise.
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

from report import ms, progress, save, show, summary
from synthetic import KnownVectors

from recollect import AgentMemory
from recollect.errors import RecollectError

_BATCH = 10
Numbers = Sequence["Synchronized[int]"]


@dataclass(slots=True)
class Account:
    """What one process did."""

    written: int = 0
    forgotten: int = 0
    reads: int = 0
    missed: int = 0
    undead: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    write_seconds: list[float] = field(default_factory=list)
    read_seconds: list[float] = field(default_factory=list)


class Worker:
    """One process: items are numbered from 1; those up to `gone` were forgotten, those up to `there` are committed."""

    def __init__(self, me: int, there: Numbers, gone: Numbers) -> None:
        self._me = me
        self._there = there
        self._gone = gone
        self._chance = random.Random(me)
        self._ids: list[str] = []
        self.account = Account()

    async def work(self, memory: AgentMemory, seconds: float, share_of_writes: float) -> None:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            began = time.perf_counter()
            writes = self._chance.random() < share_of_writes
            try:
                await (self._write(memory) if writes else self._read(memory))
            except RecollectError as error:
                self.account.errors[f"{type(error).__name__}: {error}"] += 1
            taken = self.account.write_seconds if writes else self.account.read_seconds
            taken.append(time.perf_counter() - began)

    async def _write(self, memory: AgentMemory) -> None:
        gone = self._gone[self._me]
        if self._chance.random() < 0.2 and gone.value < len(self._ids) - _BATCH:
            await memory.forget(self._ids[gone.value])
            gone.value += 1
            self.account.forgotten += 1
            return
        number = _BATCH if self._chance.random() < 0.2 else 1
        texts = [text_of(self._me, len(self._ids) + 1 + at) for at in range(number)]
        self._ids += [item.id for item in await memory.semantic.add_many({"content": text} for text in texts)]
        self._there[self._me].value = len(self._ids)
        self.account.written += number

    async def _read(self, memory: AgentMemory) -> None:
        other = self._chance.randrange(len(self._there))
        number, gone = self._there[other].value, self._gone[other].value
        self.account.reads += 1
        if gone and self._chance.random() < 0.2:
            self.account.undead += await self._found(memory, text_of(other, gone))
        elif number:
            # Its own process may have forgotten it meanwhile; that one it does not miss.
            seen = await self._found(memory, text_of(other, number))
            self.account.missed += not seen and self._gone[other].value < number

    async def _found(self, memory: AgentMemory, text: str) -> bool:
        mode = "dense" if self._chance.random() < 0.5 else "hybrid"
        hits = await memory.semantic.search(text, 3, mode=mode, min_relevance=0.0)
        return any(hit.item.content == text for hit in hits)


def text_of(process: int, number: int) -> str:
    return f"process{process} wrote note{process}n{number} about delivery {number % 97}"


async def _live(me: int, path: Path, there: Numbers, gone: Numbers, given: argparse.Namespace) -> Account:
    worker = Worker(me, there, gone)
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        await worker.work(memory, given.seconds, given.writes)
    return worker.account


def _process(me: int, path: Path, numbers: tuple[Numbers, Numbers], given: argparse.Namespace, accounts: Any) -> None:
    accounts.put(asyncio.run(_live(me, path, *numbers, given)))


async def lost(path: Path, there: Numbers, gone: Numbers) -> int:
    """How many committed items a fresh look at the file does not find."""
    wanted = {
        text_of(me, number) for me, last in enumerate(there) for number in range(gone[me].value + 1, last.value + 1)
    }
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        # What is there already is not added again: the number of items grows by those that were lost.
        count = (await memory.stats()).items
        await memory.semantic.add_many({"content": text} for text in wanted)
        return (await memory.stats()).items - count


def run(given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    path = directory / "shared.db"
    asyncio.run(_create(path))
    numbers = tuple([context.Value("q", 0) for _ in range(given.processes)] for _ in range(2))
    accounts: Any = context.Queue()
    running = [
        context.Process(target=_process, args=(me, path, numbers, given, accounts)) for me in range(given.processes)
    ]
    for process in running:
        process.start()
    with progress() as bar:
        for _ in bar.track(range(int(given.seconds)), description=f"{given.processes} processes at work"):
            time.sleep(1)
    done: list[Account] = [accounts.get(timeout=120) for _ in running]
    for process in running:
        process.join()
    return _figures(done, asyncio.run(lost(path, *numbers)))


async def _create(path: Path) -> None:
    async with AgentMemory.open(path, embedder=KnownVectors()) as memory:
        await memory.semantic.add("The first note, so that nobody has to create the file in a race.")


def _figures(done: list[Account], missing: int) -> dict[str, Any]:
    errors: Counter[str] = sum((account.errors for account in done), Counter())
    return {
        "items written": sum(account.written for account in done),
        "items forgotten": sum(account.forgotten for account in done),
        "writes": summary([second for account in done for second in account.write_seconds]),
        "write calls": sum(len(account.write_seconds) for account in done),
        "reads": summary([second for account in done for second in account.read_seconds]),
        "read calls": sum(account.reads for account in done),
        "lost": missing,
        "committed but not seen": sum(account.missed for account in done),
        "forgotten but still seen": sum(account.undead for account in done),
        "errors": dict(errors),
    }


def print_tables(figures: dict[str, Any], given: argparse.Namespace) -> None:
    title = f"{given.processes} processes, {given.seconds:g} s, one file, one scope"
    rows = [
        (kind, f"{figures[f'{kind[:-1]} calls']:,}", *(ms(figures[kind][share]) for share in ("p50", "p95", "p99")))
        for kind in ("writes", "reads")
    ]
    show(title, ("", "calls", "p50 ms", "p95 ms", "p99 ms"), rows)
    promises = ("lost", "committed but not seen", "forgotten but still seen")
    kept = [(name, f"{figures[name]:,}", "0") for name in promises]
    totals = [(name, f"{figures[name]:,}", "") for name in ("items written", "items forgotten")]
    errors = [("errors", f"{sum(figures['errors'].values()):,}", "0")]
    show("Promises", ("", "counted", "promised"), [*totals, *kept, *errors])
    for error, number in figures["errors"].items():
        print(f"{number} × {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--writes", type=float, default=0.3, help="the share of calls that write; the rest search")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recollect-processes-") as directory:
        figures = run(given, Path(directory))
    print_tables(figures, given)
    save(figures, given.json)


if __name__ == "__main__":
    main()
