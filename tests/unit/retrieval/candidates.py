"""Candidates for tests of fusion, relevance and ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from recollect.clock import to_micros
from recollect.retrieval.fusion import FusedScores, fuse, score_relevance
from recollect.retrieval.query import QueryPlan, plan_query
from recollect.stores.search import BM25_K1, ItemBrief, SearchEvidence

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Candidate:
    """One item: its cosine, its share of each of two query terms (0 to 1), and its position in a session."""

    id: str
    cosine: float = float("nan")
    words: tuple[float, float] = (0.0, 0.0)
    session: str | None = None
    position: float | None = None
    speaker: str | None = None
    importance: float = 0.5
    trust: float = 1.0
    days_old: float = 0.0


def evidence_of(candidates: Sequence[Candidate]) -> SearchEvidence:
    """Return evidence like that of `gather`: one column per candidate, sorted by session and position."""
    ordered = sorted(
        candidates, key=lambda candidate: (candidate.session or "", candidate.position or 0.0, candidate.id)
    )
    return SearchEvidence(
        briefs=tuple(
            ItemBrief(
                id=candidate.id,
                session=candidate.session,
                position=candidate.position,
                speaker=candidate.speaker,
                created_at=to_micros(NOW - timedelta(days=candidate.days_old)),
                importance=candidate.importance,
                trust=candidate.trust,
                source="user",
                length=10,
                passages=1,
            )
            for candidate in ordered
        ),
        cosines=np.array([candidate.cosine for candidate in ordered], np.float64),
        parts=np.array([candidate.words for candidate in ordered], np.float64).reshape(len(ordered), 2).T
        * (BM25_K1 + 1.0),
        weights=np.ones(2),
        speakers=frozenset(candidate.speaker for candidate in ordered if candidate.speaker is not None),
    )


def question(*, named: Sequence[str] = (), role: str | None = None) -> QueryPlan:
    asked = plan_query("cello attic", [], NOW)
    return QueryPlan(asked.text_to_embed, asked.terms, frozenset(named), role)


def scored(candidates: Sequence[Candidate], asked: QueryPlan | None = None) -> tuple[SearchEvidence, FusedScores]:
    evidence = evidence_of(candidates)
    return evidence, fuse(evidence, asked or question(), evidence.cosines)


def scores(candidates: Sequence[Candidate], asked: QueryPlan | None = None) -> dict[str, float]:
    evidence, result = scored(candidates, asked)
    return {brief.id: float(total) for brief, total in zip(evidence.briefs, result.total, strict=True)}


def relevances(candidates: Sequence[Candidate]) -> dict[str, float]:
    evidence, result = scored(candidates)
    worth = score_relevance(result, evidence.weights)
    return {brief.id: float(value) for brief, value in zip(evidence.briefs, worth, strict=True)}
