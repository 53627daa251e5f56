"""PostgreSQL at scale: one scope of a million items, and ten thousand tenants in one database.

The large scope is searched exactly, then through its vector index, with recall@10 against an exact float32 scan. The
tenants are searched in random order, first a few of them and then all. Vectors are known, so that no model runs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from report import create_progress, format_ms, print_table, save_json, summarize
from rich.progress import Progress
from synthetic import Collection, KnownVectors, build_collection

from recollect import AgentMemory
from recollect.stores.postgres import search as postgres_search

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.servers.postgres import Server

_SERVER_OPTIONS = (
    *("shared_buffers=4GB", "maintenance_work_mem=3GB", "max_wal_size=16GB", "checkpoint_timeout=30min"),
    *("max_connections=60", "jit=off"),
)
_BLOCK = 25_000
_QUESTIONS_PER_BLOCK = 20
_ITEMS_PER_TENANT = 20
_FEW_TENANTS = 10
_SEED = 20261119
Figures = dict[str, Any]


@asynccontextmanager
async def open_memory(name: str, embedder: KnownVectors) -> AsyncIterator[AgentMemory]:
    server = Server(_SERVER_OPTIONS)
    try:
        async with AgentMemory.open(server.create(name), user="u", embedder=embedder) as memory:
            yield memory
    finally:
        server.close()


async def measure_each(calls: Sequence[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Run the calls one after the other and return the summary of their seconds."""
    seconds = []
    for call in calls:
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return summarize(seconds)


async def measure_large_scope(items: int, questions: int, bar: Progress) -> Figures:
    """Fill one scope, and search it exactly and through its index."""
    embedder = KnownVectors()
    async with open_memory("large", embedder) as memory:
        blocks, written = await fill_scope(memory, embedder, items, bar)
        asked = [(block, number) for number in range(_QUESTIONS_PER_BLOCK) for block in blocks][:questions]
        for block in blocks:
            embedder.add(block.questions, block.question_rows)

        def search(block: Collection, number: int) -> Callable[[], Awaitable[Any]]:
            return lambda: memory.semantic.search(block.questions[number], 10, mode="dense", min_relevance=0.0)

        # No space counts as large, so that no index is built and every vector is compared.
        threshold, postgres_search.HNSW_MIN_ITEMS = postgres_search.HNSW_MIN_ITEMS, 1 << 60
        exact = await measure_each([search(*asked[at]) for at in range(5)])
        postgres_search.HNSW_MIN_ITEMS = threshold
        task, started = bar.add_task("building the index", total=None), time.perf_counter()
        await search(*asked[0])()
        store: Any = memory._engine.stores.records("semantic")
        if store._index_task is not None:
            await store._index_task
        built = time.perf_counter() - started
        bar.update(task, total=1, completed=1)
        await measure_each([search(*pair) for pair in asked[:10]])  # the pages of the index are read once
        indexed = await measure_each([search(*pair) for pair in asked])
        recalled = [await measure_recall(search(*pair), *pair, blocks) for pair in asked]
        full = await measure_each([lambda q=block.questions[n]: memory.recall(q) for block, n in asked])  # type: ignore[misc]
        return {
            "items": items,
            "written_per_second": written,
            "exact": exact,
            "index_seconds": built,
            "indexed": indexed,
            "recall@10": float(np.mean(recalled)),
            "recall": full,
        }


async def fill_scope(
    memory: AgentMemory, embedder: KnownVectors, items: int, bar: Progress
) -> tuple[list[Collection], float]:
    """Write items to one scope in blocks; return the blocks and the items written per second."""
    task, blocks, seconds = bar.add_task("writing one scope", total=items), [], 0.0
    for number in range(items // _BLOCK):
        block = build_collection(f"b{number}", _BLOCK, questions=_QUESTIONS_PER_BLOCK)
        blocks.append(block)
        embedder.add(block.texts, block.rows)
        started = time.perf_counter()
        await memory.semantic.add_many(block.build_facts())
        seconds += time.perf_counter() - started
        embedder.clear()
        bar.advance(task, _BLOCK)
    return blocks, items / seconds


async def measure_recall(
    search: Callable[[], Awaitable[Any]], block: Collection, number: int, blocks: Sequence[Collection]
) -> float:
    """Return the share of the ten nearest texts of all blocks that a search finds."""
    question = block.question_rows[number]
    nearest: list[tuple[float, str]] = []
    for other in blocks:
        scores = other.rows @ question
        nearest += [(float(scores[at]), other.texts[at]) for at in np.argpartition(-scores, 10)[:10]]
    wanted = {text for _, text in sorted(nearest, reverse=True)[:10]}
    return len(wanted & {hit.item.content for hit in await search()}) / 10


async def measure_tenants(tenants: int, questions: int, bar: Progress) -> Figures:
    """Fill many tenants, and search a few of them and all of them in random order."""
    embedder, rng = KnownVectors(), np.random.default_rng(_SEED)
    collection = build_collection("t", _ITEMS_PER_TENANT, questions=20)
    embedder.add(collection.texts, collection.rows)
    embedder.add(collection.questions, collection.question_rows)
    async with open_memory("tenants", embedder) as memory:
        task, started = bar.add_task("writing tenants", total=tenants), time.perf_counter()
        for number in range(tenants):
            await memory.scoped(tenant=f"t{number}").semantic.add_many(collection.build_facts())
            bar.advance(task)
        written = tenants * _ITEMS_PER_TENANT / (time.perf_counter() - started)

        def recall(count: int) -> list[Callable[[], Awaitable[object]]]:
            chosen = [memory.scoped(tenant=f"t{number}") for number in rng.integers(count, size=questions)]
            texts = [collection.questions[at % len(collection.questions)] for at in range(questions)]
            return [lambda m=m, q=q: m.recall(q) for m, q in zip(chosen, texts, strict=True)]  # type: ignore[misc]

        few, every = await measure_each(recall(_FEW_TENANTS)), await measure_each(recall(tenants))
        whole = {
            "stats of all": await measure_each([lambda: memory.stats(whole_store=True)]),
            "erase one": await measure_each([lambda: memory.erase(tenant="t7")]),
        }
        return {"tenants": tenants, "written_per_second": written, "few": few, "all": every, **whole}


def print_tables(figures: Figures) -> None:
    if scope := figures.get("scope"):
        rows = [["search, exact", format_ms(scope["exact"]["p50"]), format_ms(scope["exact"]["p95"])]]
        rows += [["search, index", format_ms(scope["indexed"]["p50"]), format_ms(scope["indexed"]["p95"])]]
        rows += [["recall, all tiers", format_ms(scope["recall"]["p50"]), format_ms(scope["recall"]["p95"])]]
        print_table(
            f"one scope of {scope['items']:,} items",
            ["call", "p50 ms", "p95 ms"],
            rows,
            f"recall@10 {scope['recall@10']:.3f} · {scope['written_per_second']:,.0f} items written per second · index "
            f"built in {scope['index_seconds']:,.0f} s",
        )
    if tenants := figures.get("tenants"):
        print_table(
            f"{tenants['tenants']:,} tenants of {_ITEMS_PER_TENANT} items",
            ["call", "p50 ms", "p95 ms"],
            [
                [name, format_ms(tenants[key]["p50"]), format_ms(tenants[key]["p95"])]
                for name, key in {
                    f"recall, {_FEW_TENANTS} tenants": "few",
                    "recall, all tenants": "all",
                    **{name: name for name in ("stats of all", "erase one")},
                }.items()
            ],
            f"{tenants['written_per_second']:,.0f} items written per second, {_ITEMS_PER_TENANT} in a call",
        )


async def measure(arguments: argparse.Namespace) -> Figures:
    figures: Figures = {}
    with create_progress() as bar:
        if arguments.tenants:
            figures["tenants"] = await measure_tenants(arguments.tenants, arguments.questions, bar)
        if arguments.items:
            figures["scope"] = await measure_large_scope(arguments.items, arguments.questions, bar)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="items of the large scope; 0 leaves it out")
    parser.add_argument("--tenants", type=int, default=10_000, help="number of tenants; 0 leaves them out")
    parser.add_argument("--questions", type=int, default=200, help="number of questions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    print_tables(figures)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
