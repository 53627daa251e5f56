"""Whether a store is sound: what only we can know of our rows, their vectors and words; pages are the server's."""

from __future__ import annotations

from recollect.stores.health import Soundness, Tell
from recollect.stores.postgres.journal import intact
from recollect.stores.postgres.models import DIM, GENERATION
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
# As in a file: facts and procedures have all of their vectors, and what was said may be kept by its words alone.
_LACKING_VECTORS = f"""
    select count(*)
    from recollect.records r
    join recollect.spaces s on s.tenant = r.tenant and s.id = r.space
    where s.tier in ('semantic', 'procedural') and r.passages <> (
        select count(*)
        from recollect.vectors v
        where v.tenant = r.tenant and v.space = r.space and v.place = r.place and v.generation = {GENERATION}
            and vector_dims(v.data)::text = {DIM}
    )
"""  # noqa: S608 - of constants
_WORDS = """
    select count(*) filter (where r.place is not null), count(*) filter (where r.place is null)
    from (
        select tenant, space, place, sum(count) as words, min(length) as shortest, max(length) as longest
        from recollect.postings
        group by tenant, space, place
    ) p
    full join recollect.records r on r.tenant = p.tenant and r.space = p.space and r.place = p.place
    where coalesce(p.words, 0) <> coalesce(r.length, -1) or p.shortest <> r.length or p.longest <> r.length
"""
_CHECKPOINTS = "select task, version, state, sha256 from recollect.checkpoints"


async def soundness(work: Work, tell: Tell) -> Soundness:
    """What is wrong with a store."""
    tell("vectors")
    [[lacking_vectors]] = await work.rows(_LACKING_VECTORS, {})
    [[stray_vectors]] = await work.rows(_STRAY_VECTORS, {})
    tell("words")
    [[lacking_words, stray_words]] = await work.rows(_WORDS, {})
    tell("counts and checksums")
    return Soundness(
        faults=tuple(await _faults(work)),
        lacking_vectors=lacking_vectors,
        stray_vectors=stray_vectors,
        lacking_words=lacking_words,
        stray_words=stray_words,
    )


async def _faults(work: Work) -> list[str]:
    found = [
        f"{'/'.join(map(given, row[:5]))} counts {row[5]} items with {row[6]} words, and has {row[7]} with {row[8]}"
        for row in await work.rows(_MISCOUNTED, {})
    ]
    found.extend(
        f"version {version} of task {given(task)!r} does not fit its checksum"
        for task, version, state, checksum in await work.rows(_CHECKPOINTS, {})
        if not intact(state, checksum)
    )
    return found
