"""Hybrid search of one store: plan the query, gather evidence, score and rank it, and limit untrusted sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros, to_micros
from recollect.language.analysis import build_date_terms
from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import (
    DEFAULT_CALIBRATION,
    Calibration,
    FusedScores,
    PhraseMatcher,
    add_phrases,
    bound_relevance,
    calibrate_embedding,
    fuse,
    score_relevance,
)
from recollect.retrieval.query import QueryPlan, plan_query
from recollect.security.injection import AGENT_TRUST
from recollect.stores.base import Records
from recollect.stores.filters import Condition
from recollect.stores.search import (
    EvidenceLookup,
    EvidenceQuery,
    EvidenceSummary,
    ItemBrief,
    SearchEvidence,
    SearchQuery,
    SearchWidth,
    build_brief,
)
from recollect.stores.writes import Touch
from recollect.tiers.indexing import current_model
from recollect.types import Hit, Space, Why, get_site

_MAX_CANDIDATES = 20_000
_NEIGHBOR_REACH = 2
# Items of each kind of evidence that are ranked.
_FACT_CANDIDATES, _DIALOGUE_CANDIDATES = 25, 50
# Phrases are looked up for the best candidates only; 50 settle the order of the first ten.
_PHRASE_CANDIDATES = 50
# Terms that a repetition of the query may have besides the query's: some occur twice, and two are the date.
_MAX_EXTRA_TERMS = 8
_MAX_CACHED_SPACES = 4096
# A site with untrusted pages under more names than this is not bounded any further.
_MAX_CROWDING_ROUNDS = 4
_WIDE_LIMIT = 100

# The largest change of a score by each property; a score of 1 means that every query term was found.
_IMPORTANCE, _RECENCY, _DISTRUST = 0.03, 0.02, 0.10
_RECENCY_HALF_LIFE = 30 * 86_400 * 1_000_000  # microseconds


class HybridSearch:
    """Search of one store with one embedder."""

    def __init__(self, store: Records, embedding: Embedding) -> None:
        self._store = store
        self._embedding = embedding
        self._speakers_by_space: dict[Space, frozenset[str]] = {}

    async def search(self, question: SearchQuery) -> list[Hit]:
        """Return the relevant hits, best first, at most `n`. Counts an access to each."""
        hits = await self.find_hits(question)
        if hits:
            ids = tuple(hit.item.id for hit in hits)
            self._store.touch(Touch(question.where.space, ids, question.asked_at))
        return hits

    async def find_hits(self, question: SearchQuery) -> list[Hit]:
        """Search without counting an access. Repeat without sources that displace other candidates."""
        if not question.n:
            return []
        hits = await self._search_once(question)
        crowding: frozenset[str] = frozenset()
        for _ in range(_MAX_CROWDING_ROUNDS):
            new = find_crowding_sources(hits, question.n) - crowding
            if not new:
                break
            crowding |= new
            excluded = [Condition("source", "ne", source) for source in sorted(crowding)]
            where = replace(question.where, conditions=(*question.where.conditions, *excluded))
            # The same site may have many more pages, so this search is wider.
            others = await self._search_once(replace(question, where=where, n=max(question.n, _WIDE_LIMIT)))
            if not others:
                break
            sites = {*map(get_site, crowding)}
            crowding |= {hit.item.source for hit in others if get_site(hit.item.source) in sites}
            hits = merge_other_sources(hits, others, question.n)
        return hits

    async def _search_once(self, question: SearchQuery) -> list[Hit]:
        """Plan the query with the last known speakers, and again if the store reports others."""
        space = question.where.space
        calibration = DEFAULT_CALIBRATION if question.mode == "text" else await calibrate_embedding(self._embedding)
        speakers = self._speakers_by_space.get(space, frozenset())
        while True:
            answer = await self._gather_and_rank(question, calibration, speakers)
            if not isinstance(answer, frozenset):
                return answer
            if len(self._speakers_by_space) > _MAX_CACHED_SPACES:
                self._speakers_by_space.clear()
            speakers = self._speakers_by_space[space] = answer

    async def _gather_and_rank(
        self, question: SearchQuery, calibration: Calibration, speakers: frozenset[str]
    ) -> list[Hit] | frozenset[str]:
        if question.mode == "dense" and not speakers:  # among facts, cosines alone decide
            plan = QueryPlan(question.text, (), frozenset(), None)
        else:
            plan = plan_query(question.text, speakers, question.now, question.where.space.user)
            if question.mode == "dense":
                plan = replace(plan, terms=(), term_pairs=frozenset())
        vector = None if question.mode == "text" else (await self._embedding.embed([plan.text_to_embed]))[0]
        # In a dialogue, neighbors and speakers change the order more than among facts. Cosines alone change nothing.
        proposed = _DIALOGUE_CANDIDATES if speakers else _FACT_CANDIDATES if question.mode != "dense" else 0
        width = question.width or SearchWidth(proposed, _NEIGHBOR_REACH)
        limit = max(min(2 * question.n, _MAX_CANDIDATES), width.candidates)
        ranker = HybridRanker(question, plan, calibration, speakers)
        query = EvidenceQuery(
            question.where, vector, plan.terms, limit, width.reach, current_model(self._embedding), ranker.may_show
        )
        return await self._store.gather(query, ranker)


@dataclass(frozen=True, slots=True)
class HybridRanker:
    """Ranks evidence: fuse all scores, look up phrases of the best candidates, rank again."""

    question: SearchQuery
    plan: QueryPlan
    calibration: Calibration
    speakers: frozenset[str]

    def __call__(self, evidence: SearchEvidence, lookup: EvidenceLookup) -> list[Hit] | frozenset[str]:
        """Return the hits; or the speakers of the space if the query was planned with others."""
        if evidence.speakers != self.speakers:
            return evidence.speakers
        if not len(evidence) or (self.plan.terms and not self.may_show(evidence.summary)):
            return []
        question = self.question
        scored = fuse(evidence, self.plan, self.calibration.rescale(evidence.cosines))
        relevance = self._score_relevance(scored, evidence, lookup)
        relevant = np.flatnonzero(relevance >= question.min_relevance)
        if not len(relevant):
            return []
        briefs = [evidence.briefs[at] for at in relevant.tolist()]
        adjustments = compute_adjustments(briefs, question.now) if question.mode == "hybrid" else 0.0
        scores = scored.total[relevant] + adjustments
        ranked = sort_hits(scores, briefs)
        if self.plan.term_pairs:
            phrases = self._score_phrases(evidence, relevant[ranked[:_PHRASE_CANDIDATES]], lookup)
            if phrases is not None:
                scored = add_phrases(scored, evidence, phrases)
                scores = scored.total[relevant] + adjustments
                ranked = sort_hits(scores, briefs)
        best = limit_sources(ranked, briefs, question.n)
        items, hits = lookup.items([briefs[at].id for at in best]), []
        for at in best:
            place = int(relevant[at])
            item, why = items[briefs[at].id], self._explain(place, evidence, scored)
            score = round(float(scores[at]), 6)
            hits.append(Hit(item, question.where.space.tier, float(relevance[place]), score, why))
        return hits

    def may_show(self, summary: EvidenceSummary) -> bool:
        """Return False if no candidate can be relevant enough. A repetition of the query must still be counted."""
        if self.question.is_repeat is not None and all(summary.has_terms):
            return True
        limit = bound_relevance(summary, self.calibration, terms_only=self.question.mode == "text")
        return limit >= self.question.min_relevance

    def _score_relevance(
        self, scored: FusedScores, evidence: SearchEvidence, lookup: EvidenceLookup
    ) -> NDArray[np.float64]:
        """Score the relevance; repetitions of the query get -1, but add to their neighbors, which may be the answer."""
        included = np.ones(len(evidence), np.bool_)
        included[self._find_repeats(evidence, lookup)] = False
        relevance = score_relevance(scored, evidence.weights, included, terms_only=self.question.mode == "text")
        # Rounded before it is compared, so that a relevance that was shown can be used as a threshold.
        return np.where(included, relevance, -1.0).round(4)

    def _find_repeats(self, evidence: SearchEvidence, lookup: EvidenceLookup) -> list[int]:
        """Return the candidates that repeat the query: those with all of its terms and few others are checked."""
        is_repeat = self.question.is_repeat
        if is_repeat is None:
            return []
        max_terms = len(self.plan.terms) + _MAX_EXTRA_TERMS
        with_all_terms = np.flatnonzero((evidence.parts > 0.0).all(axis=0)).tolist()
        likely = [at for at in with_all_terms if evidence.briefs[at].length <= max_terms]
        items = lookup.items([evidence.briefs[at].id for at in likely]) if likely else {}
        return [at for at in likely if is_repeat(items[evidence.briefs[at].id].content)]

    def _score_phrases(
        self, evidence: SearchEvidence, best: NDArray[np.intp], lookup: EvidenceLookup
    ) -> NDArray[np.float64] | None:
        """Score how much of the query's phrasing the best candidates have; None if no candidate has any."""
        matcher = PhraseMatcher(self.plan, evidence.weights)
        likely = best[matcher.find_possible(evidence.parts[:, best] > 0.0)].tolist()
        if not likely:
            return None
        phrases = np.zeros(len(evidence))
        terms = lookup.terms([evidence.briefs[at].id for at in likely])
        for at in likely:
            brief = evidence.briefs[at]
            text = terms[brief.id]
            if brief.session is not None:  # the terms of a turn end with those of its date
                text = text.removesuffix(" ".join(build_date_terms(from_micros(brief.created_at))))
            phrases[at] = matcher.score(text)
        return phrases if phrases.any() else None

    def _explain(self, at: int, evidence: SearchEvidence, scored: FusedScores) -> Why:
        cosine = round(float(evidence.cosines[at]), 4)
        parts = {name: round(float(share[at]), 4) for name, share in scored.shares.items()}
        return Why(
            cosine=None if cosine != cosine else cosine,  # NaN: the item has no vector
            words=round(float(scored.own_terms[at]), 4),
            matched=tuple(compress(self.plan.terms, evidence.parts[:, at] > 0.0)),
            parts={name: share for name, share in parts.items() if share},
        )


def compute_adjustments(briefs: Sequence[ItemBrief], now: datetime) -> NDArray[np.float64]:
    """Return what to add to each score. The sum is too small to bury a clear hit."""
    importance = np.array([brief.importance for brief in briefs])
    trust = np.array([brief.trust for brief in briefs])
    created = np.array([brief.created_at for brief in briefs], np.float64)
    recency = np.exp2(-np.maximum(to_micros(now) - created, 0.0) / _RECENCY_HALF_LIFE)
    return _IMPORTANCE * (2.0 * importance - 1.0) + _RECENCY * recency - _DISTRUST * (1.0 - trust)


def sort_hits(scores: NDArray[np.float64], briefs: Sequence[ItemBrief]) -> list[int]:
    """Return the indexes of candidates, best first. Ties go to the newest, then by id, so the order is stable."""
    keys = [
        (score, -brief.created_at, brief.id) for score, brief in zip((-scores.round(9)).tolist(), briefs, strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def limit_sources(ranked: Sequence[int], briefs: Sequence[ItemBrief], n: int) -> list[int]:
    """Return the best `n` candidates with at most half from one untrusted source; all if there is no other source."""
    first = list(ranked[:n])
    if all(briefs[at].trust >= AGENT_TRUST for at in first):
        return first
    sites = {at: get_site(briefs[at].source) if briefs[at].trust < AGENT_TRUST else None for at in ranked}
    if None not in sites.values() and len(set(sites.values())) == 1:
        return first
    limit, taken, chosen = max(1, n // 2), Counter[str](), list[int]()
    for at in ranked:
        site = sites[at]
        if site is not None:
            if taken[site] == limit:
                continue
            taken[site] += 1
        chosen.append(at)
        if len(chosen) == n:
            break
    return chosen


def find_crowding_sources(hits: Sequence[Hit], n: int) -> frozenset[str]:
    """Return the untrusted sources that fill their share of the hits and may have displaced other candidates."""
    untrusted = [hit.item.source for hit in hits if hit.item.trust < AGENT_TRUST]
    limit, taken = max(1, n // 2), Counter(map(get_site, untrusted))
    if n < 2 or not untrusted or (len(hits) == n and max(taken.values()) <= limit):
        return frozenset()
    return frozenset(source for source in untrusted if taken[get_site(source)] >= limit)


def merge_other_sources(hits: Sequence[Hit], others: Sequence[Hit], n: int) -> list[Hit]:
    """Return the best `n` of both lists, with at most half from one untrusted source."""
    known = {hit.item.id for hit in hits}
    merged = sorted([*hits, *(hit for hit in others if hit.item.id not in known)], key=lambda hit: -hit.score)
    briefs = [build_brief(hit.item, length=len(hit.item.content), passages=1) for hit in merged]
    return [merged[at] for at in limit_sources(range(len(merged)), briefs, n)]
