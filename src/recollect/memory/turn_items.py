"""What was said as items that are searched: which words of a conversation, under which names, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from recollect.inference.summarise import extract
from recollect.recall.leaning import is_bare
from recollect.recall.lines import without_recalled
from recollect.stores.ops import Entry
from recollect.tiers.entries import is_quarantined
from recollect.tiers.messages import BLOCKS, message_of
from recollect.tiers.trust import is_of_tool, trust_of
from recollect.values import MemoryItem, Scope, Space, Turn, content_id

SAID_BY = frozenset(("user", "assistant", "tool"))
"""Whose words are searched; instructions are of their own session alone."""

# A page that a tool returned is material: what it is about is enough to find it by, and the log has all of it.
_OF_A_TOOL = 200

# What a provider needs of a message. It is as long as the message, is in the log, and says nothing more.
_LEFT_TO_THE_LOG = (BLOCKS, "tool_calls")

_UP_TO = "log:index:"


@lru_cache(maxsize=1024)
def owner_of(space: Space) -> Scope:
    """Whose conversation it is, in whichever session."""
    return Scope(space.tenant, space.user, space.agent)


def space_of(scope: Scope) -> Space:
    """Where the items are: one space for all sessions of a user with an agent."""
    return Space(scope.tenant, "conversation", user=scope.user, agent=scope.agent)


def id_of(space: Space, entry: Entry) -> str:
    """The id of an entry's item: the same entry is the same item, however often it is indexed."""
    return content_id(space, entry.id)


def item_of(space: Space, entry: Entry) -> MemoryItem | None:
    """An entry of a conversation as the item that it is found by; None where there is nothing to find.

    What recall wrote is left out: it was not said here, it was quoted. So are orders of strangers.
    """
    text = without_recalled(entry.content) if entry.kind in SAID_BY else ""
    if not text.strip() or is_bare(text) or is_quarantined(entry):
        return None
    return MemoryItem(
        id=id_of(space, entry),
        content=extract(text, _OF_A_TOOL) if entry.kind == "tool" else text,
        scope=owner_of(space),
        created_at=entry.at,
        tier="conversation",
        metadata={name: value for name, value in entry.metadata.items() if name not in _LEFT_TO_THE_LOG},
        importance=entry.importance,
        source="tool" if is_of_tool(entry.kind, entry.metadata) else entry.kind,
        trust=trust_of(message_of(entry)),
        turn=Turn(space.session, float(entry.seq), entry.kind),
        derived_from=(entry.id,),
    )


def told_of(item: MemoryItem) -> tuple[Space, Entry, MemoryItem]:
    """Where an item is from: the log, the entry as far as it is known, and the entry as it is shown."""
    assert item.turn is not None and item.turn.speaker is not None
    session = item.turn.session or None
    scope = replace(item.scope, session=session)
    [id] = item.derived_from
    entry = Entry(
        id=id,
        kind=item.turn.speaker,
        content=item.content,
        at=item.created_at,
        metadata=item.metadata,
        importance=item.importance,
        seq=int(item.turn.position),
    )
    shown = replace(item, id=id, scope=scope, turn=None if session is None else item.turn, derived_from=(), version=1)
    return scope.space("conversation"), entry, shown


def name_of_mark(space: Space) -> str:
    """The name of the note on how far a log is indexed. Like those of the lifecycle it is not exported."""
    return f"{_UP_TO}{space.session}"


def mark(space: Space, told: Mapping[str, Any], held: MemoryItem | None, now: datetime) -> MemoryItem:
    """That note."""
    name = name_of_mark(space)
    return MemoryItem(
        id=name,
        content=name,
        scope=owner_of(space),
        tier="lifecycle",
        created_at=now if held is None else held.created_at,
        metadata=told,
        importance=0.0,
        source="lifecycle",
    )
