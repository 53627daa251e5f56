"""Facts in the making: what was said becomes items, unless it is known, was forgotten, or is outdated already."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.clock import to_micros
from recollect.inference.offline import importance_of
from recollect.lifecycle import marks
from recollect.lifecycle.claims import Claim, claims_of
from recollect.lifecycle.forget import is_copy
from recollect.lifecycle.known import adds_nothing, is_claimed_by
from recollect.lifecycle.plainly import worded
from recollect.lifecycle.promote import IMPORTANCE, Rule
from recollect.lifecycle.report import Action
from recollect.lifecycle.run import Run
from recollect.lifecycle.spoken import Spoken
from recollect.lifecycle.succession import is_own, since, succession
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope, content_id
from recollect.words import analyse

# What a model wrote is not what was said, however well it was meant.
_TRUST_IN_MODELS = 0.8
_ALIKE = 20
_TERMS = 32
# Much has the word `live` in it. What claims something and no more is short: of so many the shortest are looked at.
_KIN = 500
_SHORTEST = 150
_LATELY = 8


class Facts:
    """What one page of a log adds to the facts: new items, changed ones, and notes, to be written together."""

    def __init__(self, run: Run, notes: marks.Marks) -> None:
        self._run = run
        self._marks = notes
        self._held: dict[str, MemoryItem | None] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self.fresh: dict[str, MemoryItem] = {}
        self._changed: dict[str, tuple[MemoryItem, int]] = {}
        self.actions: list[Action] = []

    async def consider(
        self, spoken: Spoken, text: str, rule: Rule, *, origins: tuple[str, ...] = (), quote: str | None = None
    ) -> None:
        """Make a fact of something said, if it is to be one."""
        space, at = self._run.facts, spoken.entry.at
        id = content_id(space, text)
        told = await self.note(marks.kept(id))
        if told and marks.was_said_by(told, at):
            return  # made a fact already: whether it is still there is the user's business
        held = await self._item(id)
        kin = await self._kin(claims_of(text)) if spoken.by == "user" else []
        if await self._is_known(held, text, kin, at) or (quote and await self._is_known(None, quote, [], at)):
            self.set_note(marks.kept(id), {**told, "at": to_micros(at)})
            return
        if held is not None:  # what was true once and is said again is a new item, so that the time between stays
            id = content_id(space, text, at.isoformat())
        item = self._fact(spoken, id, text, rule, quote)
        item = replace(item, derived_from=tuple(dict.fromkeys((*origins, spoken.entry.id))))
        ended = await self._take_its_place(item, kin)
        self.set_note(marks.kept(content_id(space, text)), {"at": to_micros(at)})
        why = f"{rule}, from entry {spoken.entry.id} of {spoken.source}"
        self.actions.append(Action(item.id, "semantic", "; ".join((why, *(f"ends {id}" for id in ended)))))

    async def note(self, name: str) -> Mapping[str, Any]:
        """What is noted under a name, with what this page adds to it."""
        if name not in self._told:
            if name not in self._held:
                self._held[name] = (await self._marks.get([name])).get(name)
            held = self._held[name]
            return {} if held is None else held.metadata
        return self._told[name]

    async def load(self, names: set[str]) -> None:
        """Read many notes at once."""
        missing = [name for name in names if name not in self._held]
        found = await self._marks.get(missing)
        self._held.update({name: found.get(name) for name in missing})

    def set_note(self, name: str, told: Mapping[str, Any]) -> None:
        self._told[name] = dict(told)

    def puts(self) -> list[Put]:
        """The changed items and the notes, each only if nobody has changed it meanwhile."""
        changed = [Put(item=item, expect=version) for item, version in self._changed.values()]
        notes = [self._marks.put(name, told, self._held.get(name), self._run.now) for name, told in self._told.items()]
        return changed + notes

    async def _item(self, id: str) -> MemoryItem | None:
        if id in self.fresh:
            return self.fresh[id]
        if id in self._changed:
            return self._changed[id][0]
        found = await self._run.ground.get(self._run.facts, id)
        return found[0] if found else None

    async def _is_known(self, held: MemoryItem | None, text: str, kin: list[MemoryItem], at: datetime) -> bool:
        """Whether this is an item already, in whatever words and under whatever key; a former value anew is not."""
        if held is not None:
            return held.superseded_by is None or is_copy(held) or (held.valid_to is not None and at <= held.valid_to)
        now = self._run.now
        if is_claimed_by(text, (one for one in kin if one.live_at(now) and since(one) <= at and is_own(one))):
            return True
        terms = tuple(dict.fromkeys(analyse(text)))[:_TERMS]
        where = Where(self._run.facts, live_at=now)
        found = (await self._run.means.records.matching(where, terms, limit=_ALIKE)).found
        items = [item for item in await self._as_they_are(one.brief.id for one in found) if item.live_at(now)]
        return any(adds_nothing(text, item) for item in (*self.fresh.values(), *items) if item.live_at(now))

    def _fact(self, spoken: Spoken, id: str, text: str, rule: Rule, quote: str | None) -> MemoryItem:
        scope, space, at, now = self._run.scope, spoken.space, spoken.entry.at, self._run.now
        told: dict[str, Any] = {"rule": rule, "kind": spoken.entry.kind, "session": space.session}
        if quote is not None:
            told["quote"] = quote
        return MemoryItem(
            id=id,
            content=text,
            scope=Scope(scope.tenant, scope.user, scope.agent, space.session or None),
            created_at=at,
            learned_at=now if at < now else None,
            metadata=told,
            importance=max(IMPORTANCE[rule], importance_of(text)),
            source=spoken.source,
            trust=spoken.trust if quote is None else min(spoken.trust, _TRUST_IN_MODELS),
        )

    async def _take_its_place(self, item: MemoryItem, kin: list[MemoryItem]) -> list[str]:
        """Add an item, end what it contradicts, or end it where that came later; the ids of what it ends."""
        claims = claims_of(item.content)
        found = succession(item, kin) if kin else None
        for one in () if found is None else found.ended:
            if one.id in self.fresh:
                self.fresh[one.id] = one
            else:
                self._changed[one.id] = (one, one.version)
        fresh = (item,) if found is None else (found.item, *found.left)
        for one in map(worded, fresh):
            self.fresh[one.id] = one
        self.actions += [Action(one.id, "semantic", f"what still holds of {one.derived_from[0]}") for one in fresh[1:]]
        for slot in sorted({slot for claim in claims for slot in claim.slots}):
            name = marks.valued(slot)
            lately = [*(await self.note(name)).get("items", ()), *(one.id for one in fresh)]
            self.set_note(name, {"items": lately[-_LATELY:]})
        return [] if found is None else [one.id for one in found.ended]

    async def _kin(self, claims: tuple[Claim, ...]) -> list[MemoryItem]:
        """What may claim something of the same slots: found by its words, and by the notes on what was said lately."""
        ids: dict[str, None] = {}
        for claim in claims:
            for slot in claim.slots:
                ids |= dict.fromkeys((await self.note(marks.valued(slot))).get("items", ()))
            where = Where(self._run.facts, live_at=self._run.now)
            found = await self._run.means.records.matching(where, claim.probes, limit=_KIN)
            short = heapq.nsmallest(_SHORTEST, found.found, key=lambda one: one.brief.length)
            ids |= dict.fromkeys(one.brief.id for one in short)
        if not claims:
            return []
        stored = await self._as_they_are(id for id in ids if id not in self.fresh)
        # Not a filter of the search, which would have to read the whole space for it.
        return [*self.fresh.values(), *(one for one in stored if one.key is None and one.turn is None)]

    async def _as_they_are(self, ids: Iterable[str]) -> list[MemoryItem]:
        """The items, with what this page has changed."""
        found = await self._run.ground.get(self._run.facts, *ids)
        return [self._changed[item.id][0] if item.id in self._changed else item for item in found]
