"""Reading items: by id, by filter, by meaning, by words and by place in a dialogue."""

from __future__ import annotations

import itertools
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.stores.base import SpaceCount, Vector
from recollect.stores.evidence import SCORE_STEPS, Brief, Found, Matches, in_order
from recollect.stores.ops import Model
from recollect.stores.sqlite import generations
from recollect.stores.sqlite.accesses import Accesses
from recollect.stores.sqlite.cache import Cache, State
from recollect.stores.sqlite.filters import LIVE, clauses
from recollect.stores.sqlite.highest import nth_highest
from recollect.stores.sqlite.lexicon import Lexicon
from recollect.stores.sqlite.matrix import Allowed, Matrix, Scan, bytes_needed, streamed
from recollect.stores.sqlite.postings import NO_ENTRIES, Postings
from recollect.stores.sqlite.rows import BRIEF, ITEM, accessed, item_of, moment, space_id
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

_SPACES_KNOWN = 4096

# Statements whose text depends on a Where get its clauses appended; clauses hold constants and `?` only.
_FIND = f"select {ITEM} from records where space = ? and "  # noqa: S608
_GET = f"select {ITEM} from records where space = ? and id in (select value from json_each(?))"  # noqa: S608
_ITEMS_AT = f"select {ITEM} from records where place in (select value from json_each(?))"  # noqa: S608
_TERMS_AT = "select id, terms from records where place in (select value from json_each(?))"
_BRIEFS = f"select place, {BRIEF} from records where place in (select value from json_each(?))"  # noqa: S608
_BY_ID = "select place from records indexed by records_id where space = ? order by id"
_PLACES = "select place from records where space = ? and "
_BOUNDED = f"""
    select place
    from records indexed by records_bounded
    where space = ?
        and (valid_from is not null or valid_to is not null or expires_at is not null)
        and not ({LIVE})
"""  # noqa: S608
# From each speaker to the next one, so that a space of many turns and few speakers is not read through.
_SPEAKERS = """
    with recursive known (speaker) as (
        select min(speaker) from records where space = ?1 and speaker is not null
        union all
        select (select min(speaker) from records where space = ?1 and speaker > known.speaker)
        from known
        where known.speaker is not null
    )
    select speaker from known where speaker is not null
"""
_AROUND = f"""
    select {BRIEF}
    from records
    where space = ?1 and session = ?2 and position between ?3 and ?4 and
"""  # noqa: S608


class Search:
    """Answers questions about items on a reader's connection, with the help of two caches."""

    def __init__(self, cache_bytes: int) -> None:
        self.matrices: Cache[Matrix] = Cache(cache_bytes, Matrix)
        # Some bytes an item, so a small part of the budget holds many times the spaces that the vectors can fill.
        self.lexicons: Cache[Lexicon] = Cache(max(cache_bytes // 8, 1 << 20), Lexicon)
        self.accesses = Accesses()
        self._speakers: OrderedDict[int, tuple[State, frozenset[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop every copy: something was erased."""
        self.matrices.clear()
        self.lexicons.clear()
        with self._lock:
            self._speakers.clear()

    def get(self, connection: apsw.Connection, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
        found = self._items(space, connection.execute(_GET, (space_id(connection, space), json.dumps(ids))))
        return [found[id] for id in dict.fromkeys(ids) if id in found]

    def items_at(self, connection: apsw.Connection, space: Space, places: Sequence[int]) -> dict[str, MemoryItem]:
        return self._items(space, connection.execute(_ITEMS_AT, (str(places),)).fetchall())

    def terms_at(self, connection: apsw.Connection, places: Sequence[int]) -> dict[str, str]:
        return dict(connection.execute(_TERMS_AT, (str(places),)))

    def _items(self, space: Space, rows: Iterable[tuple[Any, ...]]) -> dict[str, MemoryItem]:
        """Rows as items by id, with the accesses that are not written yet."""
        found = {row[0]: row for row in rows}
        for id, access in self.accesses.waiting(space, found).items():
            found[id] = accessed(found[id], access.times, access.last)
        return {id: item_of(space, row) for id, row in found.items()}

    def find(self, connection: apsw.Connection, where: Where, limit: int, after: MemoryItem | None) -> list[MemoryItem]:
        sql, values = clauses(where)
        sql = f"{_FIND} {sql}"
        if after is not None:
            sql += " and (created_at, id) < (?, ?)"
            values = (*values, to_micros(after.created_at), after.id)
        # The plus keeps SQLite from reading the whole space in order of time for the few items of a key.
        sql += f" order by {'+' if where.key is not None else ''}created_at desc, id desc limit ?"
        rows = connection.execute(sql, (space_id(connection, where.space), *values, limit))
        return [item_of(where.space, row) for row in rows]

    def nearest(self, connection: apsw.Connection, where: Where, vector: Vector, limit: int) -> list[Found]:
        state = State.read(connection, where.space)
        if state is None or state.items == 0 or limit == 0:
            return []
        scan = self.scan(connection, state, vector)
        places, scores = scan.best(connection, vector, allowed_places(connection, state, where), limit)
        return _found(connection, state, places, scores, limit)

    def scan(self, connection: apsw.Connection, state: State, vector: Vector) -> Scan:
        """A first look at all of a space's vectors, in memory when they fit there."""
        if bytes_needed(state, len(vector)) > self.matrices.budget:
            return streamed(connection, state, vector)
        return self.matrices.fresh(connection, state, Matrix.view).scan(vector)

    def matching(self, connection: apsw.Connection, where: Where, terms: Sequence[str], limit: int) -> Matches:
        state = State.read(connection, where.space)
        if state is None or state.items == 0:
            return Matches(weights=(0.0,) * len(terms))
        postings = self.postings(connection, state, terms)
        places, scores = postings.best(allowed_places(connection, state, where), limit)
        found = _found(connection, state, places, scores, limit, postings)
        return Matches(tuple(found), tuple(postings.weights.tolist()), state.items)

    def postings(self, connection: apsw.Connection, state: State, terms: Sequence[str]) -> Postings:
        """Every item of a space that has one of the terms, with what each of them says for it."""
        if not terms:
            return Postings.of(state, NO_ENTRIES)
        return Postings.of(
            state, self.lexicons.fresh(connection, state, lambda lexicon: lexicon.entries(connection, state, terms))
        )

    def around(
        self, connection: apsw.Connection, where: Where, places: Sequence[tuple[str, float]], reach: int
    ) -> list[Brief]:
        space = space_id(connection, where.space)
        sql, values = clauses(where)
        sql = f"{_AROUND} {sql} order by position, id"
        briefs: dict[str, Brief] = {}
        for session, low, high in spans(places, reach):
            for row in connection.execute(sql, (space, session, low, high, *values)):
                briefs[row[0]] = Brief._make(row)
        return list(briefs.values())

    def last_turns(self, connection: apsw.Connection, space: Space, session: str, limit: int) -> list[MemoryItem]:
        sql = _FIND + "session = ? order by position desc, id desc limit ?"
        rows = connection.execute(sql, (space_id(connection, space), session, limit))
        return [item_of(space, row) for row in rows]

    def paths(self, connection: apsw.Connection, space: Space) -> frozenset[str]:
        rows = connection.execute("select path from paths where space = ?", (space_id(connection, space),))
        return frozenset(row[0] for row in rows)

    def speakers(self, connection: apsw.Connection, space: Space) -> frozenset[str]:
        state = State.read(connection, space)
        return self.speakers_at(connection, state) if state else frozenset()

    def speakers_at(self, connection: apsw.Connection, state: State) -> frozenset[str]:
        """Kept for the spaces asked about last: who speaks changes only when something is added or rewritten."""
        known = self._speakers.get(state.id)
        if known is not None and known[0] == state:
            return known[1]
        if known is not None and known[0].wiped != state.wiped:
            self.forget()
        speakers = frozenset(row[0] for row in connection.execute(_SPEAKERS, (state.id,)))
        with self._lock:
            self._speakers[state.id] = (state, speakers)
            if len(self._speakers) > _SPACES_KNOWN:
                self._speakers.popitem(last=False)
        return speakers

    def spaces(self, connection: apsw.Connection, tenant: str | None) -> list[SpaceCount]:
        rows = connection.execute(
            """
            select tenant, tier, user, agent, session, items,
                (select max(created_at) from records where space = spaces.id)
            from spaces
            where items > 0 and (?1 is null or tenant = ?1)
            order by tenant, tier, user, agent, session
            """,
            (tenant,),
        )
        return [SpaceCount(Space(*row[:5]), row[5], moment(row[6])) for row in rows]

    def unembedded(self, connection: apsw.Connection, limit: int) -> list[MemoryItem]:
        tables = generations.active(connection)
        fresh = generations.other(tables.generation) if tables else "a"
        places = [row[0] for row in connection.execute(generations.LACKING[fresh], (limit,))]
        sql = f"""
            select s.tenant, s.tier, s.user, s.agent, s.session, r.*
            from (select space, place, {ITEM} from records where place in (select value from json_each(?))) r
            join spaces s on s.id = r.space
            order by r.place
        """  # noqa: S608 - ITEM is a constant list of columns
        return [item_of(Space(*row[:5]), row[7:]) for row in connection.execute(sql, (json.dumps(places),))]

    def model(self, connection: apsw.Connection) -> Model | None:
        tables = generations.active(connection)
        return tables.model if tables else None


def spans(places: Sequence[tuple[str, float]], reach: int) -> list[tuple[str, float, float]]:
    """Ranges of positions that cover the places and their neighbours, so that runs of turns are read once."""
    spans: list[tuple[str, float, float]] = []
    for session, position in sorted(set(places)):
        low, high = position - reach, position + reach
        if spans and spans[-1][0] == session and low <= spans[-1][2]:
            spans[-1] = (session, spans[-1][1], high)
        else:
            spans.append((session, low, high))
    return spans


def allowed_places(connection: apsw.Connection, state: State, where: Where) -> Allowed:
    """The places a filter lets through. Without a real filter only the few items with bounds need a look."""
    if not where.is_narrow and where.known_at is None:
        if where.live_at is None:
            return Allowed()
        now = to_micros(where.live_at)
        rows = connection.execute(_BOUNDED, (state.id, now, now, now)).fetchall()
        return Allowed(np.array([row[0] for row in rows], np.int64), excluded=True)
    sql, values = clauses(where)
    rows = connection.execute(_PLACES + sql, (state.id, *values)).fetchall()
    return Allowed(np.array([row[0] for row in rows], np.int64))


def _found(
    connection: apsw.Connection,
    state: State,
    places: NDArray[np.int64],
    scores: NDArray[np.float64],
    limit: int,
    postings: Postings | None = None,
) -> list[Found]:
    if limit == 0 or not len(places):
        return []
    kept = leaders(connection, state, places, scores, limit)
    places, scores = places[kept], scores[kept]
    briefs = briefs_at(connection, places.tolist())
    parts: list[tuple[float, ...]] = (
        [tuple(column) for column in postings.parts(places).T.tolist()] if postings else [()] * len(places)
    )
    found = [
        Found(briefs[place], score, said)
        for place, score, said in zip(places.tolist(), scores.tolist(), parts, strict=True)
        if place in briefs
    ]
    return in_order(found, limit)


def briefs_at(connection: apsw.Connection, places: Sequence[int]) -> dict[int, Brief]:
    rows: list[Any] = connection.execute(_BRIEFS, (str(places),)).fetchall()
    return {row[0]: Brief._make(row[1:]) for row in rows}


def leaders(
    connection: apsw.Connection, state: State, places: NDArray[np.int64], scores: NDArray[np.float64], limit: int
) -> NDArray[np.intp]:
    """Where the best stand, with all that tie with the last of them, since their ids have to decide."""
    if limit == 0:
        return np.empty(0, np.intp)
    if len(scores) <= limit:
        return np.arange(len(scores))
    last = nth_highest(scores, limit)
    # Those a step below do not count any more.
    near = np.flatnonzero(scores >= last - 2.0 / SCORE_STEPS)
    steps, step = np.rint(scores[near] * SCORE_STEPS), np.rint(last * SCORE_STEPS)
    above, tied = near[steps > step], near[steps == step]
    wanted = limit - len(above)
    # Very many ties (one common word, texts of one length): go through the ids in order until enough have come,
    # which needs about wanted * items / ties rows, instead of looking up the id of every tie.
    if len(tied) ** 2 > wanted * state.items:
        tied_places = set(places[tied].tolist())
        ordered = (row[0] for row in connection.execute(_BY_ID, (state.id,)))
        first = list(itertools.islice((place for place in ordered if place in tied_places), wanted))
        tied = np.flatnonzero(np.isin(places, np.array(first, np.int64)))
    return np.concatenate([above, tied])
