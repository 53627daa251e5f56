"""The ledgers of several stores as one: what is asked of all is in each, and an older copy learns from the others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from recollect.errors import StoreUnavailable
from recollect.lifecycle import beside
from recollect.lifecycle.subject import Subject
from recollect.stores.erasing import Erasing, Erasure
from recollect.stores.receipts import ErasureReceipt


def fingerprint(salt: bytes) -> str:
    """Which store it is, by its key: the same in every copy of it, and of no use for finding out the key."""
    return hashlib.sha256(b"store" + salt).hexdigest()[:32]


async def enter(stores: Sequence[Erasing], id: str, subject: Subject, now: datetime) -> None:
    """Note an erasure in every store that answers, before anything is deleted in any.

    Each row says who is meant in all of the others, so that one is enough to go on from: a store that is down, or
    that nobody came to before a crash, learns of it from the others.
    """
    salts = [await store.salt() for store in stores]
    everywhere = {fingerprint(salt): subject.digest(salt) for salt in salts}
    refused: list[StoreUnavailable] = []
    for store, salt in zip(stores, salts, strict=True):
        digest = everywhere[fingerprint(salt)]
        try:
            await store.enter(
                Erasure(id=id, subject=digest, parts=subject.parts, requested_at=now, elsewhere=everywhere)
            )
            await note_beside(store)
        except StoreUnavailable as error:
            refused.append(error)
    if len(refused) == len(stores):
        raise refused[0]


async def spread(stores: Sequence[Erasing]) -> None:
    """What one ledger knows, all whom it concerns know: an older copy, or one that was down."""
    known = [row for store in stores for row in await store.ledger()] if len(stores) > 1 else []
    for store in stores if known else ():
        me, held = fingerprint(await store.salt()), {row.id for row in await store.ledger()}
        for row in known:
            if me in row.elsewhere and row.id not in held:
                held.add(row.id)
                await store.enter(_anew(row, row.elsewhere[me]))


async def learn_from_beside(store: Erasing) -> None:
    """Enter what the file beside the store knows and its ledger does not: the store is an older copy."""
    known = None if store.receipts is None else await asyncio.to_thread(beside.read, store.receipts)
    if known is None:
        return
    if known.salt != await store.salt():
        await store.resalt(known.salt)
    held = {row.id for row in await store.ledger()}
    for erasure in known.entered:
        if erasure.id not in held:
            await store.enter(erasure)


async def note_beside(store: Erasing) -> None:
    if store.receipts is not None:
        await asyncio.to_thread(beside.keep, store.receipts, await store.salt(), await store.ledger())


async def receipts(stores: Sequence[Erasing]) -> list[ErasureReceipt]:
    """Every erasure that is complete, once, in the order of the first chain that has it.

    Where it was completed in one store before the others, the receipt of the last says what all of them held.
    """
    found: dict[str, ErasureReceipt] = {}
    for store in stores:
        for receipt in [row.receipt for row in await store.ledger() if row.receipt is not None]:
            known = found.get(receipt.id)
            if known is None or sum(known.erased.values()) < sum(receipt.erased.values()):
                found[receipt.id] = receipt
    return list(found.values())


def _anew(row: Erasure, subject: str) -> Erasure:
    fresh = Erasure(id=row.id, subject=subject, parts=row.parts, requested_at=row.requested_at)
    return replace(fresh, elsewhere=row.elsewhere)
