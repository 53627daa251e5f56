"""One ledger over several stores: each store records every erasure, and an older copy learns from the others."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from recollect.erasure.receipt_file import append_erasures, read_receipt_file
from recollect.erasure.subject import ErasureSubject
from recollect.errors import StoreUnavailable
from recollect.stores.erasure import ErasureReceipt, ErasureRecord, ErasureStore
from recollect.types import Scope, Space


def create_evidence_key() -> bytes:
    """Return a random key for the hashes of the data that one erasure deletes."""
    return secrets.token_bytes(32)


def fingerprint_store(salt: bytes) -> str:
    """Return an identifier of a store that is the same in all its copies and does not reveal the salt."""
    return hashlib.sha256(b"store" + salt).hexdigest()[:32]


async def enter_erasure(stores: Sequence[ErasureStore], id: str, subject: ErasureSubject, now: datetime) -> None:
    """Record an erasure in every store that is up, before anything is deleted.

    Each row holds the subject's hash for every store. One row is therefore enough to resume the erasure in a store
    that was down, or that a crash left without a row. Raises `StoreUnavailable` if all stores are down.
    """
    key, salts = create_evidence_key(), [await store.salt() for store in stores]
    digests = {fingerprint_store(salt): subject.digest(salt) for salt in salts}
    errors: list[StoreUnavailable] = []
    for store, salt in zip(stores, salts, strict=True):
        digest = digests[fingerprint_store(salt)]
        try:
            await store.add_erasure(
                ErasureRecord(id=id, subject=digest, parts=subject.parts, requested_at=now, elsewhere=digests, key=key)
            )
            await update_receipt_file(store)
        except StoreUnavailable as error:
            errors.append(error)
    if len(errors) == len(stores):
        raise errors[0]


async def find_last_erasure(stores: Sequence[ErasureStore], names: Scope | Space) -> datetime | None:
    """Return when the owner of these names was last erased; None if never."""
    found: list[datetime] = []
    for store in stores:
        salt = await store.salt()
        for row in await store.ledger():
            subject = ErasureSubject.from_scope(row.parts, names)
            if subject is not None and subject.digest(salt) == row.subject:
                found.append(row.requested_at)
    return max(found, default=None)


async def sync_ledgers(stores: Sequence[ErasureStore]) -> None:
    """Copy each row to the other stores that it concerns, for those that were down or are older copies."""
    rows = [row for store in stores for row in await store.ledger()] if len(stores) > 1 else []
    for store in stores if rows else ():
        fingerprint, ids = fingerprint_store(await store.salt()), {row.id for row in await store.ledger()}
        for row in rows:
            if fingerprint in row.elsewhere and row.id not in ids:
                ids.add(row.id)
                # `replace` would also copy the progress of the other store.
                request = {name: getattr(row, name) for name in ("id", "parts", "requested_at", "elsewhere")}
                # A complete row has no key any more.
                key = row.key or create_evidence_key()
                await store.add_erasure(ErasureRecord(subject=row.elsewhere[fingerprint], key=key, **request))


async def import_receipt_file(store: ErasureStore) -> None:
    """Add the erasures of the receipt file that the ledger lacks: the store is then an older copy."""
    file = None if store.receipts is None else await asyncio.to_thread(read_receipt_file, store.receipts)
    if file is None:
        return
    if file.salt != await store.salt():
        await store.set_salt(file.salt)
    ids = {row.id for row in await store.ledger()}
    for erasure in file.erasures:
        if erasure.id not in ids:
            await store.add_erasure(replace(erasure, key=create_evidence_key()))


async def update_receipt_file(store: ErasureStore) -> None:
    if store.receipts is not None:
        await asyncio.to_thread(append_erasures, store.receipts, await store.salt(), await store.ledger())


async def list_receipts(stores: Sequence[ErasureStore]) -> list[ErasureReceipt]:
    """Return each complete erasure once, in the order of the first chain that contains it.

    If the stores completed an erasure at different times, the last receipt has the full counts.
    """
    found: dict[str, ErasureReceipt] = {}
    for store in stores:
        for receipt in [row.receipt for row in await store.ledger() if row.receipt is not None]:
            known = found.get(receipt.id)
            if known is None or sum(known.erased.values()) < sum(receipt.erased.values()):
                found[receipt.id] = receipt
    return list(found.values())
