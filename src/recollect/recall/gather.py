"""From a plan to evidence: what two searches find, with the turns around it, each judged by both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recollect.recall.plan import Plan
from recollect.stores.base import Brief, Found, Matches, Records, Vector
from recollect.stores.where import Where

REACH = 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """The candidates, a column each: their cosines, and what every query term says for them."""

    briefs: tuple[Brief, ...]
    cosines: NDArray[np.float64]
    parts: NDArray[np.float64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.briefs)


async def gather(store: Records, where: Where, plan: Plan, vector: Vector | None, *, limit: int) -> Evidence:
    """Candidates by meaning and by words; then their neighbours in the dialogue; then what is missing of either."""
    near, matches = await asyncio.gather(_nearest(store, where, vector, limit), _matching(store, where, plan, limit))
    briefs = {found.brief.id: found.brief for found in (*near, *matches.found)}
    places = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
    if places:
        around = await store.around(where, places, reach=REACH)
        briefs.update({brief.id: brief for brief in around if brief.id not in briefs})
    cosines = {found.brief.id: found.score for found in near}
    parts = {found.brief.id: found.parts for found in matches.found}
    # A list that is not full holds everything there was to find.
    unseen = [] if vector is None or len(near) < limit else [id for id in briefs if id not in cosines]
    unread = [] if len(matches.found) < limit else [id for id in briefs if id not in parts]
    more_near, more_matches = await asyncio.gather(
        _nearest(store, _only(where, unseen), vector if unseen else None, len(unseen)),
        _matching(store, _only(where, unread), plan if unread else None, len(unread)),
    )
    cosines.update({found.brief.id: found.score for found in more_near})
    parts.update({found.brief.id: found.parts for found in more_matches.found})
    return _columns(briefs.values(), cosines, parts, matches.weights or (0.0,) * len(plan.terms))


async def _nearest(store: Records, where: Where, vector: Vector | None, limit: int) -> list[Found]:
    return [] if vector is None else await store.nearest(where, vector, limit=limit)


async def _matching(store: Records, where: Where, plan: Plan | None, limit: int) -> Matches:
    return await store.matching(where, plan.terms, limit=limit) if plan is not None and plan.terms else Matches()


def _only(where: Where, ids: Iterable[str]) -> Where:
    return replace(where, ids=frozenset(ids))


def _columns(
    briefs: Iterable[Brief],
    cosines: dict[str, float],
    parts: dict[str, tuple[float, ...]],
    weights: tuple[float, ...],
) -> Evidence:
    ordered = tuple(sorted(briefs, key=lambda brief: (brief.session or "", brief.position or 0.0, brief.id)))
    table = np.zeros((len(ordered), len(weights)))
    for row, brief in enumerate(ordered):
        if brief.id in parts:
            table[row] = parts[brief.id]
    return Evidence(
        briefs=ordered,
        cosines=np.array([cosines.get(brief.id, np.nan) for brief in ordered], np.float64),
        parts=table.T.copy(),
        weights=np.array(weights, np.float64),
    )
