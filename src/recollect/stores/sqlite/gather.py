"""Evidence in one reading of the file: what is near and what matches, with the turns around it, judged by both."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.stores.admission import mismatch
from recollect.stores.evidence import SCORE_STEPS, Ask, Brief, Evidence, in_place, nothing
from recollect.stores.sqlite import generations
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.filters import clauses
from recollect.stores.sqlite.matrix import Scan
from recollect.stores.sqlite.rows import BRIEF
from recollect.stores.sqlite.search import Search, allowed_places, briefs_at, leaders, spans
from recollect.values import MemoryItem, Space

_AROUND = f"""
    select place, {BRIEF}
    from records
    where space = ?1 and session = ?2 and position between ?3 and ?4 and
"""  # noqa: S608 - BRIEF is a constant list of columns


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads for a judge, on the connection that the evidence was gathered on."""

    search: Search
    connection: apsw.Connection
    space: Space
    places: Mapping[str, int]
    """Where the candidates stand: a row is found faster there than by its id."""

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return self.search.items_at(self.connection, self.space, [self.places[id] for id in ids if id in self.places])

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return self.search.terms_at(self.connection, [self.places[id] for id in ids if id in self.places])


def gather(search: Search, connection: apsw.Connection, ask: Ask) -> tuple[Evidence, Reading]:
    """The evidence, and what else may be read of the candidates at the same moment."""
    state = State.read(connection, ask.where.space)
    if state is None or state.items == 0:
        return nothing(ask), Reading(search, connection, ask.where.space, {})
    _check_model(state, ask)
    allowed = allowed_places(connection, state, ask.where)
    scan = None if ask.vector is None else search.scan(connection, state, ask.vector)
    postings = search.postings(connection, state, ask.terms) if ask.terms else None
    lists = [] if postings is None else [postings.best(allowed, ask.limit)]
    near = None
    if scan is not None and ask.vector is not None:
        near = scan.best(connection, ask.vector, allowed, ask.limit)
        lists.append(near)
    briefs = _candidates(connection, state, lists, ask.limit)
    _add_neighbours(connection, state, ask, briefs)
    ordered = in_place(briefs.values())
    place_of = {brief.id: place for place, brief in briefs.items()}
    places = np.array([place_of[brief.id] for brief in ordered], np.int64)
    evidence = Evidence(
        briefs=tuple(ordered),
        cosines=_cosines(connection, ask, places, scan, near),
        parts=np.empty((0, len(places))) if postings is None else postings.parts(places),
        weights=np.empty(0) if postings is None else postings.weights,
        speakers=search.speakers_at(connection, state),
    )
    return evidence, Reading(search, connection, ask.where.space, place_of)


def _cosines(
    connection: apsw.Connection,
    ask: Ask,
    places: NDArray[np.int64],
    scan: Scan | None,
    near: tuple[NDArray[np.int64], NDArray[np.float64]] | None,
) -> NDArray[np.float64]:
    """The exact cosine of each candidate: of the nearest it is known already, the others are looked up."""
    if scan is None or near is None or ask.vector is None:
        return np.full(len(places), np.nan)
    cosines = np.full(len(places), np.nan)
    if len(near[0]):
        order = np.argsort(near[0])
        at = order[np.minimum(np.searchsorted(near[0], places, sorter=order), len(order) - 1)]
        known = near[0][at] == places
        cosines[known] = near[1][at[known]]
    lacking = np.flatnonzero(np.isnan(cosines))
    if len(lacking):
        cosines[lacking] = scan.exact(connection, ask.vector, places[lacking])
    return cosines


def _candidates(
    connection: apsw.Connection,
    state: State,
    lists: list[tuple[NDArray[np.int64], NDArray[np.float64]]],
    limit: int,
) -> dict[int, Brief]:
    """The best of each list; where scores tie, the ids decide, as in every store."""
    led: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    for places, scores in lists:
        best = leaders(connection, state, places, scores, limit)
        led.append((places[best], scores[best]))
    briefs = briefs_at(connection, list(dict.fromkeys(itertools.chain(*(places.tolist() for places, _ in led)))))
    if all(len(places) <= limit for places, _ in led):
        return briefs
    kept: set[int] = set()
    for places, scores in led:
        steps = np.rint(scores * SCORE_STEPS).tolist()
        ranked = sorted(zip(places.tolist(), steps, strict=True), key=lambda one: (-one[1], briefs[one[0]].id))
        kept.update(place for place, _ in ranked[:limit])
    return {place: briefs[place] for place in briefs if place in kept}


def _check_model(state: State, ask: Ask) -> None:
    if ask.vector is None or ask.model is None or state.model is None:
        return
    stored = generations.model_of(state.model)
    if stored != ask.model:
        raise mismatch(stored, ask.model)


def _add_neighbours(connection: apsw.Connection, state: State, ask: Ask, briefs: dict[int, Brief]) -> None:
    turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
    if not turns or ask.reach == 0:
        return
    sql, values = clauses(ask.where)
    sql = f"{_AROUND} {sql}"
    for session, low, high in spans(turns, ask.reach):
        for row in connection.execute(sql, (state.id, session, low, high, *values)):
            briefs[row[0]] = Brief._make(row[1:])
