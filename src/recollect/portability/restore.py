"""Restoring of a backup with all later erasures, and completion of pending erasures."""

from __future__ import annotations

import asyncio
import glob
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from recollect.clock import system_clock
from recollect.erasure import ledger
from recollect.erasure.eraser import Eraser
from recollect.errors import BadInput, NotFound, StoreCorrupt, StoreError
from recollect.portability.safe_file import check_path_is_new, copy_file, move_into_place, parse_path
from recollect.settings import Settings
from recollect.stores.erasure import ErasureReceipt, ErasureStore
from recollect.stores.factory import StoreLocation, open_stores


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The restored file, and the erasures that were repeated in it because they are newer than the backup."""

    path: Path
    replayed: tuple[ErasureReceipt, ...]
    known: int
    """The number of all known erasures."""
    receipts: tuple[Path, ...] = ()
    """The receipt files that were read; without any, later erasures are unknown."""


async def restore_store(
    backup: str | Path, to: str | Path, receipts: str | Path | None = None, settings: Settings | None = None
) -> RestoreReport:
    """Copy a backup to a new file and repeat in it the later erasures that the receipt files list.

    `receipts` is the receipt file of the original store. A receipt file beside `to` is read, too. Without either, later
    erasures are unknown, so the erased data is in the new file. The settings hold the key of an encrypted backup. The
    new file appears when everything is done.
    """
    source, target = parse_path(backup), parse_path(to)
    if not source.is_file():
        raise NotFound(f"there is no backup at {source}")
    await asyncio.to_thread(check_path_is_new, target)
    target_receipts = target.with_name(target.name + ".erasures.jsonl")
    given = target_receipts if receipts is None else parse_path(receipts)
    if receipts is not None and not given.is_file():
        raise NotFound(f"there are no receipts at {given}")
    # An unpredictable name, so that it cannot be a link that exists already.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.restoring")
    partial_receipts = partial.with_name(partial.name + ".erasures.jsonl")
    read = tuple(file for file in dict.fromkeys((target_receipts, given)) if file.is_file())
    try:
        await asyncio.to_thread(copy_file, source, partial)
        for file in read:
            await asyncio.to_thread(_merge_receipts, file, partial_receipts)
        try:
            before, known = await _replay_erasures(partial, settings or Settings.load())
        except StoreError as error:  # name the backup, because the copy is deleted
            raise type(error)(str(error).replace(str(partial), str(source))) from error
        await asyncio.to_thread(move_into_place, partial, target)
        if partial_receipts.is_file():
            await asyncio.to_thread(partial_receipts.replace, target_receipts)
    finally:
        # Also the backup of a migration, which still has what was erased.
        for file in target.parent.glob(glob.escape(partial.name) + "*"):
            file.unlink(missing_ok=True)
    return RestoreReport(target, tuple(receipt for receipt in known if receipt.id not in before), len(known), read)


async def finish_erasures(
    location: StoreLocation | None = None, settings: Settings | None = None
) -> list[ErasureReceipt]:
    """Complete the pending erasures of a store, and return their receipts.

    Files are rewritten regardless of `vacuum_limit_mb`; writers wait meanwhile. The receipt of an erasure that is still
    pending says what it waits for.
    """
    stores = await open_stores(location, settings or Settings.load(), system_clock)
    try:
        eraser = Eraser(stores.all_stores, system_clock)
        receipts = [*await eraser.catch_up(), *await eraser.resume()]
    finally:
        await stores.close()
    return list({receipt.id: receipt for receipt in receipts}.values())


def _merge_receipts(source: Path, target: Path) -> None:
    known = ledger.read_receipt_file(source)
    if known is None:
        raise StoreCorrupt(f"{source} was deleted during the restore; run it again")
    done = {receipt.id: receipt for receipt in known.receipts}
    erasures = [replace(erasure, receipt=done.get(erasure.id)) for erasure in known.erasures]
    ledger.append_erasures(target, known.salt, erasures)


async def _replay_erasures(path: Path, settings: Settings) -> tuple[set[str], list[ErasureReceipt]]:
    """Return the ids of the erasures in the copy, and all receipts after the missing ones are done."""
    stores = await open_stores(path, settings, system_clock)
    try:
        [store] = [store for store in stores.all_stores if isinstance(store, ErasureStore)]
        before = {row.id for row in await store.ledger()}
        eraser = Eraser(stores.all_stores, system_clock)
        await eraser.catch_up()
        incomplete = [receipt for receipt in await eraser.resume() if not receipt.complete]
        if incomplete:
            raise BadInput(f"{len(incomplete)} erasures could not be completed in the copy; nothing was restored")
        return before, await eraser.list_receipts()
    finally:
        await stores.close()
