"""Promotion: statements in conversations and episodes become facts before the entries expire."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.language.analysis import analyze
from recollect.language.claims import SlotClaim
from recollect.language.importance import score_importance
from recollect.language.promotion_rules import RULE_IMPORTANCE, PromotableStatement, PromotionRule
from recollect.language.rules import ENGLISH
from recollect.language.sentences import normalize_sentence
from recollect.lifecycle.context import LifecycleRun
from recollect.lifecycle.llm_extraction import extract_facts
from recollect.lifecycle.report import LifecycleAction
from recollect.lifecycle.utterances import Utterance, parse_utterance
from recollect.stores.base import Log
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceQuery, ScoredItem
from recollect.stores.writes import Entry, Model, Put
from recollect.tiers import lifecycle_notes
from recollect.tiers.contradiction import is_merged_copy, is_user_statement, resolve_contradictions
from recollect.tiers.facts import get_valid_from
from recollect.tiers.indexing import PARAPHRASE_KEY, back_off, build_puts, with_current_model
from recollect.tiers.lifecycle_notes import LifecycleNotes
from recollect.types import MemoryItem, Scope, Space, make_content_id

_PAGE_SIZE = 100
_MAX_TRIES = 8

_MODEL_TRUST = 0.8
_MAX_SIMILAR = 20
_MAX_TERMS = 32
# Terms like `live` match many facts. Facts that make a claim are short, so only the shortest matches are read.
_MAX_RELATED = 500
_MAX_RELATED_READ = 150
_MAX_RECENT_IDS = 8


# An utterance with its statements to promote now, and its declarations to promote once they are repeated.
_EntryStatements = tuple[Utterance, list[PromotableStatement], list[str]]


class Promoter:
    """Reads the logs of one user and agent, from where the last run ended; facts and positions are written together."""

    def __init__(self, run: LifecycleRun) -> None:
        self._run = run
        self._notes = run.notes

    async def run(self) -> None:
        context, scope = self._run.context, self._run.scope
        # Conversations first: they hold whole messages, and many episodes repeat them.
        logs = [
            (context.conversation, s) for s in await context.conversation.logs(scope.space("conversation"), hidden=True)
        ]
        logs += [(context.episodic, s) for s in await context.episodic.logs(scope.space("episodic"), hidden=True)]
        for number, (log, space) in enumerate(logs, 1):
            await self._promote_log(log, space)
            self._run.report_progress("promote", number, len(logs))

    async def _promote_log(self, log: Log, space: Space) -> None:
        name = lifecycle_notes.name_log_position(space)
        for tries in range(_MAX_TRIES):
            note = await self._notes.find(name)
            after = 0 if note is None else int(note.metadata["seq"])
            try:
                while page := await log.read(space, after=after, limit=_PAGE_SIZE, hidden=True):
                    await self._promote_page(space, page)
                    after = page[-1].seq
            except Conflict:  # another run reads the same log, or a fact to be ended was changed
                await back_off(tries)
                continue
            self._run.log_positions[space] = after
            return
        name = f"{space.tier}:{space.session}"
        self._run.report.add_note(f"log {name} is being read by another process; left for the next run")

    async def _promote_page(self, space: Space, page: Sequence[Entry]) -> None:
        entries = await asyncio.to_thread(_parse_entries, space, page)
        statements = [statement for _, promotable, _ in entries for statement in promotable]
        batch = FactBatch(self._run, self._notes)
        position = lifecycle_notes.name_log_position(space)
        ids = [make_content_id(self._run.fact_space, statement.text) for statement in statements]
        names = {position, *map(lifecycle_notes.name_promoted_fact, ids)}
        texts = [normalize_sentence(text) for *_, declarations in entries for text in declarations]
        await batch.load_notes(names.union(map(lifecycle_notes.name_repetition, texts)))
        for utterance, promotable, declarations in entries:
            for statement in promotable:
                await batch.add_statement(utterance, statement.text, statement.rule)
            for text in declarations:
                await self._count_declaration(batch, utterance, text)
        user_utterances = [utterance for utterance, *_ in entries if utterance.speaker == "user"]
        for found in await extract_facts(self._run, user_utterances):
            if not any(found.quote in item.text or item.text in found.quote for item in statements):
                await batch.add_statement(found.utterance, found.fact, "extracted", quote=found.quote)
        batch.set_note(position, {"seq": page[-1].seq})
        await self._write_facts(batch)
        self._run.report.add("promoted", batch.actions)
        self._run.report.examined += len(page)

    async def _count_declaration(self, batch: FactBatch, utterance: Utterance, text: str) -> None:
        name = lifecycle_notes.name_repetition(normalize_sentence(text))
        before = await batch.get_note(name)
        values = lifecycle_notes.add_occurrence(before, utterance.space.session, utterance.entry.at, utterance.entry.id)
        if lifecycle_notes.is_repeated(values) and not values.get("kept"):
            origins = tuple(entry_id for _, _, entry_id in values["said"])
            await batch.add_statement(utterance, text, "repeated", origins=origins)
            values["kept"] = True
        if values != before:
            batch.set_note(name, values)

    async def _write_facts(self, batch: FactBatch) -> None:
        items = list(batch.new_items.values())
        if not items or self._run.is_dry:
            await self._run.overlay.write(*(Put(item=item, expect=0) for item in items), *batch.build_puts())
            return

        async def write(model: Model) -> None:
            puts = await build_puts(self._run.context.embedding, model, items)
            await self._run.overlay.write(*puts, *batch.build_puts())

        await with_current_model(self._run.context.embedding, write)


def _parse_entries(space: Space, page: Sequence[Entry]) -> list[_EntryStatements]:
    found: list[_EntryStatements] = []
    for entry in page:
        utterance = parse_utterance(space, entry)
        if utterance is None:
            continue
        promotable = utterance.find_promotable()
        texts = {statement.text for statement in promotable}
        declarations = ENGLISH.find_declarations(utterance.text) if utterance.speaker == "user" else []
        found.append((utterance, promotable, [text for text in declarations if text not in texts]))
    return found


class FactBatch:
    """The writes that one page of a log leads to: new facts, changed facts and notes, committed together."""

    def __init__(self, run: LifecycleRun, notes: LifecycleNotes) -> None:
        self._run = run
        self._notes = notes
        self._stored_notes: dict[str, MemoryItem | None] = {}
        self._new_notes: dict[str, dict[str, Any]] = {}
        self.new_items: dict[str, MemoryItem] = {}
        self._changed_items: dict[str, tuple[MemoryItem, int]] = {}
        self.actions: list[LifecycleAction] = []

    async def add_statement(
        self,
        utterance: Utterance,
        text: str,
        rule: PromotionRule,
        *,
        origins: tuple[str, ...] = (),
        quote: str | None = None,
    ) -> None:
        """Add a fact for a statement, unless it is known already or was promoted before."""
        space, at = self._run.fact_space, utterance.entry.at
        id = make_content_id(space, text)
        note_name = lifecycle_notes.name_promoted_fact(id)
        note = await self.get_note(note_name)
        if note and lifecycle_notes.is_already_promoted(note, at):
            return  # the user may have deleted the fact since
        stored = self.new_items.get(id) or next(iter(await self._get_current([id])), None)
        related = await self._find_related(ENGLISH.extract_claims(text)) if utterance.speaker == "user" else []
        if await self._is_known(stored, text, related, at) or (quote and await self._is_known(None, quote, [], at)):
            self.set_note(note_name, {**note, "at": to_micros(at)})
            return
        if stored is not None:  # a former value that is true again is a new item: the time between is history
            id = make_content_id(space, text, at.isoformat())
        item = self._build_fact(utterance, id, text, rule, quote)
        item = replace(item, derived_from=tuple(dict.fromkeys((*origins, utterance.entry.id))))
        ended = await self._insert_item(item, related)
        self.set_note(note_name, {"at": to_micros(at)})
        reasons = [f"{rule}, from entry {utterance.entry.id} of {utterance.source}", *(f"ends {id}" for id in ended)]
        self.actions.append(LifecycleAction(item.id, "semantic", "; ".join(reasons)))

    async def get_note(self, name: str) -> Mapping[str, Any]:
        """Return the values of a note, including the changes of this batch."""
        if name in self._new_notes:
            return self._new_notes[name]
        await self.load_notes({name})
        stored = self._stored_notes[name]
        return {} if stored is None else stored.metadata

    async def load_notes(self, names: set[str]) -> None:
        """Read notes in one round trip."""
        missing = [name for name in names if name not in self._stored_notes]
        found = await self._notes.get(missing)
        self._stored_notes.update({name: found.get(name) for name in missing})

    def set_note(self, name: str, values: Mapping[str, Any]) -> None:
        self._new_notes[name] = dict(values)

    def build_puts(self) -> list[Put]:
        """Return the writes of the changed facts and notes; each checks the version that was read."""
        changed = [Put(item=item, expect=version) for item, version in self._changed_items.values()]
        notes = [
            self._notes.build_put(name, values, self._stored_notes.get(name), self._run.now)
            for name, values in self._new_notes.items()
        ]
        return changed + notes

    async def _is_known(self, stored: MemoryItem | None, text: str, related: list[MemoryItem], at: datetime) -> bool:
        """Return True if a current item says the same, in any wording; a former value that returns is not known."""
        if stored is not None:
            is_current = stored.superseded_by is None or is_merged_copy(stored)
            return is_current or (stored.valid_to is not None and at <= stored.valid_to)
        now = self._run.now
        earlier = [
            item for item in related if item.live_at(now) and get_valid_from(item) <= at and is_user_statement(item)
        ]
        if ENGLISH.is_already_claimed(text, earlier):
            return True
        terms = tuple(dict.fromkeys(analyze(text)))[:_MAX_TERMS]
        matches = await self._find_by_terms(terms, _MAX_SIMILAR)
        items = [*self.new_items.values(), *await self._get_current(match.brief.id for match in matches)]
        return any(ENGLISH.is_redundant(text, item) for item in items if item.live_at(now))

    def _build_fact(
        self, utterance: Utterance, id: str, text: str, rule: PromotionRule, quote: str | None
    ) -> MemoryItem:
        scope, session, at = self._run.scope, utterance.space.session, utterance.entry.at
        metadata = {"rule": rule, "kind": utterance.entry.kind, "session": session}
        metadata |= {} if quote is None else {"quote": quote}
        return MemoryItem(
            id=id,
            content=text,
            scope=Scope(scope.tenant, scope.user, scope.agent, session or None),
            created_at=at,
            learned_at=self._run.now if at < self._run.now else None,
            metadata=metadata,
            importance=max(RULE_IMPORTANCE[rule], score_importance(text)),
            source=utterance.source,
            trust=utterance.trust if quote is None else min(utterance.trust, _MODEL_TRUST),
        )

    async def _insert_item(self, item: MemoryItem, related: list[MemoryItem]) -> list[str]:
        """Add an item and end the items that it contradicts, or end it if a later one does; return the ended ids."""
        result = resolve_contradictions(item, related)
        for ended in result.ended_items:
            if ended.id in self.new_items:
                self.new_items[ended.id] = ended
            else:
                self._changed_items[ended.id] = (ended, ended.version)
        added = (result.item, *result.remaining_items)
        for new in added:
            self.new_items[new.id] = add_plain_wording(new)
        self.actions += [
            LifecycleAction(new.id, "semantic", f"the part of {new.derived_from[0]} that still holds")
            for new in result.remaining_items
        ]
        for slot in sorted({slot for claim in ENGLISH.extract_claims(item.content) for slot in claim.slots}):
            name = lifecycle_notes.name_slot_values(slot)
            recent = [*(await self.get_note(name)).get("items", ()), *(new.id for new in added)]
            self.set_note(name, {"items": recent[-_MAX_RECENT_IDS:]})
        return [ended.id for ended in result.ended_items]

    async def _find_related(self, claims: Sequence[SlotClaim]) -> list[MemoryItem]:
        """Return facts that may claim the same slots, found by their terms and by the notes on recent values."""
        if not claims:
            return []
        ids: dict[str, None] = {}
        for claim in claims:
            for slot in claim.slots:
                ids |= dict.fromkeys((await self.get_note(lifecycle_notes.name_slot_values(slot))).get("items", ()))
            matches = await self._find_by_terms(claim.search_terms, _MAX_RELATED)
            shortest = heapq.nsmallest(_MAX_RELATED_READ, matches, key=lambda match: match.brief.length)
            ids |= dict.fromkeys(match.brief.id for match in shortest)
        stored = await self._get_current(id for id in ids if id not in self.new_items)
        # Filtering in the search would read the whole space.
        return [*self.new_items.values(), *(item for item in stored if item.key is None and item.turn is None)]

    async def _find_by_terms(self, terms: tuple[str, ...], limit: int) -> list[ScoredItem]:
        ask = EvidenceQuery(Where(self._run.fact_space, live_at=self._run.now), None, terms, limit, reach=0)
        return await self._run.context.records.gather(ask, lambda found, lookup: found.rank_by_terms(limit))

    async def _get_current(self, ids: Iterable[str]) -> list[MemoryItem]:
        """Return stored items, including the changes of this batch."""
        wanted = list(ids)
        found = await self._run.overlay.get(self._run.fact_space, *wanted) if wanted else []
        return [self._changed_items[item.id][0] if item.id in self._changed_items else item for item in found]


def add_plain_wording(item: MemoryItem) -> MemoryItem:
    """Return the item with its claims in plain sentences, which are indexed with its content."""
    metadata = {name: value for name, value in item.metadata.items() if name != PARAPHRASE_KEY}
    sentences = ENGLISH.build_plain_sentences(item.content)
    if sentences:
        metadata[PARAPHRASE_KEY] = "\n".join(sentences)
    return item if metadata == item.metadata else replace(item, metadata=MappingProxyType(metadata))
