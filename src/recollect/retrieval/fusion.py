"""Fusion of terms, cosines, speakers and times into one score per candidate.

Scores are added, not ranks, so that weak evidence stays weak. docs/decisions/003 tells how the weights were tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros
from recollect.retrieval.query import QueryPlan
from recollect.retrieval.time_expressions import score_closeness
from recollect.stores.search import BM25_K1, SearchEvidence

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FusionWeights:
    """The weight of each kind of evidence; 1 is the score of a candidate with every query term."""

    neighbor: float = 0.8
    """A term in the turn before or after, relative to a term in the turn itself."""
    second_neighbor: float = 0.4
    """A term two turns away."""
    session: float = 0.15
    """Terms anywhere in the session."""
    meaning: float = 0.9
    """The cosine."""
    neighbor_meaning: float = 0.3
    """The better cosine of the turns before and after, relative to the turn's own."""
    speaker: float = 0.2
    """The speaker is named in the query. A higher weight buries turns of others."""
    role: float = 0.2
    """The speaker has the role that the query is about."""
    time: float = 0.3
    """The date is in the time that the query names."""
    phrase: float = 0.3
    """Terms are adjacent in the query and here."""
    neighbor_phrase: float = 0.5
    """Terms are adjacent in the turn before or after, relative to the turn itself."""
    passage_penalty: float = 0.04
    """Subtracted from the best passage's cosine for each natural logarithm of the number of passages."""
    unrelated_cosine: float = 0.10
    """The cosine of a query with unrelated texts."""


@dataclass(frozen=True, slots=True)
class FusedScores:
    """The score of each candidate, its parts, and the evidence for its relevance."""

    total: Column
    shares: dict[str, Column]
    terms: NDArray[np.float64]
    """The score of each term (row) for each candidate (column), neighbors included."""
    own_terms: Column
    meaning: Column

    def select(self, places: NDArray[np.intp]) -> FusedScores:
        """Return the scores of some candidates."""
        shares = {name: share[places] for name, share in self.shares.items()}
        terms = self.terms[:, places]
        return FusedScores(self.total[places], shares, terms, self.own_terms[places], self.meaning[places])


WEIGHTS = FusionWeights()


def fuse(evidence: SearchEvidence, plan: QueryPlan, cosines: Column) -> FusedScores:
    """Add up the evidence.

    Every part is absolute: terms relative to their maximum, cosines relative to unrelated texts. So scores of different
    queries compare, and no score depends on the other candidates.
    """
    near, weights = _NeighborIndex(evidence), WEIGHTS
    total_weight = float(evidence.weights.sum()) * (BM25_K1 + 1.0)
    parts = evidence.parts / total_weight if total_weight > 0.0 else np.zeros_like(evidence.parts)
    meaning = normalize_cosines(evidence, cosines)
    own = parts.sum(axis=0)
    if near.has_dialogue:
        beside = near.find_best(np.vstack([parts, meaning]), 1)
        # In dialogue, query terms may be split between a turn and its reply.
        terms = np.maximum(parts, weights.neighbor * beside[:-1])
        terms = np.maximum(terms, weights.second_neighbor * near.find_best(parts, 2))
        shares = {
            "words": own,
            "neighbours": terms.sum(axis=0) - own,
            "session": weights.session * near.find_session_best(parts).sum(axis=0),
            "meaning": weights.meaning * meaning,
            "meaning beside": weights.meaning * weights.neighbor_meaning * beside[-1],
        }
    else:
        terms, shares = parts, {"words": own, "meaning": weights.meaning * meaning}
    if plan.named_speakers:
        shares["speaker"] = weights.speaker * _score_speakers(evidence, plan.named_speakers)
    if plan.role is not None:
        shares["role"] = weights.role * _score_role(evidence, plan.role, plan)
    if plan.times:
        shares["time"] = weights.time * _score_times(evidence, plan)
    return FusedScores(sum(shares.values(), np.zeros(len(evidence))), shares, terms, own, meaning)


def normalize_cosines(evidence: SearchEvidence, cosines: Column) -> Column:
    """Map cosines so that unrelated texts get 0 and the query itself gets 1.

    Outside of 0 to 1 the slope is 0.05, which keeps the order of cosines and little else.
    """
    if any(brief.passages > 1 for brief in evidence.briefs):
        passages = np.array([brief.passages for brief in evidence.briefs], np.float64)
        cosines = cosines - WEIGHTS.passage_penalty * np.log(np.maximum(passages, 1.0))
    unrelated = WEIGHTS.unrelated_cosine
    meaning = (np.where(np.isnan(cosines), unrelated, cosines) - unrelated) / (1.0 - unrelated)
    clipped = np.minimum(np.maximum(meaning, 0.0), 1.0)
    return clipped + 0.05 * (meaning - clipped)


def add_phrases(scored: FusedScores, evidence: SearchEvidence, phrases: Column) -> FusedScores:
    """Add the share of the query's term pairs that each candidate has."""
    beside = _NeighborIndex(evidence).find_best(phrases[np.newaxis], 1)[0]
    share = WEIGHTS.phrase * np.maximum(phrases, WEIGHTS.neighbor_phrase * beside)
    return replace(scored, total=scored.total + share, shares={**scored.shares, "phrase": share})


class PhraseMatcher:
    """The adjacent terms of a query, and the weight of each pair."""

    def __init__(self, plan: QueryPlan, weights: Column) -> None:
        rows = {term: row for row, term in enumerate(plan.terms)}
        self._row_pairs = [(rows[a], rows[b]) for a, b in plan.term_pairs]
        self._pair_weights = {f" {a} {b} ": float(min(weights[rows[a]], weights[rows[b]])) for a, b in plan.term_pairs}
        self._total_weight = float(weights.sum())

    def find_possible(self, has_terms: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the candidates that have both terms of a pair; the text of others need not be read."""
        possible = np.zeros(has_terms.shape[1], np.bool_)
        for a, b in self._row_pairs:
            possible |= has_terms[a] & has_terms[b]
        return possible

    def score(self, terms: str) -> float:
        """Return the weight of the pairs that are adjacent in an item's terms, from 0 to 1."""
        if self._total_weight <= 0.0:
            return 0.0
        text = f" {terms} "
        return sum(weight for pair, weight in self._pair_weights.items() if pair in text) / self._total_weight


def _score_times(evidence: SearchEvidence, plan: QueryPlan) -> Column:
    # A fact is not about the day on which it was stored, so only turns are scored.
    closeness = (
        score_closeness(plan.times, from_micros(brief.created_at)) if brief.session is not None else 0.0
        for brief in evidence.briefs
    )
    return np.fromiter(closeness, np.float64, len(evidence))


def _score_role(evidence: SearchEvidence, role: str, plan: QueryPlan) -> Column:
    matches = _score_speakers(evidence, frozenset({role}))
    if not plan.is_about_owner:
        return matches
    unattributed = np.fromiter((brief.speaker is None for brief in evidence.briefs), np.float64, len(evidence))
    return np.maximum(matches, unattributed)


def _score_speakers(evidence: SearchEvidence, speakers: frozenset[str]) -> Column:
    names = {speaker.lower() for speaker in speakers}
    matches = ((brief.speaker or "").lower() in names for brief in evidence.briefs)
    return np.fromiter(matches, np.float64, len(evidence))


class _NeighborIndex:
    """The neighbors of each candidate; candidates are sorted by session and position."""

    def __init__(self, evidence: SearchEvidence) -> None:
        sessions = [brief.session for brief in evidence.briefs]
        self.has_dialogue = any(session is not None for session in sessions)
        if not self.has_dialogue:
            return
        # Each session is a run of columns. Items without a session come first, all at one position.
        starts = [at for at, name in enumerate(sessions) if at == 0 or name != sessions[at - 1]]
        self._session_starts = np.array(starts, np.intp)
        self._session_lengths = np.diff(np.append(self._session_starts, len(sessions)))
        self._outside_count = sessions.count(None)
        self._session = np.repeat(np.arange(len(starts)), self._session_lengths)
        self._position = np.array([brief.position or 0.0 for brief in evidence.briefs], np.float64)
        self._gaps: list[NDArray[np.float64]] = []

    def find_best(self, rows: NDArray[np.float64], distance: int) -> NDArray[np.float64]:
        """Return for each candidate the best value of the turns exactly `distance` before or after it."""
        best = np.zeros_like(rows)
        if not self.has_dialogue:
            return best
        # Two turns may share a position, so one more column than the distance is checked.
        for step in range(1, min(distance + 2, len(self._session))):
            adjacent = self._get_gap(step) == distance
            if adjacent.any():
                np.maximum(best[:, step:], rows[:, :-step], out=best[:, step:], where=adjacent)
                np.maximum(best[:, :-step], rows[:, step:], out=best[:, :-step], where=adjacent)
        return best

    def _get_gap(self, step: int) -> NDArray[np.float64]:
        """Return the distance in turns between columns `step` apart; 0 across sessions."""
        while len(self._gaps) < step:
            offset = len(self._gaps) + 1
            same_session = self._session[offset:] == self._session[:-offset]
            self._gaps.append(np.ceil(self._position[offset:] - self._position[:-offset]) * same_session)
        return self._gaps[step - 1]

    def find_session_best(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each candidate the best value in its session; 0 outside of a session."""
        best = np.repeat(np.maximum.reduceat(rows, self._session_starts, axis=1), self._session_lengths, axis=1)
        best[:, : self._outside_count] = 0.0
        return best
