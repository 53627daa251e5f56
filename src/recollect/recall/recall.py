"""Search from end to end: plan, gather, fuse, rank, and the hits with their reasons."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.inference.base import Embedding
from recollect.recall.calibrate import DEFAULT, Calibration, calibrated, relevance
from recollect.recall.fuse import Scored, add_phrases, fuse, phrase_share
from recollect.recall.plan import Plan, plan
from recollect.recall.rank import nudged, order
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.evidence import Ask, Evidence, Fetch
from recollect.stores.ops import Model, Touch
from recollect.stores.question import Question
from recollect.values import Hit, MemoryItem, Space, Why
from recollect.words import analyse

# Phrases are looked for in the texts of the best so many: enough to settle the first ten.
_LOOKED_AT = 50
_REACH = 2

_MOST_CANDIDATES = 20_000
_SPACES_KNOWN = 4096


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
        hits = await self._hits(question) if question.n else []
        if hits:
            ids = tuple(hit.item.id for hit in hits)
            self._store.touch(Touch(question.where.space, ids, question.asked_at))
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
            asked = plan(question.text, speakers, question.now, space.user)
            if question.mode == "dense":
                asked = asked.without_words()
            model = Model(self._embedding.name, self._embedding.dim, self._embedding.fingerprint)
            vector = None if question.mode == "text" else (await self._embedding.embed([asked.embedded]))[0]
            limit = self._limit(question, talk=bool(speakers))
            judge = Judge(question, asked, calibration, speakers)
            answer = await self._store.gather(Ask(question.where, vector, asked.terms, limit, _REACH, model), judge)
            if not isinstance(answer, frozenset):
                return answer
            speakers = self._speakers[space] = answer
            if len(self._speakers) > _SPACES_KNOWN:
                self._speakers.popitem(last=False)

    def _limit(self, question: Question, *, talk: bool) -> int:
        """How many candidates of each kind: more than are shown, since words and neighbours change the order."""
        twice = min(2 * question.n, _MOST_CANDIDATES)
        return max(twice, self._settings.candidates if talk or question.mode != "dense" else 0, 16)

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

    def __call__(self, evidence: Evidence, fetch: Fetch) -> list[Hit] | frozenset[str]:
        """The hits; or everybody who speaks here, when the question was planned without knowing them."""
        if evidence.speakers != self.speakers:
            return evidence.speakers
        scored = fuse(evidence, self.asked, self.calibration.on_our_scale(evidence.cosines))
        # Rounded before the threshold is applied, so that a relevance that was shown can be asked for.
        worth = np.round(relevance(scored, evidence.weights, words_alone=self.question.mode == "text"), 4)
        n = self.question.n
        ranked, scores = self._ranked(scored, evidence, worth)
        if self.asked.pairs:
            items = _by_id(fetch([evidence.briefs[at].id for at in ranked[: max(n, _LOOKED_AT)]]))
            scored = add_phrases(scored, evidence, self._phrases(evidence, ranked, items))
            ranked, scores = self._ranked(scored, evidence, worth)
        else:
            items = _by_id(fetch([evidence.briefs[at].id for at in ranked[:n]]))
        shown = [at for at in ranked if evidence.briefs[at].id in items][:n]
        return [
            Hit(
                item=items[evidence.briefs[at].id],
                tier=self.question.where.space.tier,
                relevance=float(worth[at]),
                score=round(float(scores[at]), 6),
                why=self._why(at, evidence, scored),
            )
            for at in shown
        ]

    def _ranked(
        self, scored: Scored, evidence: Evidence, worth: NDArray[np.float64]
    ) -> tuple[list[int], NDArray[np.float64]]:
        # Asked by meaning alone, or by words alone, nothing else has a say in the order.
        by_all = self.question.mode == "hybrid"
        scores = nudged(scored.total, evidence, self.question.now) if by_all else scored.total
        return [at for at in order(scores, evidence) if worth[at] >= self.question.min_relevance], scores

    def _phrases(self, evidence: Evidence, ranked: list[int], items: dict[str, MemoryItem]) -> NDArray[np.float64]:
        """How much of the question's phrasing the best candidates have; the others are not looked at."""
        phrases = np.zeros(len(evidence))
        for at in ranked[:_LOOKED_AT]:
            item = items.get(evidence.briefs[at].id)
            if item is not None:
                phrases[at] = phrase_share(self.asked, evidence.weights, analyse(item.content))
        return phrases

    def _why(self, at: int, evidence: Evidence, scored: Scored) -> Why:
        cosine = float(evidence.cosines[at])
        return Why(
            cosine=None if np.isnan(cosine) else round(cosine, 4),
            words=round(float(scored.own[at]), 4),
            matched=tuple(term for row, term in enumerate(self.asked.terms) if evidence.parts[row, at] > 0.0),
            parts={name: round(float(share[at]), 4) for name, share in scored.shares.items() if share[at]},
        )


def _by_id(items: list[MemoryItem]) -> dict[str, MemoryItem]:
    return {item.id: item for item in items}
