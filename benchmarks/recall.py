"""Time of `recall()` end to end, of each stage, and of the model alone, in scopes of growing size.

Every scope has a task, a session of turns and 100 procedures in addition to its facts. One scope also has earlier
sessions, like those of a daily user. All stages alternate question by question, in a new order each time: load on the
machine affects all equally, and each stage finds the processor's caches filled with data of another. Consecutive
recalls, like those of an agent, are timed afterwards. The tiers run concurrently, so shares may exceed 100 %.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from report import create_progress, format_ms, format_ratio, print_table, save_json, summarize
from rich.progress import Progress
from synthetic import DIM, Collection, KnownVectors, Rows, build_collection

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.models.embedding import Embedding
from recollect.models.factory import open_embedder
from recollect.retrieval.prompt_block import build_prompt_block
from recollect.retrieval.query import plan_query
from recollect.retrieval.recall import TierRecall
from recollect.retrieval.request import parse_request
from recollect.retrieval.sources import SourceResult, query_sources
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import open_stores
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Model

_ITEMS_PER_USER = 1000
_BATCH = 2000
_HOT_USERS = 5
_DAILY_USER = "talker"  # the name seeds the texts, so another name changes the figures
_TURNS = 40
_EARLIER_SESSIONS = 20
_EARLIER_TURNS = 20
_PROCEDURES = 100
_BUDGET = 1000
_WARMUP_QUESTIONS = 3
_CANDIDATES = 50
"""Candidates of each kind that recall requests at most."""
_MAX_MS = 5.0
"""The goal for a recall without the model, in milliseconds."""
_END_TO_END = "recall, end to end"
_KNOWN_VECTOR = "recall, known vector"
_CONSECUTIVE = "recall, consecutive"
_EMBEDDING = "embedding alone"
Figures = dict[str, Any]
Stage = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the stores and number of questions."""

    scopes: tuple[int, ...] = (1000, 10_000, 100_000)
    daily_user: int = 10_000
    """Size of the scope with earlier sessions."""
    users: int = 1000
    rounds: int = 100


QUICK = Sizes(scopes=(1000, 10_000), users=0, rounds=60)


class TimedModel(KnownVectors):
    """Embedder that runs the real model and returns the known vectors, so that every recall finds the same."""

    def __init__(self, known: KnownVectors, model: Any) -> None:
        self._rows = known._rows
        self._model = model

    def embed_batch(self, texts: Sequence[str]) -> Rows:
        self._model.embed_batch(texts)
        return super().embed_batch(texts)


class Stages:
    """One user's memory with each stage of a recall as a method."""

    def __init__(self, memory: AgentMemory, with_model: AgentMemory, records: Records, collection: Collection) -> None:
        self.collection = collection
        self._memory = _start_task(memory, collection.user)
        self._with_model = _start_task(with_model, collection.user)
        self._records = records
        self._where = Where(self._memory.semantic._space, live_at=system_clock())
        self._results: dict[int, SourceResult] = {}

    async def recall_end_to_end(self, question: int) -> None:
        await self._with_model.recall(self.collection.questions[question], budget=_BUDGET)

    async def recall_with_known_vector(self, question: int) -> None:
        await self._memory.recall(self.collection.questions[question], budget=_BUDGET)

    async def search_facts(self, question: int) -> None:
        await self._memory.semantic.search(self.collection.questions[question], min_relevance=0.0)

    async def gather_by_vector(self, question: int) -> None:
        """Read the candidates by vector alone."""
        query = EvidenceQuery(self._where, self.collection.question_rows[question], (), limit=100, reach=0)
        await self._records.gather(query, lambda evidence, _: evidence)

    async def gather_by_terms(self, question: int) -> None:
        """Read the candidates by terms alone."""
        query = EvidenceQuery(self._where, None, self._terms(question), limit=100, reach=0)
        await self._records.gather(query, lambda evidence, _: evidence)

    async def gather(self, question: int) -> None:
        """Read the evidence like a search does, without ranking it."""
        model = Model(KnownVectors.name, DIM, KnownVectors.name)
        query = EvidenceQuery(
            self._where, self.collection.question_rows[question], self._terms(question), _CANDIDATES, 2, model
        )
        await self._records.gather(query, lambda evidence, _: evidence)

    async def recall_recent_tiers(self, question: int) -> None:
        tiers = ("working", "conversation", "episodic")
        await self._memory.recall(self.collection.questions[question], tiers=tiers, min_relevance=0.0)

    async def search_procedures(self, question: int) -> None:
        await self._memory.procedural.search(self.collection.questions[question], min_relevance=0.0)

    async def pack(self, question: int) -> None:
        result = self._results[question]
        build_prompt_block(self.collection.questions[question], result.lines, _BUDGET, left_out=result.left_out)

    async def prepare(self, question: int) -> None:
        """Query the tiers, so that `pack` has lines to pack."""
        engine = self._memory._engine
        query = parse_request(
            self.collection.questions[question],
            5,
            tiers=None,
            budget=_BUDGET,
            min_relevance=0.0,
            as_of=None,
            where=None,
            now=system_clock(),
        )
        self._results[question] = await query_sources(TierRecall(engine, self._memory, query).build_sources())

    def _terms(self, question: int) -> tuple[str, ...]:
        return plan_query(self.collection.questions[question], (), system_clock()).terms


class Benchmark:
    """One run: its directory, its models and its progress bars."""

    def __init__(self, directory: Path, sizes: Sizes, bar: Progress) -> None:
        self.directory = directory
        self.sizes = sizes
        self.bar = bar
        self.embedder = KnownVectors()

    def build_collection(self, user: str, items: int) -> Collection:
        return build_collection(user, items, questions=self.sizes.rounds + _WARMUP_QUESTIONS)

    async def build(self, name: str, collections: Iterable[Collection], total: int) -> Path:
        path = self.directory / f"{name}.db"
        task = self.bar.add_task(f"building {name}", total=total)
        async with AgentMemory.open(path, embedder=self.embedder) as memory:
            for collection in collections:
                self.embedder.add(collection.texts, collection.rows)
                facts, semantic = collection.build_facts(), memory.scoped(user=collection.user).semantic
                for start in range(0, len(facts), _BATCH):
                    batch = facts[start : start + _BATCH]
                    await semantic.add_many(batch)
                    self.bar.advance(task, len(batch))
                self.embedder.clear()
        return path

    async def add_sessions(self, path: Path, collections: Sequence[Collection]) -> None:
        """Record a session of turns and 100 procedures for each user, with the words of the user's facts."""
        async with AgentMemory.open(path, embedder=self.embedder) as memory:
            for collection in self.bar.track(collections, description="sessions and procedures"):
                if collection.user == _DAILY_USER:
                    await self._record_earlier_sessions(memory, collection)
                scoped, texts = _start_task(memory, collection.user), collection.texts
                for turn in range(_TURNS):
                    await scoped.record_turn(texts[2 * turn], f"Noted, {texts[2 * turn + 1]}")
                for number in range(_PROCEDURES):
                    await scoped.procedural.save(f"way.{number}", texts[-1 - number], tags=("bench",))

    async def _record_earlier_sessions(self, memory: AgentMemory, collection: Collection) -> None:
        texts = iter(collection.texts[2 * _TURNS :])
        for number in range(_EARLIER_SESSIONS):
            scoped = memory.scoped(user=collection.user, agent=collection.user, session=f"before {number}")
            for _ in range(_EARLIER_TURNS):
                await scoped.record_turn(next(texts), f"Noted, {next(texts)}")

    async def run(self, path: Path, cases: dict[str, list[Collection]]) -> list[Figures]:
        """Add sessions to the store and time every stage of each case."""
        settings = Settings()
        collections = [collection for case in cases.values() for collection in case]
        await self.add_sessions(path, collections)
        for collection in collections:
            self.embedder.add(collection.questions, collection.question_rows)
        model = await open_embedder("minilm", settings)
        stores = await open_stores(path, settings, system_clock)
        try:
            async with (
                AgentMemory.open(path, embedder=self.embedder, settings=settings) as memory,
                AgentMemory.open(
                    path, embedder=TimedModel(self.embedder, model._embedder), settings=settings
                ) as with_model,
            ):
                records = stores.records("semantic")
                return [
                    await self._time_case(
                        label, [Stages(memory, with_model, records, collection) for collection in case], model
                    )
                    for label, case in cases.items()
                ]
        finally:
            model.close()
            await stores.close()

    async def _time_case(self, label: str, users: list[Stages], model: Embedding) -> Figures:
        async def embed(question: int) -> None:
            await model.embed([f"What did we decide about delivery {label} {question} last spring?"])

        order = random.Random(label)
        seconds: dict[str, list[float]] = {}
        for user in users:
            for question in range(self.sizes.rounds, self.sizes.rounds + _WARMUP_QUESTIONS):
                await user.prepare(question)
                for stage in _list_stages(user, embed).values():
                    await stage(question)
        for question in self.bar.track(range(self.sizes.rounds), description=f"recalling {label}"):
            user = users[question % len(users)]
            await user.prepare(question)
            stages = list(_list_stages(user, embed).items())
            for name, stage in order.sample(stages, len(stages)):
                started = time.perf_counter()
                await stage(question)
                seconds.setdefault(name, []).append(time.perf_counter() - started)
        for question in range(self.sizes.rounds):
            started = time.perf_counter()
            await users[question % len(users)].recall_with_known_vector(question)
            seconds.setdefault(_CONSECUTIVE, []).append(time.perf_counter() - started)
        names = [*_list_stages(users[0], embed), _CONSECUTIVE]
        return {"case": label, "stages": {name: summarize(seconds[name]) for name in names}}


def _start_task(memory: AgentMemory, user: str) -> AgentMemory:
    scoped = memory.scoped(user=user, agent=user, session="today")
    scoped.working.set_task("Prepare the quarterly report")
    scoped.working.add_result("revenue", "4.2 M")
    return scoped


def _list_stages(user: Stages, embed: Stage) -> dict[str, Stage]:
    return {
        _END_TO_END: user.recall_end_to_end,
        _KNOWN_VECTOR: user.recall_with_known_vector,
        _EMBEDDING: embed,
        "semantic search": user.search_facts,
        "gather": user.gather,
        "gather, vector": user.gather_by_vector,
        "gather, terms": user.gather_by_terms,
        "working, conversation, episodes": user.recall_recent_tiers,
        "procedures": user.search_procedures,
        "pack": user.pack,
    }


async def run(benchmark: Benchmark) -> Figures:
    sizes = benchmark.sizes
    scopes = [benchmark.build_collection(f"s{items}", items) for items in sizes.scopes]
    cases = {f"{len(scope.texts):,} in the scope": [scope] for scope in scopes}
    if sizes.daily_user:
        daily_user = benchmark.build_collection(_DAILY_USER, sizes.daily_user)
        cases[f"{sizes.daily_user:,} and {_EARLIER_SESSIONS} earlier sessions"] = [daily_user]
        scopes.append(daily_user)
    path = await benchmark.build("scopes", scopes, sum(len(scope.texts) for scope in scopes))
    figures = await benchmark.run(path, cases)
    if sizes.users:
        all_users = (benchmark.build_collection(f"u{number}", _ITEMS_PER_USER) for number in range(sizes.users))
        path = await benchmark.build("users", all_users, sizes.users * _ITEMS_PER_USER)
        numbers = sorted({sizes.users * part // _HOT_USERS for part in range(_HOT_USERS)})
        hot = [benchmark.build_collection(f"u{number}", _ITEMS_PER_USER) for number in numbers]
        label = f"one of {sizes.users:,} users in {sizes.users * _ITEMS_PER_USER:,}"
        figures += await benchmark.run(path, {label: hot})
    return {"recall": figures}


def print_tables(figures: Figures) -> None:
    cases = figures["recall"]
    rows = []
    for case in cases:
        stages = case["stages"]
        columns = [stages[name] for name in (_END_TO_END, _EMBEDDING, _KNOWN_VECTOR, _CONSECUTIVE)]
        end_to_end, embedding, *without_model = columns
        verdicts = ", ".join("ok" if timed["p50"] <= _MAX_MS else "missed" for timed in without_model)
        rows.append(
            (
                case["case"],
                *(f"{format_ms(timed['p50'])} / {format_ms(timed['p95'])}" for timed in columns),
                verdicts if "10,000 in" in case["case"] else "–",
                format_ratio(end_to_end["p50"] / embedding["p50"]),
            )
        )
    headings = (
        "",
        "end to end",
        "embedding alone",
        "without the embedding",
        "without it, consecutive",
        f"goal ≤ {_MAX_MS:g} ms",
        "end to end ÷ embedding",
    )
    print_table("recall(), p50 / p95 in ms", headings, rows)
    names = [name for name in cases[0]["stages"] if not name.startswith(("recall", "embedding"))]
    print_table(
        "Separate stages, p50 in ms, and their share of a recall without the embedding",
        ("", *names, "fuse and rank"),
        [_build_share_row(case, names) for case in cases],
        note="gather reads vectors and terms in one call; fuse and rank is the semantic search without gather",
    )


def _build_share_row(case: Figures, names: Sequence[str]) -> tuple[str, ...]:
    stages = case["stages"]
    total = stages[_KNOWN_VECTOR]["p50"]
    fusion = max(stages["semantic search"]["p50"] - stages["gather"]["p50"], 0.0)
    values = [*(stages[name]["p50"] for name in names), fusion]
    return (case["case"], *(f"{format_ms(value)} ({100 * value / total:.0f} %)" for value in values))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute: scopes of 1,000 and 10,000")
    parser.add_argument("--scopes", type=int, nargs="+", help="sizes of the searched scopes")
    parser.add_argument("--daily-user", type=int, help="size of the scope with earlier sessions; 0 for none")
    parser.add_argument(
        "--users", type=int, help="number of users in the large store, each with 1,000 items; 0 for none"
    )
    parser.add_argument("--rounds", type=int, help="number of questions")
    parser.add_argument("--directory", type=Path, help="directory for the stores; default: a temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    options = {name: getattr(arguments, name) for name in ("scopes", "daily_user", "users", "rounds")}
    sizes = replace(
        QUICK if arguments.quick else Sizes(), **{name: value for name, value in options.items() if value is not None}
    )
    with (
        tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=arguments.directory) as directory,
        create_progress() as bar,
    ):
        figures = asyncio.run(run(Benchmark(Path(directory), sizes, bar)))
    print_tables(figures)
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
