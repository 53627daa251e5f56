"""What another store needs to make everything anew, and a task that comes from one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from recollect.clock import to_micros
from recollect.stores.ops import Put, Restore
from recollect.stores.postgres import items, models
from recollect.stores.postgres.plan import Plan
from recollect.stores.postgres.rows import SPACE, named, space_of
from recollect.stores.postgres.server import Values, Work
from recollect.stores.postgres.text import given, handle, handles, kept, maybe_kept
from recollect.values import Space

_TENANTS = """
    select distinct s.tenant
    from recollect.spaces s
    where exists (select 1 from recollect.records r where r.tenant = s.tenant and r.space = s.id)
        or exists (select 1 from recollect.entries e where e.tenant = s.tenant and e.space = s.id)
        or exists (select 1 from recollect.tasks t where t.tenant = s.tenant and t.space = s.id)
"""

# Items and fences are counted in the same column, each in spaces of their own.
_COUNTED = """
    select s.tenant, s.tier, s.owner, s.agent, s.session, s.next_seq
    from recollect.spaces s
    where s.tenant = %(tenant)s and s.next_seq > 0
        and not exists (select 1 from recollect.records r where r.tenant = s.tenant and r.space = s.id)
        and not exists (select 1 from recollect.tasks t where t.tenant = s.tenant and t.space = s.id)
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
    insert into recollect.checkpoints (tenant, space, task, version, fence, schema, state, sha256, at)
    values (%(tenant)s, %(space)s, %(task)s, %(version)s, %(fence)s, %(schema)s, %(state)s, %(sha256)s, %(at)s)
"""

_NOTED = """
    insert into recollect.steps (
        tenant, space, task, handle, key, status, attempts, fence, idempotency_key, input_sha, result, error, at
    )
    values (
        %(tenant)s, %(space)s, %(task)s, %(handle)s, %(key)s, %(status)s, %(attempts)s, %(fence)s,
        %(idempotency_key)s, %(input_sha)s, %(result)s, %(error)s, %(at)s
    )
"""

_FENCED = """
    update recollect.spaces
    set next_seq = greatest(next_seq, %(fence)s)
    where tenant = %(tenant)s and id = %(space)s
"""


async def tenants(work: Work) -> list[str]:
    return sorted(given(row[0]) for row in await work.rows(_TENANTS, {}))


async def counted(work: Work, tenant: str) -> dict[Space, int]:
    rows = await work.rows(_COUNTED, {"tenant": kept(tenant)})
    return {space_of(row[:5]): row[5] for row in rows}


async def whole(work: Work, space: Space, ids: Sequence[str]) -> list[Put]:
    known = await models.read(work)
    terms = await items.terms(work, space, ids)
    vectors: dict[str, list[np.ndarray]] = {}
    values = {**named(space), "handles": handles(ids), "generation": known.generation}
    for id, data in await work.rows(_VECTORS, values):
        vectors.setdefault(given(id), []).append(data.to_numpy())
    return [
        Put(
            item=item,
            terms=tuple(terms[item.id].split()),
            vectors=np.stack(vectors[item.id]).astype(np.float32) if item.id in vectors else None,
            model=known.active if item.id in vectors else None,
        )
        for item in await items.get(work, space, ids)
    ]


def restore(plan: Plan, task: Values, given: Restore) -> None:
    """The versions and the journal of a task that comes from elsewhere, under names that statements go by."""
    tenant = given.space.tenant
    for one in given.checkpoints:
        state = one.state.encode()
        values = {
            "version": one.version,
            "fence": one.fence,
            "schema": one.schema,
            "state": state,
            "sha256": hashlib.sha256(state).digest(),
            "at": to_micros(one.at),
        }
        plan.add(tenant, _SAVED, task | values)
    for step in given.steps:
        values = {
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
        plan.add(tenant, _NOTED, task | values)
    plan.add(tenant, _FENCED, task | {"fence": given.highest_fence})
