"""Claims that may be cancelled: a lease that nobody waits for any more is given back, and is in no one's way."""

from __future__ import annotations

import asyncio

from recollect.errors import RecollectError, StoreError
from recollect.runtime.events import log
from recollect.stores.base import Lease, Tasks
from recollect.stores.leases import Claim

# Kept here until they are done: the loop itself holds its tasks only weakly.
_giving_back: set[asyncio.Task[None]] = set()


async def claimed(store: Tasks, claim: Claim) -> Lease:
    """The lease; when the caller is cancelled meanwhile, it is given back first, so that the next need not wait."""
    taking = asyncio.ensure_future(
        store.claim(claim.space, claim.task, claim.owner, claim.ttl, plan_hash=claim.plan_hash)
    )
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        giving = asyncio.create_task(_give_back(store, taking))
        _giving_back.add(giving)
        giving.add_done_callback(_giving_back.discard)
        await asyncio.wait([giving])  # which another cancellation ends, and the giving back goes on
        raise


async def _give_back(store: Tasks, taking: asyncio.Future[Lease]) -> None:
    try:
        lease = await taking
    except RecollectError:  # nothing was taken
        return
    try:
        await store.release(lease)
    except StoreError:  # it runs out by itself
        log.warning("the lease of task %r could not be given back", lease.task)
