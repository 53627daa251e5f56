"""Fit the weights of the ranking to labelled conversations.

    python scripts/train.py                                         # the shipped weights, about 2 minutes
    python scripts/train.py --leave-out dev-03 --to weights/dev-03  # weights that have not seen dev-03
    python scripts/train.py --cross-validate --to weights           # weights/NAME for each corpus, and the shipped ones

`RECOLLECT_WEIGHTS=weights/dev-03` makes the library use another directory of weights. The corpora are the diaries and
the assistant chats in `benchmarks/corpora`. Each is recorded turn by turn as a program would, with the lifecycle run
every night, and each question is asked at its own time. A line is right if it comes from a message that the labels
name; a line on the topic counts a third of a right one for the order of the lines, and as one for their number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from recollect import AgentMemory
from recollect.retrieval.ranking import FEATURES, PHRASE_FEATURES, WEIGHTS_FILE, build_features
from recollect.retrieval.recall import TierRecall
from recollect.retrieval.request import parse_request
from recollect.retrieval.sources import query_sources

ROOT = Path(__file__).resolve().parent.parent
CORPORA = ROOT / "benchmarks" / "corpora"
SHIPPED = ROOT / "src" / "recollect" / "retrieval"

# Fewer candidates are ranked in use; more make more examples of wrong lines.
_CANDIDATES = 100
# What a line on the topic counts for the order; 0 orders topics worse, and 1 puts answers no higher than the rest.
_TOPIC_SHARE = 0.3
_RIDGE = 1.0
_MAX_STEPS = 60

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Example:
    """The candidate lines of one question: their features, and which are right or on the topic."""

    features: Mapping[str, Column]
    is_right: Column
    is_on_topic: Column
    has_phrases: bool


class Clock:
    """The time of a recording."""

    def __init__(self, now: str) -> None:
        self.now = datetime.fromisoformat(now).astimezone(UTC)

    def __call__(self) -> datetime:
        return self.now


class Recording:
    """A memory that is filled turn by turn, with the name of the message that each entry comes from."""

    def __init__(self, memory: AgentMemory, clock: Clock) -> None:
        self.memory = memory
        self.clock = clock
        self._names: dict[str, str] = {}

    async def record(self, session: str, at: datetime, names: Mapping[str, str], **turn: str) -> None:
        """Record a turn; run the lifecycle first if a day has passed since the last one."""
        if at.date() > self.clock.now.date():
            await self.memory.lifecycle.run_once()
        self.clock.now = at
        record = await self.memory.scoped(session=session).record_turn(turn.get("user"), turn.get("assistant"))
        by_text = {text: names[role] for role, text in turn.items()}
        self._names |= {message.id: by_text[message.content] for message in record.messages}
        self._names |= {episode.id: by_text[episode.content] for episode in record.episodes}

    async def ask(self, query: str | list[str], right: set[str], related: set[str]) -> Example | None:
        """Return the candidates of a question; None if there are none."""
        request = parse_request(
            query, _CANDIDATES, tiers=None, budget=None, min_relevance=0.0, as_of=None, where=None, now=self.clock.now
        )
        memory = self.memory.scoped(session="asking")
        recall = TierRecall(memory._engine, memory, request)
        found = await query_sources(recall.build_sources())
        lines, evidence = await recall.build_evidence(found.lines)
        if not lines:
            return None
        items = [(line.hit.item, *line.duplicates) for line in lines]
        ids = [{id for item in same for id in (item.id, *item.derived_from)} for same in items]
        names = [{self._names[id] for id in some if id in self._names} for some in ids]
        is_right = np.array([bool(some & right) for some in names], np.float64)
        is_related = np.array([bool(some & related) for some in names], np.float64)
        return Example(
            build_features(lines, evidence), is_right, np.maximum(is_right, is_related), isinstance(query, list)
        )


@asynccontextmanager
async def open_recording(user: str, start: str) -> AsyncIterator[Recording]:
    clock = Clock(start)
    with tempfile.TemporaryDirectory() as directory:
        async with AgentMemory.open(f"{directory}/memory.db", user=user, clock=clock) as memory:
            yield Recording(memory, clock)


async def collect_diary(diary: Mapping[str, Any], phrases: Mapping[str, list[str]]) -> list[Example]:
    """Return an example for each question of a diary, and another one with its phrases."""
    examples = []
    async with open_recording("owner", diary["sessions"][0]["turns"][0]["at"]) as recording:
        for session in diary["sessions"]:
            for turn in session["turns"]:
                at, names = datetime.fromisoformat(turn["at"]), {role: turn["id"] + role[0] for role in _ROLES}
                await recording.record(session["id"], at, names, **{role: turn[role] for role in _ROLES})
        await recording.memory.lifecycle.run_once()
        for question in diary["questions"]:
            recording.clock.now = datetime.fromisoformat(question["at"])
            right, text = {name for piece in question["gold"] for name in piece}, question["question"]
            for query in (text, [text, *phrases[question["id"]]]):
                examples.append(await recording.ask(query, right, set(question["related"])))
    return [example for example in examples if example is not None]


async def collect_chat(scope: Mapping[str, Any]) -> list[Example]:
    """Return an example for each question of one user of the assistant chats."""
    examples = []
    async with open_recording(scope["user"].split()[0], scope["sessions"][0]["at"]) as recording:
        for session in scope["sessions"]:
            at = datetime.fromisoformat(session["at"])
            for number, turn in enumerate(session["turns"]):
                role = turn["role"]
                when = at + timedelta(minutes=number)
                await recording.record(session["id"], when, {role: turn["id"]}, **{role: turn["text"]})
        recording.clock.now += timedelta(days=2)
        for question in scope["questions"]:
            related = {*question["also"], *question["stale"]}
            examples.append(await recording.ask(question["q"], set(question["evidence"]), related))
    return [example for example in examples if example is not None]


_ROLES = ("user", "assistant")


def collect_all() -> dict[str, list[Example]]:
    """Return the examples of all corpora by name."""
    phrases = json.loads((CORPORA / "diaries" / "phrases.json").read_text("utf-8"))
    paths = sorted((CORPORA / "diaries").glob("dev-*.json"))
    examples = {
        path.stem: asyncio.run(collect_diary(json.loads(path.read_text("utf-8")), phrases[path.stem]))
        for path in track(paths, "reading the diaries")
    }
    scopes = json.loads((CORPORA / "assistant_chats.json").read_text("utf-8"))["scopes"]
    for number, scope in enumerate(track(scopes, "reading the chats"), 1):
        examples[f"chats-{number}"] = asyncio.run(collect_chat(scope))
    return examples


def fit_logistic(rows: Column, targets: Column) -> Column:
    """Return the weights and the bias of a logistic regression, by Newton's method with a ridge penalty."""
    table = np.c_[rows, np.ones(len(rows))]
    weights = np.zeros(table.shape[1])
    for _ in range(_MAX_STEPS):
        chances = 1.0 / (1.0 + np.exp(-table @ weights))
        gradient = table.T @ (chances - targets) + _RIDGE * np.r_[weights[:-1], 0.0]
        curvature = (table * (chances * (1.0 - chances))[:, np.newaxis]).T @ table + _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights -= step
        if np.abs(step).max() < 1e-7:
            break
    return np.asarray(weights)


def fit_model(examples: Sequence[Example], features: Sequence[str]) -> dict[str, Any]:
    """Return the weights of both targets: for the order of the lines, and for their number."""
    rows = np.vstack([np.stack([example.features[name] for name in features], axis=1) for example in examples])
    is_right = np.concatenate([example.is_right for example in examples])
    is_on_topic = np.concatenate([example.is_on_topic for example in examples])
    center, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    scaled = (rows - center) / scale
    fitted = [
        fit_logistic(scaled, targets) for targets in (np.maximum(is_right, _TOPIC_SHARE * is_on_topic), is_on_topic)
    ]
    columns = zip(features, center, scale, *(weights[:-1] for weights in fitted), strict=True)
    return {
        "features": {name: [round(float(value), 5) for value in values] for name, *values in columns},
        "bias": [round(float(weights[-1]), 5) for weights in fitted],
    }


def save_weights(examples: Mapping[str, Sequence[Example]], directory: Path) -> None:
    known = [example for some in examples.values() for example in some]
    models = {
        "question": fit_model([example for example in known if not example.has_phrases], FEATURES),
        "phrases": fit_model([example for example in known if example.has_phrases], PHRASE_FEATURES),
    }
    directory.mkdir(parents=True, exist_ok=True)
    weights = {"corpora": sorted(examples), "examples": len(known), "models": models}
    (directory / WEIGHTS_FILE).write_text(json.dumps(weights, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leave-out", nargs="+", default=[], metavar="NAME", help="corpora that are not used")
    parser.add_argument("--cross-validate", action="store_true", help="fit once without each corpus")
    parser.add_argument("--to", type=Path, default=SHIPPED, metavar="DIRECTORY", help="default: the shipped weights")
    arguments = parser.parse_args()
    examples = {name: some for name, some in collect_all().items() if name not in arguments.leave_out}
    if not arguments.cross_validate:
        save_weights(examples, arguments.to)
        return
    for left_out in examples:
        save_weights({name: some for name, some in examples.items() if name != left_out}, arguments.to / left_out)
    save_weights(examples, SHIPPED)


if __name__ == "__main__":
    main()
