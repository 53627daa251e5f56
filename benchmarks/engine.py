"""Speed: scoped search beside a bare scan, chromadb and the model itself; ingest, cold start and memory.

All contenders of a table take turns question by question, in a new order each time, so whatever else the machine does
hits them alike, and nobody always comes behind the one that leaves the processor's caches cold: read the ratios first.
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

from contenders import BareScan, Chroma, Contender, Nearest, QueryEmbedding, Recollect, exact_answers, recall
from corpora import plain_texts
from report import ms, progress, save, show, summary, times
from rich.progress import Progress
from synthetic import Collection, KnownVectors, collection

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.inference.connect import connect_embedder
from recollect.settings import Settings
from recollect.stores.connect import connect

_SCOPE = 1000
_TOGETHER = 2000
_HOT_USERS = 5
_COLD_ITEMS = 10_000
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is built and how often it is asked."""

    scopes: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    users: int = 1000
    chroma_users: int = 100
    rounds: int = 100
    model_texts: int = 2048


QUICK = Sizes(scopes=(100, 1000, 10_000), users=100, chroma_users=0, rounds=60, model_texts=256)


class Bench:
    """One run: its directory, its embedder and its progress bars."""

    def __init__(self, directory: Path, sizes: Sizes, bar: Progress) -> None:
        self.directory = directory
        self.sizes = sizes
        self.bar = bar
        self.ingested: list[tuple[int, float]] = []
        self.embedder = KnownVectors()

    async def build(self, name: str, collections: Iterable[Collection], total: int, chroma: Chroma | None) -> Path:
        """The same memories into our store and, where it takes part, into chromadb."""
        path = self.directory / f"{name}.db"
        task = self.bar.add_task(f"building {name}", total=total)
        theirs = self.bar.add_task(f"building {name} in chromadb", total=total) if chroma else None
        seconds, items = 0.0, 0
        async with AgentMemory.open(path, embedder=self.embedder) as memory:
            for one in collections:
                self.embedder.know(one.texts, one.rows)
                facts, semantic = one.facts(), memory.scoped(user=one.user).semantic
                for start in range(0, len(facts), _TOGETHER):
                    some = facts[start : start + _TOGETHER]
                    began = time.perf_counter()
                    await semantic.add_many(some)
                    seconds, items = seconds + time.perf_counter() - began, items + len(some)
                    self.bar.update(task, completed=items, description=f"building {name}, {items / seconds:,.0f}/s")
                self.embedder.forget()
                if chroma is not None and theirs is not None:
                    chroma.add(one, lambda added, task=theirs: self.bar.advance(task, added))
        self.ingested.append((items, seconds))
        return path

    async def search(self, path: Path, cases: dict[str, list[Collection]], chroma: Chroma | None) -> list[Figures]:
        """Ask every contender in turn, each case by itself, the questions' vectors known beforehand."""
        settings = Settings()
        for one in (one for case in cases.values() for one in case):
            self.embedder.know(one.questions, one.asked)
        stores = await connect(path, settings, system_clock)
        model = await connect_embedder("minilm", settings)
        try:
            async with AgentMemory.open(path, embedder=self.embedder, settings=settings) as memory:
                contenders: list[Contender] = [
                    BareScan(),
                    Recollect(memory, "dense"),
                    Recollect(memory, "hybrid"),
                    Nearest(memory, stores.records("semantic")),
                    QueryEmbedding(model),
                    *([chroma] if chroma else []),
                ]
                return [await self._case(label, abouts, contenders) for label, abouts in cases.items()]
        finally:
            model.close()
            await stores.close()

    async def _case(self, label: str, abouts: list[Collection], contenders: list[Contender]) -> Figures:
        seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        exact = [exact_answers(about) for about in abouts]
        order = random.Random(label)
        for contender in contenders:
            for about in abouts:
                for question in range(3):
                    await contender.ask(about, question)
        for round_ in self.bar.track(range(self.sizes.rounds), description=f"asking {label}"):
            about, truth = abouts[round_ % len(abouts)], exact[round_ % len(abouts)]
            question = round_ % len(about.questions)
            for contender in order.sample(contenders, len(contenders)):
                began = time.perf_counter()
                answer = await contender.ask(about, question)
                seconds[contender.name].append(time.perf_counter() - began)
                if answer is not None:
                    found[contender.name].append(recall(answer, truth[question]))
        return {
            "case": label,
            "contenders": {
                name: {**summary(taken), "recall@10": sum(found[name]) / len(found[name]) if found[name] else None}
                for name, taken in seconds.items()
            },
        }

    async def ingest_with_model(self) -> Figures:
        """The same texts through the model alone and into a store, in turns."""
        texts = plain_texts(self.sizes.model_texts)
        settings = Settings()
        alone = await connect_embedder("minilm", settings)
        spent = {"model": 0.0, "store": 0.0}
        async with AgentMemory.open(self.directory / "model.db", settings=settings) as memory:
            await memory.semantic.add("The model is loaded by the first text.")
            await alone.embed(["The model is loaded by the first text."])
            for start in self.bar.track(range(0, len(texts), 256), description="ingest with the model"):
                some = texts[start : start + 256]
                began = time.perf_counter()
                await alone.embed(some)
                between = time.perf_counter()
                await memory.semantic.add_many([{"content": text} for text in some])
                spent["model"] += between - began
                spent["store"] += time.perf_counter() - between
        alone.close()
        return {
            "texts": len(texts),
            "model_per_s": len(texts) / spent["model"],
            "store_per_s": len(texts) / spent["store"],
            "ratio": spent["store"] / spent["model"],
        }

    def cold(self, path: Path, user: str, items: int) -> Figures:
        """In fresh processes, with the file in the page cache and without."""
        figures: Figures = {}
        for mode in ("dense", "hybrid"):
            probe("cold", str(path), user, str(items), mode)
            figures[f"{mode}, file in memory"] = probe("cold", str(path), user, str(items), mode)
            _drop_from_page_cache(path)
            figures[f"{mode}, file on disk"] = probe("cold", str(path), user, str(items), mode)
        return figures

    def memory(self, path: Path) -> Figures:
        return {str(mib): probe("memory", str(path), str(self.sizes.users), str(mib)) for mib in (64, 256)}


def probe(*arguments: str) -> Figures:
    script = Path(__file__).with_name("probe.py")
    done = subprocess.run([sys.executable, str(script), *arguments], check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _drop_from_page_cache(path: Path) -> None:
    """Only this store's pages: needs no rights, and leaves everybody else's files alone."""
    for file in path.parent.glob(path.name + "*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


async def run(bench: Bench, *, with_chroma: bool) -> Figures:
    sizes = bench.sizes
    scopes = [collection(f"s{items}", items) for items in sizes.scopes]
    chroma = Chroma(bench.directory / "chroma-scopes") if with_chroma else None
    path = await bench.build("scopes", scopes, sum(sizes.scopes), chroma)
    search = await bench.search(path, {f"{len(one.texts):,} in the scope": [one] for one in scopes}, chroma)
    cold_scope = max((items for items in sizes.scopes if items <= _COLD_ITEMS), default=min(sizes.scopes))
    cold = await asyncio.to_thread(bench.cold, path, f"s{cold_scope}", cold_scope)
    for users in sorted({sizes.users, sizes.chroma_users} - {0}):
        everybody = (collection(f"u{number}", _SCOPE) for number in range(users))
        theirs = Chroma(bench.directory / "chroma-users") if with_chroma and users == sizes.chroma_users else None
        path = await bench.build(f"{users * _SCOPE:,}", everybody, users * _SCOPE, theirs)
        hot = [collection(f"u{users * part // _HOT_USERS}", _SCOPE) for part in range(_HOT_USERS)]
        search += await bench.search(path, {f"one of {users} users in {users * _SCOPE:,}": hot}, theirs)
    memory = await asyncio.to_thread(bench.memory, path)
    with_model = await bench.ingest_with_model()
    items, seconds = (sum(column) for column in zip(*bench.ingested, strict=True))
    return {
        "search": search,
        "cold": {"items": cold_scope, **cold},
        "memory": {"items": sizes.users * _SCOPE, "by_cache_mib": memory},
        "ingest": {"without_model_per_s": items / seconds, "items": items, "with_model": with_model},
    }


def print_tables(figures: Figures) -> None:
    _print_ratios(figures["search"])
    _print_times(figures["search"])
    cold = figures["cold"]
    rows = [
        (name, *(ms(stage[part]) for part in ("open_ms", "first_ms", "second_ms")))
        for name, stage in cold.items()
        if isinstance(stage, dict)
    ]
    title = f"A cold scope of {cold['items']:,} in a fresh process, ms"
    show(title, ("", "open", "first search (aim ≤ 100)", "second"), rows)
    parts = ("before_mib", "after_mib", "peak_mib", "p50_ms")
    used = figures["memory"]["by_cache_mib"]
    show(
        f"Resident memory while every scope of {figures['memory']['items']:,} items is searched once",
        ("cache_mib", "before, MiB", "after", "peak", "growth", "search p50, ms"),
        [
            (
                mib,
                *(f"{one[part]:.0f}" for part in parts[:3]),
                f"{one['peak_mib'] - one['before_mib']:.0f}",
                ms(one["p50_ms"]),
            )
            for mib, one in used.items()
        ],
    )
    ingest, model = figures["ingest"], figures["ingest"]["with_model"]
    show(
        "Durable ingest",
        ("", "items/s", "aim"),
        [
            ("vectors known", f"{ingest['without_model_per_s']:,.0f}", "≥ 5,000"),
            ("with the model", f"{model['store_per_s']:,.0f}", f"≥ {model['model_per_s'] / 1.1:,.0f}"),
            ("the model alone", f"{model['model_per_s']:,.0f}", ""),
        ],
        note=f"with the model: {times(model['ratio'])} the time of the model alone (aim ≤ 1.10×)",
    )


def _print_ratios(cases: Sequence[Figures]) -> None:
    rows = []
    for case in cases:
        by = {name: one["p50"] for name, one in case["contenders"].items()}
        dense, hybrid, scan = by["recollect dense"], by["recollect hybrid"], by["bare numpy scan"]
        nearest, allowed = by["recollect store.nearest"], 2 * scan + 1.0
        chroma = by.get("chromadb where user")
        rows.append(
            (
                case["case"],
                times(dense / scan),
                *(f"{times(one / allowed)} {'ok' if one <= allowed else 'missed'}" for one in (dense, nearest)),
                times(chroma / dense) if chroma else "–",
                times(by["embedding the query"] / dense),
                times(chroma / hybrid) if chroma else "–",
                times(by["embedding the query"] / hybrid),
                f"{case['contenders']['recollect dense']['recall@10']:.4f}",
            )
        )
    aims = ("÷ (2 scans + 1 ms)", "store.nearest ÷ the same")
    columns = ("", "dense ÷ scan", *aims, "chromadb ÷ dense", "query embedding ÷ dense")
    show("Scoped search, ratios of p50", (*columns, "chromadb ÷ hybrid", "embedding ÷ hybrid", "recall@10"), rows)


def _print_times(cases: Sequence[Figures]) -> None:
    names = list(dict.fromkeys(name for case in cases for name in case["contenders"]))
    rows = []
    for case in cases:
        cells = [case["contenders"].get(name) for name in names]
        rows.append((case["case"], *(f"{ms(one['p50'])} / {ms(one['p95'])}" if one else "–" for one in cells)))
    show("Scoped search, p50 / p95 in ms", ("", *names), rows)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute: scopes up to 10,000, 100,000 in all")
    parser.add_argument("--scopes", type=int, nargs="+", help="sizes of the scopes that are searched")
    parser.add_argument("--users", type=int, help="users with 1,000 items each in the large store")
    parser.add_argument("--chroma-users", type=int, help="the same for chromadb, which takes minutes for 100; 0: none")
    parser.add_argument("--rounds", type=int, help="questions asked of each contender")
    parser.add_argument("--no-chroma", action="store_true", help="leave chromadb out")
    parser.add_argument("--directory", type=Path, help="where the stores are built; a temporary directory otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    given = options()
    sizes = QUICK if given.quick else Sizes()
    changed = {name: getattr(given, name) for name in ("scopes", "users", "chroma_users", "rounds")}
    settled = {name: value for name, value in changed.items() if value is not None}
    sizes = replace(sizes, **settled)
    with tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=given.directory) as directory, progress() as bar:
        figures = asyncio.run(run(Bench(Path(directory), sizes, bar), with_chroma=not given.no_chroma))
    print_tables(figures)
    save(figures, given.json)


if __name__ == "__main__":
    main()
