"""Erasing: a saga of phases that are each written down, so that whoever comes after a crash goes on from there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recollect.clock import Clock, aware
from recollect.errors import Conflict, StoreUnavailable, Unsupported
from recollect.lifecycle import beside, ledgers, whom
from recollect.lifecycle.doom import Doom
from recollect.lifecycle.subject import Subject
from recollect.runtime.failpoints import reach
from recollect.stores.base import Records, Store
from recollect.stores.erasing import Erasing, Erasure
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.tiers.entries import fresh_id
from recollect.tiers.patience import pause

# Somebody who writes for the subject all the while would never let it end; what they write is told as pending.
_ROUNDS = 8

Forget = Callable[[Subject | None], None]
"""Drops what this process has in mind of somebody; None when it is not known who that was."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a receipt still holds: what is wrong, a sentence each, and what a new look at the bytes has found."""

    faults: tuple[str, ...]
    scan: Scan

    @property
    def holds(self) -> bool:
        return not self.faults


class Erasures:
    """The erasures of one memory's stores: entered, deleted, settled, looked for, and completed."""

    def __init__(
        self,
        stores: Sequence[Store],
        clock: Clock,
        *,
        forget: Forget = lambda subject: None,
        ids: Callable[[], str] = fresh_id,
    ) -> None:
        self._every = stores
        self._able = [store for store in stores if isinstance(store, Erasing)]
        self._clock = clock
        self._forget = forget
        self._ids = ids
        self._one_at_a_time = asyncio.Lock()

    async def erase(self, subject: Subject) -> ErasureReceipt:
        """Everything of a subject, everywhere. `pending_physical` when bytes of it may be left; they are retried.

        While a store is down nothing is deleted that has to wait for it, and the receipt says what it waits for.
        """
        self._check_able()
        async with self._one_at_a_time:
            id, now = self._ids(), aware(self._clock())
            await ledgers.enter(self._able, id, subject, now)
            reach("erase.entered")
            receipt = await self._tried(id, subject)
            await self._finish_others(id)
            return receipt

    async def resume(self) -> list[ErasureReceipt]:
        """Go on with every erasure that is not complete; how each stands now."""
        async with self._one_at_a_time:
            done = await self._finish_others(None)
            for store in self._able:
                if await store.ledger():  # whoever completed the last one may have been killed before this
                    await ledgers.note_beside(store)
            return done

    async def catch_up(self) -> None:
        """Before anything is served: what was erased after this copy was made, or asked for and not done, is done."""
        async with self._one_at_a_time:
            for store in self._able:
                await ledgers.learn_from_beside(store)
            await ledgers.spread(self._able)
            for id in await self._open(("entered",)):
                await self._carry_out(id, None)

    async def receipts(self) -> list[ErasureReceipt]:
        """Every erasure that is complete, in the order of the chain."""
        return await ledgers.receipts(self._able)

    async def verify(self, receipt: ErasureReceipt) -> Verification:
        """Recompute the chain that a receipt stands in, and look for what was erased once more.

        One that was pending when it was given out stands for the one that it has become.
        """
        if not receipt.complete:
            become = [one for one in await self.receipts() if one.id == receipt.id]
            if not become:
                fault = "it is still pending: `recollect lifecycle` goes on with it, and so does the next erasure"
                return Verification((fault,), Scan())
            receipt = become[0]
        faults: list[str] = []
        if receipt.sha256 != receipt.digest:
            faults.append("the receipt was changed: its sha256 does not fit what it says")
        scan, known = Scan(), False
        for store in self._able:
            rows = await store.ledger()
            chain = [row.receipt for row in rows if row.receipt is not None]
            faults += beside.chain_faults(chain)
            kept = None if store.receipts is None else await asyncio.to_thread(beside.read, store.receipts)
            known = known or receipt in chain or (kept is not None and receipt in kept.receipts)
            for row in rows:
                if row.id == receipt.id:
                    scan = scan.plus(await store.scan(row.evidence))
        if not known:
            faults.append("this store's ledger has no such receipt")
        if scan.found or scan.words:
            faults.append(f"{scan.found} pieces and {scan.words} words of what was erased are in the files")
        return Verification(tuple(faults), scan)

    async def _finish_others(self, id: str | None) -> list[ErasureReceipt]:
        return [await self._tried(other, None) for other in await self._open() if other != id]

    async def _open(self, phases: Sequence[str] = ("entered", "deleted")) -> list[str]:
        rows = [row for store in self._able for row in await _rows(store)]
        return list(dict.fromkeys(row.id for row in rows if row.phase in phases))

    async def _tried(self, id: str, subject: Subject | None) -> ErasureReceipt:
        """What is left of one erasure, as far as the stores that are up let it get."""
        try:
            return await self._carry_out(id, subject)
        except StoreUnavailable as error:
            rows = [row for store in self._able for row in await _rows(store) if row.id == id]
            if not rows:
                raise
            return _receipt(rows, [Scan(waits=(str(error),)), *(Scan() for _ in rows[1:])])

    async def _carry_out(self, id: str, subject: Subject | None) -> ErasureReceipt:
        """What is left of one erasure, whoever began it."""
        await ledgers.spread(self._able)
        stores = [store for store in self._able if await _row(store, id) is not None]
        # Facts before the logs they were made of, which tell what is to go.
        for store in sorted(stores, key=lambda one: not isinstance(one, Records)):
            row = await _row(store, id)
            if row is not None and row.phase == "entered" and await self._delete(store, row, subject):
                await store.deleted(id)
        reach("erase.deleted")
        self._forget(subject)
        reach("erase.forgotten")
        rows = [row for store in stores if (row := await _row(store, id)) is not None]
        held = list(zip(stores, rows, strict=True))
        # Where it is complete it has been looked for, perhaps by somebody who could stop a server as nobody can here.
        settled = [row.receipt is not None or await store.settle() for store, row in held]
        reach("erase.settled")
        scans = [await store.scan(row.evidence) if row.receipt is None else row.receipt.scan for store, row in held]
        reach("erase.scanned")
        receipt = _receipt(rows, scans)
        if not all(settled) or not receipt.scan.clean or any(row.phase == "entered" for row in rows):
            return receipt
        done = []
        for store, row in held:
            done.append(await store.finish(replace(receipt, subject=row.subject)))
            reach("erase.finished")
            await ledgers.note_beside(store)
        return done[0]

    async def _delete(self, store: Erasing, row: Erasure, subject: Subject | None) -> bool:
        """Delete until nothing is left; False when others keep on writing."""
        for tries in range(_ROUNDS):
            meant = subject if subject is not None else await whom.found(store, row)
            doomed = None if meant is None else await Doom(meant, self._able).of(store)
            if not doomed:
                return True
            try:
                await store.wipe(row.id, doomed)
                reach("erase.wiped")
            except Conflict:
                await pause(tries)
        return False

    def _check_able(self) -> None:
        unable = [type(store).__name__ for store in self._every if not isinstance(store, Erasing)]
        if unable:
            raise Unsupported(
                f"{', '.join(unable)} cannot prove an erasure yet; nothing was erased. Keep every tier in stores that "
                "can (a SQLite file, Redis, Chroma), or delete by that database's own means"
            )


async def _rows(store: Erasing) -> list[Erasure]:
    """What is open in a ledger; nothing of one that is down."""
    try:
        return await store.ledger(unfinished=True)
    except StoreUnavailable:
        return []


async def _row(store: Erasing, id: str) -> Erasure | None:
    return next((row for row in await store.ledger() if row.id == id), None)


def _receipt(rows: Sequence[Erasure], scans: Sequence[Scan]) -> ErasureReceipt:
    """How an erasure stands, over all stores."""
    first, erased, scan = rows[0], Counter[str](), Scan()
    for row, one in zip(rows, scans, strict=True):
        erased.update(row.erased)
        scan = scan.plus(one)
    moments = [row.deleted_at for row in rows]
    return ErasureReceipt(
        id=first.id,
        subject=first.subject,
        parts=first.parts,
        status="pending_physical",
        requested_at=first.requested_at,
        deleted_at=None if None in moments else max(moments),  # type: ignore[type-var]
        erased=dict(sorted(erased.items())),
        rederived=sum(row.rederived for row in rows),
        scan=scan,
    )
