"""Evidence in one reading of the file: what is near and what matches, with the turns around it, judged by both."""

from __future__ import annotations

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.stores.admission import mismatch
from recollect.stores.evidence import SCORE_STEPS, Ask, Brief, Evidence, nothing, place_key
from recollect.stores.sqlite import generations
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.filters import clauses
from recollect.stores.sqlite.rows import BRIEF
from recollect.stores.sqlite.search import Postings, Search, allowed_places, briefs_at, leaders, spans

_AROUND = f"""
    select place, {BRIEF}
    from records
    where space = ?1 and session = ?2 and position between ?3 and ?4 and
"""  # noqa: S608 - BRIEF is a constant list of columns


def gather(search: Search, connection: apsw.Connection, ask: Ask) -> Evidence:
    state = State.read(connection, ask.where.space)
    if state is None or state.items == 0:
        return nothing(ask)
    if ask.vector is not None and ask.model is not None:
        _check_model(connection, ask)
    speakers = search.speakers(connection, ask.where.space)
    allowed = allowed_places(connection, state, ask.where)
    scan = None if ask.vector is None else search.scan(connection, state, ask.vector)
    postings = search.postings(connection, state, ask.terms)
    shown = postings.only(allowed)
    lists = [(shown.places, shown.scores)] if ask.terms else []
    if scan is not None and ask.vector is not None:
        lists.append(scan.best(connection, ask.vector, allowed, ask.limit))
    briefs = _candidates(connection, state, lists, ask.limit)
    _add_neighbours(connection, state, ask, briefs)
    ordered = sorted(briefs.items(), key=lambda pair: place_key(pair[1]))
    places = np.fromiter((place for place, _ in ordered), np.int64, len(ordered))
    return Evidence(
        briefs=tuple(brief for _, brief in ordered),
        cosines=np.full(len(places), np.nan)
        if scan is None or ask.vector is None
        else scan.exact(connection, ask.vector, places),
        parts=_parts(postings, places),
        weights=postings.weights,
        speakers=speakers,
    )


def _candidates(
    connection: apsw.Connection,
    state: State,
    lists: list[tuple[NDArray[np.int64], NDArray[np.float64]]],
    limit: int,
) -> dict[int, Brief]:
    """The best of each list; where scores tie, the ids decide, as in every store."""
    led = []
    for places, scores in lists:
        best = leaders(connection, state, places, scores, limit)
        led.append((places[best], scores[best]))
    every = np.unique(np.concatenate([places for places, _ in led])) if led else np.empty(0, np.int64)
    briefs = briefs_at(connection, every)
    kept: set[int] = set()
    for places, scores in led:
        steps = np.rint(scores * SCORE_STEPS).tolist()
        ranked = sorted(zip(places.tolist(), steps, strict=True), key=lambda one: (-one[1], briefs[one[0]].id))
        kept.update(place for place, _ in ranked[:limit])
    return {place: brief for place, brief in briefs.items() if place in kept}


def _check_model(connection: apsw.Connection, ask: Ask) -> None:
    tables = generations.active(connection)
    if tables is not None and ask.model is not None and tables.model != ask.model:
        raise mismatch(tables.model, ask.model)


def _add_neighbours(connection: apsw.Connection, state: State, ask: Ask, briefs: dict[int, Brief]) -> None:
    turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
    if not turns or ask.reach == 0:
        return
    sql, values = clauses(ask.where)
    sql = f"{_AROUND} {sql}"
    for session, low, high in spans(turns, ask.reach):
        for row in connection.execute(sql, (state.id, session, low, high, *values)):
            briefs[row[0]] = Brief._make(row[1:])


def _parts(postings: Postings, places: NDArray[np.int64]) -> NDArray[np.float64]:
    """What each term says for each place; nothing where it has none of them."""
    parts = np.zeros((len(places), len(postings.weights)))
    if len(postings.places) and len(places):
        at = np.minimum(np.searchsorted(postings.places, places), len(postings.places) - 1)
        known = postings.places[at] == places
        parts[known] = postings.parts[at[known]]
    return np.ascontiguousarray(parts.T)
