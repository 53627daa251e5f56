"""A store that nobody is served from: a backup that forgets what was erased since, and files that are written anew."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

from recollect.clock import system_clock
from recollect.errors import BadInput, NotFound, StoreCorrupt, StoreError, Unsupported
from recollect.lifecycle import ErasureReceipt, Erasures, beside
from recollect.memory.export_file import check_new, checked_path, copied, put_in_place
from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.stores.erasing import Erasing
from recollect.values import Tier


@dataclass(frozen=True, slots=True)
class Restored:
    """Where the copy is, and the erasures that were made in it because it was older than they are."""

    path: Path
    replayed: tuple[ErasureReceipt, ...]
    known: int
    """How many erasures are known of in all."""
    receipts: tuple[Path, ...] = ()
    """The files of erasures that were read; without any, nobody knows what was erased since the backup was made."""


async def restore_store(
    backup: str | Path, to: str | Path, receipts: str | Path | None = None, settings: Settings | None = None
) -> Restored:
    """Copy a backup to a new file, and erase from it whatever the receipts say was erased since.

    The settings hold the key, if the backup is encrypted: the one that the store had when the backup was made.

    `receipts` is the file of erasures that lay beside the store the backup was made of; without it, one that lies
    where the copy goes. The copy is there only once all that is done.
    """
    source, target = checked_path(backup), checked_path(to)
    if not source.is_file():
        raise NotFound(f"there is no backup at {source}")
    await asyncio.to_thread(check_new, target)
    kept = target.with_name(target.name + ".erasures.jsonl")
    given = None if receipts is None else checked_path(receipts)
    if given is not None and not given.is_file():
        raise NotFound(f"there are no receipts at {given}")
    # Under a name that nobody can have taken, or laid a link under, before.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.restoring")
    beside_partial = partial.with_name(partial.name + ".erasures.jsonl")
    read = tuple(dict.fromkeys(one for one in (kept if kept.is_file() else None, given) if one is not None))
    try:
        await asyncio.to_thread(copied, source, partial)
        for one in read:
            await asyncio.to_thread(_merge, one, beside_partial)
        try:
            before, replayed = await _caught_up(partial, settings or Settings.load())
        except StoreError as error:
            # What is wrong is wrong with the backup; the copy is ours, and gone when this is read.
            raise type(error)(str(error).replace(str(partial), str(source))) from error
        await asyncio.to_thread(put_in_place, partial, target)
        if beside_partial.is_file():
            await asyncio.to_thread(beside_partial.replace, kept)
    finally:
        for left in (partial, beside_partial):
            left.unlink(missing_ok=True)
    return Restored(target, tuple(one for one in replayed if one.id not in before), len(replayed), read)


async def finish_erasures(place: str | Path) -> list[ErasureReceipt]:
    """Go on with the erasures of one store that are not complete; how each of them stands now.

    For a place that keeps some tiers only, and for the directory of a server that its operator has stopped.
    """
    some: tuple[Tier, ...] = ("semantic",)
    try:
        stores = await connect(place, Settings(), system_clock, tiers=some)
    except Unsupported:
        some = ("checkpoints",)
        stores = await connect(place, Settings(), system_clock, tiers=some)
    try:
        erasures = Erasures(stores.every, system_clock)
        await erasures.catch_up()
        return await erasures.resume()
    finally:
        await stores.close()


def _merge(source: Path, target: Path) -> None:
    known = beside.read(source)
    if known is None:
        raise StoreCorrupt(f"{source} was taken away")
    done = {receipt.id: receipt for receipt in known.receipts}
    beside.keep(target, known.salt, [beside.with_receipt(one, done.get(one.id)) for one in known.entered])


async def _caught_up(path: Path, settings: Settings) -> tuple[set[str], list[ErasureReceipt]]:
    """The erasures that the copy knew of, and all there are now; `BadInput` when one could not be carried out."""
    stores = await connect(path, settings, system_clock)
    try:
        [store] = [one for one in stores.every if isinstance(one, Erasing)]
        before = {row.id for row in await store.ledger()}
        erasures = Erasures(stores.every, system_clock)
        await erasures.catch_up()
        left = [one for one in await erasures.resume() if not one.complete]
        if left:
            raise BadInput(f"{len(left)} erasures could not be completed in the copy; nothing was restored")
        return before, await erasures.receipts()
    finally:
        await stores.close()
