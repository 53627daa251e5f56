"""What every line of a log passes before it is kept: secrets are treated, and orders from strangers are marked."""

from __future__ import annotations

from collections.abc import Mapping
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
    kept = replace(entry, content=text.value, metadata=noted(about.value, text, about))
    why = held_back(kept.content, trust_of(message_of(kept)))
    return replace(kept, metadata={**kept.metadata, QUARANTINED: list(why)}) if why else kept


def episode(policy: Policy, entry: Entry) -> Entry:
    """An episode as it may be kept; what we note stands beside what the caller gave, in its envelope."""
    given: Mapping[str, Any] = entry.metadata.get("given", {})
    text, about = policy.text("content", entry.content), policy.plain("metadata", given)
    told = noted(about.value, text, about)
    why = held_back(text.value, trust_in_episode(entry.kind, told))
    metadata = {**entry.metadata, **({"given": told} if told else {}), **({QUARANTINED: list(why)} if why else {})}
    return replace(entry, content=text.value, metadata=metadata)
