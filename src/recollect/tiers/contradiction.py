"""Contradictions between facts: a later claim ends the earlier claims that it contradicts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from recollect.language.claims import ClaimClause, SlotClaim, contradicts
from recollect.language.novelty import MIN_TRUST
from recollect.language.rules import ENGLISH
from recollect.tiers.facts import get_valid_from
from recollect.types import MemoryItem, make_content_id

ENDED_BY = "ended_by"
"""The metadata key with the id of the later statement that ended an item."""


@dataclass(frozen=True, slots=True)
class Supersession:
    """A new item, the items that it ends, and new items for the clauses of ended items that still hold."""

    item: MemoryItem
    ended_items: tuple[MemoryItem, ...] = ()
    remaining_items: tuple[MemoryItem, ...] = ()


def resolve_contradictions(item: MemoryItem, others: Iterable[MemoryItem]) -> Supersession:
    """Return the item and those that it contradicts, with the earlier ones ended; a less trusted item ends nothing."""
    clauses = ENGLISH.parse_clauses(item.content)
    ended: list[MemoryItem] = []
    remaining: list[MemoryItem] = []
    later: list[tuple[MemoryItem, tuple[ClaimClause, ...]]] = []
    for other in others:
        other_clauses = ENGLISH.parse_clauses(other.content)
        if other.id == item.id or not is_user_statement(other) or not other_clauses:
            continue
        if get_valid_from(other) > item.created_at:
            if other.trust >= item.trust and any(_is_contradicted(clause.claim, other_clauses) for clause in clauses):
                later.append((other, other_clauses))
        elif (
            other.live_at(item.created_at)
            and other.trust <= item.trust
            and any(_is_contradicted(clause.claim, clauses) for clause in other_clauses)
        ):
            ended.append(_mark_ended(other, item.id, item.created_at))
            remaining += _build_remainders(other, other_clauses, clauses, item.created_at)
    if later:
        successor, successor_clauses = min(later, key=lambda pair: get_valid_from(pair[0]))
        since = get_valid_from(successor)
        remaining += _build_remainders(item, clauses, successor_clauses, since)
        item = _mark_ended(item, successor.id, since)
    return Supersession(item, tuple(ended), tuple(remaining))


def is_user_statement(item: MemoryItem) -> bool:
    """Return True if the item is the user's own statement, which a later statement of the user can end."""
    is_replaceable = item.key is None and not item.pinned and item.turn is None and item.trust >= MIN_TRUST
    return is_replaceable and item.source.split(":")[0] in ("user", "human", "conversation", "episodic")


def is_merged_copy(item: MemoryItem) -> bool:
    """Return True if another item says the same. An item that was ended by a contradiction is history, not a copy."""
    return item.superseded_by is not None and item.key is None and item.metadata.get(ENDED_BY) != item.superseded_by


def _is_contradicted(claim: SlotClaim, clauses: Iterable[ClaimClause]) -> bool:
    return any(contradicts(clause.claim, claim) for clause in clauses)


def _mark_ended(item: MemoryItem, successor_id: str, at: datetime) -> MemoryItem:
    metadata = MappingProxyType({**item.metadata, ENDED_BY: successor_id})
    return replace(item, valid_to=at, superseded_by=successor_id, metadata=metadata)


def _build_remainders(
    item: MemoryItem, clauses: Iterable[ClaimClause], contradicting: tuple[ClaimClause, ...], at: datetime
) -> Iterator[MemoryItem]:
    """Yield a new item for each clause that still holds: a move ends half of "I'm vegetarian and live in Lisbon"."""
    for clause in clauses:
        if not _is_contradicted(clause.claim, contradicting):
            yield replace(
                item,
                id=make_content_id(item.scope.space(item.tier), clause.text, item.id),
                content=clause.text,
                valid_from=at,
                derived_from=(item.id,),
                access_count=0,
                last_accessed=None,
                version=1,
            )
