"""The corpora as conversations: who said what, what is asked about it, and which items answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from recollect.evals import locomo

_HERE = Path(__file__).parent / "corpora"
UNANSWERABLE = "unanswerable"


@dataclass(frozen=True, slots=True)
class Item:
    """One text to remember; a turn of a dialogue has a session, a position, a speaker and a time."""

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
    def answerable(self) -> bool:
        return bool(self.evidence)


@dataclass(frozen=True, slots=True)
class Scope:
    """One user's items, and what is asked of them."""

    user: str
    items: tuple[Item, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    name: str
    scopes: tuple[Scope, ...]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Named groups of users that are also measured by themselves."""


def own() -> list[Corpus]:
    """The corpora in this project."""
    chats = _read("assistant_chats.json")["scopes"]
    return [
        Corpus("assistant chats", tuple(_chat(scope) for scope in chats)),
        *(Corpus(name, (_flat(name, _read(f"{name}.json")),)) for name in ("facts", "documents")),
    ]


def from_locomo(path: Path) -> Corpus:
    """LoCoMo with its questions of categories 1 to 4, and its first and last five conversations as parts."""
    scopes = tuple(_conversation(one) for one in locomo.load(path))
    users = tuple(scope.user for scope in scopes)
    return Corpus("LoCoMo", scopes, {"first five": users[:5], "last five": users[5:]})


def plain_texts(number: int) -> list[str]:
    """So many different texts of everyday length, each short enough to be one passage."""
    texts = [item.text for corpus in own() for scope in corpus.scopes for item in scope.items]
    short = [text for text in texts if len(text.split()) <= 150]
    again = (f"{text} ({round_})" if round_ else text for round_ in count() for text in short)
    return list(islice(again, number))


def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((_HERE / name).read_text("utf-8"))
    return read


def _chat(raw: dict[str, Any]) -> Scope:
    items = tuple(
        Item(turn["id"], turn["text"], session["id"], position, turn["role"], datetime.fromisoformat(session["at"]))
        for session in raw["sessions"]
        for position, turn in enumerate(session["turns"])
    )
    return Scope(raw["user"], items, _questions(raw["questions"]))


def _flat(name: str, raw: dict[str, Any]) -> Scope:
    return Scope(name, tuple(Item(one["id"], one["text"]) for one in raw["items"]), _questions(raw["questions"]))


def _questions(raw: list[dict[str, Any]]) -> tuple[Question, ...]:
    return tuple(Question(one["q"], one["category"], frozenset(one["evidence"])) for one in raw)


def _conversation(raw: locomo.Conversation) -> Scope:
    items = tuple(Item(turn.id, turn.text, turn.session, turn.position, turn.speaker, turn.at) for turn in raw.turns)
    asked = tuple(Question(one.text, locomo.CATEGORIES[one.category], one.evidence) for one in raw.questions)
    return Scope(raw.id, items, asked)
