"""Rows into values and back: the one place that knows in which order the columns stand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.damage import MISREAD, damaged, mapping, texts
from recollect.stores.evidence import Brief
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.text import (
    MARK,
    given,
    given_json,
    handle,
    kept,
    kept_json,
    maybe_given,
    maybe_handle,
    maybe_kept,
)
from recollect.values import NOTHING, MemoryItem, Scope, Space, Turn

ITEM = """
    r.id, r.version, r.content, r.metadata, r.importance, r.access_count, r.last_accessed, r.created_at, r.valid_from,
    r.valid_to, r.superseded_by, r.expires_at, r.source, r.trust, r.key, r.session, r.position, r.speaker,
    r.derived_from, r.by_user, r.by_agent, r.by_session, r.pinned, r.decayed_at, r.learned_at
"""

BRIEF = """
    r.id, r.session, r.position, r.speaker, r.created_at, r.importance, r.trust, r.source, r.length, r.passages
"""

# An item with what ranking has to know of it, its words, and its text unless that is long: few candidates are shown.
_UNLESS_LONG = "case when r.length <= 500 then r.content end as content"
CANDIDATE = f"{ITEM.replace('r.content', _UNLESS_LONG)}, r.length, r.passages, r.terms"
WIDTH = len(CANDIDATE.split(","))
"""How many columns that are."""

TASK = """
    t.id, t.status, t.version, t.fence, t.owner, t.renewed_at, t.lease_ttl, t.plan_hash, t.ttl, t.expires_at,
    t.created_at, t.updated_at
"""

# Made once: `json.dumps` makes one anew for every value that is not written its usual way.
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# The space that a statement is about, by its names: a reader needs no number of it.
SPACE = """
    (select id from recollect.spaces where tenant = %(tenant)s and handle = %(space)s)
"""


def named(space: Space) -> Values:
    """The parameters that every statement about a space has."""
    return {"tenant": kept(space.tenant), "space": space_handle(space)}


def space_handle(space: Space) -> str:
    # A scope's names hold no control characters, so this joins them without taking two for one.
    return handle("\n".join((space.tier, space.user, space.agent, space.session)))


def space_of(row: Sequence[Any]) -> Space:
    tenant, tier, user, agent, session = row
    return Space(given(tenant), tier, given(user), given(agent), given(session))


def micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def moment(value: int | None) -> datetime | None:
    return None if value is None else from_micros(value)


def dumped(value: Mapping[str, Any] | Sequence[str]) -> str:
    plain = dict(value) if isinstance(value, Mapping) else list(value)
    text = _encoded(plain)
    # What is not kept as it is can only be there escaped, and next to nothing is.
    return _encoded(kept_json(plain)) if "\\u0000" in text or "\\u0001" in text else text


def dumped_rows(rows: Sequence[Values]) -> str:
    """Rows as the server takes many in one parameter; their texts are kept already."""
    return _encoded(rows)


def loaded(text: str) -> Mapping[str, Any]:
    return NOTHING if text == "{}" else MappingProxyType(mapping("metadata", _parsed(text)))


def _parsed(text: str) -> Any:
    # A mark can only be there escaped: most texts are known to need no second look.
    value = json.loads(text)
    return given_json(value) if "\\u0001" in text else value


def item_values(item: MemoryItem) -> Values:
    """What an item writes; its version, its accesses and its words are the batch's own business."""
    turn = item.turn
    return {
        "handle": handle(item.id),
        "id": kept(item.id),
        "content": kept(item.content),
        "metadata": dumped(item.metadata),
        "importance": float(item.importance),
        "created_at": to_micros(item.created_at),
        "valid_from": micros(item.valid_from),
        "valid_to": micros(item.valid_to),
        "superseded_by": maybe_kept(item.superseded_by),
        "expires_at": micros(item.expires_at),
        "source": kept(item.source),
        "trust": float(item.trust),
        "key": maybe_kept(item.key),
        "key_handle": maybe_handle(item.key),
        "session": kept(turn.session) if turn else None,
        "session_handle": handle(turn.session) if turn else None,
        "position": float(turn.position) if turn else None,
        "speaker": maybe_kept(turn.speaker) if turn else None,
        "derived_from": dumped(item.derived_from),
        "by_user": kept(item.scope.user),
        "by_agent": kept(item.scope.agent),
        "by_session": maybe_kept(item.scope.session),
        "pinned": bool(item.pinned),
        "decayed_at": micros(item.decayed_at),
        "learned_at": micros(item.learned_at),
    }


@lru_cache(maxsize=1024)
def _scope(tenant: str, user: str, agent: str, session: str | None) -> Scope:
    """Scopes are checked when they are made, and the rows of one answer nearly always share theirs."""
    return Scope(tenant, user, agent, session)


def item_of(space: Space, row: Sequence[Any]) -> MemoryItem:
    session, position, speaker = row[15:18]
    try:
        return MemoryItem(
            id=given(row[0]),
            version=row[1],
            content=given(row[2]),
            metadata=loaded(row[3]),
            importance=row[4],
            access_count=row[5],
            last_accessed=moment(row[6]),
            created_at=from_micros(row[7]),
            valid_from=moment(row[8]),
            valid_to=moment(row[9]),
            superseded_by=maybe_given(row[10]),
            expires_at=moment(row[11]),
            source=given(row[12]),
            trust=row[13],
            key=maybe_given(row[14]),
            turn=None if session is None else Turn(given(session), position, maybe_given(speaker)),
            derived_from=texts("derived_from", _parsed(row[18])) if row[18] != "[]" else (),
            scope=_scope(space.tenant, given(row[19]), given(row[20]), maybe_given(row[21])),
            pinned=row[22],
            decayed_at=moment(row[23]),
            learned_at=moment(row[24]),
            tier=space.tier,
        )
    except MISREAD as error:
        raise damaged(f"the row of item {row[0]!r:.80}", error) from error


# The places of a `CANDIDATE`'s columns in a brief.
_OF_A_BRIEF = itemgetter(0, 15, 16, 17, 7, 4, 13, 12, WIDTH - 3, WIDTH - 2)


def candidate_of(row: Sequence[Any]) -> Brief:
    """What ranking has to know of a `CANDIDATE`. Many are read for every question."""
    return brief_of(_OF_A_BRIEF(row))


def brief_of(row: Sequence[Any]) -> Brief:
    brief = Brief._make(row)
    id, session, _, speaker, _, _, _, source, _, _ = brief
    # Next to none needs another look.
    if not (MARK in id or MARK in source or MARK in (session or "") or MARK in (speaker or "")):
        return brief
    return brief._replace(
        id=given(id), session=maybe_given(session), speaker=maybe_given(speaker), source=given(source)
    )
