"""The answer to a question that is asked by meaning alone, among facts: the nearest, and nothing else has a say."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.recall.calibrate import Calibration, by_meaning_alone
from recollect.recall.fuse import Weights, meaning_of
from recollect.recall.sources import bounded
from recollect.stores.evidence import Evidence, Lookup
from recollect.stores.question import Question
from recollect.values import Hit, Why

_WEIGHT = Weights().meaning


@dataclass(frozen=True, slots=True)
class ByMeaning:
    """Makes hits of cosines, on the same scales as all the evidence is put on."""

    question: Question
    calibration: Calibration

    def __call__(self, evidence: Evidence, lookup: Lookup) -> list[Hit] | frozenset[str]:
        """The hits; or everybody who speaks here, since of a dialogue more is known than the meaning of a turn."""
        if evidence.speakers:
            return evidence.speakers
        briefs, question = evidence.briefs, self.question
        meaning = meaning_of(evidence, self.calibration.on_our_scale(evidence.cosines))
        scores = _WEIGHT * meaning
        # Rounded before the threshold is applied, so that a relevance that was shown can be asked for.
        worth = by_meaning_alone(meaning, scores).round(4).tolist()
        shares, cosines = scores.round(9).tolist(), evidence.cosines.tolist()
        # Equal scores by newest, then by id, so that the answer is the same every time.
        order = sorted(
            (-shares[at], -brief.created_at, brief.id, at)
            for at, brief in enumerate(briefs)
            if worth[at] >= question.min_relevance
        )
        best = bounded([at for *_, at in order], briefs, question.n)
        items = lookup.items([briefs[at].id for at in best])
        tier = question.where.space.tier
        return [
            Hit(items[briefs[at].id], tier, worth[at], round(shares[at], 6), _why(cosines[at], shares[at]))
            for at in best
        ]


def _why(cosine: float, meaning: float) -> Why:
    share = round(meaning, 4)
    parts = {"meaning": share} if share else {}
    return Why(cosine=None if cosine != cosine else round(cosine, 4), words=0.0, parts=parts)
