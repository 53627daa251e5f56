"""Speed of the engine: scoped search compared with a numpy scan, chromadb and the model; ingest, cold start, memory.

The systems of a table alternate question by question, in a new order each time. So load on the machine affects all
equally, and no system always follows the one that evicts the processor's caches. Compare ratios before times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpora import load_short_texts
from engine_systems import (
    Chroma,
    NumpyScan,
    QueryEmbedding,
    Recollect,
    StoreGather,
    System,
    compute_recall,
    find_exact_answers,
)
from report import create_progress, format_ms, format_ratio, print_table, save_json, summarize
from rich.progress import Progress
from synthetic import Collection, KnownVectors, build_collection

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.models.factory import open_embedder
from recollect.settings import Settings
from recollect.stores.factory import open_stores

_ITEMS_PER_USER = 1000
_BATCH = 2000
_HOT_USERS = 5
_MAX_COLD_ITEMS = 10_000
_WARMUP_QUESTIONS = 3
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the stores and number of questions."""

    scopes: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    users: int = 1000
    chroma_users: int = 100
    rounds: int = 100
    model_texts: int = 2048


QUICK = Sizes(scopes=(100, 1000, 10_000), users=100, chroma_users=0, rounds=60, model_texts=256)


class Benchmark:
    """One run: its directory, its embedder and its progress bars."""

    def __init__(self, directory: Path, sizes: Sizes, bar: Progress) -> None:
        self.directory = directory
        self.sizes = sizes
        self.bar = bar
        self.ingested: list[tuple[int, float]] = []
        self.embedder = KnownVectors()

    async def build(self, name: str, collections: Iterable[Collection], total: int, chroma: Chroma | None) -> Path:
        """Write the memories into our store and, if arguments, into chromadb; return the path of our store."""
        path = self.directory / f"{name}.db"
        task = self.bar.add_task(f"building {name}", total=total)
        chroma_task = self.bar.add_task(f"building {name} in chromadb", total=total) if chroma else None
        seconds, items = 0.0, 0
        async with AgentMemory.open(path, embedder=self.embedder) as memory:
            for collection in collections:
                self.embedder.add(collection.texts, collection.rows)
                facts, semantic = collection.build_facts(), memory.scoped(user=collection.user).semantic
                for start in range(0, len(facts), _BATCH):
                    batch = facts[start : start + _BATCH]
                    started = time.perf_counter()
                    await semantic.add_many(batch)
                    seconds, items = seconds + time.perf_counter() - started, items + len(batch)
                    self.bar.update(task, completed=items, description=f"building {name}, {items / seconds:,.0f}/s")
                self.embedder.clear()
                if chroma is not None and chroma_task is not None:
                    chroma.add(collection, lambda added, task=chroma_task: self.bar.advance(task, added))
        self.ingested.append((items, seconds))
        return path

    async def search(self, path: Path, cases: dict[str, list[Collection]], chroma: Chroma | None) -> list[Figures]:
        """Time every system on each case, with known vectors of the questions."""
        settings = Settings()
        for collection in (collection for case in cases.values() for collection in case):
            self.embedder.add(collection.questions, collection.question_rows)
        stores = await open_stores(path, settings, system_clock)
        model = await open_embedder("minilm", settings)
        try:
            async with AgentMemory.open(path, embedder=self.embedder, settings=settings) as memory:
                systems: list[System] = [
                    NumpyScan(),
                    Recollect(memory, "dense"),
                    Recollect(memory, "hybrid"),
                    StoreGather(memory, stores.records("semantic")),
                    QueryEmbedding(model),
                    *([chroma] if chroma else []),
                ]
                return [await self._time_case(label, case, systems) for label, case in cases.items()]
        finally:
            model.close()
            await stores.close()

    async def _time_case(self, label: str, collections: list[Collection], systems: list[System]) -> Figures:
        seconds: dict[str, list[float]] = {system.name: [] for system in systems}
        recalls: dict[str, list[float]] = {system.name: [] for system in systems}
        exact = [find_exact_answers(collection) for collection in collections]
        order = random.Random(label)
        for system in systems:
            for collection in collections:
                for question in range(_WARMUP_QUESTIONS):
                    await system.search(collection, question)
        for round_ in self.bar.track(range(self.sizes.rounds), description=f"searching {label}"):
            at = round_ % len(collections)
            question = round_ % len(collections[at].questions)
            for system in order.sample(systems, len(systems)):
                started = time.perf_counter()
                texts = await system.search(collections[at], question)
                seconds[system.name].append(time.perf_counter() - started)
                if texts is not None:
                    recalls[system.name].append(compute_recall(texts, exact[at][question]))
        return {
            "case": label,
            "systems": {
                name: {
                    **summarize(values),
                    "recall@10": sum(recalls[name]) / len(recalls[name]) if recalls[name] else None,
                }
                for name, values in seconds.items()
            },
        }

    async def ingest_with_model(self) -> Figures:
        """Compare the model alone with ingest of the same texts into a store, in alternation."""
        texts = load_short_texts(self.sizes.model_texts)
        settings = Settings()
        model = await open_embedder("minilm", settings)
        spent = {"model": 0.0, "store": 0.0}
        async with AgentMemory.open(self.directory / "model.db", settings=settings) as memory:
            await memory.semantic.add("The first text loads the model.")
            await model.embed(["The first text loads the model."])
            for start in self.bar.track(range(0, len(texts), 256), description="ingest with the model"):
                batch = texts[start : start + 256]
                started = time.perf_counter()
                await model.embed(batch)
                embedded = time.perf_counter()
                await memory.semantic.add_many([{"content": text} for text in batch])
                spent["model"] += embedded - started
                spent["store"] += time.perf_counter() - embedded
        model.close()
        return {
            "texts": len(texts),
            "model_per_s": len(texts) / spent["model"],
            "store_per_s": len(texts) / spent["store"],
            "ratio": spent["store"] / spent["model"],
        }

    def measure_cold(self, path: Path, user: str, items: int) -> Figures:
        """Time the first searches in new processes, with the file in the page cache and without it."""
        figures: Figures = {}
        for mode in ("dense", "hybrid"):
            run_probe("cold", str(path), user, str(items), mode)
            figures[f"{mode}, file in page cache"] = run_probe("cold", str(path), user, str(items), mode)
            _drop_from_page_cache(path)
            figures[f"{mode}, file on disk"] = run_probe("cold", str(path), user, str(items), mode)
        return figures

    def measure_memory(self, path: Path) -> Figures:
        """Measure resident memory in new processes, by the setting `cache_mib`."""
        return {str(mib): run_probe("memory", str(path), str(self.sizes.users), str(mib)) for mib in (64, 256)}


def run_probe(*arguments: str) -> Figures:
    script = Path(__file__).with_name("engine_probe.py")
    done = subprocess.run([sys.executable, str(script), *arguments], check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _drop_from_page_cache(path: Path) -> None:
    """Drop the pages of this store only, which needs no privileges and leaves other files cached."""
    for file in path.parent.glob(path.name + "*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


async def run(benchmark: Benchmark, *, with_chroma: bool) -> Figures:
    sizes = benchmark.sizes
    scopes = [build_collection(f"s{items}", items) for items in sizes.scopes]
    chroma = Chroma(benchmark.directory / "chroma-scopes") if with_chroma else None
    path = await benchmark.build("scopes", scopes, sum(sizes.scopes), chroma)
    search = await benchmark.search(path, {f"{len(scope.texts):,} in the scope": [scope] for scope in scopes}, chroma)
    cold_scope = max((items for items in sizes.scopes if items <= _MAX_COLD_ITEMS), default=min(sizes.scopes))
    cold = await asyncio.to_thread(benchmark.measure_cold, path, f"s{cold_scope}", cold_scope)
    for users in sorted({sizes.users, sizes.chroma_users} - {0}):
        all_users = (build_collection(f"u{number}", _ITEMS_PER_USER) for number in range(users))
        user_chroma = (
            Chroma(benchmark.directory / "chroma-users") if with_chroma and users == sizes.chroma_users else None
        )
        path = await benchmark.build(f"{users * _ITEMS_PER_USER:,}", all_users, users * _ITEMS_PER_USER, user_chroma)
        hot = [build_collection(f"u{users * part // _HOT_USERS}", _ITEMS_PER_USER) for part in range(_HOT_USERS)]
        search += await benchmark.search(
            path, {f"one of {users} users in {users * _ITEMS_PER_USER:,}": hot}, user_chroma
        )
    memory = await asyncio.to_thread(benchmark.measure_memory, path)
    with_model = await benchmark.ingest_with_model()
    items, seconds = (sum(column) for column in zip(*benchmark.ingested, strict=True))
    return {
        "search": search,
        "cold": {"items": cold_scope, **cold},
        "memory": {"items": sizes.users * _ITEMS_PER_USER, "by_cache_mib": memory},
        "ingest": {"without_model_per_s": items / seconds, "items": items, "with_model": with_model},
    }


def print_tables(figures: Figures) -> None:
    _print_ratios(figures["search"])
    _print_times(figures["search"])
    cold = figures["cold"]
    rows = [
        (name, *(format_ms(stage[part]) for part in ("open_ms", "first_ms", "second_ms")))
        for name, stage in cold.items()
        if isinstance(stage, dict)
    ]
    title = f"A cold scope of {cold['items']:,} in a fresh process, ms"
    print_table(title, ("", "open", "first search (goal ≤ 100)", "second"), rows)
    parts = ("before_mib", "after_mib", "peak_mib")
    print_table(
        f"Resident memory while every scope of {figures['memory']['items']:,} items is searched once",
        ("cache_mib", "before, MiB", "after", "peak", "growth", "search p50, ms"),
        [
            (
                mib,
                *(f"{sizes[part]:.0f}" for part in parts),
                f"{sizes['peak_mib'] - sizes['before_mib']:.0f}",
                format_ms(sizes["p50_ms"]),
            )
            for mib, sizes in figures["memory"]["by_cache_mib"].items()
        ],
    )
    ingest, model = figures["ingest"], figures["ingest"]["with_model"]
    print_table(
        "Durable ingest",
        ("", "items/s", "goal"),
        [
            ("known vectors", f"{ingest['without_model_per_s']:,.0f}", "≥ 5,000"),
            ("with the model", f"{model['store_per_s']:,.0f}", f"≥ {model['model_per_s'] / 1.1:,.0f}"),
            ("the model alone", f"{model['model_per_s']:,.0f}", ""),
        ],
        note=f"with the model: {format_ratio(model['ratio'])} the time of the model alone (goal ≤ 1.10×)",
    )


def _print_ratios(cases: Sequence[Figures]) -> None:
    rows = []
    for case in cases:
        p50 = {name: timed["p50"] for name, timed in case["systems"].items()}
        dense, hybrid, scan = p50["recollect dense"], p50["recollect hybrid"], p50["bare numpy scan"]
        gather, goal = p50["recollect store.gather"], 2 * scan + 1.0
        chroma, embedding = p50.get("chromadb where user"), p50["embedding the query"]
        rows.append(
            (
                case["case"],
                format_ratio(dense / scan),
                *(f"{format_ratio(value / goal)} {'ok' if value <= goal else 'missed'}" for value in (dense, gather)),
                format_ratio(chroma / dense) if chroma else "–",
                format_ratio(embedding / dense),
                format_ratio(chroma / hybrid) if chroma else "–",
                format_ratio(embedding / hybrid),
                f"{case['systems']['recollect dense']['recall@10']:.4f}",
            )
        )
    columns = (
        "",
        "dense ÷ scan",
        "dense ÷ (2 scans + 1 ms)",
        "store.gather ÷ (2 scans + 1 ms)",
        "chromadb ÷ dense",
        "embedding ÷ dense",
        "chromadb ÷ hybrid",
        "embedding ÷ hybrid",
        "recall@10",
    )
    print_table("Scoped search, ratios of p50", columns, rows)


def _print_times(cases: Sequence[Figures]) -> None:
    names = list(dict.fromkeys(name for case in cases for name in case["systems"]))
    rows = []
    for case in cases:
        cells = [case["systems"].get(name) for name in names]
        texts = (f"{format_ms(cell['p50'])} / {format_ms(cell['p95'])}" if cell else "–" for cell in cells)
        rows.append((case["case"], *texts))
    print_table("Scoped search, p50 / p95 in ms", ("", *names), rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="about a minute: scopes of up to 10,000 items, 100,000 items in total"
    )
    parser.add_argument("--scopes", type=int, nargs="+", help="sizes of the searched scopes")
    parser.add_argument("--users", type=int, help="number of users in the large store, each with 1,000 items")
    parser.add_argument(
        "--chroma-users", type=int, help="the same for chromadb, which takes minutes for 100 users; 0 for none"
    )
    parser.add_argument("--rounds", type=int, help="number of questions for each system")
    parser.add_argument("--no-chroma", action="store_true", help="do not measure chromadb")
    parser.add_argument("--directory", type=Path, help="directory for the stores; default: a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    sizes = QUICK if arguments.quick else Sizes()
    options = {name: getattr(arguments, name) for name in ("scopes", "users", "chroma_users", "rounds")}
    sizes = replace(sizes, **{name: value for name, value in options.items() if value is not None})
    with (
        tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=arguments.directory) as directory,
        create_progress() as bar,
    ):
        figures = asyncio.run(run(Benchmark(Path(directory), sizes, bar), with_chroma=not arguments.no_chroma))
    print_tables(figures)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
