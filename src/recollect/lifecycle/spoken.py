"""Whose words an entry of a log holds, and how far they may be trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recollect.lifecycle.known import TRUSTED
from recollect.lifecycle.promote import Worthy, worthy
from recollect.lifecycle.recited import is_recited, own_words
from recollect.lifecycle.statements import asks_to_be_forgotten
from recollect.recall.lines import is_recalled
from recollect.stores.ops import Entry
from recollect.tiers.entries import is_quarantined
from recollect.tiers.facts import trust_in
from recollect.values import NOTHING, Space

Speaker = Literal["user", "agent"]

_TRUST = {"user": 1.0, "human": 1.0, "agent": 0.8, "assistant": 0.8, "system": 1.0, "tool": 0.3, "web": 0.3}
NOT_THE_USER = frozenset("assistant agent ai bot model system tool function developer llm".split())

_LABEL = re.compile(r"^[ \t]*(user|human|assistant|agent|ai|bot|system|tool|model)[ \t]*:[ \t]*", re.I | re.M)
# What an agent decided or found out fits into a few sentences.
_LONGEST_DECISION = 500
_TELLING_OUTCOME = 0.7


@dataclass(frozen=True, slots=True)
class Spoken:
    """Words that may be learned from, with where they stand."""

    space: Space
    entry: Entry
    text: str
    by: Speaker
    trust: float

    @property
    def source(self) -> str:
        """Where a fact made of this comes from."""
        return f"{self.space.tier}:{self.space.session}" if self.space.session else self.space.tier

    def worthy(self) -> list[Worthy]:
        """What of it deserves to last."""
        if self.by == "user":
            return worthy(self.text)
        return [Worthy(self.text.strip(), "decision" if self.entry.kind == "decision" else "outcome")]


def spoken(space: Space, entry: Entry) -> Spoken | None:
    """The words of an entry that may be learned from; None where there are none.

    Only what the user states and what the agent decided counts. What a tool or an assistant says may be a page that
    somebody else wrote, or what recall had told it.
    """
    told = entry.metadata.get("given", NOTHING) if space.tier == "episodic" else entry.metadata
    if not isinstance(told, Mapping) or told.get("recalled") or is_quarantined(entry):
        return None
    by = _speaker(space, entry, told)
    if by is None or (trust := _trust(told, by)) < TRUSTED:
        return None
    # An application may have put the recalled block before the question: what is left is the user's own.
    text = own_words(_users_part(entry.content)) if by == "user" else entry.content
    if not text.strip() or asks_to_be_forgotten(text) or (by == "agent" and (is_recalled(text) or is_recited(text))):
        return None
    return Spoken(space, entry, text, by, trust)


def _speaker(space: Space, entry: Entry, told: Mapping[str, Any]) -> Speaker | None:
    """Who may be learned from here; nobody, mostly."""
    if space.tier == "conversation":
        return "user" if entry.kind == "user" else None
    if entry.kind in ("decision", "outcome"):
        # The steps of a task are its own: what they taught is learned when it ends.
        telling = entry.kind == "decision" or entry.importance >= _TELLING_OUTCOME
        return "agent" if telling and "task" not in told and len(entry.content) <= _LONGEST_DECISION else None
    role = str(told.get("role") or told.get("speaker") or "").strip().lower()
    return "user" if entry.kind == "turn" and role not in NOT_THE_USER else None


def _users_part(content: str) -> str:
    """Of `user: …` and `assistant: …`, what the user said; all of it where nobody is named."""
    labels = list(_LABEL.finditer(content))
    if not labels:
        return content
    ends = [*(label.start() for label in labels[1:]), len(content)]
    mine = [
        content[label.end() : end].strip()
        for label, end in zip(labels, ends, strict=True)
        if label[1].lower() in ("user", "human")
    ]
    return "\n".join(mine)


def _trust(told: Mapping[str, Any], by: str) -> float:
    """The least of what the entry says about itself and what its speaker is worth."""
    trusts = [_TRUST[by]]
    given = told.get("trust")
    if isinstance(given, int | float) and not isinstance(given, bool) and 0.0 <= given <= 1.0:
        trusts.append(float(given))
    if isinstance(source := told.get("source"), str):
        # A page goes by its address, and is worth as little as any.
        known = trust_in(source) if "://" in source else _TRUST.get(source.split(":")[0].lower(), TRUSTED)
        trusts.append(known)
    return min(trusts)
