"""Search from end to end: plan, gather, fuse, rank, and the hits with their reasons."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from recollect.clock import from_micros
from recollect.inference.base import Embedding
from recollect.recall.by_meaning import ByMeaning
from recollect.recall.calibrate import DEFAULT, Calibration, at_most, calibrated, relevance
from recollect.recall.fuse import Phrasing, Scored, add_phrases, fuse
from recollect.recall.plan import Plan, plan
from recollect.recall.rank import Order, nudge
from recollect.recall.sources import bounded, crowding, shared_out, site, without
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.evidence import Ask, Brief, Evidence, Glance, Lookup
from recollect.stores.ops import Model, Touch
from recollect.stores.question import Question, Width
from recollect.values import Hit, Space, Why
from recollect.words import date_terms

# Phrases are looked for in the texts of the best so many: enough to settle the first ten.
_LOOKED_AT = 50
_REACH = 2

# Asked by meaning alone, nothing changes the order of the nearest but how long their texts are.
_SPARE = 4

# By so many words a text may be longer than the question that it is: some are said twice, and two tell the day.
_REPEATED = 8

_MOST_CANDIDATES = 20_000
_SPACES_KNOWN = 4096

# One who has so many names is beyond being bounded by name.
_CROWDS = 4
_WIDELY = 100


class Recall:
    """Answers questions from one store with one embedder."""

    def __init__(self, store: Records, embedding: Embedding, settings: Settings) -> None:
        self._store = store
        self._embedding = embedding
        self._settings = settings
        self._calibration: tuple[str, Calibration] | None = None
        self._speakers: OrderedDict[Space, frozenset[str]] = OrderedDict()

    async def search(self, question: Question) -> list[Hit]:
        """The hits that are relevant enough, best first, at most `n`. Counts an access to each."""
        hits = await self.found(question)
        if hits:
            ids = tuple(hit.item.id for hit in hits)
            self._store.touch(Touch(question.where.space, ids, question.asked_at))
        return hits

    async def found(self, question: Question) -> list[Hit]:
        """The same, without counting an access."""
        return await self._with_others(question, await self._hits(question)) if question.n else []

    async def _with_others(self, question: Question, hits: list[Hit]) -> list[Hit]:
        """The hits; where one source crowds, also those of others that it may have kept from being candidates."""
        crowds: frozenset[str] = frozenset()
        for _ in range(_CROWDS):
            new = crowding(hits, question.n) - crowds
            if not new:
                break
            crowds |= new
            where = replace(question.where, conditions=without(question, crowds))
            # Widely, for a site may have many more pages.
            others = await self._hits(replace(question, where=where, n=max(question.n, _WIDELY)))
            if not others:
                break
            crowds |= {hit.item.source for hit in others if site(hit.item.source) in {*map(site, crowds)}}
            hits = shared_out(hits, others, question.n)
        return hits

    async def _hits(self, question: Question) -> list[Hit]:
        """Plan, gather and judge.

        A question is planned with the speakers that were known last time. The store says who there is now, in the
        same reading; in the rare case that somebody has spoken for the first time, it is planned again.
        """
        space = question.where.space
        calibration = DEFAULT if question.mode == "text" else await self._calibrated()
        speakers = self._speakers.get(space, frozenset())
        while True:
            if question.mode == "dense" and not speakers:
                answer = await self._near(question, calibration)
            else:
                answer = await self._judged(question, calibration, speakers)
            if not isinstance(answer, frozenset):
                return answer
            speakers = self._speakers[space] = answer
            if len(self._speakers) > _SPACES_KNOWN:
                self._speakers.popitem(last=False)

    async def _judged(
        self, question: Question, calibration: Calibration, speakers: frozenset[str]
    ) -> list[Hit] | frozenset[str]:
        asked = plan(question.text, speakers, question.now, question.where.space.user)
        if question.mode == "dense":
            asked = asked.without_words()
        vector = None if question.mode == "text" else (await self._embedding.embed([asked.embedded]))[0]
        # In a dialogue, neighbours and speakers change the order; of facts, the best are nearer the top of each list.
        proposed = self._settings.candidates if speakers else self._settings.candidates // 2
        width = question.width or Width(proposed, _REACH)
        limit = max(_twice(question), width.proposed)
        judge = Judge(question, asked, calibration, speakers)
        ask = Ask(question.where, vector, asked.terms, limit, width.reach, self._model(), judge.may_show)
        return await self._store.gather(ask, judge)

    async def _near(self, question: Question, calibration: Calibration) -> list[Hit] | frozenset[str]:
        """Asked by meaning alone where nobody speaks, there is nothing to plan: no words, no neighbours, no names."""
        vector = (await self._embedding.embed([question.text]))[0]
        limit = question.n + max(question.n // 2, _SPARE)
        ask = Ask(question.where, vector, (), min(limit, _MOST_CANDIDATES), 0, self._model())
        return await self._store.gather(ask, ByMeaning(question, calibration))

    def _model(self) -> Model:
        return Model(self._embedding.name, self._embedding.dim, self._embedding.fingerprint)

    async def _calibrated(self) -> Calibration:
        """What cosines mean for this embedder; asked of the embedder once, and again when it was changed."""
        key = self._embedding.fingerprint
        if self._calibration is None or self._calibration[0] != key:
            self._calibration = (key, await calibrated(self._embedding))
        return self._calibration[1]


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes hits of evidence: fuse, rank, a look at the best texts, rank again."""

    question: Question
    asked: Plan
    calibration: Calibration
    speakers: frozenset[str]

    def __call__(self, evidence: Evidence, lookup: Lookup) -> list[Hit] | frozenset[str]:
        """The hits; or everybody who speaks here, when the question was planned without knowing them."""
        if evidence.speakers != self.speakers:
            return evidence.speakers
        if not len(evidence) or not self.may_show(evidence.glance):
            return []
        again, words_alone = self._asked_again(evidence, lookup), self.question.mode == "text"
        scored = fuse(evidence, self.asked, self.calibration.on_our_scale(evidence.cosines))
        # Rounded before the threshold is applied, so that a relevance that was shown can be asked for.
        worth = _relevance(scored, evidence, again, words_alone=words_alone).round(4)
        # Whoever is not relevant enough need not be ranked, and often that is everybody.
        good = np.flatnonzero(worth >= self.question.min_relevance)
        if not len(good):
            return []
        briefs = [evidence.briefs[at] for at in good.tolist()]
        # Asked by meaning alone, or by words alone, importance and age have no say in the order.
        nudges = nudge(briefs, self.question.now) if self.question.mode == "hybrid" else 0.0
        order = Order(briefs)
        scores = scored.total[good] + nudges
        ranked = order.of(scores)
        phrases = self._phrases(evidence, good[ranked[:_LOOKED_AT]], lookup) if self.asked.pairs else None
        if phrases is not None:
            scored = add_phrases(scored, evidence, phrases)
            scores = scored.total[good] + nudges
            ranked = order.of(scores)
        best = bounded(ranked, briefs, self.question.n)
        items = lookup.items([briefs[at].id for at in best])
        tier, places = self.question.where.space.tier, good[best]
        judged = zip(best, worth[places].tolist(), scores[best].tolist(), strict=True)
        reasons = self._reasons(places, evidence, scored)
        return [
            Hit(items[briefs[at].id], tier, relevance, round(score, 6), why)
            for (at, relevance, score), why in zip(judged, reasons, strict=True)
        ]

    def may_show(self, glance: Glance) -> bool:
        """Whether somebody may be relevant enough, or be the question itself, which is counted: it has every word."""
        if self.question.asks_again is not None and all(glance.held):
            return True
        most = at_most(glance, self.calibration, words_alone=self.question.mode == "text")
        return most >= self.question.min_relevance

    def _asked_again(self, evidence: Evidence, lookup: Lookup) -> list[int]:
        """The candidates that are the question itself, asked before."""
        asks_again = self.question.asks_again
        if asks_again is None:
            return []
        # Only what has every word of the question, and few others, can be the question. Most have not.
        longest = len(self.asked.terms) + _REPEATED
        every = np.flatnonzero((evidence.parts > 0.0).all(axis=0)).tolist()
        likely = [at for at in every if evidence.briefs[at].length <= longest]
        items = lookup.items([evidence.briefs[at].id for at in likely]) if likely else {}
        return [at for at in likely if asks_again(items[evidence.briefs[at].id].content)]

    def _phrases(self, evidence: Evidence, best: NDArray[np.intp], lookup: Lookup) -> NDArray[np.float64] | None:
        """How much of the question's phrasing the best candidates have, where one has any; others are not looked at."""
        phrasing = Phrasing(self.asked, evidence.weights)
        likely = best[phrasing.possible(evidence.parts[:, best] > 0.0)].tolist()
        if not likely:
            return None
        phrases = np.zeros(len(evidence))
        terms = lookup.terms([evidence.briefs[at].id for at in likely])
        for at in likely:
            brief = evidence.briefs[at]
            phrases[at] = phrasing.share(terms[brief.id] if brief.session is None else _said(terms[brief.id], brief))
        return phrases if phrases.any() else None

    def _reasons(self, best: NDArray[np.intp], evidence: Evidence, scored: Scored) -> Iterator[Why]:
        cosines, own = evidence.cosines[best].tolist(), scored.own[best].tolist()
        matched = (evidence.parts[:, best] > 0.0).T.tolist()
        shares = np.array([share[best] for share in scored.shares.values()]).round(4).T.tolist()
        for cosine, words, has, parts in zip(cosines, own, matched, shares, strict=True):
            yield Why(
                cosine=None if cosine != cosine else round(cosine, 4),
                words=round(words, 4),
                matched=tuple(compress(self.asked.terms, has)),
                parts={name: part for name, part in zip(scored.shares, parts, strict=True) if part},
            )


def _relevance(scored: Scored, evidence: Evidence, again: list[int], *, words_alone: bool) -> NDArray[np.float64]:
    """How far each is about the question. The question itself, asked before, is not, and hides nothing that is.

    It still speaks for the turns beside it: the next one may be the answer.
    """
    if not again:
        return relevance(scored, evidence.weights, words_alone=words_alone)
    others = np.setdiff1d(np.arange(len(evidence)), np.array(again))
    worth = np.full(len(evidence), -1.0)
    worth[others] = relevance(scored.at(others), evidence.weights, words_alone=words_alone)
    return worth


def _twice(question: Question) -> int:
    """More candidates of each kind than are shown, since everything else that is known changes their order."""
    return min(2 * question.n, _MOST_CANDIDATES)


def _said(terms: str, brief: Brief) -> str:
    """What was said in a turn, without the day it was said on, which stands behind it to be found by."""
    return terms.removesuffix(" ".join(date_terms(from_micros(brief.created_at))))
