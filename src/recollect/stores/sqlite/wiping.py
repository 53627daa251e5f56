"""Deleting for an erasure: whole spaces and single rows in one transaction, with evidence of what they held."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import apsw

from recollect.stores.erasing import Doomed
from recollect.stores.ops import Delete, Drop, DropTask, Put, Write
from recollect.stores.sqlite import ledger, words
from recollect.stores.sqlite.batch import apply
from recollect.stores.sqlite.evidence import Evidence
from recollect.stores.sqlite.generations import DROP
from recollect.stores.sqlite.rows import PART_BITS, place_of, places_of, space_id
from recollect.stores.traces import Traces, pieces_of
from recollect.stores.where import paths_of
from recollect.values import Space

_ITEM = "select id, content, metadata, source, key, session, speaker, derived_from, terms from records"
_ITEMS = f"{_ITEM} where place between ?1 and ?2"
_ONE_ITEM = f"{_ITEM} where space = ?1 and id = ?2"
_VECTORS = """
    select data from vectors_a where id >= ?1 and id < ?2
    union all
    select data from vectors_b where id >= ?1 and id < ?2
"""
_ENTRIES = "select id, content, metadata from entries where place between ?1 and ?2"
_TASKS = "select id, plan_hash, owner from tasks where space = ?1 and (?2 is null or id = ?2)"
_STATES = "select state from checkpoints where space = ?1 and (?2 is null or task = ?2)"
_STEPS = "select key, idempotency_key, result, error from steps where space = ?1 and (?2 is null or task = ?2)"
_NAMES = "select tenant, user, agent, session from spaces where id = ?"

# What is left of a space: its number is never given again, lest a copy in another process pass for the new space's,
# nor is a fence, lest the holder of a task that is gone pass for the holder of its successor.
_LAST = """
    insert into meta (name, value)
    values (?1, ?2)
    on conflict do update
    set value = cast(max(cast(value as integer), cast(excluded.value as integer)) as text)
"""


@dataclass(slots=True)
class _Gone:
    """What one deletion takes away."""

    pieces: list[bytes] = field(default_factory=list)
    spaces: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, rows: Iterable[tuple[Any, ...]]) -> int:
        count = 0
        for row in rows:
            count += 1
            for value in row:
                if value:
                    self.pieces.extend(pieces_of(value if isinstance(value, bytes) else str(value).encode()))
        return count


def holdings(connection: apsw.Connection) -> list[Space]:
    """Every space that has a row, whether anything lies in it or not."""
    names = connection.execute("select tenant, tier, user, agent, session from spaces order by id")
    return [Space(*row) for row in names]


def wipe(connection: apsw.Connection, id: str, doomed: Doomed, now: datetime) -> None:
    gone = _Gone()
    for space in doomed.spaces:
        number = space_id(connection, space)
        if number is not None:
            gone.spaces.add(number)
            gone.counts[space.tier] += _space(connection, number, gone)
    for write in doomed.writes:
        _note(connection, write, gone)
    rewritten = sum(isinstance(write, Put) for write in doomed.writes)
    apply(connection, doomed.writes, now)
    for number in {space_id(connection, write.space) for write in doomed.writes}:
        if number is not None:
            _tidy_paths(connection, number)
    salt = ledger.salt(connection)
    before = Evidence.unpacked(salt, ledger.row(connection, id).evidence)
    fresh = Evidence(frozenset(gone.spaces), Traces.of_pieces(salt, gone.pieces))
    ledger.add(connection, id, gone.counts, rewritten, before.plus(fresh).packed)


def _space(connection: apsw.Connection, number: int, gone: _Gone) -> int:
    """Everything of a space, and its name; how much that was."""
    span = places_of(number)
    count = gone.note(connection.execute(_ITEMS, span))
    listed: list[Any] = connection.execute(
        "select place, terms from records where place between ? and ?", span
    ).fetchall()
    for place, terms in listed:
        words.unindex(connection, number, place, tuple(terms.split()))
    vectors = (span[0] << PART_BITS, (span[1] + 1) << PART_BITS)
    gone.note(connection.execute(_VECTORS, vectors))
    for drop in DROP.values():
        connection.execute(drop, vectors)
    count += gone.note(connection.execute(_ENTRIES, span))
    count += _tasks(connection, number, None, gone)
    gone.note(connection.execute(_NAMES, (number,)))
    fence = connection.execute("select next_seq from spaces where id = ?", (number,)).get
    connection.execute("delete from records where place between ? and ?", span)
    connection.execute("delete from entries where place between ? and ?", span)
    for statement in _OF_A_SPACE:
        connection.execute(statement, (number,))
    connection.execute(_LAST, ("last_space", str(number)))
    connection.execute(_LAST, ("last_fence", str(fence)))
    return count


_OF_A_SPACE = (
    "delete from checkpoints where space = ?",
    "delete from steps where space = ?",
    "delete from tasks where space = ?",
    "delete from paths where space = ?",
    "delete from spaces where id = ?",
)


def _tasks(connection: apsw.Connection, number: int, task: str | None, gone: _Gone) -> int:
    count = gone.note(connection.execute(_TASKS, (number, task)))
    gone.note(connection.execute(_STATES, (number, task)))
    gone.note(connection.execute(_STEPS, (number, task)))
    return count


def _note(connection: apsw.Connection, write: Write, gone: _Gone) -> None:
    """What a single write is about to take away."""
    number = space_id(connection, write.space)
    if number is None:
        return
    gone.spaces.add(number)
    match write:
        case Delete():
            gone.counts[write.space.tier] += gone.note(connection.execute(_ONE_ITEM, (number, write.id)))
            place = connection.execute("select place from records where space = ? and id = ?", (number, write.id)).get
            if place is not None:
                gone.note(connection.execute(_VECTORS, (place << PART_BITS, (place + 1) << PART_BITS)))
        case DropTask():
            gone.counts[write.space.tier] += _tasks(connection, number, write.task, gone)
        case Drop():
            for seq in write.seqs:
                place = place_of(number, seq)
                gone.counts[write.space.tier] += gone.note(connection.execute(_ENTRIES, (place, place)))
        case _:
            return


def _tidy_paths(connection: apsw.Connection, number: int) -> None:
    """What may be filtered by is what the items that are left carry: a path may be a name."""
    rows = connection.execute("select metadata from records where space = ? and metadata <> '{}'", (number,))
    left = {path for (told,) in rows for path in paths_of(json.loads(told))}
    held = [row[0] for row in connection.execute("select path from paths where space = ?", (number,))]
    for path in held:
        if path not in left:
            connection.execute("delete from paths where space = ? and path = ?", (number, path))
