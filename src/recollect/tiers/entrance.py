"""What every line of a log passes before it is kept: secrets are treated, and orders from strangers are marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from recollect.guard.instructions import held_back
from recollect.guard.policy import Policy, noted
from recollect.stores.ops import Entry
from recollect.tiers.entries import QUARANTINED
from recollect.tiers.messages import message_of
from recollect.tiers.trust import trust_in_episode, trust_of


def message(policy: Policy, entry: Entry) -> Entry:
    """A message as it may be kept."""
    text, about = policy.text("content", entry.content), policy.plain("metadata", entry.metadata)
    if text.kinds or about.kinds:
        entry = replace(entry, content=text.value, metadata=noted(about.value, text, about))
    return _held(entry, held_back(entry.content, trust_of(message_of(entry))))


def episode(policy: Policy, entry: Entry) -> Entry:
    """An episode as it may be kept; what we note stands beside what the caller gave, in its envelope."""
    given: Mapping[str, Any] = entry.metadata.get("given", {})
    text, about = policy.text("content", entry.content), policy.plain("metadata", given)
    if text.kinds or about.kinds:
        told = noted(about.value, text, about)
        entry = replace(entry, content=text.value, metadata={**entry.metadata, "given": told})
    return retold(entry)


def retold(entry: Entry) -> Entry:
    """An episode of words that have been treated, as they were when they were said."""
    given: Mapping[str, Any] = entry.metadata.get("given", {})
    return _held(entry, held_back(entry.content, trust_in_episode(entry.kind, given)))


def _held(entry: Entry, why: Sequence[str]) -> Entry:
    return replace(entry, metadata={**entry.metadata, QUARANTINED: list(why)}) if why else entry
