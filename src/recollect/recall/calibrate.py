"""What evidence is worth: cosines and shared words as a relevance that means the same for every embedder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.inference.base import Embedding
from recollect.recall.fuse import Scored, Weights
from recollect.stores.evidence import Glance

Number = TypeVar("Number", float, NDArray[np.float64])

# Questions and their answers on everyday matters. Every other pairing of a question with an answer is unrelated,
# so a handful of pairs measures both what a good cosine is and what noise is.
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """The usual cosine of unrelated texts, and of a question with its answer, for one embedder."""

    noise: float
    signal: float

    def on_our_scale(self, cosines: Number) -> Number:
        """Cosines as the default model would give them, which is what every weight was found with."""
        stretch = min((DEFAULT.signal - DEFAULT.noise) / (self.signal - self.noise), _MOST_STRETCH)
        return DEFAULT.noise + (cosines - self.noise) * stretch


# Measured with the anchors on the default model, so that its first search need not.
DEFAULT = Calibration(noise=0.04, signal=0.52)
_KNOWN = {"53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db": DEFAULT}

# Models that crowd their cosines need about five; beyond this it is noise that would be stretched.
_MOST_STRETCH = 6.0

_COVERED = 0.4
# Only moves the useful threshold to 0.6.
_SHAPE = 0.34
_LENT = ("neighbours", "meaning beside", "speaker", "role", "time")
_ECHO = 1.0
_FALL = 1.1
_UNSURE = 0.2
_UNRELATED = Weights().unrelated
# More than is added by rounding what is shown.
_ROUNDED = 1e-4


async def calibrated(embedding: Embedding) -> Calibration:
    if embedding.fingerprint in _KNOWN:
        return _KNOWN[embedding.fingerprint]
    questions = await embedding.embed([question for question, _ in _ANCHORS])
    answers = await embedding.embed([answer for _, answer in _ANCHORS])
    cosines = questions.astype(np.float64) @ answers.astype(np.float64).T
    pairs = np.eye(len(_ANCHORS), dtype=bool)
    noise = float(np.clip(cosines[~pairs].mean(), -0.5, 0.95))
    # An embedder that cannot tell them apart still needs a scale; a wide one makes its word count for little.
    signal = float(cosines[pairs].mean())
    return Calibration(noise, signal if signal > noise + 0.05 else noise + 1.0)


def relevance(scored: Scored, weights: NDArray[np.float64], *, words_alone: bool = False) -> NDArray[np.float64]:
    """How far each candidate is about the question, from 0 to 1.

    First, is the question about anything here at all: the best candidate's meaning, joined as an independent sign with
    the square of the share of the question's words that it covers. Nothing is shown as higher than that. Then every
    other candidate loses by how far its evidence falls short of the best one's, and the more so the surer the best is.
    What neighbours, speaker and time lend counts half: the turn beside an answer is not an answer.
    """
    if not len(scored.total):
        return scored.total
    mass = float(weights.sum())
    covered = weights @ (scored.words > 0.0) / mass if mass > 0.0 else np.zeros(len(scored.total))
    if words_alone:
        return by_words_alone(covered)
    about = _about(_within(scored.meaning), covered)
    evidence = scored.shares["words"] + scored.shares["meaning"]
    for name in _LENT:
        if name in scored.shares:
            evidence = evidence + 0.5 * scored.shares[name]
    return _standing(float(about.max()), evidence)


def at_most(glance: Glance, calibration: Calibration, *, words_alone: bool = False) -> float:
    """What no candidate's relevance is beyond: as if the nearest of them had all the words that any of them has.

    Often that is too little, and then nothing needs to be put together for anybody.
    """
    mass = sum(glance.weights)
    covered = sum(compress(glance.weights, glance.held)) / mass if mass > 0.0 else 0.0
    if words_alone:
        return float((covered**2) ** _SHAPE) + _ROUNDED
    nearest = max(calibration.on_our_scale(glance.nearest), _UNRELATED)
    meaning = min((nearest - _UNRELATED) / (1.0 - _UNRELATED), 1.0)
    return float(_about(meaning, covered) ** _SHAPE) + _ROUNDED


def by_meaning_alone(meaning: NDArray[np.float64], evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same where nothing but meaning was asked for."""
    if not len(meaning):
        return meaning
    return _standing(min(max(float(meaning.max()), 0.0), 1.0), evidence)


def _standing(best: float, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    # Capped, so that an echo of the question itself, found word for word, does not hide what answers it.
    most = min(float(evidence.max()), _ECHO)
    share = np.minimum(np.maximum(evidence / most, 0.0), 1.0) if most > 0.0 else np.zeros(len(evidence))
    return np.asarray(best**_SHAPE * share ** (_FALL * max(best - _UNSURE, 0.0)))


def by_itself(meaning: NDArray[np.float64], covered: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each text, looked at alone, is about a question: as `relevance` judges the best candidate."""
    return np.asarray(_about(_within(meaning), covered) ** _SHAPE)


def _about(meaning: Number, covered: Number) -> Number:
    return 1.0 - (1.0 - meaning) * (1.0 - _COVERED * covered**2)


def _within(meaning: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(np.maximum(meaning, 0.0), 1.0)


def by_words_alone(covered: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((covered**2) ** _SHAPE)
