"""LoCoMo: are the turns that hold a question's evidence among the first that a search returns?"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recollect.errors import BadInput
from recollect.evals.metrics import mean, ndcg_at, percentile, recall_at
from recollect.memory import AgentMemory

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}

# Deep enough that the ranking of sessions, read off the ranking of turns, does not run out of sessions.
_DEPTH = 200

_TIME = "%I:%M %p on %d %B, %Y"
_EVIDENCE = re.compile(r"D?(\d+):(\d+)")

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Turn:
    id: str
    session: str
    position: int
    speaker: str
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    id: str
    turns: tuple[Turn, ...]
    questions: tuple[Asked, ...]


@dataclass(slots=True)
class Tally:
    """The measures of some questions."""

    turn: dict[str, list[float]] = field(default_factory=dict)
    session: dict[str, list[float]] = field(default_factory=dict)

    def add(self, ranking: list[str], asked: Asked) -> None:
        sessions = list(dict.fromkeys(_session_of(turn) for turn in ranking))
        wanted = frozenset(_session_of(turn) for turn in asked.evidence)
        for k in (1, 5, 10, 25):
            self.turn.setdefault(f"recall@{k}", []).append(recall_at(k, ranking, asked.evidence))
        self.turn.setdefault("ndcg@10", []).append(ndcg_at(10, ranking, asked.evidence))
        for k in (5, 10):
            self.session.setdefault(f"recall@{k}", []).append(recall_at(k, sessions, wanted))

    def report(self) -> dict[str, Any]:
        return {
            "turn": {name: round(mean(values), 4) for name, values in self.turn.items()},
            "session": {name: round(mean(values), 4) for name, values in self.session.items()},
            "questions": len(self.turn.get("recall@1", ())),
        }


def load(path: Path) -> list[Conversation]:
    """The conversations of a LoCoMo file, or `BadInput` when it is not one."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        conversations = [_conversation(number, one) for number, one in enumerate(raw)]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a LoCoMo file: {type(error).__name__}: {error}") from error
    if not any(conversation.questions for conversation in conversations):
        raise BadInput(f"{path} is not a LoCoMo file: it has no questions with evidence, of categories 1 to 4")
    return conversations


async def evaluate(memory: AgentMemory, conversations: list[Conversation], progress: Progress) -> dict[str, Any]:
    """Store every turn through the public API, ask every question with the defaults, and measure.

    Each conversation is its own user. `min_relevance` is 0: a ranking is judged here, not what is worth showing.
    """
    total, by_category = Tally(), {number: Tally() for number in CATEGORIES}
    by_conversation: dict[str, Tally] = {}
    seconds: list[float] = []
    turns = sum(len(conversation.turns) for conversation in conversations)
    questions = sum(len(conversation.questions) for conversation in conversations)
    stored = asked_count = 0
    for conversation in conversations:
        mine = memory.scoped(user=conversation.id)
        for start in range(0, len(conversation.turns), 128):
            some = conversation.turns[start : start + 128]
            await mine.semantic.add_many(_facts(some))
            stored += len(some)
            progress("storing turns", stored, turns)
        tally = by_conversation.setdefault(conversation.id, Tally())
        for asked in conversation.questions:
            began = time.perf_counter()
            hits = await mine.semantic.search(asked.text, n=_DEPTH, min_relevance=0.0)
            seconds.append(time.perf_counter() - began)
            ranking = [str(hit.item.metadata["turn_id"]) for hit in hits]
            for one in (total, by_category[asked.category], tally):
                one.add(ranking, asked)
            asked_count += 1
            progress("asking questions", asked_count, questions)
    return {
        **total.report(),
        "by_category": {CATEGORIES[number]: tally.report() for number, tally in by_category.items() if tally.turn},
        "by_conversation": {name: tally.report() for name, tally in by_conversation.items() if tally.turn},
        "latency_ms": {
            "p50": round(1000 * percentile(seconds, 0.50), 2),
            "p95": round(1000 * percentile(seconds, 0.95), 2),
        },
    }


def _facts(turns: tuple[Turn, ...]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        told = asdict(turn)
        yield {
            "content": told["text"],
            "metadata": {"turn_id": turn.id},
            "session": turn.session,
            "position": turn.position,
            "speaker": turn.speaker,
            "at": turn.at,
        }


def _conversation(number: int, raw: dict[str, Any]) -> Conversation:
    talk = raw["conversation"]
    turns: list[Turn] = []
    sessions = sorted((name for name in talk if re.fullmatch(r"session_\d+", name)), key=lambda name: int(name[8:]))
    for name in sessions:
        at = datetime.strptime(talk[f"{name}_date_time"], _TIME).replace(tzinfo=UTC)
        for position, said in enumerate(talk[name]):
            turns.append(Turn(said["dia_id"], name, position, said["speaker"], _text(said), at))
    known = {turn.id for turn in turns}
    questions = [
        Asked(str(asked["question"]), asked["category"], evidence)
        for asked in raw["qa"]
        if asked["category"] in CATEGORIES and (evidence := _evidence(asked.get("evidence", []), known))
    ]
    return Conversation(str(raw.get("sample_id", f"conversation-{number}")), tuple(turns), tuple(questions))


def _text(said: dict[str, Any]) -> str:
    caption = said.get("blip_caption")
    return f"{said['text']} [shares image: {caption}]" if caption else str(said["text"])


def _evidence(raw: list[str], known: set[str]) -> frozenset[str]:
    """The evidence turns that exist; some are written several to a string or with stray characters."""
    found = {f"D{int(session)}:{int(turn)}" for one in raw for session, turn in _EVIDENCE.findall(str(one))}
    return frozenset(found & known)


def _session_of(turn: str) -> str:
    return turn.split(":")[0]
