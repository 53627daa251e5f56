"""Search of conversations and episodes: the newest entries are read from the logs, older turns from the turn index."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from recollect.errors import EmbedderFailed, StoreClosed, StoreError, StoreUnavailable
from recollect.language.confidentiality import is_confided
from recollect.language.recalled_text import CURRENT_SECTION, RECENT_SECTION, is_recalled, remove_recalled
from recollect.language.sentences import is_off_the_record
from recollect.models.embedding import Embedding
from recollect.retrieval.log_candidates import (
    MAX_RECENT,
    NO_SHARED_TERMS,
    LogCandidate,
    LogEvidence,
    LogHit,
    SessionCandidates,
    SharedTerms,
    count_unread_characters,
    extract_excerpt,
    find_shared_terms_by_group,
    score_entries,
)
from recollect.retrieval.prompt_block import PromptLine
from recollect.retrieval.query import find_session_reference, is_small_talk
from recollect.retrieval.relevance import DEFAULT_CALIBRATION, Calibration
from recollect.retrieval.request import QueryEmbedding, RecallRequest
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.sources import SourceResult, build_text_key, find_echoes, gather_all
from recollect.retrieval.turn_index import TurnIndex, parse_turn_item
from recollect.stores.base import Log, LogTail, TailLimits
from recollect.stores.filters import Where
from recollect.stores.search import SearchMode, SearchQuery, SearchWidth
from recollect.stores.writes import Entry
from recollect.tiers.indexing import with_current_model
from recollect.tiers.log_entries import read_all_entries
from recollect.tiers.messages import ROLES, TextCache
from recollect.types import Hit, Scope, Space, get_turn_space

SummaryLoader = Callable[[], Awaitable[str | None]]
"""Loads the summary of a conversation's older messages."""

# docs/decisions/012 measures wider searches, which find no more.
_SEARCH_WIDTH = SearchWidth(candidates=16, reach=1)
_MAX_PROPOSED = 4096

# The newest messages may not be indexed yet, and a query may refer to them without naming them.
_EPISODE_LIMITS = TailLimits(own_entries=24, other_logs=16, entries_per_log=20)
_MESSAGE_LIMITS = TailLimits(own_entries=24, other_logs=2, entries_per_log=16)
# System messages and summaries are shown in their own session only.
_OTHER_SESSION_KINDS = frozenset(("user", "assistant", "tool"))
_OWN_SESSION_KINDS = frozenset(ROLES) - {"system"}
# Kinds of entries that may be small talk.
_SPOKEN_KINDS = (*ROLES, "turn")

# Each text costs the embedder as much as a query.
_MAX_COMPARED = 12
# The newest messages are usually in the prompt already.
_RECENT_MESSAGES = 3
# Analyzing more characters takes some milliseconds, so it is done in a thread.
_THREAD_THRESHOLD = 40_000
_MAX_SUMMARY_CHARACTERS = 800
# A repetition of the query may differ by a question mark or spaces.
_MAX_LENGTH_DIFFERENCE = 8
_WORD = re.compile(r"\w+")
_SUMMARY_LABEL = "earlier in this session"

_RECALLED_CACHE = TextCache(is_recalled, 8192)


def _has_recalled_text(texts: tuple[str, ...]) -> bool:
    return any(map(_RECALLED_CACHE.get, texts))


_GROUP_RECALLED_CACHE = TextCache(_has_recalled_text, 512)
_SMALL_TALK_CACHE = TextCache(is_small_talk, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResults:
    """Hits of the turn index, and warnings if it could not be searched."""

    hits: Sequence[LogHit] = ()
    warnings: Sequence[str] = ()


class TurnSearch:
    """Search of the turn index for one request."""

    def __init__(
        self, index: TurnIndex, search: HybridSearch, embedding: Embedding, scope: Scope, request: RecallRequest
    ) -> None:
        self._index = index
        self._hybrid_search = search
        self._embedding = embedding
        self._scope = scope
        self._request = request

    @property
    def has_turns(self) -> bool:
        """True if the index is known to hold turns of this user."""
        return self._index.has_turns(self._scope)

    async def catch_up(self, tails: Sequence[LogTail], *, model_is_up: bool) -> bool:
        """Index the ends of the logs; return True if there may be more to find. A failing store is reported later."""
        try:
            return await self._index.catch_up_tails(self._scope, tails, model_is_up=model_is_up)
        except (StoreUnavailable, OSError):
            return False

    async def search(self, is_repeat: Callable[[str], bool], *, model_is_up: bool) -> TurnResults:
        """Return the relevant turns, best first, without repetitions of the query. A failing store is a warning."""
        try:
            try:
                hits = await self._search_widening("hybrid" if model_is_up else "text", is_repeat)
            except EmbedderFailed:
                hits = await self._search_widening("text", is_repeat)
            return TurnResults(hits=await self._drop_deleted(hits) if self._index.is_separate_store else hits)
        except StoreClosed:
            raise
        except (StoreError, OSError) as error:
            return TurnResults(warnings=[f"older turns could not be searched: {str(error) or type(error).__name__}"])

    async def _search_widening(self, mode: SearchMode, is_repeat: Callable[[str], bool]) -> list[LogHit]:
        """Search with more candidates while repetitions of the query, such as a daily question, crowd out answers."""
        width = _SEARCH_WIDTH
        while True:
            repeats = 0

            def count_repeats(text: str) -> bool:
                nonlocal repeats
                found = is_repeat(text)
                repeats += found
                return found

            hits = await self._query_index(mode, count_repeats, width)
            if 2 * repeats < width.candidates or width.candidates >= _MAX_PROPOSED:
                break
            width = replace(width, candidates=4 * width.candidates)
        found = []
        for hit in hits:
            space, entry, shown = parse_turn_item(hit.item)
            if self._request.matches(shown):
                found.append(LogHit(entry, space, replace(hit, item=shown)))
        return found

    async def _query_index(self, mode: SearchMode, is_repeat: Callable[[str], bool], width: SearchWidth) -> list[Hit]:
        request = self._request
        question = SearchQuery(
            text=request.query,
            where=Where(get_turn_space(self._scope), known_at=request.as_of, conditions=request.conditions),
            n=request.n,
            min_relevance=request.min_relevance,
            mode=mode,
            now=request.moment,
            asked_at=request.now,
            is_repeat=is_repeat,
            width=width,
        )
        return await with_current_model(self._embedding, lambda _: self._hybrid_search.find_hits(question))

    async def _drop_deleted(self, hits: Sequence[LogHit]) -> list[LogHit]:
        """Drop hits whose entry is not in the log any more; two stores cannot change in one transaction."""
        if not hits:
            return []
        ids_by_log: dict[Space, list[str]] = {}
        for hit in hits:
            ids_by_log.setdefault(hit.space, []).append(hit.entry.id)
        stored = await gather_all(*(self._index.log.entries(space, *ids) for space, ids in ids_by_log.items()))
        existing = {(space, entry.id) for space, entries in zip(ids_by_log, stored, strict=True) for entry in entries}
        return [hit for hit in hits if (hit.space, hit.entry.id) in existing]


class LogSearch:
    """Search of the logs for one request: this session and the user's other sessions."""

    def __init__(self, request: RecallRequest, scope: Scope, query_embedding: QueryEmbedding) -> None:
        self._request = request
        self._scope = scope
        self._query_embedding = query_embedding
        self._session_reference = find_session_reference(request.query)
        self._query_words = _split_words(request.query)

    async def search_episodes(self, log: Log) -> SourceResult:
        """Return the relevant episodes, newest last."""
        if not self._request.n:
            return SourceResult()
        own_tail, *other_tails = await self._read_tails(log, self._scope.space("episodic"), _EPISODE_LIMITS)
        own = self._build_session(own_tail)
        hits = await self._select_hits([own, *self._build_other_sessions(own, other_tails)])
        return SourceResult(
            [hit.build_line(RECENT_SECTION, _format_kind(hit)) for hit in sorted(hits, key=lambda hit: hit.entry.at)]
        )

    async def search_messages(self, log: Log, load_summary: SummaryLoader, turns: TurnSearch) -> SourceResult:
        """Return the summary of this session and the relevant messages of all sessions, newest last."""
        if not self._request.n:
            return SourceResult()
        here = self._scope.space("conversation")
        (own_tail, *other_tails), summary, indexed = await self._read_and_search(log, here, load_summary, turns)
        # A message may consist of tool calls only.
        own = self._build_session(_filter_kinds(own_tail, _OWN_SESSION_KINDS), _RECENT_MESSAGES)
        sessions = self._build_other_sessions(own, other_tails)
        if summary is not None:
            sessions.append(SessionCandidates(LogTail.from_entries(here, [summary]), [0], {0: 0}))
        hits = await self._select_hits([*sessions, own])
        hits = _merge_hits(hits, drop_retracted(indexed.hits, here, other_tails), here, self._request.n)
        other_hits = sorted((hit for hit in hits if hit.space != here), key=_build_time_key)
        own_hits = sorted(
            (hit for hit in hits if hit.space == here), key=lambda hit: (hit.entry.kind in ROLES, hit.entry.seq)
        )
        lines = [hit.build_line(RECENT_SECTION, hit.entry.kind) for hit in other_hits]
        lines += [
            hit.build_line(CURRENT_SECTION, hit.entry.kind) if hit.entry.kind in ROLES else self._excerpt_summary(hit)
            for hit in own_hits
        ]
        return SourceResult(lines, warnings=indexed.warnings)

    async def _read_and_search(
        self, log: Log, here: Space, load_summary: SummaryLoader, turns: TurnSearch
    ) -> tuple[list[LogTail], Entry | None, TurnResults]:
        """Read the ends of the logs and search the index in parallel; search again if the ends were not indexed."""
        reading = self._read_with_summary(log, here, load_summary)
        indexed: TurnResults | None = None
        if turns.has_turns:
            (tails, summary), indexed = await gather_all(reading, self._search_index(turns))
        else:
            tails, summary = await reading
        if any(tails):
            await self._query_embedding.try_embed_query()
            if await turns.catch_up(tails, model_is_up=not self._query_embedding.has_failed) or indexed is None:
                indexed = await self._search_index(turns)
        return tails, summary, indexed or TurnResults()

    async def _read_with_summary(
        self, log: Log, here: Space, load_summary: SummaryLoader
    ) -> tuple[list[LogTail], Entry | None]:
        tails = await self._read_tails(log, here, _MESSAGE_LIMITS, _OTHER_SESSION_KINDS)
        return tails, await self._find_summary(tails[0], load_summary)

    async def _search_index(self, turns: TurnSearch) -> TurnResults:
        await self._query_embedding.try_embed_query()
        return await turns.search(self._is_repeat, model_is_up=not self._query_embedding.has_failed)

    def _build_session(
        self, tail: LogTail, recency_limit: int = MAX_RECENT, *, is_from_other_session: bool = False
    ) -> SessionCandidates:
        """Return the candidates of a session with their ages. Small talk has no age and is not counted."""
        positions = self._find_new_positions(tail)
        aged = [
            at for at in positions if tail.kinds[at] not in _SPOKEN_KINDS or not _SMALL_TALK_CACHE.get(tail.texts[at])
        ]
        ages = {at: age for age, at in enumerate(reversed(aged))}
        return SessionCandidates(tail, positions, ages, recency_limit, is_from_other_session)

    def _find_new_positions(self, tail: LogTail) -> list[int]:
        """Return the positions of entries that do not repeat the query."""
        length = len(self._request.query)
        low, high = length - _MAX_LENGTH_DIFFERENCE, length + _MAX_LENGTH_DIFFERENCE
        return [at for at, text in enumerate(tail.texts) if not (low <= len(text) <= high and self._is_repeat(text))]

    def _is_repeat(self, text: str) -> bool:
        """Return True if a text is the query itself; an earlier question is not an answer."""
        length = len(self._request.query)
        return abs(len(text) - length) <= _MAX_LENGTH_DIFFERENCE and _split_words(text) == self._query_words

    def _build_other_sessions(self, own: SessionCandidates, tails: Sequence[LogTail]) -> list[SessionCandidates]:
        """Return the candidates of other sessions. In a new session, "last time" means the newest of them."""
        newest = None if own.ages or not tails else max(tails, key=lambda tail: tail[-1].at)
        return [
            self._build_session(tail, is_from_other_session=True)
            if tail is newest
            else SessionCandidates(tail, self._find_new_positions(tail), is_from_other_session=True)
            for tail in tails
        ]

    def _excerpt_summary(self, summary: LogHit) -> PromptLine:
        """Return the relevant part of a summary. The whole was scored, because each part would have to be embedded."""
        line, item = summary.build_line(CURRENT_SECTION, _SUMMARY_LABEL), summary.hit.item
        part = extract_excerpt(item.content, self._request.query, _MAX_SUMMARY_CHARACTERS)
        return replace(line, hit=replace(summary.hit, item=replace(item, content=part)))

    async def _find_summary(self, entries: LogTail, load_summary: SummaryLoader) -> Entry | None:
        """Return the summary of the session's older messages as an entry, if there is one."""
        summaries = [entries[at] for at, kind in enumerate(entries.kinds) if kind not in ROLES]
        if not summaries:
            return None
        newest = max(summaries, key=_find_covered_seq)
        # If the first other entry is not covered, no entry of the tail is.
        first = next((entry for entry in entries if entry is not newest), newest)
        if self._request.as_of is not None or (first is not newest and first.seq <= _find_covered_seq(newest)):
            return newest if newest.content.strip() else None
        # The covered messages may have been cleared, which the conversation knows.
        text = await load_summary()
        return replace(newest, content=text) if text and text.strip() else None

    async def _read_tails(
        self, log: Log, here: Space, limits: TailLimits, other_kinds: frozenset[str] = frozenset()
    ) -> list[LogTail]:
        """Read the end of this session, and of the user's newest other sessions that are not empty."""
        as_of = self._request.as_of
        if as_of is None:
            own, *others = await log.read_tails(here, limits)
        else:
            own, *others = await _read_tails_as_of(log, here, limits, as_of)
        tails = [own, *(_filter_kinds(tail, other_kinds) for tail in others)]
        new = _GROUP_RECALLED_CACHE.find_missing(tail.texts for tail in tails)
        if sum(len(text) for texts in new for text in _RECALLED_CACHE.find_missing(texts)) > _THREAD_THRESHOLD:
            tails = await asyncio.to_thread(_remove_recalled_texts, tails)
        else:
            tails = _remove_recalled_texts(tails)
        return [tails[0], *filter(None, tails[1:])]

    async def _select_hits(self, sessions: Sequence[SessionCandidates]) -> list[LogHit]:
        """Return the `n` most relevant entries, in their order."""
        request = self._request
        if request.conditions:
            sessions = [
                session.filter(lambda candidate: request.matches(candidate.build_item(self._scope)))
                for session in sessions
            ]
        candidates: list[LogCandidate] = []
        shared: list[SharedTerms] = []
        terms_by_session = await self._find_shared_terms([session.texts for session in sessions])
        for session, terms in zip(sessions, terms_by_session, strict=True):
            # Without a shared term and not among the newest, an entry is not relevant. That is most entries.
            likely = sorted({*terms, *session.find_newest(_MAX_COMPARED)})
            indexes = likely if request.min_relevance > 0.0 else range(len(session.positions))
            candidates += session.select(indexes)
            shared += [terms.get(index, NO_SHARED_TERMS) for index in indexes]
        if not candidates:
            return []
        cosines, calibration = await self._compare_newest(candidates)
        places = range(len(candidates))
        evidence = LogEvidence(
            shared=shared,
            cosines=[cosines.get(at) for at in places],
            ages=[candidate.recency for candidate in candidates],
        )
        scored = score_entries(evidence, calibration, self._session_reference)
        scores = list(scored.relevance)
        best = [at for at in places if scores[at] >= request.min_relevance and not candidates[at].is_quarantined]
        if not best:
            return []
        best = _drop_echoes(_drop_confided(best, candidates), candidates, scores)
        best = sorted(best, key=lambda at: (scores[at], candidates[at].entry.at, at), reverse=True)[: request.n]
        hits = []
        for at in sorted(best):
            item = candidates[at].build_item(self._scope)
            hit = Hit(item, item.tier, scores[at], scores[at], scored.explain(at))
            hits.append(LogHit(candidates[at].entry, candidates[at].tail.space, hit))
        return hits

    async def _find_shared_terms(self, groups: Sequence[tuple[str, ...]]) -> list[dict[int, SharedTerms]]:
        if count_unread_characters(groups) > _THREAD_THRESHOLD:
            return await asyncio.to_thread(find_shared_terms_by_group, self._request.query, groups)
        return find_shared_terms_by_group(self._request.query, groups)

    async def _compare_newest(self, candidates: Sequence[LogCandidate]) -> tuple[dict[int, float], Calibration]:
        """Return the cosines of the newest candidates, by index; none if the embedder fails."""
        newest = [at for at, entry in enumerate(candidates) if entry.age is not None and entry.age < _MAX_COMPARED]
        texts = [candidates[at].content for at in newest]
        found = await self._query_embedding.compute_cosines(texts) if newest else None
        if found is None:
            return {}, DEFAULT_CALIBRATION
        return dict(zip(newest, found[0], strict=True)), found[1]


async def _read_tails_as_of(log: Log, here: Space, limits: TailLimits, as_of: datetime) -> list[LogTail]:
    """Read what `Log.read_tails` would have returned at an earlier time, as far as it is still stored."""
    others = [space for space in await log.logs(here) if space != here][-limits.other_logs :]
    spaces = [here, *others]
    logs = await gather_all(*(read_all_entries(log, space) for space in spaces))
    entry_limits = [limits.own_entries, *(limits.entries_per_log for _ in others)]
    return [
        LogTail.from_entries(space, [entry for entry in entries if entry.at <= as_of][-limit:])
        for space, entries, limit in zip(spaces, logs, entry_limits, strict=True)
    ]


def _filter_kinds(tail: LogTail, kinds: frozenset[str]) -> LogTail:
    """Drop entries without text, and entries of other kinds if `kinds` is not empty."""
    if (not kinds or kinds.issuperset(tail.kinds)) and all(tail.texts) and not any(map(str.isspace, tail.texts)):
        return tail
    entries = enumerate(zip(tail.texts, tail.kinds, strict=True))
    return tail.select(at for at, (text, kind) in entries if (not kinds or kind in kinds) and text.strip())


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _remove_recalled_texts(tails: Sequence[LogTail]) -> list[LogTail]:
    """Remove quoted prompt blocks from entries, which would be recalled twice."""
    cleaned = []
    for tail in tails:
        if _GROUP_RECALLED_CACHE.get(tail.texts):
            entries = [replace(entry, content=remove_recalled(entry.content)) for entry in tail]
            tail = LogTail.from_entries(tail.space, [entry for entry in entries if entry.content])
        cleaned.append(tail)
    return cleaned


def _drop_confided(places: Sequence[int], candidates: Sequence[LogCandidate]) -> list[int]:
    """Drop what was confided in another session."""
    counts = Counter(candidates[at].tail for at in places)
    # Checking an entry reads all later entries, so a session with several candidates is scanned as a whole first.
    public = {tail for tail, count in counts.items() if count > 1 and not any(map(is_off_the_record, tail.texts))}
    return [at for at in places if candidates[at].tail in public or not candidates[at].is_confided]


def _drop_echoes(places: Sequence[int], candidates: Sequence[LogCandidate], scores: list[float]) -> list[int]:
    """Drop entries that only quote another; the quoted entry gets the better score of both."""
    echoes = find_echoes([build_text_key(candidates[at].content) for at in places])
    for echo, quoted in echoes.items():
        scores[places[quoted]] = max(scores[places[quoted]], scores[places[echo]])
    return [at for index, at in enumerate(places) if index not in echoes]


def drop_retracted(hits: Sequence[LogHit], here: Space, tails: Sequence[LogTail]) -> list[LogHit]:
    """Drop indexed turns of other sessions that were retracted since, which the ends of the logs tell."""
    tail_by_log = {tail.space: tail for tail in tails if tail and tail.space != here}

    def is_retracted(hit: LogHit) -> bool:
        later = (entry for entry in tail_by_log.get(hit.space, ()) if entry.seq > hit.entry.seq)
        return hit.space in tail_by_log and is_confided([hit.entry, *later], 0)

    return [hit for hit in hits if not is_retracted(hit)]


def _merge_hits(read: Sequence[LogHit], indexed: Sequence[LogHit], here: Space, n: int) -> list[LogHit]:
    """Return the best `n` of both lists, each entry once with its better relevance.

    The index has searched all turns. An entry of another session that it did not return comes last: scored by itself,
    as the newest entries are, a text seems more relevant than beside others.
    """
    best = {(hit.space, hit.entry.id): hit for hit in read}
    for hit in indexed:
        key = (hit.space, hit.entry.id)
        known = best.get(key)
        if known is None:
            best[key] = hit
        elif hit.hit.relevance > known.hit.relevance:
            best[key] = replace(known, hit=replace(hit.hit, item=known.hit.item))  # the log has the full text
    searched = {(hit.space, hit.entry.id) for hit in indexed}

    def build_key(key: tuple[Space, str]) -> Any:
        hit = best[key]
        is_first = key in searched or hit.space == here or bool(hit.hit.why.reason)
        return is_first, hit.hit.relevance, *_build_time_key(hit)

    return [best[key] for key in sorted(best, key=build_key, reverse=True)[:n]]


def _build_time_key(hit: LogHit) -> tuple[datetime, str, int]:
    return hit.entry.at, hit.space.session, hit.entry.seq


def _format_kind(episode: LogHit) -> str:
    """Return the kind of an episode; of a turn, its speaker if it is known."""
    if episode.entry.kind != "turn":
        return episode.entry.kind.replace("_", " ")
    role = episode.hit.item.metadata.get("role")
    return role if isinstance(role, str) else ""


def _find_covered_seq(summary: Entry) -> int:
    """Return the last message that a summary covers; its own position if it does not say."""
    return int(summary.metadata.get("covers", summary.seq))
