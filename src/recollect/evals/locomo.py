"""LoCoMo benchmark: recall and NDCG of the evidence turns among the search results of a question."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from recollect.errors import BadInput
from recollect.memory import AgentMemory
from recollect.types import Progress, ProgressCallback


def compute_recall(k: int, ranking: Sequence[Hashable], wanted: AbstractSet[Hashable]) -> float:
    """Return the fraction of the wanted results among the first k."""
    return len(wanted & set(ranking[:k])) / len(wanted)


def compute_ndcg(k: int, ranking: Sequence[Hashable], wanted: AbstractSet[Hashable]) -> float:
    """Return the normalized discounted cumulative gain of binary relevance."""
    gain = sum(1.0 / math.log2(rank + 2) for rank, result in enumerate(ranking[:k]) if result in wanted)
    return gain / sum(1.0 / math.log2(rank + 2) for rank in range(min(k, len(wanted))))


def compute_mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def compute_percentile(values: Sequence[float], share: float) -> float:
    """Return the value at a share from 0 to 1, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}

# The ranking of sessions is derived from that of turns, and needs at least ten sessions.
_SEARCH_DEPTH = 200

_TIME_FORMAT = "%I:%M %p on %d %B, %Y"
_EVIDENCE = re.compile(r"D?(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class LocomoTurn:
    id: str
    session: str
    position: int
    speaker: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class LocomoQuestion:
    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class LocomoConversation:
    id: str
    turns: tuple[LocomoTurn, ...]
    questions: tuple[LocomoQuestion, ...]


@dataclass(slots=True)
class LocomoTally:
    turn: dict[str, list[float]] = field(default_factory=dict)
    session: dict[str, list[float]] = field(default_factory=dict)

    def add(self, ranking: list[str], question: LocomoQuestion) -> None:
        sessions = list(dict.fromkeys(turn.partition(":")[0] for turn in ranking))
        wanted = frozenset(turn.partition(":")[0] for turn in question.evidence)
        for k in (1, 5, 10, 25):
            self.turn.setdefault(f"recall@{k}", []).append(compute_recall(k, ranking, question.evidence))
        self.turn.setdefault("ndcg@10", []).append(compute_ndcg(10, ranking, question.evidence))
        for k in (5, 10):
            self.session.setdefault(f"recall@{k}", []).append(compute_recall(k, sessions, wanted))

    def report(self) -> dict[str, Any]:
        return {
            "turn": {name: round(compute_mean(values), 4) for name, values in self.turn.items()},
            "session": {name: round(compute_mean(values), 4) for name, values in self.session.items()},
            "questions": len(self.turn.get("recall@1", ())),
        }


def load_conversations(path: Path) -> list[LocomoConversation]:
    """Return the conversations of a LoCoMo file; raise `BadInput` if it is not one."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        conversations = [_parse_conversation(number, conversation) for number, conversation in enumerate(raw)]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a LoCoMo file: {type(error).__name__}: {error}") from error
    if not any(conversation.questions for conversation in conversations):
        raise BadInput(f"{path} is not a LoCoMo file: it has no questions with evidence, of categories 1 to 4")
    return conversations


async def evaluate(
    memory: AgentMemory, conversations: list[LocomoConversation], progress: ProgressCallback
) -> dict[str, Any]:
    """Store every turn and search for every question, each conversation as a user; return the measures."""
    total, by_category = LocomoTally(), {number: LocomoTally() for number in CATEGORIES}
    by_conversation: dict[str, LocomoTally] = {}
    seconds: list[float] = []
    turns = sum(len(conversation.turns) for conversation in conversations)
    questions = sum(len(conversation.questions) for conversation in conversations)
    stored = answered = 0
    for conversation in conversations:
        mine = memory.scoped(user=conversation.id)
        for start in range(0, len(conversation.turns), 128):
            batch = conversation.turns[start : start + 128]
            await mine.semantic.add_many(
                {
                    "content": turn.text,
                    "metadata": {"turn_id": turn.id},
                    **{name: getattr(turn, name) for name in ("session", "position", "speaker", "at")},
                }
                for turn in batch
            )
            stored += len(batch)
            progress(Progress("storing turns", stored, turns))
        tally = by_conversation.setdefault(conversation.id, LocomoTally())
        for question in conversation.questions:
            started = time.perf_counter()
            hits = await mine.semantic.search(question.text, n=_SEARCH_DEPTH, min_relevance=0.0)
            seconds.append(time.perf_counter() - started)
            ranking = [str(hit.item.metadata["turn_id"]) for hit in hits]
            for measures in (total, by_category[question.category], tally):
                measures.add(ranking, question)
            answered += 1
            progress(Progress("asking questions", answered, questions))
    return {
        **total.report(),
        "by_category": {CATEGORIES[number]: tally.report() for number, tally in by_category.items() if tally.turn},
        "by_conversation": {name: tally.report() for name, tally in by_conversation.items() if tally.turn},
        "latency_ms": {
            "p50": round(1000 * compute_percentile(seconds, 0.50), 2),
            "p95": round(1000 * compute_percentile(seconds, 0.95), 2),
        },
    }


def _parse_conversation(number: int, raw: dict[str, Any]) -> LocomoConversation:
    dialogue = raw["conversation"]
    turns: list[LocomoTurn] = []
    sessions = sorted((name for name in dialogue if re.fullmatch(r"session_\d+", name)), key=lambda name: int(name[8:]))
    for name in sessions:
        at = datetime.strptime(dialogue[f"{name}_date_time"], _TIME_FORMAT).replace(tzinfo=UTC)
        for position, turn in enumerate(dialogue[name]):
            caption = turn.get("blip_caption")
            text = f"{turn['text']} [shares image: {caption}]" if caption else str(turn["text"])
            turns.append(LocomoTurn(turn["dia_id"], name, position, turn["speaker"], text, at))
    ids = {turn.id for turn in turns}
    questions = [
        LocomoQuestion(str(question["question"]), question["category"], evidence)
        for question in raw["qa"]
        if question["category"] in CATEGORIES and (evidence := _parse_evidence(question.get("evidence", []), ids))
    ]
    return LocomoConversation(str(raw.get("sample_id", f"conversation-{number}")), tuple(turns), tuple(questions))


def _parse_evidence(raw: list[str], ids: set[str]) -> frozenset[str]:
    """Return the evidence turns that exist. The file has several in one string, and stray characters."""
    found = {f"D{int(session)}:{int(turn)}" for text in raw for session, turn in _EVIDENCE.findall(str(text))}
    return frozenset(found & ids)
