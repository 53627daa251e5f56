"""Retrieval quality of Recollect, chromadb and mem0: how often the items that answer a question are found first.

All systems use the same embedding model. Rankings are measured without a threshold, and abstention with each system's
default threshold.
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

from corpora import Corpus, Question, load_locomo, load_own_corpora
from report import create_progress, print_table, save_json
from retrieval_systems import Chroma, Mem0, Recollect, SharedModel, System
from rich.progress import Progress

from recollect import AgentMemory
from recollect.evals.locomo import compute_ndcg, compute_recall

_DEPTH = 10
_OFF_TOPIC_QUESTIONS = 40
_MEASURES = ("R@1", "R@5", "R@10", "NDCG@10")


@dataclass(slots=True)
class Tally:
    """Results of one system on one corpus."""

    scores: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    """For each group of questions, the measures of each question."""
    abstained: dict[str, list[bool]] = field(default_factory=dict)
    """For each kind of question without an answer, whether nothing was returned."""
    found: list[bool] = field(default_factory=list)
    """For each question, whether evidence was among the first ten results."""
    kept: list[bool] = field(default_factory=list)
    """For each question, whether evidence remained after the default threshold."""

    def add_ranking(self, groups: Iterable[str], ranking: list[str], evidence: frozenset[str]) -> None:
        scores = (*(compute_recall(k, ranking, evidence) for k in (1, 5, 10)), compute_ndcg(10, ranking, evidence))
        for group in groups:
            self.scores.setdefault(group, []).append(scores)
        self.found.append(not evidence.isdisjoint(ranking))

    def report(self) -> dict[str, Any]:
        ranking = {
            group: {
                "questions": len(rows),
                **dict(zip(_MEASURES, map(_compute_mean, zip(*rows, strict=True)), strict=True)),
            }
            for group, rows in self.scores.items()
        }
        return {
            "ranking": ranking,
            "abstained": {kind: _compute_mean(values) for kind, values in self.abstained.items()},
            "evidence_in_ten": _compute_mean(self.found),
            "after_threshold": _compute_mean(self.kept),
        }


def _compute_mean(values: Iterable[float]) -> float:
    return round(fmean(values), 4)


async def measure(system: System, corpus: Corpus, off_topic: list[Question], bar: Progress) -> Tally:
    tally = Tally()
    task = bar.add_task(f"{corpus.name}: {system.name} stores", total=sum(len(scope.items) for scope in corpus.scopes))
    for scope in corpus.scopes:
        await system.remember(scope)
        bar.advance(task, len(scope.items))
    questions = [(scope.user, question) for scope in corpus.scopes for question in scope.questions]
    for user, question in bar.track(questions, description=f"{corpus.name}: {system.name} answers"):
        answer = await system.answer(user, question.text, _DEPTH)
        if not question.is_answerable:
            tally.abstained.setdefault(question.category, []).append(not answer)
            continue
        parts = [name for name, users in corpus.parts.items() if user in users]
        ranking = await system.rank(user, question.text, _DEPTH)
        tally.add_ranking(("all", *parts, question.category), ranking, question.evidence)
        tally.kept.append(not question.evidence.isdisjoint(answer))
    users = [scope.user for scope in corpus.scopes]
    for number, question in enumerate(off_topic):
        answer = await system.answer(users[number % len(users)], question.text, _DEPTH)
        tally.abstained.setdefault("off topic", []).append(not answer)
    return tally


def select_off_topic(corpus: Corpus, others: list[Corpus]) -> list[Question]:
    """Return questions of other corpora, about people and things that are not in this one."""
    questions = [
        question
        for other in others
        if other.name != corpus.name
        for scope in other.scopes
        for question in scope.questions
        if question.is_answerable
    ]
    return random.Random(7).sample(questions, min(_OFF_TOPIC_QUESTIONS, len(questions)))


async def compare(corpus: Corpus, others: list[Corpus], peers: set[str], bar: Progress) -> dict[str, Any]:
    results: dict[str, Any] = {}
    off_topic = select_off_topic(corpus, others)
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
            results[system.name] = (await measure(system, corpus, off_topic, bar)).report()
        for system in systems:
            await system.close()
    return results


def print_ranking(corpus: str, systems: dict[str, Any]) -> None:
    groups = list(dict.fromkeys(group for report in systems.values() for group in report["ranking"]))
    counts = {group: report["ranking"][group]["questions"] for report in systems.values() for group in groups}
    rows = [
        (f"{column}  {name}", *(f"{report['ranking'][group][column]:.3f}" for group in groups))
        for column in _MEASURES
        for name, report in systems.items()
    ]
    print_table(corpus, ("", *(f"{group} ({counts[group]})" for group in groups)), rows)


def print_abstention(results: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            corpus,
            name,
            *(_format_share(report["abstained"].get(kind)) for kind in ("unanswerable", "off topic")),
            _format_share(report["evidence_in_ten"]),
            _format_share(report["after_threshold"]),
        )
        for corpus, systems in results.items()
        for name, report in systems.items()
    ]
    columns = (
        "corpus",
        "system",
        "nothing returned: unanswerable",
        "nothing returned: off topic",
        "evidence in first ten",
        "evidence after threshold",
    )
    print_table("Abstention with each system's default threshold", columns, rows)


def _format_share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    variable = os.environ.get("RECOLLECT_LOCOMO")
    default = Path(variable) if variable else None
    parser.add_argument(
        "locomo", type=Path, nargs="?", default=default, help="path of locomo10.json; default: $RECOLLECT_LOCOMO"
    )
    parser.add_argument(
        "--corpus", action="append", help="measure only this corpus: LoCoMo, assistant chats, facts or documents"
    )
    parser.add_argument("--peers", nargs="*", default=["chromadb", "mem0"], help="systems to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    own = load_own_corpora()
    corpora = [*([load_locomo(arguments.locomo)] if arguments.locomo else []), *own]
    selected = [corpus for corpus in corpora if not arguments.corpus or corpus.name in arguments.corpus]
    results: dict[str, Any] = {}
    for corpus in selected:
        with create_progress() as bar:
            results[corpus.name] = await compare(corpus, own, set(arguments.peers), bar)
        # Print each corpus at once: the next one may take minutes.
        print_ranking(corpus.name, results[corpus.name])
        save_json(results, arguments.json)
    return results


def main() -> None:
    arguments = parse_arguments()
    results = asyncio.run(run(arguments))
    print_abstention(results)
    if arguments.locomo is None:
        print("LoCoMo was not measured: it is not part of this project. Give the path of locomo10.json.")


if __name__ == "__main__":
    main()
