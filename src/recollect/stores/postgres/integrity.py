"""Whether a store is sound: what only we can know of our rows; the server looks after its own pages."""

from __future__ import annotations

from recollect.stores.postgres.journal import intact
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.text import given

_MISCOUNTED = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, s.items, s.words, count(r.place),
        coalesce(sum(r.length), 0)::bigint
    from recollect.spaces s
    left join recollect.records r on r.tenant = s.tenant and r.space = s.id
    group by s.tenant, s.id
    having s.items <> count(r.place) or s.words <> coalesce(sum(r.length), 0)
"""
_STRAY_VECTORS = """
    select count(*)
    from recollect.vectors v
    where not exists (
        select 1 from recollect.records r where r.tenant = v.tenant and r.space = v.space and r.place = v.place
    )
"""
_MISCOUNTED_WORDS = """
    select count(*)
    from (
        select tenant, space, place, sum(count) as words, min(length) as shortest, max(length) as longest
        from recollect.postings
        group by tenant, space, place
    ) p
    full join recollect.records r on r.tenant = p.tenant and r.space = p.space and r.place = p.place
    where coalesce(p.words, 0) <> coalesce(r.length, -1) or p.shortest <> r.length or p.longest <> r.length
"""
_CHECKPOINTS = "select task, version, state, sha256 from recollect.checkpoints"


async def faults(work: Work) -> list[str]:
    """What is wrong, a sentence each."""
    found = [
        f"{'/'.join(map(given, row[:5]))} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in await work.rows(_MISCOUNTED, {})
    ]
    for sentence, sql in (
        ("{} vectors belong to no item", _STRAY_VECTORS),
        ("the words of {} items are not those that they are found by", _MISCOUNTED_WORDS),
    ):
        row = await work.row(sql, {})
        if row is not None and row[0]:
            found.append(sentence.format(row[0]))
    found.extend(
        f"version {version} of task {given(task)!r} does not fit its checksum"
        for task, version, state, checksum in await work.rows(_CHECKPOINTS, {})
        if not intact(state, checksum)
    )
    return found
