"""Relevance: cosines and term scores on one scale from 0 to 1 that means the same for every embedder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from recollect.models.embedding import Embedding
from recollect.retrieval.fusion import WEIGHTS, FusedScores
from recollect.stores.search import EvidenceSummary

Number = TypeVar("Number", float, NDArray[np.float64])

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
_UNRELATED_COSINE = WEIGHTS.unrelated_cosine
# Scores are rounded to 4 digits.
_ROUNDING_MARGIN = 1e-4


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
    if measured is None or measured[0] != fingerprint:
        measured = _measured_calibrations[embedding] = (fingerprint, await _measure_calibration(embedding))
    return measured[1]


async def _measure_calibration(embedding: Embedding) -> Calibration:
    questions = await embedding.embed([question for question, _ in _ANCHORS])
    answers = await embedding.embed([answer for _, answer in _ANCHORS])
    cosines = questions.astype(np.float64) @ answers.astype(np.float64).T
    pairs = np.eye(len(_ANCHORS), dtype=bool)
    noise = float(np.clip(cosines[~pairs].mean(), -0.5, 0.95))
    signal = float(cosines[pairs].mean())
    # An embedder that cannot tell them apart gets a wide scale, on which its cosines count for little.
    return Calibration(noise, signal if signal > noise + 0.05 else noise + 1.0)


def score_relevance(
    scored: FusedScores, weights: NDArray[np.float64], *, terms_only: bool = False
) -> NDArray[np.float64]:
    """Return the relevance of each candidate, from 0 to 1.

    The best candidate's cosine and its share of the query's terms limit all of them: they say if the answer is here at
    all. Every other candidate loses by how far its evidence is below the best; the surer the best, the more.
    """
    if not len(scored.total):
        return scored.total
    total = float(weights.sum())
    covered = weights @ (scored.terms > 0.0) / total if total > 0.0 else np.zeros(len(scored.total))
    if terms_only:
        return score_by_terms(covered)
    evidence = scored.shares["words"] + scored.shares["meaning"]
    for name in _BORROWED_EVIDENCE:
        if name in scored.shares:
            evidence = evidence + 0.5 * scored.shares[name]
    return _scale_by_best(float(_combine(_clip(scored.meaning), covered).max()), evidence)


def bound_relevance(summary: EvidenceSummary, calibration: Calibration, *, terms_only: bool = False) -> float:
    """Return an upper bound of every candidate's relevance: the best cosine with all terms that any candidate has.

    Below the threshold, the store need not build the evidence.
    """
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


def _scale_by_best(best: float, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = min(float(evidence.max()), _MAX_EVIDENCE)
    share = np.minimum(np.maximum(evidence / limit, 0.0), 1.0) if limit > 0.0 else np.zeros(len(evidence))
    return np.asarray(best**_RELEVANCE_EXPONENT * share ** (_FALLOFF * max(best - _UNSURE_BELOW, 0.0)))


def _combine(meaning: Number, covered: Number) -> Number:
    """Combine cosine and coverage as independent signs; coverage counts by its square."""
    return 1.0 - (1.0 - meaning) * (1.0 - _COVERAGE_WEIGHT * covered**2)


def _clip(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(np.maximum(values, 0.0), 1.0)
