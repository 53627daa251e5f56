"""Measurements of `engine.py` that need a new process: the first search of a cold scope, and memory of many scopes.

python engine_probe.py cold STORE USER ITEMS MODE      prints {"open_ms", "first_ms", "second_ms"}
python engine_probe.py memory STORE USERS CACHE_MIB    prints {"before_mib", "after_mib", "peak_mib", "p50_ms"}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast

import psutil
from report import summarize
from synthetic import KnownVectors, build_collection

from recollect import AgentMemory
from recollect.settings import Settings
from recollect.stores.search import SearchMode


async def measure_cold(store: Path, user: str, items: int, mode: SearchMode) -> dict[str, float]:
    """Time opening a store and two searches; the vectors are known, so the first search only has to read the scope."""
    collection, embedder = build_collection(user, items), KnownVectors()
    embedder.add(collection.questions, collection.question_rows)
    started = time.perf_counter()
    async with AgentMemory.open(store, user=user, embedder=embedder, settings=Settings()) as memory:
        opened = time.perf_counter()
        await memory.semantic.search(collection.questions[0], 10, mode=mode, min_relevance=0.0)
        first = time.perf_counter()
        await memory.semantic.search(collection.questions[1], 10, mode=mode, min_relevance=0.0)
        second = time.perf_counter()
    stages = {"open_ms": opened - started, "first_ms": first - opened, "second_ms": second - first}
    return {name: round(1000 * seconds, 2) for name, seconds in stages.items()}


async def measure_memory(store: Path, users: int, cache_mib: int) -> dict[str, float]:
    """Search each user's scope once and read the resident memory after each search."""
    process = psutil.Process()
    seconds: list[float] = []
    async with AgentMemory.open(store, embedder=KnownVectors(), settings=Settings(cache_mib=cache_mib)) as memory:
        await memory.scoped(user="u0").semantic.search("a question", 10, min_relevance=0.0)
        before = peak = process.memory_info().rss
        for number in range(users):
            started = time.perf_counter()
            await memory.scoped(user=f"u{number}").semantic.search(f"question {number}", 10, min_relevance=0.0)
            seconds.append(time.perf_counter() - started)
            peak = max(peak, process.memory_info().rss)
        after = process.memory_info().rss
    sizes = {"before_mib": before, "after_mib": after, "peak_mib": peak}
    return {**{name: round(size / 2**20, 1) for name, size in sizes.items()}, "p50_ms": summarize(seconds)["p50"]}


def main(arguments: list[str]) -> None:
    match arguments:
        case ["cold", store, user, items, mode]:
            figures = asyncio.run(measure_cold(Path(store), user, int(items), cast(SearchMode, mode)))
        case ["memory", store, users, cache_mib]:
            figures = asyncio.run(measure_memory(Path(store), int(users), int(cache_mib)))
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
