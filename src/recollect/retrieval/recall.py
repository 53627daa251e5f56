"""Recall over all tiers: every tier is queried in parallel, and the lines become one prompt block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.language.recalled_text import CURRENT_SECTION, KNOWLEDGE_SECTION, PROCEDURES_SECTION
from recollect.language.sentences import is_about_past
from recollect.models.embedding import Embedding
from recollect.retrieval.log_candidates import TIER_PRECEDENCE, find_shared_terms
from recollect.retrieval.log_search import LogSearch, TurnSearch
from recollect.retrieval.prompt_block import PromptLine, build_prompt_block
from recollect.retrieval.query import find_uncovered, rewrite_in_first_person, split_query
from recollect.retrieval.request import QueryEmbedding, RecallRequest
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.sources import RecallSource, SourceResult, gather_all, query_sources
from recollect.retrieval.turn_index import TurnIndex
from recollect.retrieval.updates import SupersededEntry, find_superseded_entries
from recollect.settings import Settings
from recollect.stores.factory import TierStores
from recollect.stores.filters import Where
from recollect.stores.search import SearchMode, SearchQuery
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.indexing import with_current_model
from recollect.tiers.procedural import ProceduralMemory, Procedure, procedure_from_item
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from recollect.types import Context, Hit, LeftOut, MemoryItem, Scope, Tier, Why

# Above every relevance: the current task comes first in the budget.
_TASK_PRIORITY = 2.0

# Seconds, for a store that never answers; stores time out on locks much earlier.
_TIER_TIMEOUT = 30.0


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
        """Return the requested tiers in the order in which their lines are read."""
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
            if tier in self._request.tiers
        ]

    async def _recall_working(self) -> SourceResult:
        """Return the current task, if there is one. It has no history, so a request with `as_of` leaves it out."""
        state, request = self._tiers.working, self._request
        text = state.get_context_string()
        if not text or not request.n or request.as_of is not None:
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
        parts = (
            text,
            state.task,
            begun,
            state.current_goal,
            *state.subgoals,
            *state.scratchpad,
            *state.results.values(),
        )
        texts = tuple(part for part in parts if isinstance(part, str) and part)
        precedence = TIER_PRECEDENCE["working"]
        line = PromptLine(hit=hit, section=CURRENT_SECTION, priority=_TASK_PRIORITY, precedence=precedence, texts=texts)
        return SourceResult([line])

    @cached_property
    def _log_search(self) -> LogSearch:
        # Built by the first log query: by then the slower search of facts is running.
        return LogSearch(self._own_words_request, self._tiers.scope, self._own_words_embedding)

    async def _recall_episodic(self) -> SourceResult:
        return await self._apply_updates(await self._log_search.search_episodes(self._engine.stores.log("episodic")))

    async def _recall_conversation(self) -> SourceResult:
        engine, tiers = self._engine, self._tiers
        turns = TurnSearch(
            engine.turn_index, engine.fact_search, engine.embedding, tiers.scope, self._own_words_request
        )
        log = engine.stores.log("conversation")
        return await self._apply_updates(await self._log_search.search_messages(log, tiers.conversation.summary, turns))

    async def _recall_semantic(self) -> SourceResult:
        request, search = self._request, self._tiers.semantic.search
        options: dict[str, Any] = {
            "min_relevance": request.min_relevance,
            "as_of": request.as_of,
            "where": request.where,
        }
        warnings: list[str] = []
        try:
            await self._query_embedding.embed_query()
            hits = await search(request.query, request.n, **options)
        except EmbedderFailed as error:
            options["mode"] = "text"
            hits = await search(request.query, request.n, **options)
            warnings.append(f"semantic memory was searched by terms only, because the embedder failed: {error}")
        own_words = self._own_words_request.query
        if own_words != request.query and request.n:
            hits = _merge_best_hits([hits, await search(own_words, request.n, **options)], request.n)
        # The vector of two questions in one is far from both answers, so a part without a hit is queried alone.
        parts = split_query(request.query) if request.n else []
        if uncovered := find_uncovered(parts, [hit.item.content for hit in hits]) if parts else []:
            more = await gather_all(*(search(part, request.n, **options) for part in uncovered))
            hits = _merge_best_hits([hits, *more], request.n)
        return SourceResult([_build_line(hit, KNOWLEDGE_SECTION) for hit in hits], warnings=warnings)

    async def _recall_procedural(self) -> SourceResult:
        request = self._request
        if request.as_of is not None:  # outcomes are known as of now only, so no success rate is shown
            hits = self._filter_hits(await self._find_versions(request.as_of))
            return SourceResult([_build_line(hit, PROCEDURES_SECTION) for hit in hits])
        warnings: list[str] = []
        try:
            await self._query_embedding.embed_query()
            hits = await self._tiers.procedural.search(request.query, request.n, min_relevance=request.min_relevance)
        except EmbedderFailed as error:
            versions = await self._find_versions(request.now, "text")
            hits = [hit for hit in versions if procedure_from_item(hit.item).current]
            warnings.append(f"procedural memory was searched by terms only, because the embedder failed: {error}")
        return SourceResult(
            [
                _build_line(hit, PROCEDURES_SECTION, format_success_rate(procedure_from_item(hit.item)))
                for hit in self._filter_hits(hits)
            ],
            warnings=warnings,
        )

    async def _apply_updates(self, found: SourceResult) -> SourceResult:
        """Remove what is no longer true from the lines of a log, or mark it if the query asks about the past."""
        request = self._request
        if not found.lines:
            return found
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
        if not superseded:
            return found
        shows_past = is_about_past(request.query)
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
                left_out.append(LeftOut(item, _format_superseded(end)))
                if end.replacement is not None and "semantic" in request.tiers and request.matches(end.replacement):
                    why = Why(reason=f"said on {end.since:%Y-%m-%d}, in place of what the question is about")
                    hit = Hit(end.replacement, "semantic", line.hit.relevance, line.hit.score, why)
                    lines.append(_build_line(hit, KNOWLEDGE_SECTION))
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

    def _filter_hits(self, hits: list[Hit]) -> list[Hit]:
        return [hit for hit in hits if self._request.matches(hit.item)]


def format_success_rate(procedure: Procedure) -> str:
    """Format the outcomes of a procedure for its line."""
    trials = procedure.success_rate.trials
    if not trials:
        return "not tried yet"
    text = f"worked {procedure.outcomes.successes} of {trials} times"
    return f"{text}, failing lately" if procedure.demoted else text


def _format_superseded(end: SupersededEntry) -> str:
    by = "" if end.replacement is None else f" by item {end.replacement.id}"
    return f"superseded{by} on {end.since:%Y-%m-%d}"


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


def _build_line(hit: Hit, section: str, note: str = "") -> PromptLine:
    return PromptLine(hit=hit, section=section, priority=hit.relevance, note=note, precedence=TIER_PRECEDENCE[hit.tier])
