"""Several kinds of evidence into one score: scores are added, not ranks, so that a weak witness stays weak."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros
from recollect.recall.plan import Plan
from recollect.recall.times import closeness
from recollect.stores.bm25 import K1
from recollect.stores.evidence import Evidence

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each kind of evidence counts; docs/decisions/003 says how the numbers were found, and how honestly."""

    beside: float = 0.8
    """A word in the turn next to this one, against the same word in this one."""
    further: float = 0.4
    """…in the turn after next."""
    session: float = 0.15
    """Words spread over the session."""
    meaning: float = 0.9
    """The cosine, against all the words of the query found."""
    meaning_beside: float = 0.3
    """The better cosine of the turns next to this one."""
    named: float = 0.2
    """Said by somebody whom the question names. More gains little, and buries what a question credits wrongly."""
    role: float = 0.2
    """Said by the side of the dialogue that the question is about."""
    when: float = 0.3
    """Dated in the time that the question names."""
    phrase: float = 0.3
    """Words that stand together in the question stand together here."""
    phrase_beside: float = 0.5
    """…or in the turn next to this one."""
    passages: float = 0.04
    """Taken off the best passage's cosine for each natural logarithm of their number: the best of many is luck too."""
    unrelated: float = 0.10
    """The cosine that a question reaches with texts it has nothing to do with."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Every candidate's score, what it is made of, and the evidence that `relevance` judges by."""

    total: Column
    shares: dict[str, Column]
    words: NDArray[np.float64]
    """What each term says for each candidate, its neighbours' words included."""
    own: Column
    meaning: Column

    def at(self, places: NDArray[np.intp]) -> Scored:
        """Some of the candidates."""
        shares = {name: share[places] for name, share in self.shares.items()}
        return Scored(self.total[places], shares, self.words[:, places], self.own[places], self.meaning[places])


def fuse(evidence: Evidence, plan: Plan, cosines: Column, weights: Weights = Weights()) -> Scored:
    """Add the evidence up.

    Every kind is absolute: words over the most they could be, cosines over what unrelated texts reach. So scores of
    different questions compare, and nothing depends on which other candidates happen to be there.
    """
    near = _Neighbours(evidence)
    mass = float(evidence.weights.sum()) * (K1 + 1.0)
    parts = evidence.parts / mass if mass > 0.0 else np.zeros_like(evidence.parts)
    meaning = meaning_of(evidence, cosines, weights)
    own = parts.sum(axis=0)
    if near.spoken:
        beside = near.best(np.vstack([parts, meaning]), 1)
        # A question and the turn that answers it share the burden of naming things.
        words = np.maximum(parts, weights.beside * beside[:-1])
        words = np.maximum(words, weights.further * near.best(parts, 2))
        shares = {
            "words": own,
            "neighbours": words.sum(axis=0) - own,
            "session": weights.session * near.in_session(parts).sum(axis=0),
            "meaning": weights.meaning * meaning,
            "meaning beside": weights.meaning * weights.meaning_beside * beside[-1],
        }
    else:
        words, shares = parts, {"words": own, "meaning": weights.meaning * meaning}
    if plan.named:
        shares["speaker"] = weights.named * _said_by(evidence, plan.named)
    if plan.role is not None:
        shares["role"] = weights.role * _of_role(evidence, plan.role, plan)
    if plan.times:
        shares["time"] = weights.when * _near_times(evidence, plan)
    return Scored(_sum(shares.values(), len(evidence)), shares, words, own, meaning)


def _sum(columns: Iterable[Column], length: int) -> Column:
    return sum(columns, np.zeros(length))


def meaning_of(evidence: Evidence, cosines: Column, weights: Weights = Weights()) -> Column:
    """What each candidate's cosine says: 0 for what unrelated texts reach, 1 for the question itself."""
    known = cosines
    if any(brief.passages > 1 for brief in evidence.briefs):
        passages = np.array([brief.passages for brief in evidence.briefs], np.float64)
        known = cosines - weights.passages * np.log(np.maximum(passages, 1.0))
    known = np.where(np.isnan(known), weights.unrelated, known)
    return _settled((known - weights.unrelated) / (1.0 - weights.unrelated))


def add_phrases(scored: Scored, evidence: Evidence, phrases: Column, weights: Weights = Weights()) -> Scored:
    """The same with the share of the question's word pairs that each candidate has, where it was looked for."""
    beside = _Neighbours(evidence).best(phrases[np.newaxis], 1)[0]
    share = weights.phrase * np.maximum(phrases, weights.phrase_beside * beside)
    return replace(scored, total=scored.total + share, shares={**scored.shares, "phrase": share})


class Phrasing:
    """The words that stand together in a question, and what it is worth that they stand together elsewhere."""

    def __init__(self, plan: Plan, weights: Column) -> None:
        rows = {term: row for row, term in enumerate(plan.terms)}
        self._pairs = [(rows[a], rows[b]) for a, b in plan.pairs]
        self._worth = {f" {a} {b} ": float(min(weights[rows[a]], weights[rows[b]])) for a, b in plan.pairs}
        self._mass = float(weights.sum())

    def possible(self, has: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Who has both words of a pair at all, from which terms each candidate has: only they need a look."""
        possible = np.zeros(has.shape[1], np.bool_)
        for a, b in self._pairs:
            possible |= has[a] & has[b]
        return possible

    def share(self, terms: str) -> float:
        """The weight of the pairs that are neighbours in an item's terms too, from 0 to 1."""
        if self._mass <= 0.0:
            return 0.0
        within = f" {terms} "
        return sum(worth for pair, worth in self._worth.items() if pair in within) / self._mass


def _near_times(evidence: Evidence, plan: Plan) -> Column:
    # Only of turns: a fact was stored some day, but that is not what it is about.
    near = (
        closeness(plan.times, from_micros(brief.created_at)) if brief.session is not None else 0.0
        for brief in evidence.briefs
    )
    return np.fromiter(near, np.float64, len(evidence))


def _of_role(evidence: Evidence, role: str, plan: Plan) -> Column:
    said = _said_by(evidence, frozenset({role}))
    if not plan.of_owner:
        return said
    unsaid = np.fromiter((brief.speaker is None for brief in evidence.briefs), np.float64, len(evidence))
    return np.maximum(said, unsaid)


def _settled(meaning: Column) -> Column:
    """Below 0 and beyond 1 only a trace counts: enough to keep the order of cosines, and no more."""
    within = np.minimum(np.maximum(meaning, 0.0), 1.0)
    return within + 0.05 * (meaning - within)


def _said_by(evidence: Evidence, speakers: frozenset[str]) -> Column:
    wanted = {speaker.lower() for speaker in speakers}
    said = ((brief.speaker or "").lower() in wanted for brief in evidence.briefs)
    return np.fromiter(said, np.float64, len(evidence))


class _Neighbours:
    """Who stands next to whom, among candidates that are sorted by session and position."""

    def __init__(self, evidence: Evidence) -> None:
        sessions = [brief.session for brief in evidence.briefs]
        self.spoken = any(session is not None for session in sessions)
        if not self.spoken:
            return
        # Each session is a run of candidates. Those outside any dialogue come first, all at one position:
        # nobody's neighbours.
        begins = [at for at, name in enumerate(sessions) if at == 0 or name != sessions[at - 1]]
        self._begins = np.array(begins, np.intp)
        self._lengths = np.diff(np.append(self._begins, len(sessions)))
        self._outside = sessions.count(None)
        self._session = np.repeat(np.arange(len(begins)), self._lengths)
        self._position = np.array([brief.position or 0.0 for brief in evidence.briefs], np.float64)
        self._gaps: list[NDArray[np.float64]] = []

    def best(self, rows: NDArray[np.float64], distance: int) -> NDArray[np.float64]:
        """For each candidate the best value among those exactly so many turns before or after it."""
        best = np.zeros_like(rows)
        if not self.spoken:
            return best
        # Two turns may share a position, so look a little further along the sorted columns than the distance.
        for step in range(1, min(distance + 2, len(self._session))):
            adjacent = self._gap(step) == distance
            if adjacent.any():
                np.maximum(best[:, step:], rows[:, :-step], out=best[:, step:], where=adjacent)
                np.maximum(best[:, :-step], rows[:, step:], out=best[:, :-step], where=adjacent)
        return best

    def _gap(self, step: int) -> NDArray[np.float64]:
        """How many turns lie between two who stand so far apart along the columns; 0 across sessions."""
        while len(self._gaps) < step:
            further = len(self._gaps) + 1
            together = self._session[further:] == self._session[:-further]
            self._gaps.append(np.ceil(self._position[further:] - self._position[:-further]) * together)
        return self._gaps[step - 1]

    def in_session(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each candidate the best value in its session; nothing for items outside any."""
        best = np.repeat(np.maximum.reduceat(rows, self._begins, axis=1), self._lengths, axis=1)
        best[:, : self._outside] = 0.0
        return best
