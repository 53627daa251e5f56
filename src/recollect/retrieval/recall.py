"""Recall over all tiers: they are queried in parallel, ended statements are marked, and the lines are packed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Protocol

from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.language.claims import ClaimClause, SlotClaim, contradicts
from recollect.language.recalled_text import CURRENT_SECTION, KNOWLEDGE_SECTION, PROCEDURES_SECTION
from recollect.language.rules import ENGLISH
from recollect.language.sentences import (
    MAX_MESSAGE_LENGTH,
    NON_USER_ROLES,
    has_content_words,
    split_sentences,
)
from recollect.models.embedding import Embedding
from recollect.retrieval.log_search import LogSearch, build_line, find_shared_terms
from recollect.retrieval.prompt_block import PromptLine, build_prompt_block
from recollect.retrieval.query import find_uncovered, is_small_talk, rewrite_in_first_person, split_query
from recollect.retrieval.request import QueryEmbedding, RecallRequest
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.sources import RecallSource, SourceResult, gather_all, query_sources
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where, matches_where
from recollect.stores.search import SearchMode, SearchQuery
from recollect.tiers.contradiction import ENDED_BY, is_user_statement
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.facts import get_valid_from
from recollect.tiers.indexing import with_current_model
from recollect.tiers.lifecycle_notes import name_slot_values
from recollect.tiers.messages import TextCache
from recollect.tiers.procedural import ProceduralMemory, Procedure, procedure_from_item
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.types import Context, Hit, LeftOut, MemoryItem, Scope, Space, Tier, Why, make_content_id

# Above every relevance: the current task comes first in the budget.
_TASK_PRIORITY = 2.0

# Seconds, for a store that never answers; stores time out on locks much earlier.
_TIER_TIMEOUT = 30.0
# A replacement may have been replaced, too. Each step is a read.
_MAX_SUCCESSORS = 8

# Metadata keys of summaries, which messages do not have.
_SUMMARY_KEYS = {"noted", "unanswered"}

_Facts = Mapping[str, tuple[MemoryItem, tuple[SlotClaim, ...]]]


class RecallEngine(Protocol):
    """The parts of an open memory that recall reads."""

    @property
    def stores(self) -> TierStores: ...
    @property
    def embedding(self) -> Embedding: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def fact_search(self) -> HybridSearch: ...
    @property
    def procedure_search(self) -> HybridSearch: ...
    @property
    def turn_index(self) -> TurnIndex: ...


class RecallTiers(Protocol):
    """The tiers that recall reads."""

    scope: Scope
    working: WorkingMemory
    conversation: ConversationMemory
    semantic: SemanticMemory
    procedural: ProceduralMemory


async def recall_from_tiers(engine: RecallEngine, tiers: RecallTiers, request: RecallRequest) -> Context:
    """Query the requested tiers and pack what is relevant into a prompt block."""
    found = await query_sources(TierRecall(engine, tiers, request).build_sources())
    return build_prompt_block(
        request.query, found.lines, request.budget, left_out=found.left_out, warnings=found.warnings
    )


class TierRecall:
    """The queries of one request, tier by tier."""

    def __init__(self, engine: RecallEngine, tiers: RecallTiers, request: RecallRequest) -> None:
        self._engine = engine
        self._tiers = tiers
        self._request = request
        self._query_embedding = QueryEmbedding(engine.embedding, request.query)
        # Models ask about "the user", and users speak of themselves as "I".
        query = rewrite_in_first_person(request.query)
        self._own_words_request = replace(request, query=query)
        self._own_words_embedding = (
            self._query_embedding if query == request.query else QueryEmbedding(engine.embedding, query)
        )

    def build_sources(self) -> list[RecallSource]:
        """Return the requested tiers in the order in which their lines are read; none for 0 hits."""
        queries: dict[Tier, Callable[[], Awaitable[SourceResult]]] = {
            "working": self._recall_working,
            "conversation": self._recall_conversation,
            "episodic": self._recall_episodic,
            "semantic": self._recall_semantic,
            "procedural": self._recall_procedural,
        }
        timeout = _TIER_TIMEOUT + self._engine.settings.embed_timeout
        return [
            RecallSource(
                name=tier, query=query, timeout=timeout, is_stored=tier != "working", is_slow=tier == "semantic"
            )
            for tier, query in queries.items()
            if tier in self._request.tiers and self._request.n
        ]

    async def _recall_working(self) -> SourceResult:
        """Return the current task, if there is one. It has no history, so a request with `as_of` leaves it out."""
        state, request = self._tiers.working, self._request
        text = state.get_context_string()
        if not text or request.as_of is not None:
            return SourceResult()
        item = MemoryItem(
            id=state.task_id,
            content=text,
            scope=self._tiers.scope,
            created_at=request.now,
            tier="working",
            importance=1.0,
        )
        hit = Hit(item, "working", 1.0, _TASK_PRIORITY, Why(reason="the task at hand"))
        begun = f"Task begun: {state.task}"  # the text of the task's first episode
        parts = (text, state.task, begun, state.current_goal, *state.subgoals, *state.scratchpad)
        texts = tuple(part for part in (*parts, *state.results.values()) if isinstance(part, str) and part)
        return SourceResult([replace(build_line(hit, CURRENT_SECTION), priority=_TASK_PRIORITY, texts=texts)])

    @cached_property
    def _log_search(self) -> LogSearch:
        # Built by the first log query: by then the slower search of facts is running.
        engine, request, embedding = self._engine, self._own_words_request, self._own_words_embedding
        return LogSearch(request, self._tiers.scope, embedding, engine.turn_index, engine.fact_search)

    async def _recall_episodic(self) -> SourceResult:
        return await self._apply_updates(await self._log_search.search_episodes(self._engine.stores.log("episodic")))

    async def _recall_conversation(self) -> SourceResult:
        log, load_summary = self._engine.stores.log("conversation"), self._tiers.conversation.summary
        return await self._apply_updates(await self._log_search.search_messages(log, load_summary))

    async def _recall_semantic(self) -> SourceResult:
        request, search = self._request, self._tiers.semantic.search
        options: dict[str, Any] = {name: getattr(request, name) for name in ("min_relevance", "as_of", "where")}
        warnings: list[str] = []
        try:
            await self._query_embedding.embed_query()
            hits = await search(request.query, request.n, **options)
        except EmbedderFailed as error:
            options["mode"] = "text"
            hits = await search(request.query, request.n, **options)
            warnings.append(f"semantic memory was searched by terms only, because the embedder failed: {error}")
        own_words = self._own_words_request.query
        if own_words != request.query:
            hits = _merge_best_hits([hits, await search(own_words, request.n, **options)], request.n)
        # The vector of two questions in one is far from both answers, so a part without a hit is queried alone.
        if uncovered := find_uncovered(split_query(request.query), [hit.item.content for hit in hits]):
            more = await gather_all(*(search(part, request.n, **options) for part in uncovered))
            hits = _merge_best_hits([hits, *more], request.n)
        return SourceResult([build_line(hit, KNOWLEDGE_SECTION) for hit in hits], warnings=warnings)

    async def _recall_procedural(self) -> SourceResult:
        request = self._request
        if request.as_of is not None:  # outcomes are known as of now only, so no success rate is shown
            hits = [hit for hit in await self._find_versions(request.as_of) if request.matches(hit.item)]
            return SourceResult([build_line(hit, PROCEDURES_SECTION) for hit in hits])
        warnings: list[str] = []
        try:
            await self._query_embedding.embed_query()
            hits = await self._tiers.procedural.search(request.query, request.n, min_relevance=request.min_relevance)
        except EmbedderFailed as error:
            versions = await self._find_versions(request.now, "text")
            hits = [hit for hit in versions if procedure_from_item(hit.item).current]
            warnings.append(f"procedural memory was searched by terms only, because the embedder failed: {error}")
        hits = [hit for hit in hits if request.matches(hit.item)]
        rates = [format_success_rate(procedure_from_item(hit.item)) for hit in hits]
        lines = [build_line(hit, PROCEDURES_SECTION, note=rate) for hit, rate in zip(hits, rates, strict=True)]
        return SourceResult(lines, warnings=warnings)

    async def _apply_updates(self, found: SourceResult) -> SourceResult:
        """Remove what is no longer true from the lines of a log, or mark it if the query asks about the past."""
        request, shows_past = self._request, ENGLISH.is_about_past(self._request.query)
        where = Where(self._tiers.semantic._space, live_at=request.moment, known_at=request.as_of)
        records = self._engine.stores.records("semantic")
        try:
            superseded = await find_superseded_entries(
                records, self._tiers.scope, (line.hit.item for line in found.lines), where
            )
        except StoreClosed:
            raise
        except (StoreError, OSError) as error:  # the facts may be on another server than the log
            warning = f"statements could not be checked for updates: {str(error) or type(error).__name__}"
            return SourceResult(found.lines, found.left_out, [*found.warnings, warning])
        lines: list[PromptLine] = []
        left_out: list[LeftOut] = list(found.left_out)
        for line in found.lines:
            item = line.hit.item
            end = superseded.get(item.id)
            if end is None:
                lines.append(line)
            elif shows_past or line.hit.why.reason:
                lines.append(replace(line, note=f"no longer so since {end.since:%Y-%m-%d}"))
            elif find_shared_terms(request.query, [end.remaining_text]):
                lines.append(replace(line, hit=replace(line.hit, item=replace(item, content=end.remaining_text))))
            else:
                by = "" if end.replacement is None else f" by item {end.replacement.id}"
                left_out.append(LeftOut(item, f"superseded{by} on {end.since:%Y-%m-%d}"))
                if end.replacement is not None and "semantic" in request.tiers and request.matches(end.replacement):
                    why = Why(reason=f"said on {end.since:%Y-%m-%d}, in place of what the question is about")
                    later = replace(line.hit, item=end.replacement, tier="semantic", why=why)
                    lines.append(build_line(later, KNOWLEDGE_SECTION))
        return SourceResult(lines, left_out, found.warnings)

    async def _find_versions(self, moment: datetime, mode: SearchMode = "hybrid") -> list[Hit]:
        """Search the versions of procedures that were current at `moment`."""
        question = SearchQuery(
            text=self._request.query,
            where=Where(self._tiers.procedural._space, live_at=moment, known_at=moment),
            n=self._request.n,
            min_relevance=self._request.min_relevance,
            now=moment,
            asked_at=self._request.now,
            mode=mode,
        )
        search = self._engine.procedure_search.search
        return await with_current_model(self._engine.embedding, lambda _: search(question))


def format_success_rate(procedure: Procedure) -> str:
    """Format the outcomes of a procedure for its line."""
    trials = procedure.success_rate.trials
    if not trials:
        return "not tried yet"
    text = f"worked {procedure.outcomes.successes} of {trials} times"
    return f"{text}, failing lately" if procedure.demoted else text


def _merge_best_hits(results: Sequence[Sequence[Hit]], n: int) -> list[Hit]:
    """Return the best `n` items, each with its best relevance. The best hit of every query is among them."""
    best: dict[str, Hit] = {}
    for hit in (hit for hits in results for hit in hits):
        known = best.get(hit.item.id)
        if known is None or hit.relevance > known.relevance:
            best[hit.item.id] = hit
    firsts = {hits[0].item.id for hits in results if hits}
    chosen = sorted(best.values(), key=lambda hit: (hit.item.id in firsts, hit.relevance), reverse=True)[:n]
    return sorted(chosen, key=lambda hit: hit.relevance, reverse=True)


@dataclass(frozen=True, slots=True)
class SupersededEntry:
    """The end of a statement in a log entry."""

    since: datetime
    replacement: MemoryItem | None
    """The later statement; None if the user has forgotten it since."""
    remaining_text: str
    """The text without the ended statements; empty if nothing remains."""


@dataclass(frozen=True, slots=True)
class _ClaimingSentence:
    """A sentence of an entry that makes claims about the user."""

    item: MemoryItem
    text: str
    clauses: tuple[ClaimClause, ...]
    by_user: bool


async def find_superseded_entries(
    records: Records, scope: Scope, entries: Iterable[MemoryItem], where: Where
) -> dict[str, SupersededEntry]:
    """Return the superseded entries by id; the store is read only if an entry makes a claim, which few do."""
    sentences = [sentence for item in entries for sentence in _find_claiming_sentences(item)]
    if not sentences:
        return {}
    facts = await _load_related_facts(records, scope, sentences, where)
    claims = {id: (item, ENGLISH.extract_claims(item.content)) for id, item in facts.items()}
    found: dict[str, SupersededEntry] = {}
    for sentence in sentences:
        superseded = _judge_sentence(sentence, found.get(sentence.item.id), claims, where)
        if superseded is not None:
            found[sentence.item.id] = superseded
    return found


def _find_claiming_sentences(item: MemoryItem) -> list[_ClaimingSentence]:
    role = str(item.metadata.get("role") or item.source).lower()
    by_user = role not in NON_USER_ROLES
    if role == "tool" or not _CLAIM_CACHES[by_user].get(item.content):
        return []
    return [
        _ClaimingSentence(item, statement.text, clauses, by_user)
        for statement in ENGLISH.parse_statements(item.content)
        if not (statement.is_question or statement.is_supposed)
        and (clauses := ENGLISH.parse_clauses(statement.text, by_user))
    ]


def _may_contain_claims(by_user: bool, text: str) -> bool:
    return any(ENGLISH.parse_clauses(sentence, by_user) for sentence in split_sentences(text[:MAX_MESSAGE_LENGTH]))


# Most texts contain no claims.
_CLAIM_CACHES = {by_user: TextCache(partial(_may_contain_claims, by_user), 8192) for by_user in (True, False)}


async def _load_related_facts(
    records: Records, scope: Scope, sentences: Sequence[_ClaimingSentence], where: Where
) -> dict[str, MemoryItem]:
    """Return the facts about the same slots, with their successors.

    A promoted sentence has the id of its fact, so one read finds most facts. For other wordings, the notes of the
    lifecycle list the facts that last gave a value of the slot.
    """
    ids = [make_content_id(where.space, sentence.text) for sentence in sentences]
    facts = await _load_with_successors(records, where.space, set(ids))
    others = (sentence for sentence, id in zip(sentences, ids, strict=True) if id not in facts)
    slots = {slot for sentence in others for clause in sentence.clauses for slot in clause.claim.slots}
    if slots:
        note_space = replace(scope, session=None).space("lifecycle")
        notes = await records.get(note_space, *map(name_slot_values, sorted(slots)))
        recent = {str(id) for note in notes for id in note.metadata.get("items", ())}
        facts |= await _load_with_successors(records, where.space, recent - facts.keys())
    return facts


async def _load_with_successors(records: Records, space: Space, wanted: set[str]) -> dict[str, MemoryItem]:
    facts: dict[str, MemoryItem] = {}
    for _ in range(_MAX_SUCCESSORS):
        if not wanted:
            break
        found = await records.get(space, *sorted(wanted))
        facts |= {item.id: item for item in found}
        wanted = {item.superseded_by for item in found if item.superseded_by is not None} - facts.keys()
    return facts


def _judge_sentence(
    sentence: _ClaimingSentence, before: SupersededEntry | None, facts: _Facts, where: Where
) -> SupersededEntry | None:
    """Return the state of the entry after this sentence; None while all of it holds."""
    ends = [(clause, _find_end(clause.claim, sentence, facts, where)) for clause in sentence.clauses]
    ended = [end for _, end in ends if end is not None]
    if not ended:
        return before
    text = sentence.item.content
    if before is not None:
        ended.append((before.since, before.replacement))
        text = before.remaining_text
    # An assistant's sentence was rewritten for parsing, so it is shown whole or not at all.
    remaining = " and ".join(clause.text for clause, end in ends if end is None) if sentence.by_user else ""
    text = text.replace(sentence.text, remaining, 1)
    since, replacement = max(ended, key=lambda end: (end[1] is not None, end[0]))
    is_empty = is_small_talk(text) or not has_content_words(text)
    return SupersededEntry(since, replacement, "" if is_empty else " ".join(text.split()))


def _find_end(
    claim: SlotClaim, sentence: _ClaimingSentence, facts: _Facts, where: Where
) -> tuple[datetime, MemoryItem | None] | None:
    """Return when a claim ended and its replacement; None while it holds, or if it holds again."""
    stated_at, now = sentence.item.created_at, where.live_at
    if sentence.item.metadata.keys() >= _SUMMARY_KEYS:  # its statements are of unknown age
        stated_at = datetime.min.replace(tzinfo=UTC)
    current = [(item, claims) for item, claims in facts.values() if matches_where(where, item)]
    if any(claim in claims for _, claims in current):
        return None
    replacements = [
        (any(later.is_affirmed for later in claims), get_valid_from(item), item)
        for item, claims in current
        if get_valid_from(item) > stated_at
        and (item.trust >= sentence.item.trust or not sentence.by_user)
        and is_user_statement(item)
        and any(contradicts(later, claim) for later in claims)
    ]
    if replacements:
        # "I live in Porto" says more than "I don't live in Lisbon any more".
        _, since, replacement = max(replacements, key=lambda candidate: candidate[:2])
        return since, replacement
    for item, claims in facts.values():
        ended_at = item.valid_to
        if ended_at is None or now is None or not stated_at < ended_at <= now or ENDED_BY not in item.metadata:
            continue
        if claim in claims:
            return ended_at, _find_successor(item, facts, where)
    return None


def _find_successor(item: MemoryItem, facts: _Facts, where: Where) -> MemoryItem | None:
    for _ in range(_MAX_SUCCESSORS):
        successor = facts.get(item.superseded_by or "")
        if successor is None:
            return None
        item = successor[0]
        if matches_where(where, item):
            return item
    return None
