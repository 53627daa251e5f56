"""Scores of candidates: fusion of terms, cosines, speakers and times, and relevance on one scale for every embedder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros
from recollect.models.embedding import Embedding
from recollect.retrieval.query import QueryPlan
from recollect.retrieval.time_expressions import score_closeness
from recollect.stores.search import BM25_K1, EvidenceSummary, SearchEvidence

Column = NDArray[np.float64]
Number = TypeVar("Number", float, NDArray[np.float64])

# Scores are added, not ranks, so that weak evidence stays weak. docs/decisions/003 tells how the weights were tuned.
# The weight of each kind of evidence; 1 is the score of a candidate with every query term.
_NEIGHBOR = 0.8  # a term in the turn before or after, relative to a term in the turn itself
_SECOND_NEIGHBOR = 0.4  # a term two turns away
_SESSION = 0.15  # terms anywhere in the session
_MEANING = 0.9  # the cosine
_NEIGHBOR_MEANING = 0.3  # the better cosine of the turns before and after, relative to the turn's own
_SPEAKER = 0.2  # the speaker is named in the query; a higher weight buries turns of others
_ROLE = 0.2  # the speaker has the role that the query is about
_TIME = 0.3  # the date is in the time that the query names
_PHRASE = 0.3  # terms are adjacent in the query and here
_NEIGHBOR_PHRASE = 0.5  # terms are adjacent in the turn before or after, relative to the turn itself

# Subtracted from the best passage's cosine for each natural logarithm of the number of passages.
_PASSAGE_PENALTY = 0.04
_UNRELATED_COSINE = 0.10  # of a query with unrelated texts

# Everyday questions with their answers. Each pair measures a good cosine, and all other pairings measure noise.
_ANCHORS = (
    ("Where does she live now?", "She moved to a flat in Lisbon last spring."),
    ("What food is he allergic to?", "He cannot eat peanuts or anything made with them."),
    ("Which database does the billing service use?", "Billing keeps its data in a PostgreSQL cluster."),
    ("When is the project due?", "The deadline for the release is the end of June."),
    ("What instrument does the neighbour play?", "The man next door practises the cello every evening."),
    ("How do we deploy to production?", "Push a tag and the pipeline rolls the new version out."),
    ("What is the dog called?", "They named the puppy Biscuit."),
    ("Which units should reports use?", "Write all measurements in metric units."),
    ("What did the doctor say about her knee?", "The physician advised three weeks of rest for the leg."),
    ("Who won the chess tournament?", "Irina beat everyone else in the final rounds of chess."),
    ("What colour is the new car?", "The vehicle they bought is dark green."),
    ("How long does the train ride take?", "By rail the journey is a little over two hours."),
)

# Models with crowded cosines need a stretch of about 5; beyond 6 it amplifies noise.
_MAX_STRETCH = 6.0

_COVERAGE_WEIGHT = 0.4
# Moves the useful threshold to 0.6 and changes no order.
_RELEVANCE_EXPONENT = 0.34
# Evidence that counts half: a turn beside an answer is not an answer.
_BORROWED_EVIDENCE = ("neighbours", "meaning beside", "speaker", "role", "time")
# A repetition of the query scores higher, and must not hide what answers it.
_MAX_EVIDENCE = 1.0
_FALLOFF = 1.1
_UNSURE_BELOW = 0.2
# Scores are rounded to 4 digits.
_ROUNDING_MARGIN = 1e-4


@dataclass(frozen=True, slots=True)
class FusedScores:
    """The score of each candidate, its parts, and the evidence for its relevance."""

    total: Column
    shares: dict[str, Column]
    terms: NDArray[np.float64]
    """The score of each term (row) for each candidate (column), neighbors included."""
    own_terms: Column
    meaning: Column


def fuse(evidence: SearchEvidence, plan: QueryPlan, cosines: Column) -> FusedScores:
    """Add up the evidence.

    Every part is absolute: terms relative to their maximum, cosines relative to unrelated texts. So scores of different
    queries compare, and no score depends on the other candidates.
    """
    near = _NeighborIndex(evidence)
    total_weight = float(evidence.weights.sum()) * (BM25_K1 + 1.0)
    parts = evidence.parts / total_weight if total_weight > 0.0 else np.zeros_like(evidence.parts)
    meaning = normalize_cosines(evidence, cosines)
    own = parts.sum(axis=0)
    if near.has_dialogue:
        beside = near.find_best(np.vstack([parts, meaning]), 1)
        # In dialogue, query terms may be split between a turn and its reply.
        terms = np.maximum(parts, _NEIGHBOR * beside[:-1])
        terms = np.maximum(terms, _SECOND_NEIGHBOR * near.find_best(parts, 2))
        shares = {
            "words": own,
            "neighbours": terms.sum(axis=0) - own,
            "session": _SESSION * near.find_session_best(parts).sum(axis=0),
            "meaning": _MEANING * meaning,
            "meaning beside": _MEANING * _NEIGHBOR_MEANING * beside[-1],
        }
    else:
        terms, shares = parts, {"words": own, "meaning": _MEANING * meaning}
    if plan.named_speakers:
        shares["speaker"] = _SPEAKER * _score_speakers(evidence, plan.named_speakers)
    if plan.role is not None:
        shares["role"] = _ROLE * _score_role(evidence, plan.role, plan)
    if plan.times:
        shares["time"] = _TIME * _score_times(evidence, plan)
    return FusedScores(sum(shares.values(), np.zeros(len(evidence))), shares, terms, own, meaning)


def normalize_cosines(evidence: SearchEvidence, cosines: Column) -> Column:
    """Map cosines so that unrelated texts get 0 and the query itself 1; beyond, a slope of 0.05 keeps their order."""
    if any(brief.passages > 1 for brief in evidence.briefs):
        passages = np.array([brief.passages for brief in evidence.briefs], np.float64)
        cosines = cosines - _PASSAGE_PENALTY * np.log(np.maximum(passages, 1.0))
    known = np.where(np.isnan(cosines), _UNRELATED_COSINE, cosines)
    meaning = (known - _UNRELATED_COSINE) / (1.0 - _UNRELATED_COSINE)
    clipped = np.minimum(np.maximum(meaning, 0.0), 1.0)
    return clipped + 0.05 * (meaning - clipped)


def add_phrases(scored: FusedScores, evidence: SearchEvidence, phrases: Column) -> FusedScores:
    """Add the share of the query's term pairs that each candidate has."""
    beside = _NeighborIndex(evidence).find_best(phrases[np.newaxis], 1)[0]
    share = _PHRASE * np.maximum(phrases, _NEIGHBOR_PHRASE * beside)
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

    def find_best(self, rows: NDArray[np.float64], distance: int) -> NDArray[np.float64]:
        """Return for each candidate the best value of the turns exactly `distance` before or after it."""
        best = np.zeros_like(rows)
        if not self.has_dialogue:
            return best
        # Two turns may share a position, so one more column than the distance is checked.
        for step in range(1, min(distance + 2, len(self._session))):
            same_session = self._session[step:] == self._session[:-step]
            adjacent = same_session & (np.ceil(self._position[step:] - self._position[:-step]) == distance)
            if adjacent.any():
                np.maximum(best[:, step:], rows[:, :-step], out=best[:, step:], where=adjacent)
                np.maximum(best[:, :-step], rows[:, step:], out=best[:, :-step], where=adjacent)
        return best

    def find_session_best(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each candidate the best value in its session; 0 outside of a session."""
        best = np.repeat(np.maximum.reduceat(rows, self._session_starts, axis=1), self._session_lengths, axis=1)
        best[:, : self._outside_count] = 0.0
        return best


@dataclass(frozen=True, slots=True)
class Calibration:
    """The mean cosine of unrelated texts, and of questions with their answers, for one embedder."""

    noise: float
    signal: float

    def rescale(self, cosines: Number) -> Number:
        """Map cosines to the scale of the default model, for which all weights were tuned."""
        default = DEFAULT_CALIBRATION
        stretch = min((default.signal - default.noise) / (self.signal - self.noise), _MAX_STRETCH)
        return default.noise + (cosines - self.noise) * stretch


# Measured with the anchors, so that the first search with the default model need not do it.
DEFAULT_CALIBRATION = Calibration(noise=0.04, signal=0.52)
_KNOWN_CALIBRATIONS = {"53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db": DEFAULT_CALIBRATION}
_measured_calibrations: WeakKeyDictionary[Embedding, tuple[str, Calibration]] = WeakKeyDictionary()


async def calibrate_embedding(embedding: Embedding) -> Calibration:
    """Return the calibration of an embedder; measured once with 24 short texts, and again after `reembed`."""
    fingerprint = embedding.fingerprint
    if fingerprint in _KNOWN_CALIBRATIONS:
        return _KNOWN_CALIBRATIONS[fingerprint]
    measured = _measured_calibrations.get(embedding)
    if measured is not None and measured[0] == fingerprint:
        return measured[1]
    questions = await embedding.embed([question for question, _ in _ANCHORS])
    answers = await embedding.embed([answer for _, answer in _ANCHORS])
    cosines = questions.astype(np.float64) @ answers.astype(np.float64).T
    pairs = np.eye(len(_ANCHORS), dtype=bool)
    noise = float(np.clip(cosines[~pairs].mean(), -0.5, 0.95))
    signal = float(cosines[pairs].mean())
    # An embedder that cannot tell them apart gets a wide scale, on which its cosines count for little.
    calibration = Calibration(noise, signal if signal > noise + 0.05 else noise + 1.0)
    _measured_calibrations[embedding] = (fingerprint, calibration)
    return calibration


def score_relevance(
    scored: FusedScores,
    weights: NDArray[np.float64],
    included: NDArray[np.bool_] | slice = slice(None),
    *,
    terms_only: bool = False,
) -> NDArray[np.float64]:
    """Return the relevance of each candidate, from 0 to 1, if the best is among the `included` ones.

    The best candidate's cosine and its share of the query's terms limit all of them: they say if the answer is here at
    all. Every other candidate loses by how far its evidence is below the best; the surer the best, the more.
    """
    if not len(scored.total[included]):
        return np.zeros(len(scored.total))
    total = float(weights.sum())
    covered = weights @ (scored.terms > 0.0) / total if total > 0.0 else np.zeros(len(scored.total))
    if terms_only:
        return score_by_terms(covered)
    evidence = scored.shares["words"] + scored.shares["meaning"]
    for name in _BORROWED_EVIDENCE:
        if name in scored.shares:
            evidence = evidence + 0.5 * scored.shares[name]
    best = float(_combine(_clip(scored.meaning), covered)[included].max())
    limit = min(float(evidence[included].max()), _MAX_EVIDENCE)
    share = _clip(evidence / limit) if limit > 0.0 else np.zeros(len(evidence))
    return np.asarray(best**_RELEVANCE_EXPONENT * share ** (_FALLOFF * max(best - _UNSURE_BELOW, 0.0)))


def bound_relevance(summary: EvidenceSummary, calibration: Calibration, *, terms_only: bool = False) -> float:
    """Return an upper bound of every relevance; below the threshold, the store need not build the evidence."""
    total = sum(summary.weights)
    covered = sum(compress(summary.weights, summary.has_terms)) / total if total > 0.0 else 0.0
    if terms_only:
        return float((covered**2) ** _RELEVANCE_EXPONENT) + _ROUNDING_MARGIN
    best = max(calibration.rescale(summary.best_cosine), _UNRELATED_COSINE)
    meaning = min((best - _UNRELATED_COSINE) / (1.0 - _UNRELATED_COSINE), 1.0)
    return float(_combine(meaning, covered) ** _RELEVANCE_EXPONENT) + _ROUNDING_MARGIN


def score_texts(cosines: NDArray[np.float64], covered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relevance of texts by rescaled cosine and share of terms, each as if it were the best candidate."""
    meaning = (cosines - _UNRELATED_COSINE) / (1.0 - _UNRELATED_COSINE)
    return np.asarray(_combine(_clip(meaning), covered) ** _RELEVANCE_EXPONENT)


def score_by_terms(covered: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((covered**2) ** _RELEVANCE_EXPONENT)


def _combine(meaning: Number, covered: Number) -> Number:
    """Combine cosine and coverage as independent signs; coverage counts by its square."""
    return 1.0 - (1.0 - meaning) * (1.0 - _COVERAGE_WEIGHT * covered**2)


def _clip(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(np.maximum(values, 0.0), 1.0)
