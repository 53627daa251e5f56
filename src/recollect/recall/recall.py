"""Search from end to end: plan, gather, fuse, rank, and the hits with their reasons."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recollect.inference.base import Embedding
from recollect.recall.calibrate import DEFAULT, Calibration, calibrated, relevance
from recollect.recall.fuse import Scored, add_phrases, fuse, phrase_share
from recollect.recall.gather import Evidence, gather
from recollect.recall.plan import Plan, plan
from recollect.recall.rank import nudged, order
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.question import Question
from recollect.values import Hit, MemoryItem, Why
from recollect.words import analyse

# Phrases are looked for in the texts of the best so many: enough to settle the first ten.
_LOOKED_AT = 50


class Recall:
    """Answers questions from one store with one embedder."""

    def __init__(self, store: Records, embedding: Embedding, settings: Settings) -> None:
        self._store = store
        self._embedding = embedding
        self._settings = settings
        self._calibration: tuple[str, Calibration] | None = None

    async def search(self, question: Question) -> list[Hit]:
        """The hits that are relevant enough, best first, at most `n`."""
        if question.n == 0:
            return []
        space = question.where.space
        asked = plan(question.text, await self._store.speakers(space), question.now, space.user)
        vector = None
        if question.mode != "text":
            vector = (await self._embedding.embed([asked.embedded]))[0]
        words = asked.without_words() if question.mode == "dense" else asked
        limit = max(self._settings.candidates, min(question.n, 10_000) * 2)
        evidence = await gather(self._store, question.where, words, vector, limit=limit)
        if not len(evidence):
            return []
        calibration = await self._calibrated() if vector is not None else DEFAULT
        scored = fuse(evidence, words, calibration.on_our_scale(evidence.cosines))
        # Rounded before the threshold is applied, so that a relevance that was shown can be asked for.
        worth = np.round(relevance(scored, evidence.weights), 4)
        first = [at for at in order(scored.total, evidence) if worth[at] >= question.min_relevance]
        first = first[: max(question.n, _LOOKED_AT if words.pairs else 0)]
        items = {item.id: item for item in await self._store.get(space, *(evidence.briefs[at].id for at in first))}
        scored = add_phrases(scored, evidence, _phrases(words, evidence, first, items))
        scores = nudged(scored.total, evidence, question.now)
        ranked = [at for at in order(scores, evidence) if evidence.briefs[at].id in items]
        return [
            Hit(
                item=items[evidence.briefs[at].id],
                tier=space.tier,
                relevance=float(worth[at]),
                score=round(float(scores[at]), 6),
                why=_why(at, evidence, scored, words),
            )
            for at in ranked[: question.n]
        ]

    async def _calibrated(self) -> Calibration:
        """What cosines mean for this embedder; asked of the embedder once, and again when it was changed."""
        key = self._embedding.fingerprint
        if self._calibration is None or self._calibration[0] != key:
            self._calibration = (key, await calibrated(self._embedding))
        return self._calibration[1]


def _phrases(asked: Plan, evidence: Evidence, first: list[int], items: dict[str, MemoryItem]) -> NDArray[np.float64]:
    """How much of the question's phrasing the best candidates have; the others are not looked at."""
    phrases = np.zeros(len(evidence))
    if asked.pairs:
        for at in first[:_LOOKED_AT]:
            item = items.get(evidence.briefs[at].id)
            if item is not None:
                phrases[at] = phrase_share(asked, evidence.weights, analyse(item.content))
    return phrases


def _why(at: int, evidence: Evidence, scored: Scored, asked: Plan) -> Why:
    cosine = float(evidence.cosines[at])
    return Why(
        cosine=None if np.isnan(cosine) else round(cosine, 4),
        words=round(float(scored.own[at]), 4),
        matched=tuple(term for row, term in enumerate(asked.terms) if evidence.parts[row, at] > 0.0),
        parts={name: round(float(share[at]), 4) for name, share in scored.shares.items() if share[at]},
    )
