"""Semantic memory: facts and dialogue turns of a user, stored until they are forgotten and found by hybrid search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput, BadQuery, NotFound
from recollect.language.importance import score_importance
from recollect.security.redaction import RedactionPolicy, add_sensitive_kinds
from recollect.settings import Settings
from recollect.stores.filters import FILTER_FIELDS, Condition, Where, parse_where
from recollect.stores.search import SearchMode
from recollect.stores.validation import validate_write
from recollect.stores.writes import Delete, Model, Put
from recollect.tiers import consolidation
from recollect.tiers.consolidation import ConsolidationReport
from recollect.tiers.facts import (
    Fact,
    assign_id,
    can_use_content_id,
    check_string,
    end_value,
    find_values,
    parse_fact,
    resolve_dialogue,
    source_trust,
    turn_id_parts,
    write_keyed_facts,
)
from recollect.tiers.indexing import (
    ItemTier,
    build_puts,
    call_with_text,
    check_limit,
    retry_on_conflict,
    with_current_model,
)
from recollect.tiers.quarantine import find_objections, to_quarantine_item, write_new_items
from recollect.types import EMPTY_MAPPING, Hit, MemoryItem, ProgressCallback, Scope, Turn, make_content_id
from recollect.validation import check_fraction, check_utc

_MAX_BATCH_SIZE = 512
# Turns of an earlier attempt that are recognized; a larger call needs positions to be repeatable.
_MAX_REPEATED_TURNS = 2000


class SemanticMemory(ItemTier):
    """Facts of one user, as `AgentMemory.semantic`."""

    _tier = "semantic"

    async def add(  # noqa: PLR0913 - the public API names these
        self,
        content: str,
        *,
        importance: float | None = None,
        key: str | None = None,
        pinned: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
        trust: float | None = None,
        at: datetime | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        session: str | None = None,
        position: float | None = None,
        speaker: str | None = None,
    ) -> MemoryItem:
        """Store a fact or a turn; the same content again is the same item. The options are those of `remember`.

        Text that is not the user's own is quarantined if it gives instructions, or if it would supersede a fact that is
        trusted more. The returned item then has the tier "quarantine", and is not recalled until it is approved.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        return (await self._add_or_quarantine([await self._build_draft(parse_fact(options))]))[0]

    async def add_many(self, facts: Iterable[Mapping[str, Any]]) -> list[MemoryItem]:
        """Store many facts in durable batches. Each is a dict with `content` and any option of `add`.

        All of them are checked before the first is written, so bad input stores nothing.
        """
        if not isinstance(facts, Iterable):
            raise BadInput(f"facts must be a list of dicts with a 'content'; got {type(facts).__name__}")
        drafts = []
        for index, fact in enumerate(facts):
            try:
                if not isinstance(fact, Mapping):
                    raise BadInput(f"a fact must be a dict with a 'content'; got {type(fact).__name__}")
                drafts.append(await self._build_draft(parse_fact(fact)))
            except BadInput as error:
                raise type(error)(f"facts[{index}]: {error}") from error
        return await self._add_or_quarantine(drafts)

    async def _add_approved(self, fact: Fact) -> MemoryItem:
        """Store a fact without the quarantine check."""
        return (await self._add_drafts(await self._assign_positions([await self._build_draft(fact)])))[0]

    async def get(self, id: str) -> MemoryItem | None:
        return next(iter(await self._store.get(self._space, check_string("id", id))), None)

    async def search(
        self,
        query: str,
        n: int = 5,
        *,
        min_relevance: float | None = None,
        min_importance: float = 0.0,
        where: Mapping[str, Any] | None = None,
        as_of: datetime | None = None,
        mode: SearchMode = "hybrid",
    ) -> list[Hit]:
        """Return the items that answer a query, best first, and count an access to each.

        `where` filters by fields and metadata. `as_of` searches what was stored and true at that time.
        """
        now = self._clock()
        time = check_utc("as_of", as_of, error=BadQuery) if as_of is not None else now
        filters = Where(
            self._space,
            live_at=time,
            known_at=time if as_of is not None else None,
            min_importance=check_fraction("min_importance", min_importance, error=BadQuery),
            conditions=() if where is None else await self._parse_filter(where),
        )
        return await self._search(query, n, min_relevance, filters, at=time, now=now, mode=mode)

    async def update_importance(self, id: str, importance: float) -> bool:
        """Set an item's importance; return False if there is no such item."""
        importance = check_fraction("importance", importance, error=BadQuery)

        async def update() -> bool:
            item = await self.get(id)
            if item is None:
                return False
            changed = replace(item, importance=importance, decayed_at=self._clock())
            await self._store.write(Put(item=changed, expect=item.version))
            return True

        return await retry_on_conflict(update, f"the update of item {id!r}")

    async def forget(self, id: str) -> bool:
        """Delete an item and the items that were merged into it; return False if there is no such item."""
        item = await self.get(id)
        if item is None:
            return False
        merged = await consolidation.find_merged_items(self._store, self._space, item)
        await self._store.write(*(Delete(self._space, deleted.id) for deleted in (item, *merged)))
        return True

    async def consolidate(
        self, *, dry_run: bool = False, progress: ProgressCallback | None = None
    ) -> ConsolidationReport:
        """Merge facts that say the same. The best one stays and supersedes the others, which become its history.

        Turns and keyed facts are not merged. A `dry_run` reports the merges and writes nothing.
        """
        now = self._clock()
        plan = await consolidation.plan_consolidation(self._store, self._embedding, self._space, now, progress=progress)
        if dry_run:
            return plan
        report = await consolidation.apply_merges(self._store, self._space, plan.merged, now)
        return replace(report, examined=plan.examined)

    async def page(self, limit: int = 100, *, after: str | None = None, past: bool = False) -> list[MemoryItem]:
        """Return facts, newest first, after the item with the id `after`. `past` includes facts no longer true."""
        if check_limit(limit) == 0:
            return []
        last = None if after is None else await self.get(after)
        if after is not None and last is None:
            raise NotFound(f"there is no item {after!r:.80} to continue after; it may have been forgotten")
        where = Where(self._space, live_at=None if past else self._clock())
        return await self._store.find(where, limit=limit, after=last)

    async def history(self, key: str) -> list[MemoryItem]:
        """Return all values that a key has had, newest first."""
        return await find_values(self._store, self._space, check_string("key", key))

    async def _parse_filter(self, where: Mapping[str, Any]) -> tuple[Condition, ...]:
        """Return the filter's conditions; raise `BadQuery` for a metadata path that no item in this scope has."""
        conditions = parse_where(where)
        paths = {condition.path.removeprefix("metadata.") for condition in conditions if not condition.is_field}
        if not paths:
            return conditions
        known = await self._store.paths(self._space)
        unknown = sorted(paths - known)
        if unknown and (known or await self._store.find(Where(self._space), limit=1)):
            raise BadQuery(
                f"no item has metadata at {', '.join(map(repr, unknown))}; known paths are "
                f"{', '.join(sorted(known)[:20]) or 'none'}, and the fields {', '.join(sorted(FILTER_FIELDS))}"
            )
        return conditions

    async def _add_or_quarantine(self, drafts: list[FactDraft]) -> list[MemoryItem]:
        """Store the drafts, those with objections in quarantine; return the items in the order of the drafts."""
        drafts = await self._assign_positions(drafts)
        quarantined: dict[int, MemoryItem] = {}
        for index, draft in enumerate(drafts):
            if draft.item.trust < 1.0 and (why := await find_objections(self._store, self._space, draft.item)):
                quarantined[index] = to_quarantine_item(draft.item, why)
        await write_new_items(self._store, list(quarantined.values()))
        accepted = [draft for index, draft in enumerate(drafts) if index not in quarantined]
        stored = iter(await self._add_drafts(accepted))
        return [quarantined[index] if index in quarantined else next(stored) for index in range(len(drafts))]

    async def _add_drafts(self, drafts: list[FactDraft]) -> list[MemoryItem]:
        stored: list[MemoryItem] = []
        for batch in _split_batches(drafts):
            store = partial(with_current_model, self._embedding, partial(self._store_batch, batch))
            stored += await retry_on_conflict(store, "storing these facts")
        return stored

    async def _store_batch(self, drafts: list[FactDraft], model: Model) -> list[MemoryItem]:
        store, space = self._store, self._space
        ids = {draft.item.id for draft in drafts}
        known = {item.id: item for item in await store.get(space, *ids)}
        identified = [
            (draft.item, None)
            if can_use_content_id(draft.item, known.get(draft.item.id))
            else await assign_id(store, space, draft.item)
            for draft in drafts
        ]
        items = [item for item, _ in identified]
        by_id = {item.id: (item, draft.fact) for item, draft in zip(items, drafts, strict=True)}
        if other_ids := by_id.keys() - ids:
            known |= {item.id: item for item in await store.get(space, *other_ids)}
        stored = {id: known[id] for id in by_id if id in known}
        new = [item for id, (item, _) in by_id.items() if id not in stored]
        puts = await build_puts(self._embedding, model, new)
        repeated = await self._merge_repeated(by_id, stored)
        changes = {after.id: (before, after) for before, after in repeated.values()}
        puts += [Put(item=after, expect=before.version) for before, after in changes.values() if after != before]
        puts += [end_value(displaced, item) for item, displaced in identified if displaced]
        results = {id: repeated[id][1] if id in repeated else item for id, (item, _) in by_id.items()}
        keyed = [item for item in results.values() if item.key is not None]
        await write_keyed_facts(store, space, puts, keyed)
        changed = [item.id for id, item in results.items() if id in stored or item.key is not None]
        written = {item.id: item for item in await store.get(space, *changed)} if changed else {}
        return [written.get(results[item.id].id, item) for item in items]

    async def _merge_repeated(
        self, by_id: Mapping[str, tuple[MemoryItem, Fact]], stored: Mapping[str, MemoryItem]
    ) -> dict[str, tuple[MemoryItem, MemoryItem]]:
        """Return, for each id that is stored already, the item that the repeated fact counts as, before and after."""
        before, after, targets = dict(stored), dict[str, MemoryItem](), dict[str, str]()
        for id, known in stored.items():
            item, fact = by_id[id]
            survivor = None
            if fact.valid_from is None and fact.valid_to is None:
                survivor = await consolidation.find_survivor(self._store, self._space, known, self._clock())
            trust = resolve_trust(known, item, fact)
            if survivor is not None and trust <= survivor.trust:
                current = after.get(survivor.id, before.setdefault(survivor.id, survivor))
                updated = current if trust < current.trust else update_survivor(current, item, fact)
            else:
                updated = update_repeated_item(after.get(id, known), item, fact)
            after[updated.id], targets[id] = updated, updated.id
        return {id: (before[target], after[target]) for id, target in targets.items()}

    async def _build_draft(self, fact: Fact) -> FactDraft:
        return await call_with_text(len(fact.content), build_draft, fact, self._scope, self._settings, self._clock())

    async def _assign_positions(self, drafts: list[FactDraft]) -> list[FactDraft]:
        """Give turns without a position the next ones of their sessions; those of a repeated call keep theirs."""
        by_session: dict[str, list[int]] = {}
        for index, draft in enumerate(drafts):
            if draft.fact.session is not None:
                by_session.setdefault(draft.fact.session, []).append(index)
        positioned = list(drafts)
        for session, indexes in by_session.items():
            unpositioned = [index for index in indexes if drafts[index].fact.position is None]
            limit = max(1, min(len(unpositioned), _MAX_REPEATED_TURNS))
            tail = (await self._store.last_turns(self._space, session, limit=limit))[::-1]
            repeated = _find_repeated_turns(tail, [drafts[index] for index in unpositioned])
            known = dict(zip(unpositioned, repeated, strict=False))
            last = tail[-1].turn.position if tail and tail[-1].turn is not None else -1.0
            for index in indexes:
                fact, item = drafts[index].fact, drafts[index].item
                if index in known:
                    item = replace(item, id=known[index].id, turn=known[index].turn)
                else:
                    turn = Turn(session, last + 1.0 if fact.position is None else fact.position, fact.speaker)
                    last = max(last, turn.position)
                    id = make_content_id(self._space, item.content, *turn_id_parts(turn))
                    item = replace(item, id=id, turn=turn)
                positioned[index] = FactDraft(fact, item)
        return positioned


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A checked fact and the item that it becomes."""

    fact: Fact
    item: MemoryItem


def build_draft(fact: Fact, scope: Scope, settings: Settings, now: datetime) -> FactDraft:
    """Return a fact as a draft; raise `BadInput` if no store can keep it. No store is read."""
    policy, space = RedactionPolicy.from_settings(settings), scope.space("semantic")
    text, about = policy.redact_text("content", fact.content), policy.redact_json("metadata", fact.metadata or {})
    metadata = add_sensitive_kinds(about.value, text, about)
    if fact.speaker is not None or fact.position is not None:
        if fact.session is None and scope.session is None:
            raise BadInput("a speaker or a position needs a session; pass session=…, or open the memory with one")
        fact = replace(fact, session=scope.session if fact.session is None else fact.session)
    if len(text.value) > settings.max_content:
        raise BadInput(
            f"content must have at most {settings.max_content:,} characters; got {len(text.value):,}. Split it, or "
            "raise the setting max_content"
        )
    fact = resolve_dialogue(replace(fact, content=text.value) if text.kinds else fact, metadata)
    source = fact.source or "user"
    item = MemoryItem(
        id=make_content_id(space, fact.content),
        content=fact.content,
        scope=scope,
        created_at=fact.at or now,
        metadata=MappingProxyType(metadata) if metadata else EMPTY_MAPPING,
        importance=score_importance(fact.content) if fact.importance is None else fact.importance,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
        source=source,
        trust=source_trust(source) if fact.trust is None else fact.trust,
        key=fact.key,
        pinned=bool(fact.pinned),
        decayed_at=None if fact.importance is None else now,
        learned_at=now if fact.at is not None and fact.at < now else None,
    )
    validate_write(Put(item=item))
    return FactDraft(fact, item)


def _find_repeated_turns(stored: Sequence[MemoryItem], drafts: Sequence[FactDraft]) -> Sequence[MemoryItem]:
    """Return the last of the stored turns that the first drafts repeat; equal text alone does not identify a turn."""
    old = [(item.content, item.turn.speaker if item.turn else None) for item in stored]
    new = [(draft.item.content, draft.fact.speaker) for draft in drafts]
    overlap = next((size for size in range(min(len(old), len(new)), 0, -1) if old[-size:] == new[:size]), 0)
    return stored[len(stored) - overlap :]


def _split_batches(drafts: list[FactDraft]) -> Iterator[list[FactDraft]]:
    """Split drafts so that no batch has two values of one key, or the same content with a key and without."""
    batch, names, keyed_ids = list[FactDraft](), set[str](), set[str]()
    for draft in drafts:
        id, key = draft.item.id, draft.fact.key
        collides = id in keyed_ids if key is None else id in names or f"key {key}" in names
        if len(batch) == _MAX_BATCH_SIZE or collides:
            yield batch
            batch, names, keyed_ids = [], set(), set()
        batch.append(draft)
        names.add(id)
        if key is not None:
            names.add(f"key {key}")
            keyed_ids.add(id)
    if batch:
        yield batch


def resolve_trust(stored: MemoryItem, item: MemoryItem, fact: Fact) -> float:
    """Return the trust of a repetition: that of the stored item if the caller names neither source nor trust."""
    return stored.trust if fact.source is None and fact.trust is None else item.trust


def update_repeated_item(stored: MemoryItem, item: MemoryItem, fact: Fact) -> MemoryItem:
    """Return a stored item after the same content was stored again.

    It keeps its creation time. Given options replace the stored ones, and metadata is merged. Source and trust change
    only if the user confirms the fact. A repetition that is trusted less changes nothing.
    """
    trust = resolve_trust(stored, item, fact)
    if trust < stored.trust:
        return stored
    is_confirmed = trust >= 1.0 > stored.trust
    return replace(
        update_survivor(stored, item, fact),
        key=stored.key if fact.key is None else fact.key,
        source=item.source if is_confirmed else stored.source,
        trust=item.trust if is_confirmed else stored.trust,
        valid_from=item.valid_from or stored.valid_from,
        valid_to=item.valid_to,
        superseded_by=None,
    )


def update_survivor(survivor: MemoryItem, item: MemoryItem, fact: Fact) -> MemoryItem:
    """Return an item after a fact that was merged into it was stored again; its text, source and times stay."""
    metadata = MappingProxyType({**survivor.metadata, **item.metadata}) if item.metadata else survivor.metadata
    return replace(
        survivor,
        metadata=metadata,
        importance=survivor.importance if fact.importance is None else item.importance,
        pinned=survivor.pinned if fact.pinned is None else item.pinned,
        decayed_at=survivor.decayed_at if fact.importance is None else item.decayed_at,
    )
