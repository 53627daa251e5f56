"""Search of conversations and episodes: the newest entries are read from the logs, older turns from the turn index."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np

from recollect.errors import EmbedderFailed, StoreClosed, StoreError, StoreUnavailable
from recollect.language.analysis import analyze
from recollect.language.confidentiality import is_confided
from recollect.language.recalled_text import CURRENT_SECTION, RECENT_SECTION, is_recalled, remove_recalled
from recollect.language.sentences import is_off_the_record
from recollect.retrieval.fusion import DEFAULT_CALIBRATION, Calibration, score_by_terms, score_texts
from recollect.retrieval.prompt_block import TIER_PRECEDENCE, PromptLine
from recollect.retrieval.query import find_session_reference, is_small_talk
from recollect.retrieval.request import QueryEmbedding, RecallRequest
from recollect.retrieval.search import HybridSearch
from recollect.retrieval.sources import SourceResult, build_text_key, find_echoes, gather_all
from recollect.retrieval.turn_index import TurnIndex, parse_turn_item
from recollect.stores.base import Log, LogTail, TailLimits
from recollect.stores.filters import Where
from recollect.stores.search import CorpusStats, SearchMode, SearchQuery, SearchWidth, compute_idf
from recollect.stores.writes import Entry
from recollect.tiers.episodic import parse_episode
from recollect.tiers.indexing import with_current_model
from recollect.tiers.log_entries import is_quarantined, read_all_entries
from recollect.tiers.messages import (
    ROLES,
    UNKNOWN_TRUST,
    TextCache,
    episode_trust,
    is_tool_output,
    message_trust,
    parse_message,
    read_trust,
)
from recollect.types import Hit, MemoryItem, Scope, Space, Turn, Why, get_turn_space

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

# The number of newest entries that are relevant to a query that refers to the session.
_MAX_RECENT = 5
# The decrease of their relevance from each to the one before it.
_RECENCY_STEP = 0.02
# Each text costs the embedder as much as a query.
_MAX_COMPARED = 12
# The newest messages are usually in the prompt already.
_RECENT_MESSAGES = 3
# Analyzing more characters takes some milliseconds, so it is done in a thread.
_THREAD_THRESHOLD = 40_000
_MAX_SUMMARY_CHARACTERS = 800
# One shared term may be chance. Two count even if the cosine is unknown.
_MIN_TRUSTED_TERMS = 2
# Longer texts are found by the search of their tier.
_MAX_ANALYZED_CHARACTERS = 20_000
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n+")
# A repetition of the query may differ by a question mark or spaces.
_MAX_LENGTH_DIFFERENCE = 8
_WORD = re.compile(r"\w+")
_SUMMARY_LABEL = "earlier in this session"

_SMALL_TALK_CACHE = TextCache(is_small_talk, 8192)


class SharedTerms(NamedTuple):
    """The query terms in a text, and their share of the weight of all query terms, from 0 to 1."""

    share: float
    matched: tuple[str, ...]


NO_SHARED_TERMS = SharedTerms(0.0, ())


@dataclass(frozen=True, slots=True)
class SessionCandidates:
    """The candidates of one session, as positions in its tail."""

    tail: LogTail
    positions: Sequence[int]
    ages: Mapping[int, int] = field(default_factory=dict)
    """The number of newer entries by position; entries without an age have no recency."""
    recency_limit: int = _MAX_RECENT
    is_from_other_session: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        texts = self.tail.texts
        return texts if len(self.positions) == len(texts) else tuple([texts[at] for at in self.positions])

    def filter(self, matches: Callable[[LogCandidate], bool]) -> SessionCandidates:
        return replace(self, positions=[at for at in self.positions if matches(LogCandidate(self, at))])

    def find_newest(self) -> list[int]:
        """Return the indexes of the candidates that are compared with the query."""
        return [index for index, at in enumerate(self.positions) if self.ages.get(at, _MAX_COMPARED) < _MAX_COMPARED]


class LogCandidate(NamedTuple):
    """An entry by its position in the tail of its session."""

    session: SessionCandidates
    position: int

    @property
    def space(self) -> Space:
        return self.session.tail.space

    @property
    def content(self) -> str:
        return self.session.tail.texts[self.position]

    @property
    def entry(self) -> Entry:
        return self.session.tail[self.position]

    def build_item(self, scope: Scope) -> MemoryItem:
        entry, space = self.entry, self.space
        session = space.session or None
        role, metadata = entry.kind if entry.kind in ROLES else None, entry.metadata
        if space.tier == "episodic":
            metadata = parse_episode(space, entry).metadata
            trust = episode_trust(entry.kind, metadata)
        elif role is not None:
            trust = message_trust(parse_message(entry))
        else:  # a summary without a trust may quote any source
            stored = read_trust(metadata)
            trust = UNKNOWN_TRUST if stored is None else stored
        return MemoryItem(
            id=entry.id,
            content=entry.content,
            scope=scope if scope.session == session else replace(scope, session=session),
            created_at=entry.at,
            tier=space.tier,
            metadata=metadata,
            importance=entry.importance,
            expires_at=entry.expires_at,
            source="tool" if is_tool_output(entry.kind, metadata) else role or "user",
            trust=trust,
            turn=None if session is None else Turn(session, float(entry.seq), role),
        )


@dataclass(frozen=True, slots=True)
class LogHit:
    """An entry with the hit that it is shown as."""

    entry: Entry
    space: Space
    hit: Hit


def build_line(hit: Hit, section: str, *, label: str = "", note: str = "") -> PromptLine:
    precedence = TIER_PRECEDENCE[hit.tier]
    return PromptLine(hit=hit, section=section, priority=hit.relevance, label=label, note=note, precedence=precedence)


class LogEvidence(NamedTuple):
    """The evidence for one text."""

    shared: SharedTerms
    cosine: float | None
    age: int | None
    """The number of newer entries in its session; None if recency does not count."""

    def explain(self, *, is_by_recency: bool) -> Why:
        place = f"{self.age} before the newest of its session" if self.age else "newest of its session"
        return Why(
            cosine=None if self.cosine is None else round(self.cosine, 4),
            words=round(self.shared.share, 4),
            matched=self.shared.matched,
            reason=f"only because it is recent: {place}" if is_by_recency else "",
        )


TurnResults = tuple[Sequence[LogHit], Sequence[str]]
"""Hits of the turn index, and warnings if it could not be searched."""


def score_entries(
    shared: Sequence[SharedTerms],
    cosines: Sequence[float | None],
    ages: Sequence[int | None],
    calibration: Calibration,
    reference: float | None,
) -> tuple[list[float], list[bool]]:
    """Return the score of each text, by its content or its recency if that is better, and if recency decided."""
    share = np.array([text.share for text in shared], np.float64)
    known_cosines = np.array(cosines, np.float64)  # NaN if unknown
    is_unknown = np.isnan(known_cosines)
    content = score_texts(calibration.rescale(np.where(is_unknown, -np.inf, known_cosines)), share)
    is_trusted = is_unknown & np.array([len(text.matched) >= _MIN_TRUSTED_TERMS for text in shared], bool)
    content = np.where(is_trusted, np.maximum(content, score_by_terms(share)), content)
    known_ages = np.array(ages, np.float64)
    recency = np.where(known_ages < _MAX_RECENT, (reference or 0.0) - _RECENCY_STEP * known_ages, 0.0)
    return np.maximum(content, recency).round(4).tolist(), (recency > content).tolist()


def find_shared_terms(query: str, texts: Sequence[str]) -> dict[int, SharedTerms]:
    """Return the query terms in each text that has any, by index. Rare terms weigh more, repetitions do not."""
    return find_shared_terms_by_group(query, [tuple(texts)])[0]


def find_shared_terms_by_group(query: str, groups: Sequence[tuple[str, ...]]) -> list[dict[int, SharedTerms]]:
    """Return the same for groups of texts, such as sessions, with term weights over all groups."""
    terms = tuple(dict.fromkeys(analyze(query)))
    if not terms:  # stop words and punctuation only, such as `The Who`: match the phrase itself
        phrase = " ".join(query.lower().split())
        match = SharedTerms(1.0, (phrase,))
        plain_groups = [[" ".join(text.lower().split()) for text in texts] for texts in groups]
        return [{at: match for at, text in enumerate(texts) if phrase in text} for texts in plain_groups]
    hashes = [hash(term) for term in terms]
    wanted = frozenset(hashes)
    common_by_group = [_GROUP_CACHE.get(texts).find_common(wanted) for texts in groups]
    combinations = frozenset(chain.from_iterable(group.values() for group in common_by_group))
    stats = CorpusStats(max(sum(map(len, groups)), 1), 1.0)
    holders = Counter(chain.from_iterable(chain.from_iterable(group.values() for group in common_by_group)))
    weights = [compute_idf(stats, holders[term_hash]) for term_hash in hashes]
    total = sum(weights)
    shared: dict[frozenset[int], SharedTerms] = {}
    for common in combinations:  # few combinations, shared by many texts
        has_term = [term_hash in common for term_hash in hashes]
        shared[common] = SharedTerms(sum(compress(weights, has_term)) / total, tuple(compress(terms, has_term)))
    return [{at: shared[common] for at, common in group.items()} for group in common_by_group]


def count_unread_characters(groups: Sequence[tuple[str, ...]]) -> int:
    """Return the length of the texts that `find_shared_terms_by_group` would have to analyze."""
    return sum(len(text) for texts in _GROUP_CACHE.find_missing(groups) for text in _TERM_CACHE.find_missing(texts))


def extract_excerpt(text: str, query: str, max_characters: int) -> str:
    """Return the sentences of a long text that share most with the query, in their order; later ones win ties."""
    if len(text) <= max_characters:
        return text
    sentences = [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]
    shared = find_shared_terms(query, sentences)
    best = sorted(range(len(sentences)), key=lambda at: (shared.get(at, NO_SHARED_TERMS).share, at), reverse=True)
    chosen: list[int] = []
    for at in best:
        max_characters -= len(sentences[at]) + 1
        if max_characters < 0:
            break
        chosen.append(at)
    return " ".join(sentences[at] for at in sorted(chosen or best[:1]))


_TERM_CACHE: TextCache[str, frozenset[int]] = TextCache(
    lambda text: frozenset(map(hash, analyze(text[:_MAX_ANALYZED_CHARACTERS]))), 8192
)


def get_terms(text: str) -> frozenset[int]:
    """Return the hashed terms of a text."""
    return _TERM_CACHE.get(text)


class _TextGroup(NamedTuple):
    """The hashed terms of each text of a group, and if one of them quotes a prompt block."""

    by_text: tuple[frozenset[int], ...]
    is_recalled: bool

    def find_common(self, wanted: frozenset[int]) -> dict[int, frozenset[int]]:
        """Return the wanted terms in each text that has any, by index."""
        return {at: terms & wanted for at, terms in enumerate(self.by_text) if not wanted.isdisjoint(terms)}


# Every recall reads the same ended sessions. For 40 sessions of 20 entries, this saves 0.3 ms.
_GROUP_CACHE: TextCache[tuple[str, ...], _TextGroup] = TextCache(
    lambda texts: _TextGroup(tuple(map(_TERM_CACHE.get, texts)), any(map(is_recalled, texts))), 512
)


class LogSearch:
    """Search of the logs for one request: this session and the user's other sessions."""

    def __init__(
        self,
        request: RecallRequest,
        scope: Scope,
        query_embedding: QueryEmbedding,
        index: TurnIndex,
        turn_search: HybridSearch,
    ) -> None:
        self._request = request
        self._scope = scope
        self._query_embedding = query_embedding
        self._index = index
        self._turn_search = turn_search
        self._session_reference = find_session_reference(request.query)
        self._query_words = _split_words(request.query)

    async def search_episodes(self, log: Log, phrases: Sequence[str] = ()) -> list[list[LogHit]]:
        """Return the relevant episodes of the query, and of each phrase by its terms."""
        own_tail, *other_tails = await self._read_tails(log, self._scope.space("episodic"), _EPISODE_LIMITS)
        own = self._build_session(own_tail)
        sessions = [own, *self._build_other_sessions(own, other_tails)]
        return [await self._select_hits(sessions), *[await self._select_hits(sessions, phrase) for phrase in phrases]]

    async def search_messages(
        self, log: Log, load_summary: SummaryLoader, phrases: Sequence[str] = ()
    ) -> tuple[SourceResult, list[list[LogHit]]]:
        """Return the summary of this session and the relevant messages of all sessions, newest last.

        Return also the messages that each phrase finds in the index.
        """
        here = self._scope.space("conversation")
        (own_tail, *other_tails), summary, (indexed, warnings) = await self._read_and_search(log, here, load_summary)
        # A message may consist of tool calls only.
        own = self._build_session(_filter_kinds(own_tail, _OWN_SESSION_KINDS), _RECENT_MESSAGES)
        sessions = self._build_other_sessions(own, other_tails)
        if summary is not None:
            sessions.append(SessionCandidates(LogTail.from_entries(here, [summary]), [0], {0: 0}))
        hits = await self._select_hits([*sessions, own])
        hits = _merge_hits(hits, _drop_retracted(indexed, here, other_tails), here, self._request.n)
        hits.sort(key=_build_time_key)
        lines = [build_line(hit.hit, RECENT_SECTION, label=hit.entry.kind) for hit in hits if hit.space != here]
        own_hits = [hit for hit in hits if hit.space == here]
        for hit in sorted(own_hits, key=lambda hit: (hit.entry.kind in ROLES, hit.entry.seq)):
            is_message = hit.entry.kind in ROLES
            line = build_line(hit.hit, CURRENT_SECTION, label=hit.entry.kind if is_message else _SUMMARY_LABEL)
            if not is_message:  # the whole was scored, because each part would have to be embedded
                part = extract_excerpt(hit.hit.item.content, self._request.query, _MAX_SUMMARY_CHARACTERS)
                line = replace(line, hit=replace(hit.hit, item=replace(hit.hit.item, content=part)))
            lines.append(line)
        by_phrase = await gather_all(*map(self._search_index, phrases)) if phrases else []
        warnings = [*warnings, *(warning for _, more in by_phrase for warning in more)]
        kept = [_drop_retracted(found, here, other_tails) for found, _ in by_phrase]
        return SourceResult(lines, warnings=warnings), kept

    async def _read_and_search(
        self, log: Log, here: Space, load_summary: SummaryLoader
    ) -> tuple[list[LogTail], Entry | None, TurnResults]:
        """Read the ends of the logs and search the index in parallel; search again if the ends were not indexed."""
        reading = self._read_with_summary(log, here, load_summary)
        indexed: TurnResults | None = None
        if self._index.has_turns(self._scope):
            (tails, summary), indexed = await gather_all(reading, self._search_index())
        else:
            tails, summary = await reading
        if any(tails):
            model_is_up, is_behind = await self._query_embedding.try_embed_query(), False
            with suppress(StoreUnavailable, OSError):  # the search reports it
                is_behind = await self._index.catch_up_tails(self._scope, tails, model_is_up=model_is_up)
            if is_behind or indexed is None:
                indexed = await self._search_index()
        return tails, summary, indexed or ([], [])

    async def _read_with_summary(
        self, log: Log, here: Space, load_summary: SummaryLoader
    ) -> tuple[list[LogTail], Entry | None]:
        tails = await self._read_tails(log, here, _MESSAGE_LIMITS, _OTHER_SESSION_KINDS)
        return tails, await self._find_summary(tails[0], load_summary)

    async def _search_index(self, phrase: str | None = None) -> TurnResults:
        """Return the turns that the query or a phrase finds, best first, without repetitions of the query.

        A failing store is a warning.
        """
        model_is_up = await self._query_embedding.try_embed_query()
        try:
            try:
                hits = await self._search_widening("hybrid" if model_is_up else "text", phrase)
            except EmbedderFailed:
                hits = await self._search_widening("text", phrase)
            return (await self._drop_deleted(hits) if self._index.is_separate_store else hits), []
        except StoreClosed:
            raise
        except (StoreError, OSError) as error:
            return [], [f"older turns could not be searched: {str(error) or type(error).__name__}"]

    async def _search_widening(self, mode: SearchMode, phrase: str | None) -> list[LogHit]:
        """Search with more candidates while repetitions of the query, such as a daily question, crowd out answers."""
        width = _SEARCH_WIDTH
        while True:
            repeats = 0

            def count_repeats(text: str) -> bool:
                nonlocal repeats
                found = self._is_repeat(text)
                repeats += found
                return found

            hits = await self._query_index(phrase, mode, width, count_repeats)
            if 2 * repeats < width.candidates or width.candidates >= _MAX_PROPOSED:
                break
            width = replace(width, candidates=4 * width.candidates)
        found = []
        for hit in hits:
            space, entry, shown = parse_turn_item(hit.item)
            if self._request.matches(shown):
                found.append(LogHit(entry, space, replace(hit, item=shown)))
        return found

    async def _query_index(
        self, phrase: str | None, mode: SearchMode, width: SearchWidth, is_repeat: Callable[[str], bool]
    ) -> list[Hit]:
        request = self._request
        question = SearchQuery(
            text=phrase or request.query,
            where=Where(get_turn_space(self._scope), known_at=request.as_of, conditions=request.conditions),
            n=request.n,
            min_relevance=request.min_relevance,
            mode=mode,
            now=request.moment,
            asked_at=request.now,
            is_repeat=is_repeat,
            width=width,
        )
        embedding = self._query_embedding.embedding
        return await with_current_model(embedding, lambda _: self._turn_search.find_hits(question))

    async def _drop_deleted(self, hits: Sequence[LogHit]) -> list[LogHit]:
        """Drop hits whose entry is not in the log any more; two stores cannot change in one transaction."""
        ids_by_log: dict[Space, list[str]] = {}
        for hit in hits:
            ids_by_log.setdefault(hit.space, []).append(hit.entry.id)
        stored = await gather_all(*(self._index.log.entries(space, *ids) for space, ids in ids_by_log.items()))
        existing = {(space, entry.id) for space, entries in zip(ids_by_log, stored, strict=True) for entry in entries}
        return [hit for hit in hits if (hit.space, hit.entry.id) in existing]

    def _build_session(
        self, tail: LogTail, recency_limit: int = _MAX_RECENT, *, is_from_other_session: bool = False
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
        texts = [tail.texts for tail in tails]
        if count_unread_characters(texts) > _THREAD_THRESHOLD:
            await asyncio.to_thread(lambda: [_GROUP_CACHE.get(group) for group in texts])
        own, *others = map(_remove_recalled_texts, tails)
        return [own, *filter(None, others)]

    async def _select_hits(self, sessions: Sequence[SessionCandidates], phrase: str | None = None) -> list[LogHit]:
        """Return the `n` most relevant entries, in their order; for a phrase, only those that share its terms."""
        request = self._request
        if request.conditions:
            sessions = [
                session.filter(lambda candidate: request.matches(candidate.build_item(self._scope)))
                for session in sessions
            ]
        candidates: list[LogCandidate] = []
        ages: list[int | None] = []
        shared: list[SharedTerms] = []
        terms_by_session = find_shared_terms_by_group(phrase or request.query, [session.texts for session in sessions])
        for session, terms in zip(sessions, terms_by_session, strict=True):
            # Without a shared term and not among the newest, an entry is not relevant. That is most entries.
            likely = sorted(terms if phrase else {*terms, *session.find_newest()})
            indexes = likely if phrase or request.min_relevance > 0.0 else range(len(session.positions))
            positions = [session.positions[index] for index in indexes]
            candidates += [LogCandidate(session, at) for at in positions]
            ages += [None if phrase else session.ages.get(at) for at in positions]
            shared += [terms.get(index, NO_SHARED_TERMS) for index in indexes]
        cosines, calibration = await self._compare_newest(candidates, ages)
        for at, age in enumerate(ages):
            if age is not None and age >= candidates[at].session.recency_limit:
                ages[at] = None
        scores, is_by_recency = score_entries(shared, cosines, ages, calibration, self._session_reference)
        best = [at for at, score in enumerate(scores) if score >= request.min_relevance]
        best = [at for at in best if not is_quarantined(candidates[at].entry)]
        best = _drop_echoes(_drop_confided(best, candidates), candidates, scores)
        best = sorted(best, key=lambda at: (scores[at], candidates[at].entry.at, at), reverse=True)[: request.n]
        hits = []
        for at in sorted(best):
            item = candidates[at].build_item(self._scope)
            why = LogEvidence(shared[at], cosines[at], ages[at]).explain(is_by_recency=is_by_recency[at])
            hit = Hit(item, item.tier, scores[at], scores[at], why)
            hits.append(LogHit(candidates[at].entry, candidates[at].space, hit))
        return hits

    async def _compare_newest(
        self, candidates: Sequence[LogCandidate], ages: Sequence[int | None]
    ) -> tuple[list[float | None], Calibration]:
        """Return the cosine of each candidate; None for those that are not new, and for all if the embedder fails."""
        newest = [at for at, age in enumerate(ages) if age is not None and age < _MAX_COMPARED]
        texts = [candidates[at].content for at in newest]
        found = await self._query_embedding.compute_cosines(texts) if newest else None
        cosines: list[float | None] = [None] * len(candidates)
        if found is None:
            return cosines, DEFAULT_CALIBRATION
        for at, cosine in zip(newest, found[0], strict=True):
            cosines[at] = cosine
        return cosines, found[1]


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


def _remove_recalled_texts(tail: LogTail) -> LogTail:
    """Remove quoted prompt blocks from entries, which would be recalled twice."""
    if not _GROUP_CACHE.get(tail.texts).is_recalled:
        return tail
    entries = [replace(entry, content=remove_recalled(entry.content)) for entry in tail]
    return LogTail.from_entries(tail.space, [entry for entry in entries if entry.content])


def _drop_confided(places: Sequence[int], candidates: Sequence[LogCandidate]) -> list[int]:
    """Drop what was confided in another session."""
    tails = [candidates[at].session.tail for at in places]
    # Checking an entry reads all later entries, so a session with several candidates is scanned as a whole first.
    repeated = [tail for tail, count in Counter(tails).items() if count > 1]
    public = {tail for tail in repeated if not any(map(is_off_the_record, tail.texts))}
    return [
        at
        for at, tail in zip(places, tails, strict=True)
        if tail in public
        or not candidates[at].session.is_from_other_session
        or not is_confided(tail, candidates[at].position)
    ]


def _drop_echoes(places: Sequence[int], candidates: Sequence[LogCandidate], scores: list[float]) -> list[int]:
    """Drop entries that only quote another; the quoted entry gets the better score of both."""
    echoes = find_echoes([build_text_key(candidates[at].content) for at in places])
    for echo, quoted in echoes.items():
        scores[places[quoted]] = max(scores[places[quoted]], scores[places[echo]])
    return [at for index, at in enumerate(places) if index not in echoes]


def _drop_retracted(hits: Sequence[LogHit], here: Space, tails: Sequence[LogTail]) -> list[LogHit]:
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
        elif not known.hit.why.reason or hit.hit.relevance > known.hit.relevance:
            # The log has the full text; the index knows the turns beside it.
            score = max(hit.hit.relevance, known.hit.relevance)
            best[key] = replace(known, hit=replace(hit.hit, item=known.hit.item, relevance=score))
    searched = {(hit.space, hit.entry.id) for hit in indexed}

    def build_key(key: tuple[Space, str]) -> Any:
        hit = best[key]
        is_first = key in searched or hit.space == here or bool(hit.hit.why.reason)
        return is_first, hit.hit.relevance, *_build_time_key(hit)

    return [best[key] for key in sorted(best, key=build_key, reverse=True)[:n]]


def _build_time_key(hit: LogHit) -> tuple[datetime, str, int]:
    return hit.entry.at, hit.space.session, hit.entry.seq


def format_kind(episode: LogHit) -> str:
    """Return the kind of an episode; of a turn, its speaker if it is known."""
    if episode.entry.kind != "turn":
        return episode.entry.kind.replace("_", " ")
    role = episode.hit.item.metadata.get("role")
    return role if isinstance(role, str) else ""


def _find_covered_seq(summary: Entry) -> int:
    """Return the last message that a summary covers; its own position if it does not say."""
    return int(summary.metadata.get("covers", summary.seq))
