"""Candidates for the pure steps of recall, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from recollect.clock import to_micros
from recollect.recall.calibrate import relevance
from recollect.recall.fuse import Scored, fuse
from recollect.recall.plan import Plan, plan
from recollect.stores.bm25 import K1
from recollect.stores.evidence import Brief, Evidence

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Candidate:
    """One item: its cosine, the share of each of two query terms that it has (0 to 1), and where it stands."""

    id: str
    cosine: float = float("nan")
    words: tuple[float, float] = (0.0, 0.0)
    session: str | None = None
    position: float | None = None
    speaker: str | None = None
    importance: float = 0.5
    trust: float = 1.0
    days_old: float = 0.0


def evidence_of(candidates: Sequence[Candidate]) -> Evidence:
    """As `gather` lays it out: a column a candidate, sorted by session and position."""
    ordered = sorted(candidates, key=lambda one: (one.session or "", one.position or 0.0, one.id))
    return Evidence(
        briefs=tuple(
            Brief(
                id=one.id,
                session=one.session,
                position=one.position,
                speaker=one.speaker,
                created_at=to_micros(NOW - timedelta(days=one.days_old)),
                importance=one.importance,
                trust=one.trust,
                source="user",
                length=10,
                passages=1,
            )
            for one in ordered
        ),
        cosines=np.array([one.cosine for one in ordered], np.float64),
        parts=np.array([one.words for one in ordered], np.float64).reshape(len(ordered), 2).T * (K1 + 1.0),
        weights=np.ones(2),
        speakers=frozenset(one.speaker for one in ordered if one.speaker is not None),
    )


def question(*, named: Sequence[str] = (), role: str | None = None) -> Plan:
    asked = plan("cello attic", [], NOW)
    return Plan(asked.embedded, asked.terms, frozenset(named), role)


def scored(candidates: Sequence[Candidate], asked: Plan | None = None) -> tuple[Evidence, Scored]:
    evidence = evidence_of(candidates)
    return evidence, fuse(evidence, asked or question(), evidence.cosines)


def scores(candidates: Sequence[Candidate], asked: Plan | None = None) -> dict[str, float]:
    evidence, result = scored(candidates, asked)
    return {brief.id: float(total) for brief, total in zip(evidence.briefs, result.total, strict=True)}


def relevances(candidates: Sequence[Candidate]) -> dict[str, float]:
    evidence, result = scored(candidates)
    worth = relevance(result, evidence.weights)
    return {brief.id: float(one) for brief, one in zip(evidence.briefs, worth, strict=True)}
