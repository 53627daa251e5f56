"""Leases of tasks: claimed, renewed by a heartbeat, and treated as lost before they can expire."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from recollect.durable.events import logger
from recollect.durable.failpoints import reach_failpoint
from recollect.durable.steps import Timing
from recollect.errors import FencedOut, RecollectError, StoreError
from recollect.stores.base import Tasks
from recollect.stores.leases import LeaseRequest
from recollect.stores.writes import Lease

ResultT = TypeVar("ResultT")

# The holder stops at this share of the lease time, counted from before the request: no other worker can have it yet.
_SAFE_SHARE = 0.9
_RENEWALS_PER_TTL = 3
_RENEWALS_AFTER_FAILURE = 12

# The event loop holds its tasks only weakly, so they are kept here until they are done.
_release_tasks: set[asyncio.Task[None]] = set()


def build_worker_name() -> str:
    """Return host, process id and a random part, as the owner of a lease."""
    return f"{platform.node() or 'worker'}:{os.getpid()}:{secrets.token_hex(4)}"


async def claim_lease(store: Tasks, request: LeaseRequest) -> Lease:
    """Claim the lease of a task; if the caller is cancelled meanwhile, release it before raising."""
    claim = asyncio.ensure_future(
        store.claim(request.space, request.task, request.owner, request.ttl, plan_hash=request.plan_hash)
    )
    try:
        return await asyncio.shield(claim)
    except asyncio.CancelledError:
        release = asyncio.create_task(_release_when_claimed(store, claim))
        _release_tasks.add(release)
        release.add_done_callback(_release_tasks.discard)
        await asyncio.wait([release])  # a second cancellation ends the wait; the release goes on
        raise


async def _release_when_claimed(store: Tasks, claim: asyncio.Future[Lease]) -> None:
    try:
        lease = await claim
    except RecollectError:
        return  # not claimed
    await release_lease(store, lease)


async def release_lease(store: Tasks, lease: Lease) -> None:
    """Release a lease; if the store fails, log it and let the lease expire."""
    try:
        await store.release(lease)
    except StoreError:
        logger.warning("the lease of task %r could not be released; it expires by itself", lease.task)


class LeaseLost(Exception):
    """The lease is gone; the caller converts it to `FencedOut`."""


class Heartbeat:
    """Renews a lease in the background; `guard` cancels the work under it when the lease is lost."""

    def __init__(self, store: Tasks, lease: Lease, ttl: timedelta, timing: Timing, requested_at: float) -> None:
        self._store = store
        self.lease = lease
        self._ttl = ttl
        self._timing = timing
        self._deadline = requested_at + ttl.total_seconds() * _SAFE_SHARE
        self.is_lost = False
        self._reason = ""
        self._guarded: asyncio.Task[Any] | None = None

    def check(self) -> None:
        """Raise `LeaseLost` if the store refused a renewal or the local deadline has passed."""
        if self._timing.monotonic() >= self._deadline:
            self._mark_lost("its time ran out before it could be renewed")
        if self.is_lost:
            raise LeaseLost(self._reason)

    async def guard(self, work: Awaitable[ResultT]) -> ResultT:
        """Await `work` and return its result; cancel it and raise `LeaseLost` when the lease is lost."""
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        self._guarded = task
        try:
            result = await work
        except asyncio.CancelledError as error:
            if task.cancelling() <= cancellations:  # the work cancelled itself, which is a failure of the step
                raise RuntimeError("something that the step waited for was cancelled") from error
            if self.is_lost and task.uncancel() <= cancellations:
                raise LeaseLost(self._reason) from error
            raise  # cancelled by the caller, too
        finally:
            self._guarded = None
        if self.is_lost:
            while task.cancelling() > cancellations:  # the work ignored the cancellation
                task.uncancel()
            raise LeaseLost(self._reason)
        return result

    async def renew_repeatedly(self) -> None:
        """Renew the lease until it is lost."""
        renewals = _RENEWALS_PER_TTL
        try:
            while not self.is_lost:
                await self._timing.heartbeat_sleep(self._ttl.total_seconds() / renewals)
                renewals = _RENEWALS_PER_TTL if await self._renew() else _RENEWALS_AFTER_FAILURE
        except Exception as error:  # noqa: BLE001 - without renewals the lease is lost, whatever the reason
            self._mark_lost(f"its heartbeat failed with {type(error).__name__}: {error}")

    async def _renew(self) -> bool:
        requested_at = self._timing.monotonic()
        if requested_at >= self._deadline:
            self._mark_lost("its time ran out before it could be renewed")
            return False
        reach_failpoint("heartbeat.before")
        try:
            async with asyncio.timeout(self._deadline - requested_at):
                self.lease = await self._store.renew(self.lease, self._ttl)
                task = await self._store.task(self.lease.space, self.lease.task)
        except FencedOut as error:
            self._mark_lost(str(error))
            return False
        except (StoreError, TimeoutError):
            return False  # retried until the deadline
        reach_failpoint("heartbeat.after")
        self._deadline = requested_at + self._ttl.total_seconds() * _SAFE_SHARE
        if task is not None and task.status == "failed":
            self._mark_lost("it was cancelled")
        return True

    def _mark_lost(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._reason = reason
        if self._guarded is not None:
            self._guarded.cancel()


@asynccontextmanager
async def hold_lease(store: Tasks, request: LeaseRequest, timing: Timing) -> AsyncIterator[Heartbeat]:
    """Hold a lease during the block; raise `LeaseHeld` if another worker has it, and `FencedOut` if it is lost."""
    requested_at = timing.monotonic()
    lease = await claim_lease(store, request)
    reach_failpoint("claim.after")
    heartbeat = Heartbeat(store, lease, request.ttl, timing, requested_at)
    renewal = asyncio.create_task(heartbeat.renew_repeatedly())
    try:
        yield heartbeat
    except (LeaseLost, FencedOut) as error:
        reason = f"the lease of task {request.task!r} was lost: {error}; the work in progress is discarded"
        raise FencedOut(reason) from error
    finally:
        try:
            reach_failpoint("release.before")
            if not heartbeat.is_lost:
                await release_lease(store, lease)
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])
