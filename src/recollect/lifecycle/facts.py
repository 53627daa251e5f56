"""Facts in the making: what was said becomes items, unless it is known, was forgotten, or is outdated already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from recollect.clock import to_micros
from recollect.inference.offline import importance_of
from recollect.lifecycle import marks
from recollect.lifecycle.attributes import attribute_of
from recollect.lifecycle.forget import is_copy
from recollect.lifecycle.promote import IMPORTANCE, Rule
from recollect.lifecycle.report import Action
from recollect.lifecycle.run import Run
from recollect.lifecycle.spoken import Spoken
from recollect.lifecycle.statements import fingerprint
from recollect.stores.ops import Put
from recollect.stores.where import Where
from recollect.tiers.consolidate import survivor_of
from recollect.values import MemoryItem, Scope, content_id
from recollect.words import analyse

# What a model wrote is not what was said, however well it was meant.
_TRUST_IN_MODELS = 0.8
_ALIKE = 5
_TERMS = 12


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
        if await self._is_known(held, text, at):
            self.set_note(marks.kept(id), {**told, "at": to_micros(at)})
            return
        if held is not None:  # what was true once and is said again is a new item, so that the time between stays
            id = content_id(space, text, at.isoformat())
        item = self._fact(spoken, id, text, rule, quote)
        item = replace(item, derived_from=tuple(dict.fromkeys((*origins, spoken.entry.id))))
        item = await self._in_its_time(item)
        self.fresh[item.id] = item
        self.set_note(marks.kept(content_id(space, text)), {"at": to_micros(at)})
        why = f"{rule}, from entry {spoken.entry.id} of {spoken.source}"
        self.actions.append(Action(item.id, "semantic", why))

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

    async def _is_known(self, held: MemoryItem | None, text: str, at: datetime) -> bool:
        """Whether these words are an item already, under whatever key; a former value that is said anew is not."""
        if held is not None:
            return held.superseded_by is None or is_copy(held) or (held.valid_to is not None and at <= held.valid_to)
        said = fingerprint(text)
        if any(fingerprint(item.content) == said for item in self.fresh.values()):
            return True
        terms = tuple(dict.fromkeys(analyse(text)))[:_TERMS]
        where = Where(self._run.facts, live_at=self._run.now)
        found = (await self._run.means.records.matching(where, terms, limit=_ALIKE)).found
        items = await self._run.ground.get(self._run.facts, *(one.brief.id for one in found))
        return any(fingerprint(item.content) == said for item in items)

    def _fact(self, spoken: Spoken, id: str, text: str, rule: Rule, quote: str | None) -> MemoryItem:
        scope, space, at, now = self._run.scope, spoken.space, spoken.entry.at, self._run.now
        attribute = attribute_of(text) if spoken.by == "user" else None
        told: dict[str, Any] = {"rule": rule, "kind": spoken.entry.kind, "session": space.session}
        if quote is not None:
            told["quote"] = quote
        if attribute is not None:
            told["attribute"] = attribute
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

    async def _in_its_time(self, item: MemoryItem) -> MemoryItem:
        """Where only one value can be true, the later one ends the earlier, in whichever order they are read."""
        attribute = item.metadata.get("attribute")
        if attribute is None:
            return item
        name = marks.valued(attribute)
        current = await self._current((await self.note(name)).get("item"))
        if current is not None and current.created_at > item.created_at:
            return replace(item, valid_to=current.created_at, superseded_by=current.id)
        if current is not None and current.id != item.id:
            ended = replace(current, valid_to=item.created_at, superseded_by=item.id)
            if current.id in self.fresh:
                self.fresh[current.id] = ended
            else:
                self._changed[current.id] = (ended, current.version)
        self.set_note(name, {"item": item.id})
        return item

    async def _current(self, id: str | None) -> MemoryItem | None:
        held = None if id is None else await self._item(id)
        if held is None or held.superseded_by is None:
            return held
        return await survivor_of(self._run.means.records, self._run.facts, held, self._run.now)
