"""Whether a file is sound: SQLite's own opinion, then what only we can know of our rows."""

from __future__ import annotations

import apsw

from recollect.stores.sqlite import states

_MISCOUNTED = """
    select s.tenant, s.tier, s.user, s.agent, s.session, s.items, s.words, count(r.place), coalesce(sum(r.length), 0)
    from spaces s
    left join records r on r.space = s.id
    group by s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)
"""

_STRAY_VECTORS = """
    select count(*)
    from (select id from vectors_a union all select id from vectors_b) v
    where not exists (select 1 from records r where r.place = v.id >> 6)
"""

_CHECKPOINTS = "select task, version, cast(state as blob), sha256 from checkpoints"


def faults(connection: apsw.Connection) -> list[str]:
    """What is wrong, a sentence each."""
    try:
        # A reader that searched before somebody else deleted takes its own old idea of the word index for damage in it.
        connection.execute("select rowid from words where words match 'x' limit 1").fetchall()
        said = [str(row[0]) for row in connection.execute("pragma integrity_check")]
        # Once the pages themselves are damaged, what our rows say is hearsay.
        return _of_rows(connection) if said == ["ok"] else said
    except apsw.CorruptError as error:
        return [f"the file is damaged: {error}"]


def _of_rows(connection: apsw.Connection) -> list[str]:
    found = [
        f"{'/'.join(row[:5])} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in connection.execute(_MISCOUNTED)
    ]
    if stray := connection.execute(_STRAY_VECTORS).get:
        found.append(f"{stray} vectors belong to no item")
    found.extend(
        f"version {version} of task {task!r} does not fit its checksum"
        for task, version, stored, checksum in connection.execute(_CHECKPOINTS)
        if not states.read(stored, checksum)[1]
    )
    return found
