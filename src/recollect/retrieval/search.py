"""Hybrid search of one store: plan the query, gather evidence in the store, score it, and rank the hits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros
from recollect.language.analysis import build_date_terms
from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import FusedScores, PhraseMatcher, add_phrases, fuse
from recollect.retrieval.query import QueryPlan, plan_query
from recollect.retrieval.ranking import (
    compute_adjustments,
    exclude_sources,
    find_crowding_sources,
    limit_sources,
    merge_other_sources,
    sort_hits,
)
from recollect.retrieval.relevance import (
    DEFAULT_CALIBRATION,
    Calibration,
    bound_relevance,
    calibrate_embedding,
    score_relevance,
)
from recollect.stores.base import Records
from recollect.stores.search import (
    EvidenceLookup,
    EvidenceQuery,
    EvidenceSummary,
    SearchEvidence,
    SearchQuery,
    SearchWidth,
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


class HybridSearch:
    """Search of one store with one embedder."""

    def __init__(self, store: Records, embedding: Embedding) -> None:
        self._store = store
        self._embedding = embedding
        self._speakers_by_space: OrderedDict[Space, frozenset[str]] = OrderedDict()

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
            where = replace(question.where, conditions=exclude_sources(question, crowding))
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
            speakers = self._speakers_by_space[space] = answer
            if len(self._speakers_by_space) > _MAX_CACHED_SPACES:
                self._speakers_by_space.popitem(last=False)

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
        # Rounded before it is compared, so that a relevance that was shown can be used as a threshold.
        relevance = self._score_relevance(scored, evidence, self._find_repeats(evidence, lookup)).round(4)
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
        items = lookup.items([briefs[at].id for at in best])
        tier, places = question.where.space.tier, relevant[best]
        reasons = self._build_reasons(places, evidence, scored)
        return [
            Hit(items[briefs[at].id], tier, worth, score, why)
            for at, worth, score, why in zip(
                best, relevance[places].tolist(), scores[best].round(6).tolist(), reasons, strict=True
            )
        ]

    def may_show(self, summary: EvidenceSummary) -> bool:
        """Return False if no candidate can be relevant enough. A repetition of the query must still be counted."""
        if self.question.is_repeat is not None and all(summary.has_terms):
            return True
        limit = bound_relevance(summary, self.calibration, terms_only=self.question.mode == "text")
        return limit >= self.question.min_relevance

    def _score_relevance(
        self, scored: FusedScores, evidence: SearchEvidence, repeats: list[int]
    ) -> NDArray[np.float64]:
        """Score the relevance of all candidates but repetitions of the query, which get -1.

        A repetition still adds to the scores of its neighbors: the next turn may be the answer.
        """
        terms_only = self.question.mode == "text"
        if not repeats:
            return score_relevance(scored, evidence.weights, terms_only=terms_only)
        others = np.setdiff1d(np.arange(len(evidence)), np.array(repeats))
        relevance = np.full(len(evidence), -1.0)
        relevance[others] = score_relevance(scored.select(others), evidence.weights, terms_only=terms_only)
        return relevance

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

    def _build_reasons(self, best: NDArray[np.intp], evidence: SearchEvidence, scored: FusedScores) -> Iterator[Why]:
        columns = [evidence.cosines[best], scored.own_terms[best], *(share[best] for share in scored.shares.values())]
        matched = (evidence.parts[:, best] > 0.0).T.tolist()
        for (cosine, words, *shares), has_terms in zip(np.array(columns).round(4).T.tolist(), matched, strict=True):
            yield Why(
                cosine=None if cosine != cosine else cosine,  # NaN: the item has no vector
                words=words,
                matched=tuple(compress(self.plan.terms, has_terms)),
                parts={name: share for name, share in zip(scored.shares, shares, strict=True) if share},
            )
