"""recall() from end to end: how long it takes at growing sizes, where the time goes, and what the model alone takes.

Every scope has a task, a session of turns and a hundred procedures beside its facts, and one has many sessions before
it, as those have who talk every day. All stages take turns question by question, in a new order each time, so
whatever else the machine does hits them alike, and each finds the processor's caches full of another's data. What one
question after the other takes, as of an agent that asks often, is timed afterwards, in a row. The tiers are asked in
parallel: shares may exceed 100 %.
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

from report import ms, progress, save, show, summary, times
from rich.progress import Progress
from synthetic import DIM, Collection, KnownVectors, Rows, collection

from recollect import AgentMemory
from recollect.clock import system_clock
from recollect.inference.base import Embedding
from recollect.inference.connect import connect_embedder
from recollect.memory.asked import Options, asked
from recollect.memory.recalling import Recalling
from recollect.recall.across import Found, across
from recollect.recall.pack import pack
from recollect.recall.plan import plan
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.connect import connect
from recollect.stores.evidence import Ask
from recollect.stores.ops import Model
from recollect.stores.where import Where

_SCOPE = 1000
_TOGETHER = 2000
_HOT_USERS = 5
_TALKER = "talker"
_TURNS = 40
_SESSIONS_BEFORE = 20
_TURNS_BEFORE = 20
_PROCEDURES = 100
_BUDGET = 1000
_WARM = 3
_AIM = 5.0
_IN_A_ROW = "recall, in a row"
Figures = dict[str, Any]
Stage = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is built and how often it is asked."""

    scopes: tuple[int, ...] = (1000, 10_000, 100_000)
    talker: int = 10_000
    users: int = 1000
    rounds: int = 100


QUICK = Sizes(scopes=(1000, 10_000), users=0, rounds=60)


class WithModel(KnownVectors):
    """Pays for the real model, and then answers with what is known, so that both find the same."""

    def __init__(self, known: KnownVectors, model: Any) -> None:
        self._rows = known._rows
        self._model = model

    def embed_batch(self, texts: Sequence[str]) -> Rows:
        self._model.embed_batch(texts)
        return super().embed_batch(texts)


class Scene:
    """One user's memory, ready to be asked, and every stage of an answer by itself."""

    def __init__(self, memory: AgentMemory, with_model: AgentMemory, records: Records, about: Collection) -> None:
        self.about = about
        self._memory = _at_work(memory, about.user)
        self._with_model = _at_work(with_model, about.user)
        self._records = records
        self._where = Where(self._memory.semantic.space, live_at=system_clock())
        self._found: dict[int, Found] = {}

    async def end_to_end(self, question: int) -> None:
        await self._with_model.recall(self.about.questions[question], budget=_BUDGET)

    async def all_but_the_model(self, question: int) -> None:
        await self._memory.recall(self.about.questions[question], budget=_BUDGET)

    async def search(self, question: int) -> None:
        await self._memory.semantic.search(self.about.questions[question], min_relevance=0.0)

    async def nearest(self, question: int) -> None:
        await self._records.nearest(self._where, self.about.asked[question], limit=100)

    async def matching(self, question: int) -> None:
        await self._records.matching(self._where, self._terms(question), limit=100)

    async def gather(self, question: int) -> None:
        """Both at once and laid out, as a search reads it, without judging it."""
        model = Model(KnownVectors.name, DIM, KnownVectors.name)
        ask = Ask(self._where, self.about.asked[question], self._terms(question), Settings().candidates, 2, model)
        await self._records.gather(ask, lambda evidence, _: evidence)

    async def lately(self, question: int) -> None:
        tiers = ("working", "conversation", "episodic")
        await self._memory.recall(self.about.questions[question], tiers=tiers, min_relevance=0.0)

    async def procedures(self, question: int) -> None:
        await self._memory.procedural.search(self.about.questions[question], min_relevance=0.0)

    async def pack(self, question: int) -> None:
        found = self._found[question]
        pack(self.about.questions[question], found.lines, _BUDGET, left_out=found.left_out)

    async def prepare(self, question: int) -> None:
        """What there is to pack."""
        parts = self._memory._parts
        options = Options(budget=_BUDGET, min_relevance=0.0)
        query = asked(self.about.questions[question], 5, options, min_relevance=0.0, now=system_clock())
        self._found[question] = await across(Recalling(parts, self._memory, query).sources())

    def _terms(self, question: int) -> tuple[str, ...]:
        return plan(self.about.questions[question], (), system_clock()).terms


class Bench:
    """One run: its directory, its models and its progress bars."""

    def __init__(self, directory: Path, sizes: Sizes, bar: Progress) -> None:
        self.directory = directory
        self.sizes = sizes
        self.bar = bar
        self.known = KnownVectors()

    def about(self, user: str, items: int) -> Collection:
        return collection(user, items, questions=self.sizes.rounds + _WARM)

    async def build(self, name: str, collections: Iterable[Collection], total: int) -> Path:
        path = self.directory / f"{name}.db"
        task = self.bar.add_task(f"building {name}", total=total)
        async with AgentMemory.open(path, embedder=self.known) as memory:
            for one in collections:
                self.known.know(one.texts, one.rows)
                facts, mine = one.facts(), memory.scoped(user=one.user)
                for start in range(0, len(facts), _TOGETHER):
                    some = facts[start : start + _TOGETHER]
                    await mine.semantic.add_many(some)
                    self.bar.advance(task, len(some))
                self.known.forget()
        return path

    async def furnish(self, path: Path, abouts: Sequence[Collection]) -> None:
        """A session of turns and a hundred procedures for each who is asked, in the words of their facts."""
        async with AgentMemory.open(path, embedder=self.known) as memory:
            for one in self.bar.track(abouts, description="sessions and procedures"):
                if one.user == _TALKER:
                    await self._talk(memory, one)
                mine = _at_work(memory, one.user)
                for turn in range(_TURNS):
                    await mine.record_turn(one.texts[2 * turn], f"Noted, {one.texts[2 * turn + 1]}")
                for number in range(_PROCEDURES):
                    await mine.procedural.save(f"way.{number}", one.texts[-1 - number], tags=("bench",))

    async def _talk(self, memory: AgentMemory, about: Collection) -> None:
        """The sessions before this one."""
        told = iter(about.texts[2 * _TURNS :])
        for number in range(_SESSIONS_BEFORE):
            mine = memory.scoped(user=about.user, agent=about.user, session=f"before {number}")
            for _ in range(_TURNS_BEFORE):
                await mine.record_turn(next(told), f"Noted, {next(told)}")

    async def ask(self, path: Path, cases: dict[str, list[Collection]]) -> list[Figures]:
        settings = Settings()
        abouts = [one for case in cases.values() for one in case]
        await self.furnish(path, abouts)
        for one in abouts:
            self.known.know(one.questions, one.asked)
        alone = await connect_embedder("minilm", settings)
        stores = await connect(path, settings, system_clock)
        try:
            async with (
                AgentMemory.open(path, embedder=self.known, settings=settings) as memory,
                AgentMemory.open(path, embedder=WithModel(self.known, alone._embedder), settings=settings) as full,
            ):
                return [
                    await self._case(
                        label, [Scene(memory, full, stores.records("semantic"), one) for one in some], alone
                    )
                    for label, some in cases.items()
                ]
        finally:
            alone.close()
            await stores.close()

    async def _case(self, label: str, scenes: list[Scene], alone: Embedding) -> Figures:
        async def embedding(question: int) -> None:
            await alone.embed([f"What did we decide about delivery {label} {question} last spring?"])

        order = random.Random(label)
        seconds: dict[str, list[float]] = {}
        for scene in scenes:
            for question in range(self.sizes.rounds, self.sizes.rounds + _WARM):
                await scene.prepare(question)
                for stage in _stages(scene, embedding).values():
                    await stage(question)
        for question in self.bar.track(range(self.sizes.rounds), description=f"asking {label}"):
            scene = scenes[question % len(scenes)]
            await scene.prepare(question)
            for name, stage in _shuffled(_stages(scene, embedding), order):
                began = time.perf_counter()
                await stage(question)
                seconds.setdefault(name, []).append(time.perf_counter() - began)
        for question in range(self.sizes.rounds):
            began = time.perf_counter()
            await scenes[question % len(scenes)].all_but_the_model(question)
            seconds.setdefault(_IN_A_ROW, []).append(time.perf_counter() - began)
        stages = [*_stages(scenes[0], embedding), _IN_A_ROW]
        return {"case": label, "stages": {name: summary(seconds[name]) for name in stages}}


def _shuffled(stages: dict[str, Stage], order: random.Random) -> list[tuple[str, Stage]]:
    return order.sample(list(stages.items()), len(stages))


def _at_work(memory: AgentMemory, user: str) -> AgentMemory:
    mine = memory.scoped(user=user, agent=user, session="today")
    mine.working.set_task("Prepare the quarterly report")
    mine.working.add_result("revenue", "4.2 M")
    return mine


def _stages(scene: Scene, embedding: Stage) -> dict[str, Stage]:
    return {
        "recall, end to end": scene.end_to_end,
        "recall, question known": scene.all_but_the_model,
        "embedding alone": embedding,
        "semantic search": scene.search,
        "gather": scene.gather,
        "nearest": scene.nearest,
        "matching": scene.matching,
        "working, conversation, episodes": scene.lately,
        "procedures": scene.procedures,
        "pack": scene.pack,
    }


async def run(bench: Bench) -> Figures:
    sizes = bench.sizes
    scopes = [bench.about(f"s{items}", items) for items in sizes.scopes]
    cases = {f"{len(one.texts):,} in the scope": [one] for one in scopes}
    if sizes.talker:
        talker = bench.about(_TALKER, sizes.talker)
        cases[f"{sizes.talker:,} and {_SESSIONS_BEFORE} sessions before"] = [talker]
        scopes.append(talker)
    path = await bench.build("scopes", scopes, sum(len(one.texts) for one in scopes))
    figures = await bench.ask(path, cases)
    if sizes.users:
        everybody = (bench.about(f"u{number}", _SCOPE) for number in range(sizes.users))
        path = await bench.build("users", everybody, sizes.users * _SCOPE)
        some = sorted({sizes.users * part // _HOT_USERS for part in range(_HOT_USERS)})
        hot = [bench.about(f"u{number}", _SCOPE) for number in some]
        label = f"one of {sizes.users:,} users in {sizes.users * _SCOPE:,}"
        figures += await bench.ask(path, {label: hot})
    return {"recall": figures}


def print_tables(figures: Figures) -> None:
    cases = figures["recall"]
    rows = []
    for case in cases:
        stages = case["stages"]
        whole, model, rest, row = (
            stages[name] for name in ("recall, end to end", "embedding alone", "recall, question known", _IN_A_ROW)
        )
        verdicts = ", ".join("ok" if one["p50"] <= _AIM else "missed" for one in (rest, row))
        rows.append(
            (
                case["case"],
                *(f"{ms(one['p50'])} / {ms(one['p95'])}" for one in (whole, model, rest, row)),
                verdicts if "10,000 in" in case["case"] else "–",
                times(whole["p50"] / model["p50"]),
            )
        )
    columns = (
        "",
        "recall, end to end",
        "embedding alone",
        "all but the embedding",
        "the same in a row",
        f"aim ≤ {_AIM:g} ms",
        "÷ embedding",
    )
    show("recall(), p50 / p95 in ms", columns, rows)
    names = [name for name in cases[0]["stages"] if not name.startswith(("recall", "embedding"))]
    show(
        "Stages by themselves, p50 in ms, and their share of all but the embedding",
        ("", *names, "fuse and rank"),
        [_shares(case, names) for case in cases],
        note="gather is nearest and matching in one reading; fuse and rank is the search without it",
    )


def _shares(case: Figures, names: Sequence[str]) -> tuple[str, ...]:
    stages = case["stages"]
    whole = stages["recall, question known"]["p50"]
    fused = max(stages["semantic search"]["p50"] - stages["gather"]["p50"], 0.0)
    taken = [*(stages[name]["p50"] for name in names), fused]
    return (case["case"], *(f"{ms(one)} ({100 * one / whole:.0f} %)" for one in taken))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute: scopes of 1,000 and 10,000")
    parser.add_argument("--scopes", type=int, nargs="+", help="sizes of the scopes that are asked")
    parser.add_argument("--talker", type=int, help="the size of the scope with sessions before this one; 0: none")
    parser.add_argument("--users", type=int, help="users with 1,000 items each in the large store; 0: none")
    parser.add_argument("--rounds", type=int, help="questions asked")
    parser.add_argument("--directory", type=Path, help="where the stores are built; a temporary directory otherwise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    given = options()
    changed = {name: getattr(given, name) for name in ("scopes", "talker", "users", "rounds")}
    sizes = replace(
        QUICK if given.quick else Sizes(), **{name: value for name, value in changed.items() if value is not None}
    )
    with tempfile.TemporaryDirectory(prefix="recollect-bench-", dir=given.directory) as directory, progress() as bar:
        figures = asyncio.run(run(Bench(Path(directory), sizes, bar)))
    print_tables(figures)
    save(figures, given.json)


if __name__ == "__main__":
    main()
