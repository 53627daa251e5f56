"""Recall over all tiers: they are queried in parallel, ended statements are marked, and the lines are packed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Protocol

from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.language.claims import ClaimClause, SlotClaim, contradicts
from recollect.language.dates import find_asked_time
from recollect.language.recalled_text import CURRENT_SECTION, KNOWLEDGE_SECTION, PROCEDURES_SECTION, RECENT_SECTION
from recollect.language.rules import ENGLISH
from recollect.language.sentences import (
    MAX_MESSAGE_LENGTH,
    NON_USER_ROLES,
    has_content_words,
    split_sentences,
)
from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import DEFAULT_CALIBRATION, calibrate_embedding
from recollect.retrieval.log_search import LogSearch, build_line, find_shared_terms, format_kind
from recollect.retrieval.prompt_block import PromptLine, build_prompt_block
from recollect.retrieval.query import (
    find_uncovered,
    is_about_assistant,
    is_small_talk,
    rewrite_in_first_person,
    split_query,
)
from recollect.retrieval.ranking import Evidence, estimate_chances, get_key, select_lines
from recollect.retrieval.request import QueryEmbedding, RecallRequest
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.sources import RecallSource, SourceResult, gather_all, query_sources
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where, matches_where
from recollect.stores.search import SearchMode, SearchQuery
from recollect.stores.writes import Touch
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

# The candidates of each tier for a question that names a time.
_CANDIDATES_IN_TIME = 100
# The newest entries that answer a reference to the session.
_MAX_RECENT = 5
_MAX_PROCEDURES = 5
_RANKED_TIERS = ("conversation", "episodic", "semantic")

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
    recall = TierRecall(engine, tiers, request)
    found = await query_sources(recall.build_sources())
    lines = await recall.select(found.lines)
    return build_prompt_block(request.query, lines, request.budget, left_out=found.left_out, warnings=found.warnings)


class TierRecall:
    """The queries of one request, tier by tier."""

    def __init__(self, engine: RecallEngine, tiers: RecallTiers, request: RecallRequest) -> None:
        self._engine = engine
        self._tiers = tiers
        self._has_threshold = request.limit is None and request.min_relevance > 0.0
        self._asked_time = find_asked_time(request.query, request.now.date())
        if self._asked_time is not None:  # a question like "what did I do on Monday?" is near to no message
            request = replace(request, n=max(request.n, _CANDIDATES_IN_TIME))
        self._request = request
        self._phrase_hits: list[list[Hit]] = [[] for _ in request.phrases]
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
            if tier in self._request.tiers and self._request.limit != 0
        ]

    async def build_evidence(self, lines: Sequence[PromptLine]) -> tuple[list[PromptLine], Evidence]:
        """Return the lines that are ranked, and what is known about them.

        The ranking compares statements. A reference to the session is answered by its newest entries, and procedures
        compete only with each other.
        """
        ranked = [line for line in lines if line.hit.tier in _RANKED_TIERS and not line.hit.why.reason]
        by_query = [{get_key(line.hit.item): line.hit for line in ranked}]
        by_query += [{get_key(hit.item): hit for hit in hits} for hits in self._phrase_hits]
        has_cosines = any(hit.why.cosine is not None for hits in by_query for hit in hits.values())
        return ranked, Evidence(
            queries=[self._own_words_request.query, *self._request.phrases],
            by_query=by_query,
            calibration=await calibrate_embedding(self._engine.embedding) if has_cosines else DEFAULT_CALIBRATION,
            now=self._request.now,
            asked_time=self._asked_time,
            asks_assistant=is_about_assistant(self._request.query),
        )

    async def select(self, lines: Sequence[PromptLine]) -> list[PromptLine]:
        """Return the lines to show, in their order; of ranked lines, the chance to answer is the priority."""
        ranked, evidence = await self.build_evidence(lines)
        recent = [line for line in lines if line.hit.why.reason and line.hit.tier != "working"]
        recent = sorted(recent, key=lambda line: -line.priority)[: self._request.limit or _MAX_RECENT]
        chances = estimate_chances(ranked, evidence)
        limit = None if self._request.limit is None else self._request.limit - len(recent)
        chosen = select_lines(ranked, chances, evidence, limit=limit, has_threshold=self._has_threshold)
        shown = {id(ranked[at]): replace(ranked[at], priority=float(chances.answers[at])) for at in chosen}
        shown |= {id(line): line for line in recent}
        shown |= {id(line): line for line in lines if line.hit.tier in ("working", "procedural")}
        self._count_accesses(shown.values())
        return [shown[id(line)] for line in lines if id(line) in shown]

    def _count_accesses(self, lines: Iterable[PromptLine]) -> None:
        space = self._tiers.semantic._space
        ids = tuple(line.hit.item.id for line in lines if line.hit.tier == "semantic")
        if ids:
            self._engine.stores.records("semantic").touch(Touch(space, ids, self._request.now))

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
        log = self._engine.stores.log("episodic")
        hits, *by_phrase = await self._log_search.search_episodes(log, self._request.phrases)
        self._add_phrase_hits([[hit.hit for hit in found] for found in by_phrase])
        by_id = {hit.entry.id: replace(hit, hit=_as_phrase_hit(hit.hit)) for found in by_phrase for hit in found}
        by_id |= {hit.entry.id: hit for hit in hits}
        newest_last = sorted(by_id.values(), key=lambda hit: hit.entry.at)
        lines = [build_line(hit.hit, RECENT_SECTION, label=format_kind(hit)) for hit in newest_last]
        return await self._apply_updates(SourceResult(lines))

    async def _recall_conversation(self) -> SourceResult:
        log, load_summary = self._engine.stores.log("conversation"), self._tiers.conversation.summary
        found, by_phrase = await self._log_search.search_messages(log, load_summary, self._request.phrases)
        self._add_phrase_hits([[hit.hit for hit in hits] for hits in by_phrase])
        known = {line.hit.item.id for line in found.lines}
        others = {hit.entry.id: hit for hits in by_phrase for hit in hits if hit.entry.id not in known}
        here = self._tiers.scope.space("conversation")
        lines = [
            build_line(
                _as_phrase_hit(hit.hit),
                CURRENT_SECTION if hit.space == here else RECENT_SECTION,
                label=hit.entry.kind,
            )
            for hit in others.values()
        ]
        return await self._apply_updates(replace(found, lines=[*found.lines, *lines]))

    async def _recall_semantic(self) -> SourceResult:
        request = self._request
        warnings: list[str] = []
        mode: SearchMode = "hybrid"
        try:
            await self._query_embedding.embed_query()
        except EmbedderFailed as error:
            mode = "text"
            warnings.append(f"semantic memory was searched by terms only, because the embedder failed: {error}")
        search = partial(self._search_facts, mode=mode)
        hits = await search(request.query)
        own_words = self._own_words_request.query
        if own_words != request.query:
            hits = _merge_best_hits([hits, await search(own_words)], request.n)
        # The vector of two questions in one is far from both answers, so a part without a hit is queried alone.
        if uncovered := find_uncovered(split_query(request.query), [hit.item.content for hit in hits]):
            hits = _merge_best_hits([hits, *await gather_all(*map(search, uncovered))], request.n)
        by_phrase = await gather_all(*map(search, request.phrases)) if request.phrases else []
        self._add_phrase_hits(by_phrase)
        known = {hit.item.id for hit in hits}
        others = {hit.item.id: hit for found in by_phrase for hit in found if hit.item.id not in known}
        lines = [build_line(hit, KNOWLEDGE_SECTION) for hit in (*hits, *map(_as_phrase_hit, others.values()))]
        return SourceResult(lines, warnings=warnings)

    async def _search_facts(self, text: str, mode: SearchMode) -> list[Hit]:
        """Search the facts without counting an access: most of them will not be shown."""
        request = self._request
        where = Where(
            self._tiers.semantic._space,
            live_at=request.moment,
            known_at=request.as_of,
            conditions=() if request.where is None else await self._tiers.semantic._parse_filter(request.where),
        )
        question = SearchQuery(
            text=text,
            where=where,
            n=request.n,
            min_relevance=request.min_relevance,
            now=request.moment,
            asked_at=request.now,
            mode=mode,
        )
        find = self._engine.fact_search.find_hits
        return await with_current_model(self._engine.embedding, lambda _: find(question))

    def _add_phrase_hits(self, by_phrase: Sequence[Sequence[Hit]]) -> None:
        for known, found in zip(self._phrase_hits, by_phrase, strict=False):
            known.extend(found)

    async def _recall_procedural(self) -> SourceResult:
        request = self._request
        if request.as_of is not None:  # outcomes are known as of now only, so no success rate is shown
            hits = [hit for hit in await self._find_versions(request.as_of) if request.matches(hit.item)]
            return SourceResult([build_line(hit, PROCEDURES_SECTION) for hit in hits])
        warnings: list[str] = []
        try:
            await self._query_embedding.embed_query()
            limit = _MAX_PROCEDURES if request.limit is None else request.limit
            hits = await self._tiers.procedural.search(request.query, limit, min_relevance=request.min_relevance)
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


def _as_phrase_hit(hit: Hit) -> Hit:
    """Return a hit of a phrase without the phrase's evidence: it was not found by the question itself."""
    return replace(hit, relevance=0.0, why=Why())


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
