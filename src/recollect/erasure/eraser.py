"""The erasure saga: enter, delete, purge copies, scan, finish. Each phase is recorded, so that a crash is resumed."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from recollect.clock import Clock, to_utc
from recollect.durable.failpoints import reach_failpoint
from recollect.erasure import ledger
from recollect.erasure.ledger import find_chain_faults, read_receipt_file
from recollect.erasure.selection import ErasureSelector, find_subject
from recollect.erasure.subject import ErasureSubject
from recollect.errors import Conflict, StoreUnavailable, Unsupported
from recollect.stores.base import Records, Store
from recollect.stores.erasure import ByteScan, ErasureReceipt, ErasureRecord, ErasureStore
from recollect.tiers.indexing import back_off
from recollect.tiers.log_entries import generate_id

# A client that keeps writing for the subject would make the deletion endless. The rest is reported as pending.
_MAX_DELETE_ROUNDS = 8

ForgetCallback = Callable[[ErasureSubject | None], None]
"""A callback that drops what this process caches about a subject; None stands for an unknown subject."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The faults of a receipt, and the result of a new byte scan."""

    faults: tuple[str, ...]
    scan: ByteScan

    @property
    def holds(self) -> bool:
        return not self.faults


class Eraser:
    """Runs and resumes the erasures of the stores of one memory."""

    def __init__(
        self,
        stores: Sequence[Store],
        clock: Clock,
        *,
        forget: ForgetCallback = lambda subject: None,
        ids: Callable[[], str] = generate_id,
    ) -> None:
        self._all_stores = stores
        self._stores = [store for store in stores if isinstance(store, ErasureStore)]
        self._clock = clock
        self._forget_callback = forget
        self._new_id = ids
        self._lock = asyncio.Lock()

    async def erase(self, subject: ErasureSubject, *, thorough: bool = False) -> ErasureReceipt:
        """Erase a subject from every store. The status is `pending_physical` if bytes may remain; they are retried.

        While a store is down, data that depends on it is not deleted. The receipt then says what it waits for. With
        `thorough`, files that a database server shares between databases are overwritten, too.
        """
        unable = [type(store).__name__ for store in self._all_stores if not isinstance(store, ErasureStore)]
        if unable:
            raise Unsupported(
                f"nothing was erased: {', '.join(unable)} cannot prove an erasure; "
                "use SQLite, PostgreSQL, Redis or Chroma for every tier"
            )
        async with self._lock:
            id, now = self._new_id(), to_utc(self._clock())
            await ledger.enter_erasure(self._stores, id, subject, now)
            reach_failpoint("erase.entered")
            receipt = await self._attempt_erasure(id, subject, thorough=thorough, deferrable=True)
            await self._resume_others(id, deferrable=True)
            return receipt

    async def resume(self) -> list[ErasureReceipt]:
        """Complete all unfinished erasures, including deferred steps; return their receipts."""
        async with self._lock:
            receipts = await self._resume_others(None)
            for store in self._stores:
                if await store.ledger():  # a process may have crashed between completing and writing the file
                    await ledger.update_receipt_file(store)
            return receipts

    async def catch_up(self) -> list[ErasureReceipt]:
        """Complete the deletions that this copy of a store lacks, before it serves any reads; return their receipts."""
        async with self._lock:
            for store in self._stores:
                await ledger.import_receipt_file(store)
            await ledger.sync_ledgers(self._stores)
            ids = await self._find_unfinished(("entered",))
            return [await self._run_phases(id, None, deferrable=True) for id in ids]

    async def list_receipts(self) -> list[ErasureReceipt]:
        """Return the receipts of all complete erasures in the order of the chain."""
        return await ledger.list_receipts(self._stores)

    async def verify(self, receipt: ErasureReceipt) -> Verification:
        """Recompute the chain of a receipt, or of the final one if it is pending, and scan for its data again."""
        if not receipt.complete:
            final = next((other for other in await self.list_receipts() if other.id == receipt.id), None)
            if final is None:
                fault = "it is still pending; run `recollect lifecycle` to continue it"
                return Verification((fault,), ByteScan())
            receipt = replace(final, evidence_key=receipt.evidence_key)
        key, faults = _decode_key(receipt.evidence_key), list[str]()
        if key and _hash_key(key) != receipt.evidence_key_sha256:
            faults.append("the evidence key is not that of the receipt")
        if receipt.sha256 != receipt.digest:
            faults.append("the receipt was changed: its sha256 does not match its content")
        scan, is_known = ByteScan(), False
        for store in self._stores:
            rows = await store.ledger()
            chain = [row.receipt for row in rows if row.receipt is not None]
            faults += find_chain_faults(chain)
            file = None if store.receipts is None else await asyncio.to_thread(read_receipt_file, store.receipts)
            stored = replace(receipt, evidence_key="")
            is_known = is_known or stored in chain or (file is not None and stored in file.receipts)
            for row in rows:
                if row.id == receipt.id:
                    scan = scan.merge(await _scan_again(store, row, key))
        if not is_known:
            faults.append("the ledger of this store has no such receipt")
        if scan.found or scan.words:
            faults.append(f"the files still contain {scan.found} pieces and {scan.words} terms of the erased data")
        return Verification(tuple(faults), scan)

    async def _resume_others(self, id: str | None, **purge: bool) -> list[ErasureReceipt]:
        others = [other for other in await self._find_unfinished() if other != id]
        return [await self._attempt_erasure(other, None, **purge) for other in others]

    async def _find_unfinished(self, phases: Sequence[str] = ("entered", "deleted")) -> list[str]:
        return list(dict.fromkeys(row.id for row in await self._read_open_rows() if row.phase in phases))

    async def _read_open_rows(self) -> list[ErasureRecord]:
        """Return the unfinished rows of all stores that are up."""
        rows: list[ErasureRecord] = []
        for store in self._stores:
            try:
                rows += await store.ledger(unfinished=True)
            except StoreUnavailable:
                continue
        return rows

    async def _attempt_erasure(self, id: str, subject: ErasureSubject | None, **purge: bool) -> ErasureReceipt:
        """Run the remaining phases; if a store is down, return a pending receipt that says so."""
        try:
            return await self._run_phases(id, subject, **purge)
        except StoreUnavailable as error:
            rows = [row for row in await self._read_open_rows() if row.id == id]
            if not rows:
                raise
            return _build_receipt(rows, [ByteScan(waits=(str(error),))])

    async def _run_phases(self, id: str, subject: ErasureSubject | None, **purge: bool) -> ErasureReceipt:
        await ledger.sync_ledgers(self._stores)
        stores = [store for store in self._stores if await _read_row(store, id) is not None]
        # Facts before logs: the logs say which facts were made of the subject's entries.
        for store in sorted(stores, key=lambda store: not isinstance(store, Records)):
            row = await _read_row(store, id)
            if row is not None and row.phase == "entered" and await self._delete_rows(store, row, subject):
                await store.mark_deleted(id, self._clock())
        reach_failpoint("erase.deleted")
        self._forget_callback(subject)
        reach_failpoint("erase.forgotten")
        rows = [row for store in stores if (row := await _read_row(store, id)) is not None]
        entries = list(zip(stores, rows, strict=True))
        # A complete row was scanned before, perhaps with a server stopped, and is not purged or scanned again.
        purged = [row.receipt is not None or await store.purge_copies(**purge) for store, row in entries]
        reach_failpoint("erase.settled")
        scans = [
            await store.scan(row.evidence, row.key) if row.receipt is None else row.receipt.scan
            for store, row in entries
        ]
        reach_failpoint("erase.scanned")
        receipt = _build_receipt(rows, scans)
        if not all(purged) or not receipt.scan.is_clean or any(row.phase == "entered" for row in rows):
            return receipt
        finished = []
        for store, row in entries:
            of_store = replace(receipt, subject=row.subject, evidence_key_sha256=_hash_key(row.key))
            finished.append(await store.finish_erasure(of_store, to_utc(self._clock())))
            reach_failpoint("erase.finished")
            await ledger.update_receipt_file(store)
        # A store that keeps no evidence has no key.
        chosen = next((done for done in finished if done.evidence_key_sha256), finished[0])
        is_of_key = chosen.evidence_key_sha256 == receipt.evidence_key_sha256
        return replace(chosen, evidence_key=receipt.evidence_key) if is_of_key else chosen

    async def _delete_rows(self, store: ErasureStore, row: ErasureRecord, subject: ErasureSubject | None) -> bool:
        """Delete until nothing is left; return False if concurrent writes kept adding data."""
        for tries in range(_MAX_DELETE_ROUNDS):
            found = subject or await find_subject(store, row)
            rows = None if found is None else await ErasureSelector(found, self._stores).select_rows(store)
            if not rows:
                return True
            try:
                await store.wipe(row.id, rows)
                reach_failpoint("erase.wiped")
            except Conflict:
                await back_off(tries)
        return False


async def _scan_again(store: ErasureStore, row: ErasureRecord, key: bytes) -> ByteScan:
    """Search a store for the data of a complete erasure, if the key of its evidence is given."""
    if row.receipt is None or row.receipt.evidence_key_sha256 in ("", _hash_key(key)):
        return await store.scan(row.evidence, row.key or key)
    return ByteScan(unseen=("the erased data: only the receipt that `erase` returned has the key of its hashes",))


def _hash_key(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest() if key else ""


def _decode_key(evidence_key: str) -> bytes:
    try:
        return bytes.fromhex(evidence_key)
    except ValueError:
        return b"?"  # not the key of any receipt


async def _read_row(store: ErasureStore, id: str) -> ErasureRecord | None:
    return next((row for row in await store.ledger() if row.id == id), None)


def _build_receipt(rows: Sequence[ErasureRecord], scans: Sequence[ByteScan]) -> ErasureReceipt:
    """Return a pending receipt over the rows of all stores."""
    first, erased = rows[0], Counter[str]()
    for row in rows:
        erased.update(row.erased)
    key = next((row.key for row in rows if row.key), b"")
    deletions = [row.deleted_at for row in rows if row.deleted_at is not None]
    return ErasureReceipt(
        id=first.id,
        subject=first.subject,
        parts=first.parts,
        status="pending_physical",
        requested_at=first.requested_at,
        deleted_at=max(deletions) if len(deletions) == len(rows) else None,
        erased=dict(sorted(erased.items())),
        rederived=sum(row.rederived for row in rows),
        scan=reduce(ByteScan.merge, scans, ByteScan()),
        evidence_key_sha256=_hash_key(key),
        evidence_key=key.hex(),
    )
