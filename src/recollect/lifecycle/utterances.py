"""Utterances in log entries that facts may be made of, with their speaker and trust."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recollect.language.novelty import MIN_TRUST
from recollect.language.promotion_rules import PromotableStatement
from recollect.language.recalled_text import extract_own_words, has_recalled_mark, is_recalled
from recollect.language.rules import ENGLISH
from recollect.language.sentences import NON_USER_ROLES
from recollect.stores.writes import Entry
from recollect.tiers.facts import source_trust
from recollect.tiers.log_entries import is_quarantined
from recollect.tiers.messages import read_trust
from recollect.types import EMPTY_MAPPING, Space

Speaker = Literal["user", "agent"]

_SPEAKER_TRUST = {"user": 1.0, "human": 1.0, "agent": 0.8, "assistant": 0.8, "system": 1.0, "tool": 0.3, "web": 0.3}
_SPEAKER_LABEL = re.compile(r"^[ \t]*(user|human|assistant|agent|ai|bot|system|tool|model)[ \t]*:[ \t]*", re.I | re.M)

# A decision or an outcome fits into a few sentences; a longer text is something else.
_MAX_DECISION_LENGTH = 500
_MIN_OUTCOME_IMPORTANCE = 0.7


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text of the user or the agent, and the log entry that holds it."""

    space: Space
    entry: Entry
    text: str
    speaker: Speaker
    trust: float

    @property
    def source(self) -> str:
        """The source of a fact made of this utterance."""
        return f"{self.space.tier}:{self.space.session}" if self.space.session else self.space.tier

    def find_promotable(self) -> list[PromotableStatement]:
        """Return the statements that are worth keeping."""
        if self.speaker == "user":
            return ENGLISH.find_promotable_statements(self.text)
        return [PromotableStatement(self.text.strip(), "decision" if self.entry.kind == "decision" else "outcome")]


def parse_utterance(space: Space, entry: Entry) -> Utterance | None:
    """Return what the user said or the agent decided in an entry; None if nothing may be learned from it.

    Tool results and assistant messages are excluded: they may repeat a web page or recalled memories.
    """
    metadata = entry.metadata.get("given", EMPTY_MAPPING) if space.tier == "episodic" else entry.metadata
    if not isinstance(metadata, Mapping) or metadata.get("recalled") or is_quarantined(entry):
        return None
    speaker = _find_speaker(space, entry, metadata)
    if speaker is None or (trust := _compute_trust(metadata, speaker)) < MIN_TRUST:
        return None
    if speaker == "user":
        # The application may have put recalled memories into the message.
        text = extract_own_words(_extract_user_text(entry.content))
    else:
        text = entry.content
        if is_recalled(text) or has_recalled_mark(text):
            return None
    if not text.strip() or ENGLISH.is_off_the_record(text):
        return None
    return Utterance(space, entry, text, speaker, trust)


def _find_speaker(space: Space, entry: Entry, metadata: Mapping[str, Any]) -> Speaker | None:
    """Return the speaker of the entry if facts may be learned from it; None for most entries."""
    if space.tier == "conversation":
        return "user" if entry.kind == "user" else None
    if entry.kind in ("decision", "outcome"):
        # Facts are learned from the outcome of a task, not from its steps.
        is_important = entry.kind == "decision" or entry.importance >= _MIN_OUTCOME_IMPORTANCE
        return (
            "agent" if is_important and "task" not in metadata and len(entry.content) <= _MAX_DECISION_LENGTH else None
        )
    role = str(metadata.get("role") or metadata.get("speaker") or "").strip().lower()
    return "user" if entry.kind == "turn" and role not in NON_USER_ROLES else None


def _extract_user_text(content: str) -> str:
    """Return the parts labeled `user:` of a labeled transcript; the whole content if it has no labels."""
    labels = list(_SPEAKER_LABEL.finditer(content))
    if not labels:
        return content
    ends = [*(label.start() for label in labels[1:]), len(content)]
    return "\n".join(
        content[label.end() : end].strip()
        for label, end in zip(labels, ends, strict=True)
        if label[1].lower() in ("user", "human")
    )


def _compute_trust(metadata: Mapping[str, Any], speaker: str) -> float:
    """Return the lowest trust of the speaker, the entry's `trust` and its `source`."""
    trusts = [_SPEAKER_TRUST[speaker]]
    trust, source = read_trust(metadata), metadata.get("source")
    if trust is not None:
        trusts.append(trust)
    if isinstance(source, str):
        is_url = "://" in source
        trusts.append(source_trust(source) if is_url else _SPEAKER_TRUST.get(source.split(":")[0].lower(), MIN_TRUST))
    return min(trusts)
