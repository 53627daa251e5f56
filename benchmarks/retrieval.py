"""Quality: whether the items that answer a question are among the first found, beside chromadb and mem0.

Every system has the same model. Rankings are judged with no threshold; abstention with each system's own default.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from corpora import Corpus, Question, from_locomo, own
from report import progress, save, show
from rich.progress import Progress
from systems import Chroma, Mem0, Recollect, SharedModel, System

from recollect import AgentMemory
from recollect.evals.metrics import ndcg_at, recall_at

_DEPTH = 10
_OFF_TOPIC = 40
_MEASURES = ("R@1", "R@5", "R@10", "NDCG@10")


@dataclass(slots=True)
class Tally:
    """What one system did on one corpus."""

    ranking: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    silent: dict[str, list[bool]] = field(default_factory=dict)
    found: list[bool] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)

    def judge(self, groups: Iterable[str], ranking: list[str], wanted: frozenset[str]) -> None:
        scores = (*(recall_at(k, ranking, wanted) for k in (1, 5, 10)), ndcg_at(10, ranking, wanted))
        for group in groups:
            self.ranking.setdefault(group, []).append(scores)
        self.found.append(not wanted.isdisjoint(ranking))

    def report(self) -> dict[str, Any]:
        ranked = {
            group: {"questions": len(rows), **dict(zip(_MEASURES, map(_mean, zip(*rows, strict=True)), strict=True))}
            for group, rows in self.ranking.items()
        }
        silent = {group: round(fmean(said), 4) for group, said in self.silent.items()}
        kept = {"evidence_in_ten": _mean(self.found), "after_threshold": _mean(self.kept)}
        return {"ranking": ranked, "silent": silent, **kept}


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 4)


async def measure(system: System, corpus: Corpus, strangers: list[Question], bar: Progress) -> Tally:
    tally = Tally()
    task = bar.add_task(f"{corpus.name}: {system.name} stores", total=sum(len(one.items) for one in corpus.scopes))
    for scope in corpus.scopes:
        await system.remember(scope)
        bar.advance(task, len(scope.items))
    asked = [(scope.user, question) for scope in corpus.scopes for question in scope.questions]
    for user, question in bar.track(asked, description=f"{corpus.name}: {system.name} answers"):
        answer = await system.answer(user, question.text, _DEPTH)
        if not question.answerable:
            tally.silent.setdefault(question.category, []).append(not answer)
            continue
        parts = [name for name, users in corpus.parts.items() if user in users]
        ranking = await system.ask(user, question.text, _DEPTH)
        tally.judge(("all", *parts, question.category), ranking, question.evidence)
        tally.kept.append(not question.evidence.isdisjoint(answer))
    users = [scope.user for scope in corpus.scopes]
    for number, question in enumerate(strangers):
        answer = await system.answer(users[number % len(users)], question.text, _DEPTH)
        tally.silent.setdefault("off topic", []).append(not answer)
    return tally


def off_topic(corpus: Corpus, others: list[Corpus]) -> list[Question]:
    """Questions that belong to another corpus: about people and things that this one has never heard of."""
    foreign = [
        question
        for other in others
        if other.name != corpus.name
        for scope in other.scopes
        for question in scope.questions
        if question.answerable
    ]
    return random.Random(7).sample(foreign, min(_OFF_TOPIC, len(foreign)))


async def compare(corpus: Corpus, others: list[Corpus], peers: set[str], bar: Progress) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="recollect-retrieval-") as directory:
        memory = await AgentMemory.open(Path(directory) / "memory.db")
        systems: list[System] = [
            Recollect(memory, "hybrid", writes=True),
            Recollect(memory, "dense", writes=False),
            Recollect(memory, "text", writes=False),
        ]
        shared = SharedModel()
        if "chromadb" in peers:
            systems.append(Chroma(Path(directory) / "chroma", shared))
        if "mem0" in peers:
            systems.append(Mem0(Path(directory) / "mem0", shared))
        for system in systems:
            results[system.name] = (await measure(system, corpus, off_topic(corpus, others), bar)).report()
        for system in systems:
            await system.close()
    return results


def print_ranking(corpus: str, systems: dict[str, Any]) -> None:
    groups = list(dict.fromkeys(group for one in systems.values() for group in one["ranking"]))
    counts = {group: one["ranking"][group]["questions"] for one in systems.values() for group in groups}
    rows = [
        (f"{measured}  {name}", *(f"{one['ranking'][group][measured]:.3f}" for group in groups))
        for measured in _MEASURES
        for name, one in systems.items()
    ]
    show(corpus, ("", *(f"{group} ({counts[group]})" for group in groups)), rows)


def print_abstention(results: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            corpus,
            name,
            *(_share(one["silent"].get(kind)) for kind in ("unanswerable", "off topic")),
            _share(one["evidence_in_ten"]),
            _share(one["after_threshold"]),
        )
        for corpus, systems in results.items()
        for name, one in systems.items()
    ]
    columns = ("corpus", "system", "silent: unanswerable", "silent: off topic", "evidence in ten", "…after threshold")
    show("Saying nothing, with each system's default threshold", columns, rows)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("RECOLLECT_LOCOMO")
    default = Path(known) if known else None
    parser.add_argument("locomo", type=Path, nargs="?", default=default, help="locomo10.json; or RECOLLECT_LOCOMO")
    parser.add_argument("--corpus", action="append", help="only these: LoCoMo, assistant chats, facts, documents")
    parser.add_argument("--peers", nargs="*", default=["chromadb", "mem0"], help="which peers take part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


async def run(given: argparse.Namespace) -> dict[str, Any]:
    ours = own()
    corpora = [*([from_locomo(given.locomo)] if given.locomo else []), *ours]
    wanted = [corpus for corpus in corpora if not given.corpus or corpus.name in given.corpus]
    results: dict[str, Any] = {}
    for corpus in wanted:
        with progress() as bar:
            results[corpus.name] = await compare(corpus, ours, set(given.peers), bar)
        # Each as it is done: the next may take minutes.
        print_ranking(corpus.name, results[corpus.name])
        save(results, given.json)
    return results


def main() -> None:
    given = options()
    results = asyncio.run(run(given))
    print_abstention(results)
    if given.locomo is None:
        print("LoCoMo was left out: its file is not part of this project; name it as the argument.")


if __name__ == "__main__":
    main()
