"""How far a line of a log is trusted: as it says itself, and where it says nothing, by who had a part in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from recollect.errors import BadInput
from recollect.tiers.facts import Fact
from recollect.tiers.messages import Message, item_of
from recollect.tiers.tool_pairs import ends_of

TRUST = "trust"
"""Where the metadata of a message, an episode or a summary says how far it is trusted."""

IN_TOOLS = float(Fact(content="", source="tool").trusted)

UNKNOWN = 0.5
"""For what may quote anybody, and does not say whom."""


def checked_trust(trust: Any) -> float | None:
    """A number from 0 to 1, or None where nothing was said."""
    if trust is not None and not _is_trust(trust):
        raise BadInput(f"trust is a number from 0 to 1, not {trust!r:.80}")
    return None if trust is None else float(trust)


def told_trust(metadata: Mapping[str, Any]) -> float | None:
    """What it says itself; None when it says nothing."""
    given = metadata.get(TRUST)
    return float(given) if _is_trust(given) else None


def trust_of(message: Message) -> float:
    """How far a message is trusted, whose ever words it is made of."""
    told = told_trust(message.metadata)
    if told is not None:
        return told
    if message.role == "tool" or _had_a_tool(message):
        return IN_TOOLS
    # What came of a task quotes what was read for it.
    return UNKNOWN if message.role == "assistant" and "task" in message.metadata else 1.0


def _had_a_tool(message: Message) -> bool:
    """Whether a tool was called or answers in it; a text alone tells of neither."""
    if message.blocks is None and message.metadata.keys().isdisjoint(("tool_calls", "tool_call_id")):
        return False
    ends = ends_of(item_of(message))
    return bool(ends.calls or ends.results)


def trust_in_episode(kind: str, metadata: Mapping[str, Any]) -> float:
    """The same of an episode, which is trusted no further than a tool if one had its say there."""
    told = told_trust(metadata)
    if is_of_tool(kind, metadata):
        return IN_TOOLS if told is None else min(told, IN_TOOLS)
    if told is None and kind == "outcome" and "task" in metadata and metadata.get("success") is not None:
        return UNKNOWN
    return 1.0 if told is None else told


def is_of_tool(kind: str, metadata: Mapping[str, Any]) -> bool:
    """Whether it tells what a tool returned. A step that failed tells what the tool said of it."""
    return kind in ("tool", "tool_call") or (kind == "error" and "step" in metadata)


def _is_trust(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
