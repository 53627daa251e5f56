"""Which facts a new one ends, and which have ended it already: purely, from what each claims and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from recollect.lifecycle.claims import Claim, Clause, clauses_of, ends
from recollect.lifecycle.forget import ENDED_BY
from recollect.lifecycle.known import TRUSTED
from recollect.values import MemoryItem, content_id


@dataclass(frozen=True, slots=True)
class Succession:
    """What becomes of a new item and of those before it; `left` is what still holds of those that said more."""

    item: MemoryItem
    ended: tuple[MemoryItem, ...] = ()
    left: tuple[MemoryItem, ...] = ()


def succession(item: MemoryItem, others: Iterable[MemoryItem]) -> Succession:
    """Put an item among others that claim something of the same slots, in whichever order they are read.

    What is trusted less ends nothing: then both stay, with their dates.
    """
    clauses = clauses_of(item.content)
    ended: list[MemoryItem] = []
    left: list[MemoryItem] = []
    later: list[tuple[MemoryItem, tuple[Clause, ...]]] = []
    for other in others:
        theirs = clauses_of(other.content)
        if other.id == item.id or not is_own(other) or not theirs:
            continue
        if since(other) > item.created_at:
            if other.trust >= item.trust and any(_is_ended(clause.claim, theirs) for clause in clauses):
                later.append((other, theirs))
        elif (
            other.live_at(item.created_at)
            and other.trust <= item.trust
            and any(_is_ended(clause.claim, clauses) for clause in theirs)
        ):
            ended.append(_outdated(other, item.id, item.created_at))
            left += _left_of(other, theirs, clauses, item.created_at)
    if later:
        heir, theirs = min(later, key=lambda one: since(one[0]))
        left += _left_of(item, clauses, theirs, since(heir))
        item = _outdated(item, heir.id, since(heir))
    return Succession(item, tuple(ended), tuple(left))


def is_own(item: MemoryItem) -> bool:
    """Whether an item is the user's own word, to be ended by their word.

    A key has its own way of being replaced, what is pinned is held fast, and a turn is the record of what was said.
    What a page or a tool said is about somebody else: its `I` is not the user.
    """
    if item.key is not None or item.pinned or item.turn is not None or item.trust < TRUSTED:
        return False
    return item.source.split(":")[0] in ("user", "human", "conversation", "episodic")


def since(item: MemoryItem) -> datetime:
    return item.valid_from or item.created_at


def _is_ended(claim: Claim, by: Iterable[Clause]) -> bool:
    return any(ends(clause.claim, claim) for clause in by)


def _outdated(item: MemoryItem, heir: str, at: datetime) -> MemoryItem:
    told = MappingProxyType({**item.metadata, ENDED_BY: heir})
    return replace(item, valid_to=at, superseded_by=heir, metadata=told)


def _left_of(
    item: MemoryItem, clauses: tuple[Clause, ...], by: tuple[Clause, ...], at: datetime
) -> Iterable[MemoryItem]:
    """Of "I'm vegetarian and I live in Lisbon", what holds when somebody has moved, as a fact from then on."""
    for clause in clauses:
        if not _is_ended(clause.claim, by):
            yield replace(
                item,
                id=content_id(item.scope.space(item.tier), clause.text, item.id),
                content=clause.text,
                valid_from=at,
                derived_from=(item.id,),
                access_count=0,
                last_accessed=None,
                version=1,
            )
