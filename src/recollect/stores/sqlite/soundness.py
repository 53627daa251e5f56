"""Whether a file is sound: SQLite's own opinion, then what only we can know of our rows, their vectors and words."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import numpy as np
from numpy.typing import NDArray

from recollect.stores.health import Soundness, Tell
from recollect.stores.sqlite import states, words
from recollect.stores.sqlite.generations import active
from recollect.stores.sqlite.rows import SEQ_BITS

_MISCOUNTED = """
    select s.tenant, s.tier, s.user, s.agent, s.session, s.items, s.words, count(r.place), coalesce(sum(r.length), 0)
    from spaces s
    left join records r on r.space = s.id
    group by s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)
"""

# Whoever is added gets the next number: one that was given before is somebody else's, and there is a last one.
_MISNUMBERED = """
    select s.tenant, s.tier, s.user, s.agent, s.session, s.next_seq, h.last
    from (select space, max(place) & ?1 as last from records group by space) h
    join spaces s on s.id = h.space
    where typeof(s.next_seq) <> 'integer' or s.next_seq not between h.last and ?1
"""

_STRAY_VECTORS = """
    select count(*)
    from (select id from vectors_a union all select id from vectors_b) v
    where not exists (select 1 from records r where r.place = v.id >> 6)
"""

# Facts and procedures have all of their vectors, each of the model's length. What was said may be kept by its words
# alone, while the model is down or where it cannot say what something means; notes have none.
_LACKING_VECTORS = {
    "a": """
        select count(*)
        from records r
        join spaces s on s.id = r.space
        where s.tier in ('semantic', 'procedural') and r.passages <> (
            select count(*)
            from vectors_a v
            where v.id >= r.place << 6 and v.id < (r.place + 1) << 6 and length(v.data) = ?
        )
    """,
    "b": """
        select count(*)
        from records r
        join spaces s on s.id = r.space
        where s.tier in ('semantic', 'procedural') and r.passages <> (
            select count(*)
            from vectors_b v
            where v.id >= r.place << 6 and v.id < (r.place + 1) << 6 and length(v.data) = ?
        )
    """,
}
_UNEMBEDDED = """
    select count(*)
    from records r
    join spaces s on s.id = r.space
    where s.tier in ('semantic', 'procedural')
"""
_BYTES_A_NUMBER = 2  # float16
_CHARACTERS_AT_ONCE = 1 << 20

_CHECKPOINTS = "select task, version, cast(state as blob), sha256 from checkpoints"

# The index is in the order of its words, so that this reads it once from start to end.
_OCCURRENCES = "select group_concat(doc) from occurrences group by term"
_SIZES = "select space, (max(place) & ?) + 1 from records group by space"
_LENGTHS = "select place & ?, length from records where space = ?"
_LAST = (1 << SEQ_BITS) - 1
_EVERY_TERM = "select place, space, terms from records"


def soundness(connection: apsw.Connection, tell: Tell) -> Soundness:
    """What is wrong with a file."""
    try:
        # A reader that searched before somebody else deleted takes its own old idea of the word index for damage in it.
        tell("pages")
        connection.execute("select rowid from words where words match 'x' limit 1").fetchall()
        said = [str(row[0]) for row in connection.execute("pragma integrity_check")]
        # Once the pages themselves are damaged, what our rows say is hearsay.
        if said != ["ok"]:
            return Soundness(faults=tuple(said))
        tell("words")
        lacking, stray = _words(connection)
        tell("counts and checksums")
        faults = tuple(_of_rows(connection))
        tell("vectors")
        return Soundness(
            faults=faults,
            lacking_vectors=_lacking_vectors(connection),
            stray_vectors=connection.execute(_STRAY_VECTORS).get,
            lacking_words=lacking,
            stray_words=stray,
        )
    except apsw.CorruptError as error:
        return Soundness(faults=(f"the file is damaged: {error}",))


def rebuild_words(connection: apsw.Connection) -> None:
    """The index of words made anew from what each item says its words are, in the writer's transaction."""
    connection.execute("insert into words (words) values ('delete-all')")
    for place, space, terms in connection.execute(_EVERY_TERM):
        words.index(connection, space, place, terms.split())
    connection.execute("update spaces set rewrites = rewrites + 1")


def _of_rows(connection: apsw.Connection) -> list[str]:
    found = [
        f"{'/'.join(row[:5])} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in connection.execute(_MISCOUNTED)
    ]
    found.extend(
        f"{'/'.join(row[:5])} has given out the numbers up to {row[5]!r:.40}, and has an item with {row[6]}"
        for row in connection.execute(_MISNUMBERED, (_LAST,))
    )
    found.extend(
        f"version {version} of task {task!r} does not fit its checksum"
        for task, version, stored, checksum in connection.execute(_CHECKPOINTS)
        if not states.read(stored, checksum)[1]
    )
    return found


def _lacking_vectors(connection: apsw.Connection) -> int:
    tables = active(connection)
    if tables is None:  # no vector was ever made
        return int(connection.execute(_UNEMBEDDED).get)
    size = tables.model.dim * _BYTES_A_NUMBER
    return int(connection.execute(_LACKING_VECTORS[tables.generation], (size,)).get)


def _words(connection: apsw.Connection) -> tuple[int, int]:
    """How many items have other words in the index than their own count says, and how many only the index knows."""
    found: dict[int, NDArray[np.int64]] = {
        space: np.zeros(size, np.int64) for space, size in connection.execute(_SIZES, (_LAST,))
    }
    strays: set[int] = set()
    for places in _listed(connection):
        for space, seqs in _by_space(places):
            counts = found.get(space)
            if counts is None:
                strays.update((space << SEQ_BITS | seqs).tolist())
                continue
            known = seqs < len(counts)
            strays.update((space << SEQ_BITS | seqs[~known]).tolist())
            np.add.at(counts, seqs[known], 1)
    lacking, stray = 0, len(strays)
    for space, counts in found.items():
        meant = np.full(len(counts), -1, np.int64)
        rows = connection.execute(_LENGTHS, (_LAST, space)).fetchall()
        if rows:
            seqs, lengths = np.array(rows, np.int64).T
            meant[seqs] = lengths
        lacking += int(np.count_nonzero((meant >= 0) & (meant != counts)))
        stray += int(np.count_nonzero((meant < 0) & (counts > 0)))
    return lacking, stray


def _listed(connection: apsw.Connection) -> Iterator[NDArray[np.int64]]:
    """The places of every occurrence, many words at a time: most words have few."""
    held: list[str] = []
    size = 0
    for (listed,) in connection.execute(_OCCURRENCES):
        held.append(str(listed))
        size += len(held[-1])
        if size > _CHARACTERS_AT_ONCE:
            yield np.fromstring(",".join(held), np.int64, sep=",")
            held, size = [], 0
    if held:
        yield np.fromstring(",".join(held), np.int64, sep=",")


def _by_space(places: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """The numbers within each space: few of them, for the index is in the order of spaces."""
    spaces, mask = places >> SEQ_BITS, (1 << SEQ_BITS) - 1
    return [(int(space), places[spaces == space] & mask) for space in np.unique(spaces)]
