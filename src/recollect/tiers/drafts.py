"""Facts and turns on their way to being items: checked, given their place in a dialogue, and put into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from recollect.clock import Clock, aware
from recollect.errors import BadInput
from recollect.guard.policy import LONG_TO_LOOK_THROUGH, Policy, noted
from recollect.inference.offline import importance_of
from recollect.settings import Settings
from recollect.stores.admission import admitted
from recollect.stores.base import Records
from recollect.stores.ops import Put
from recollect.tiers.facts import Fact, named_by
from recollect.tiers.keyed import place
from recollect.tiers.turns import Said, checked_position, said
from recollect.values import NOTHING, MemoryItem, Scope, Space, Turn, content_id

_WRITE_TOGETHER = 512

# How many turns of an earlier attempt are recognised; a call with more of them should give positions.
_LONGEST_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact on its way to being an item."""

    fact: Fact
    item: MemoryItem
    dialogue: Said


@dataclass(frozen=True, slots=True)
class Batch:
    """What is written together; `waits` when it has something in common with the batch before."""

    drafts: list[Draft]
    waits: bool


def drafted(fact: Fact, scope: Scope, settings: Settings, now: datetime) -> Draft:
    """A fact as a draft, or `BadInput` saying why it cannot be kept; no store is asked."""
    policy, space = Policy.of(settings), scope.space("semantic")
    text, about = policy.text("content", fact.content), policy.plain("metadata", fact.metadata or {})
    metadata = noted(about.value, text, about)
    if text.kinds:
        fact = replace(fact, content=text.value)
    session = scope.session if fact.session is None and fact.is_turn else fact.session
    if fact.is_turn and session is None:
        raise BadInput("a speaker or a position belongs to a session; say which, or open the memory with one")
    dialogue = said(metadata, Said(session, checked_position(fact.position), fact.speaker, fact.at))
    if len(fact.content) > settings.max_content:
        raise BadInput(
            f"the text has {len(fact.content):,} characters and max_content is {settings.max_content:,}; "
            "split it, or raise the setting"
        )
    item = MemoryItem(
        id=content_id(space, fact.content),
        content=fact.content,
        scope=scope,
        created_at=dialogue.at or now,
        metadata=MappingProxyType(metadata) if metadata else NOTHING,
        importance=importance_of(fact.content) if fact.importance is None else float(fact.importance),
        valid_from=fact.valid_from and aware(fact.valid_from),
        valid_to=fact.valid_to and aware(fact.valid_to),
        source=fact.source or "user",
        trust=float(fact.trusted),
        key=fact.key,
        pinned=bool(fact.pinned),
        decayed_at=None if fact.importance is None else now,
        learned_at=now if dialogue.at is not None and dialogue.at < now else None,
    )
    admitted(Put(item=item))  # now, and not when others of the same call have been written
    return Draft(fact, item, dialogue)


class Drafts:
    """Makes the drafts of one scope."""

    def __init__(self, store: Records, *, scope: Scope, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._scope = scope
        self._settings = settings
        self._clock = clock
        self._space = scope.space("semantic")

    @property
    def space(self) -> Space:
        return self._space

    async def of(self, facts: list[Fact], *, many: bool = False) -> list[Draft]:
        """A draft of each fact, in their order; bad input is refused before anything is read or written."""
        drafts = []
        for at, fact in enumerate(facts):
            with named_by(at) if many else nullcontext():
                long = len(fact.content) > LONG_TO_LOOK_THROUGH
                drafts.append(await asyncio.to_thread(self._draft, fact) if long else self._draft(fact))
        return await self._place(drafts)

    def _draft(self, fact: Fact) -> Draft:
        return drafted(fact, self._scope, self._settings, self._clock())

    async def _place(self, drafts: list[Draft]) -> list[Draft]:
        """Give turns that came without a position the next ones of their session, in the order they came."""
        known = await self._said_before(drafts)
        last: dict[str, float] = {}
        placed = []
        for at, draft in enumerate(drafts):
            session, position = draft.dialogue.session, draft.dialogue.position
            if session is None:
                placed.append(draft)
                continue
            if session not in last:
                last[session] = await self._last_position(session)
            if at in known:
                placed.append(replace(draft, item=replace(draft.item, id=known[at].id, turn=known[at].turn)))
                continue
            if position is None:
                position = last[session] + 1.0
            last[session] = max(last[session], position)
            turn = Turn(session, position, draft.dialogue.speaker)
            id = content_id(self.space, draft.item.content, *place(turn))
            placed.append(replace(draft, item=replace(draft.item, id=id, turn=turn)))
        return placed

    async def _said_before(self, drafts: list[Draft]) -> dict[int, MemoryItem]:
        """Turns without a position that were stored by an earlier attempt at the same call.

        The same words may be said twice, so words alone do not tell. But a call that is made again begins with what
        the session ends with.
        """
        by_session: dict[str, list[int]] = {}
        for at, draft in enumerate(drafts):
            if draft.dialogue.session is not None and draft.dialogue.position is None:
                by_session.setdefault(draft.dialogue.session, []).append(at)
        known: dict[int, MemoryItem] = {}
        for session, places in by_session.items():
            tail = await self._store.last_turns(self.space, session, limit=min(len(places), _LONGEST_TAIL))
            tail.reverse()
            stored = [(item.content, item.turn.speaker if item.turn else None) for item in tail]
            given = [(drafts[at].item.content, drafts[at].dialogue.speaker) for at in places[: len(tail)]]
            overlap = next((k for k in range(len(tail), 0, -1) if stored[-k:] == given[:k]), 0)
            known.update(zip(places, tail[len(tail) - overlap :], strict=False))
        return known

    async def _last_position(self, session: str) -> float:
        last = await self._store.last_turns(self.space, session)
        return last[0].turn.position if last and last[0].turn is not None else -1.0


def batches(drafts: list[Draft]) -> Iterator[Batch]:
    """Two values of one key are not written together, since the later one has to supersede the earlier.

    Nor is the same content with a key and without, since it becomes one item.
    """
    together: list[Draft] = []
    named: set[str] = set()
    keyed: set[str] = set()
    before: set[str] = set()
    for draft in drafts:
        id, key = draft.item.id, draft.fact.key
        meets = id in keyed if key is None else id in named or f"key {key}" in named
        if len(together) == _WRITE_TOGETHER or meets:
            yield Batch(together, waits=not named.isdisjoint(before))
            together, named, keyed, before = [], set(), set(), named
        together.append(draft)
        named.add(id)
        if key is not None:
            named.add(f"key {key}")
            keyed.add(id)
    if together:
        yield Batch(together, waits=not named.isdisjoint(before))


def said_again(stored: MemoryItem, item: MemoryItem, fact: Fact) -> MemoryItem:
    """What is stored, said again: it keeps its birthday, and what the caller says anew counts.

    Metadata is merged, so that whoever adds a tag need not know the others. It stays whose it is: being repeated makes
    a statement no better, unless it is the user who says so too. Who is trusted less changes nothing of it.
    """
    worth = trusted_as_said(stored, item, fact)
    if worth < stored.trust:
        return stored
    confirmed = worth >= 1.0 > stored.trust
    return replace(
        stored,
        metadata=_merged(stored, item),
        key=stored.key if fact.key is None else fact.key,
        importance=stored.importance if fact.importance is None else item.importance,
        source=item.source if confirmed else stored.source,
        trust=item.trust if confirmed else stored.trust,
        valid_from=item.valid_from or stored.valid_from,
        valid_to=item.valid_to,
        superseded_by=None,
        pinned=stored.pinned if fact.pinned is None else item.pinned,
        decayed_at=stored.decayed_at if fact.importance is None else item.decayed_at,
    )


def trusted_as_said(stored: MemoryItem, item: MemoryItem, fact: Fact) -> float:
    """How far those who say something again are trusted; whoever does not say who they are adds nothing to it."""
    return stored.trust if fact.source is None and fact.trust is None else item.trust


def repeated(survivor: MemoryItem, item: MemoryItem, fact: Fact) -> MemoryItem:
    """An item, when something is said again that was merged into it: its text, source and times are its own."""
    return replace(
        survivor,
        metadata=_merged(survivor, item),
        importance=survivor.importance if fact.importance is None else item.importance,
        pinned=survivor.pinned if fact.pinned is None else item.pinned,
        decayed_at=survivor.decayed_at if fact.importance is None else item.decayed_at,
    )


def _merged(stored: MemoryItem, item: MemoryItem) -> Mapping[str, Any]:
    return MappingProxyType({**stored.metadata, **item.metadata}) if item.metadata else stored.metadata
