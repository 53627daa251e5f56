"""Rows into values and back: the one place that knows in which order the columns stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros, to_micros
from recollect.stores.damage import MISREAD, damaged, mapping, texts
from recollect.values import NOTHING, MemoryItem, Scope, Space, Turn

SEQ_BITS = 28
PART_BITS = 6

ITEM = """
    id, version, content, metadata, importance, access_count, last_accessed, created_at, valid_from, valid_to,
    superseded_by, expires_at, source, trust, key, session, position, speaker, derived_from,
    by_user, by_agent, by_session, pinned, decayed_at, learned_at
"""

BRIEF = "id, session, position, speaker, created_at, importance, trust, source, length, passages"


def place_of(space: int, seq: int) -> int:
    return space << SEQ_BITS | seq


def seq_of(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers that places have within their space."""
    return places & ((1 << SEQ_BITS) - 1)


def places_of(space: int) -> tuple[int, int]:
    """The first and last place that a space may use."""
    return space << SEQ_BITS, (space << SEQ_BITS) | ((1 << SEQ_BITS) - 1)


def micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def moment(value: int | None) -> datetime | None:
    return None if value is None else from_micros(value)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loaded(text: str) -> Mapping[str, Any]:
    return NOTHING if text == "{}" else MappingProxyType(mapping("metadata", json.loads(text)))


def item_values(item: MemoryItem, terms: str, length: int, passages: int | None) -> tuple[Any, ...]:
    """What an item writes, from `content` on; identity, version and access are the statement's own business."""
    turn = item.turn
    return (
        item.content,
        dumped(dict(item.metadata)),
        item.importance,
        to_micros(item.created_at),
        micros(item.valid_from),
        micros(item.valid_to),
        item.superseded_by,
        micros(item.expires_at),
        item.source,
        item.trust,
        item.key,
        turn.session if turn else None,
        float(turn.position) if turn else None,
        turn.speaker if turn else None,
        dumped(list(item.derived_from)),
        item.scope.user,
        item.scope.agent,
        item.scope.session,
        int(item.pinned),
        micros(item.decayed_at),
        micros(item.learned_at),
        terms,
        length,
        passages,
    )


@lru_cache(maxsize=1024)
def _scope(tenant: str, user: str, agent: str, session: str | None) -> Scope:
    """Scopes are checked when they are made, and the rows of one answer nearly always share theirs."""
    return Scope(tenant, user, agent, session)


def forget_names() -> None:
    """Drop the scopes that are known."""
    _scope.cache_clear()


def item_of(space: Space, row: tuple[Any, ...]) -> MemoryItem:
    session, position, speaker = row[15:18]
    try:
        return MemoryItem(
            id=row[0],
            version=row[1],
            content=row[2],
            metadata=loaded(row[3]),
            importance=row[4],
            access_count=row[5],
            last_accessed=moment(row[6]),
            created_at=from_micros(row[7]),
            valid_from=moment(row[8]),
            valid_to=moment(row[9]),
            superseded_by=row[10],
            expires_at=moment(row[11]),
            source=row[12],
            trust=row[13],
            key=row[14],
            turn=None if session is None else Turn(session, position, speaker),
            derived_from=texts("derived_from", json.loads(row[18])) if row[18] != "[]" else (),
            scope=_scope(space.tenant, row[19], row[20], row[21]),
            pinned=bool(row[22]),
            decayed_at=moment(row[23]),
            learned_at=moment(row[24]),
            tier=space.tier,
        )
    except MISREAD as error:
        raise damaged(f"the row of item {row[0]!r:.80}", error) from error


def accessed(row: tuple[Any, ...], times: int, last: int) -> tuple[Any, ...]:
    """An item's row with accesses that are not written yet."""
    return (*row[:5], row[5] + times, max(row[6] or 0, last), *row[7:])


def space_id(connection: apsw.Connection, space: Space) -> int | None:
    found: int | None = connection.execute(
        "select id from spaces where tenant = ? and tier = ? and user = ? and agent = ? and session = ?",
        parts_of(space),
    ).get
    return found


def parts_of(space: Space) -> tuple[str, str, str, str, str]:
    return space.tenant, space.tier, space.user, space.agent, space.session
