"""What another store needs to make everything anew, and a task that comes from one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from recollect.clock import to_micros
from recollect.stores.base import Step
from recollect.stores.ops import Put, Restore
from recollect.stores.postgres import items, models
from recollect.stores.postgres.journey import Values
from recollect.stores.postgres.rows import SPACE, dumped_rows, named, space_of
from recollect.stores.postgres.server import Work
from recollect.stores.postgres.text import given, handle, handles, kept, maybe_kept
from recollect.values import Space

_TENANTS = """
    select distinct s.tenant
    from recollect.spaces s
    where exists (select 1 from recollect.records r where r.tenant = s.tenant and r.space = s.id)
        or exists (select 1 from recollect.entries e where e.tenant = s.tenant and e.space = s.id)
        or exists (select 1 from recollect.tasks t where t.tenant = s.tenant and t.space = s.id)
"""

# Items and fences are counted in the same column. By the tier alone it is known whether it is a log's: what was said in
# no session is a log and, as what it is found by, items under one name.
_COUNTED = """
    select tenant, tier, owner, agent, session, next_seq
    from recollect.spaces
    where (%(tenant)s::text is null or tenant = %(tenant)s) and next_seq > 0
        and tier in ('conversation', 'episodic', 'working')
"""

_VECTORS = f"""
    select r.id, v.data
    from recollect.records r
    join recollect.vectors v on v.tenant = r.tenant and v.space = r.space and v.place = r.place
    where r.tenant = %(tenant)s and r.space = {SPACE} and r.handle = any(%(handles)s)
        and v.generation = %(generation)s
    order by v.place, v.part
"""  # noqa: S608 - constant clauses

_SAVED = """
    restored{n} as (
        insert into recollect.checkpoints (tenant, space, task, version, fence, schema, state, sha256, at)
        select %(tenant{n})s, %(space{n})s, %(task{n})s, one.*
        from unnest(
            %(versions{n})s::bigint[], %(fences{n})s::bigint[], %(schemas{n})s::bigint[], %(states{n})s::bytea[],
            %(checksums{n})s::bytea[], %(moments{n})s::bigint[]
        ) as one
    )
"""

_NOTED = """
    renoted{n} as (
        insert into recollect.steps (
            tenant, space, task, handle, key, status, attempts, fence, idempotency_key, input_sha, result, error, at
        )
        select %(tenant{n})s, %(space{n})s, %(task{n})s, one.*
        from json_to_recordset(%(steps{n})s::json) as one (
            handle text, key text, status text, attempts bigint, fence bigint, idempotency_key text, input_sha text,
            result text, error text, at bigint
        )
    )
"""

_FENCED = """
    fenced{n} as (
        update recollect.spaces
        set next_seq = greatest(next_seq, %(fence{n})s)
        where tenant = %(tenant{n})s and id = %(space{n})s
    )
"""


async def tenants(work: Work) -> list[str]:
    return sorted(given(row[0]) for row in await work.rows(_TENANTS, {}))


async def counted(work: Work, tenant: str | None) -> dict[Space, int]:
    rows = await work.rows(_COUNTED, {"tenant": maybe_kept(tenant)})
    return {space_of(row[:5]): row[5] for row in rows}


async def whole(work: Work, space: Space, ids: Sequence[str]) -> list[Put]:
    known = await models.read(work)
    terms = await items.terms(work, space, ids)
    vectors: dict[str, list[np.ndarray]] = {}
    values = {**named(space), "handles": handles(ids), "generation": known.generation}
    for id, data in await work.rows(_VECTORS, values):
        vectors.setdefault(given(id), []).append(
            np.frombuffer(data, ">f2", offset=4)
        )  # after its length, as the server sends it
    return [
        Put(
            item=item,
            terms=tuple(terms[item.id].split()),
            vectors=np.stack(vectors[item.id]).astype(np.float32) if item.id in vectors else None,
            model=known.active if item.id in vectors else None,
        )
        for item in await items.got(work, space, ids)
    ]


def restored(given: Restore) -> Iterator[tuple[str, Values, str]]:
    """The versions and the journal of a task that comes from elsewhere: parts of a plan, and what each touches."""
    if given.checkpoints:
        states = [one.state.encode() for one in given.checkpoints]
        versions = {
            "versions": [one.version for one in given.checkpoints],
            "fences": [one.fence for one in given.checkpoints],
            "schemas": [one.schema for one in given.checkpoints],
            "states": states,
            "checksums": [hashlib.sha256(state).digest() for state in states],
            "moments": [to_micros(one.at) for one in given.checkpoints],
        }
        yield _SAVED, versions, "saves"
    if given.steps:
        yield _NOTED, {"steps": dumped_rows([_step(one) for one in given.steps])}, "steps"
    yield _FENCED, {"fence": given.highest_fence}, "fence"


def _step(step: Step) -> Values:
    return {
        "handle": handle(step.key),
        "key": kept(step.key),
        "status": step.status,
        "attempts": step.attempts,
        "fence": step.fence,
        "idempotency_key": kept(step.idempotency_key),
        "input_sha": maybe_kept(step.input_sha),
        "result": maybe_kept(step.result),
        "error": maybe_kept(step.error),
        "at": to_micros(step.at),
    }
