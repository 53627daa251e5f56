"""Corpora of `retrieval.py`: items with speakers and times, questions, and the items that answer them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from recollect.evals import locomo

_DIRECTORY = Path(__file__).parent / "corpora"
_MAX_WORDS = 150


@dataclass(frozen=True, slots=True)
class Item:
    """Text to remember; a turn of a dialogue also has a session, a position, a speaker and a time."""

    id: str
    text: str
    session: str | None = None
    position: int | None = None
    speaker: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    category: str
    evidence: frozenset[str]

    @property
    def is_answerable(self) -> bool:
        return bool(self.evidence)


@dataclass(frozen=True, slots=True)
class Scope:
    """One user's items and the questions about them."""

    user: str
    items: tuple[Item, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    name: str
    scopes: tuple[Scope, ...]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Named groups of users that are also measured separately."""


def load_own_corpora() -> list[Corpus]:
    """Return the corpora of this project."""
    chats = _load_json("assistant_chats.json")["scopes"]
    return [
        Corpus("assistant chats", tuple(_convert_chat(scope) for scope in chats)),
        *(Corpus(name, (_convert_list(name, _load_json(f"{name}.json")),)) for name in ("facts", "documents")),
    ]


def load_locomo(path: Path) -> Corpus:
    """Return LoCoMo with the questions of categories 1 to 4; the first and last five conversations are parts."""
    scopes = tuple(_convert_conversation(conversation) for conversation in locomo.load_conversations(path))
    users = tuple(scope.user for scope in scopes)
    return Corpus("LoCoMo", scopes, {"first five": users[:5], "last five": users[5:]})


def load_short_texts(number: int) -> list[str]:
    """Return `number` different texts of at most `_MAX_WORDS` words, so that each is one passage."""
    texts = [item.text for corpus in load_own_corpora() for scope in corpus.scopes for item in scope.items]
    short = [text for text in texts if len(text.split()) <= _MAX_WORDS]
    numbered = (f"{text} ({round_})" if round_ else text for round_ in count() for text in short)
    return list(islice(numbered, number))


def _load_json(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_DIRECTORY / name).read_text("utf-8"))
    return data


def _convert_chat(raw: dict[str, Any]) -> Scope:
    items = tuple(
        Item(turn["id"], turn["text"], session["id"], position, turn["role"], datetime.fromisoformat(session["at"]))
        for session in raw["sessions"]
        for position, turn in enumerate(session["turns"])
    )
    return Scope(raw["user"], items, _convert_questions(raw["questions"]))


def _convert_list(name: str, raw: dict[str, Any]) -> Scope:
    items = tuple(Item(item["id"], item["text"]) for item in raw["items"])
    return Scope(name, items, _convert_questions(raw["questions"]))


def _convert_questions(raw: list[dict[str, Any]]) -> tuple[Question, ...]:
    return tuple(Question(question["q"], question["category"], frozenset(question["evidence"])) for question in raw)


def _convert_conversation(raw: locomo.LocomoConversation) -> Scope:
    items = tuple(Item(turn.id, turn.text, turn.session, turn.position, turn.speaker, turn.at) for turn in raw.turns)
    questions = tuple(
        Question(question.text, locomo.CATEGORIES[question.category], question.evidence) for question in raw.questions
    )
    return Scope(raw.id, items, questions)
