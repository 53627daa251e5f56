"""Entries of logs that may be told, session by session: how new each is, and the item that it is shown as."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from recollect.memory.in_confidence import is_confided
from recollect.recall.lines import Line
from recollect.recall.recent import NEWEST
from recollect.stores.ops import Entry
from recollect.stores.tails import Tail
from recollect.tiers.entries import is_quarantined
from recollect.tiers.episodic import episode_of
from recollect.tiers.messages import ROLES, message_of
from recollect.tiers.trust import UNKNOWN, is_of_tool, told_trust, trust_in_episode, trust_of
from recollect.values import Hit, MemoryItem, Scope, Space, Tier, Turn

LASTS: Mapping[Tier, int] = {"working": 5, "semantic": 4, "procedural": 3, "episodic": 2, "conversation": 1}
"""Of tiers that hold the same text, the one that is shown: what is being done, what is known, how it is done, and only
then what happened and what was said."""


class Candidate(NamedTuple):
    """An entry that may be told, by its place in what was read of its log. Many are made for every question."""

    tail: Tail
    at: int
    age: int | None
    """How many of its session are newer; None where that does not matter."""
    lean: int
    """Up to which age it may be leaned on."""
    elsewhere: bool
    """Whether it is of another session."""

    @property
    def content(self) -> str:
        return self.tail.texts[self.at]

    @property
    def entry(self) -> Entry:
        return self.tail[self.at]

    @property
    def recency(self) -> int | None:
        return self.age if self.age is not None and self.age < self.lean else None

    @property
    def confided(self) -> bool:
        return self.elsewhere and is_confided(self.tail, self.at)

    @property
    def quarantined(self) -> bool:
        return is_quarantined(self.entry)

    def item(self, scope: Scope) -> MemoryItem:
        """The entry as the item that it is shown as."""
        entry, space = self.entry, self.tail.space
        session = space.session or None
        told = episode_of(space, entry).metadata if space.tier == "episodic" else entry.metadata
        spoken_by = entry.kind if entry.kind in ROLES else None
        return MemoryItem(
            id=entry.id,
            content=entry.content,
            scope=scope if scope.session == session else replace(scope, session=session),
            created_at=entry.at,
            tier=space.tier,
            metadata=told,
            importance=entry.importance,
            expires_at=entry.expires_at,
            source="tool" if is_of_tool(entry.kind, told) else spoken_by or "user",
            trust=_trust(space, entry, told),
            turn=None if session is None else Turn(session, float(entry.seq), spoken_by),
        )


def _trust(space: Space, entry: Entry, told: Mapping[str, Any]) -> float:
    if space.tier == "episodic":
        return trust_in_episode(entry.kind, told)
    if entry.kind in ROLES:
        return trust_of(message_of(entry))
    # A summary that does not say what it was made of may quote anybody.
    trust = told_trust(told)
    return UNKNOWN if trust is None else trust


@dataclass(frozen=True, slots=True)
class Session:
    """What may be told of one session: all that was read of it, or some places there."""

    tail: Tail
    places: Sequence[int]
    ages: Mapping[int, int] = field(default_factory=dict)
    """How many are newer, by place; others have no age."""
    lean: int = NEWEST
    elsewhere: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        every = self.tail.texts
        return every if len(self.places) == len(every) else tuple([every[at] for at in self.places])

    def candidates(self, some: Iterable[int]) -> list[Candidate]:
        """Of what may be told, the first, the third and so on."""
        places = [self.places[nth] for nth in some]
        return [Candidate(self.tail, at, self.ages.get(at), self.lean, self.elsewhere) for at in places]

    def only(self, meant: Callable[[Candidate], bool]) -> Session:
        every = self.candidates(range(len(self.places)))
        return replace(self, places=[one.at for one in every if meant(one)])

    def newest(self, most: int) -> list[int]:
        """Those that have an age below this."""
        return [nth for nth, at in enumerate(self.places) if self.ages.get(at, most) < most] if self.ages else []


@dataclass(frozen=True, slots=True)
class Told:
    """An entry that is told, and what it is told as."""

    entry: Entry
    space: Space
    hit: Hit

    def line(self, section: str, label: str) -> Line:
        hit = self.hit
        return Line(hit=hit, section=section, worth=hit.relevance, label=label, lasts=LASTS[hit.tier])
