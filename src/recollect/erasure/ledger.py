"""One ledger over several stores, and the receipt files beside them: an older copy learns from both."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recollect.erasure.subject import ErasureSubject
from recollect.errors import BadInput, StoreCorrupt, StoreUnavailable
from recollect.stores.erasure import ErasureReceipt, ErasureRecord, ErasureStore
from recollect.types import Scope, Space

# Of the random key for the hashes of the data that one erasure deletes.
_KEY_BYTES = 32
_FORMAT_KEY = "recollect_erasures"
_FORMAT_VERSION = 1


def fingerprint_store(salt: bytes) -> str:
    """Return an identifier of a store that is the same in all its copies and does not reveal the salt."""
    return hashlib.sha256(b"store" + salt).hexdigest()[:32]


async def enter_erasure(stores: Sequence[ErasureStore], id: str, subject: ErasureSubject, now: datetime) -> None:
    """Record an erasure in every store that is up, before anything is deleted.

    Each row holds the subject's hash for every store. One row is therefore enough to resume the erasure in a store
    that was down, or that a crash left without a row. Raises `StoreUnavailable` if all stores are down.
    """
    key, salts = secrets.token_bytes(_KEY_BYTES), [await store.salt() for store in stores]
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
            if ErasureSubject.match(row, names, salt) is not None:
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
                key = row.key or secrets.token_bytes(_KEY_BYTES)
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
            await store.add_erasure(replace(erasure, key=secrets.token_bytes(_KEY_BYTES)))


async def update_receipt_file(store: ErasureStore) -> None:
    if store.receipts is not None:
        await asyncio.to_thread(append_erasures, store.receipts, await store.salt(), await store.ledger())


async def list_receipts(stores: Sequence[ErasureStore]) -> list[ErasureReceipt]:
    """Return each complete erasure once, in the order of the first chain that has it, with the highest counts."""
    found: dict[str, ErasureReceipt] = {}
    for store in stores:
        for receipt in [row.receipt for row in await store.ledger() if row.receipt is not None]:
            known = found.get(receipt.id)
            if known is None or sum(known.erased.values()) < sum(receipt.erased.values()):
                found[receipt.id] = receipt
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """The content of a receipt file: the store's salt, the requested erasures and the receipts of complete ones."""

    salt: bytes
    erasures: tuple[ErasureRecord, ...]
    receipts: tuple[ErasureReceipt, ...]


def read_receipt_file(path: Path) -> ReceiptFile | None:
    """Return the content of the file; None if there is no file. Raises `StoreCorrupt` if it is damaged."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    # A line torn by a crash is not valid JSON, and is skipped.
    lines = [values for line in raw.splitlines() if (values := _parse_line(line)) is not None]
    if not lines or lines[0].get(_FORMAT_KEY) != _FORMAT_VERSION:
        raise StoreCorrupt(f"{path} is not a receipt file of this version; restore it, or move it away")
    try:
        return ReceiptFile(
            bytes.fromhex(lines[0]["salt"]),
            tuple(_decode_erasure(line["entered"]) for line in lines if "entered" in line),
            tuple(ErasureReceipt.from_json(line["receipt"]) for line in lines if "receipt" in line),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(f"{path} is damaged ({error!r:.80}); restore it, or move it away") from error


def append_erasures(path: Path, salt: bytes, erasures: Sequence[ErasureRecord]) -> None:
    """Append durably what the file lacks; raise `BadInput` if the file belongs to another store."""
    file = read_receipt_file(path)
    if file is not None and file.salt != salt:
        raise BadInput(f"{path} is the receipt file of another store; move it away")
    lines: list[dict[str, Any]] = [] if file is not None else [{_FORMAT_KEY: _FORMAT_VERSION, "salt": salt.hex()}]
    file = file or ReceiptFile(salt, (), ())
    ids = {erasure.id for erasure in file.erasures}
    digests = {receipt.sha256 for receipt in file.receipts}
    for erasure in erasures:
        if erasure.id not in ids:
            fields = {name: getattr(erasure, name) for name in ("id", "subject", "parts")}
            when, elsewhere = erasure.requested_at.isoformat(), dict(erasure.elsewhere)
            lines.append({"entered": {**fields, "requested_at": when, "elsewhere": elsewhere}})
        if erasure.receipt is not None and erasure.receipt.sha256 not in digests:
            lines.append({"receipt": erasure.receipt.as_json()})
    if lines:
        _append_lines(path, lines)


def find_chain_faults(receipts: Sequence[ErasureReceipt]) -> list[str]:
    """Return the faults of a chain of receipts, one sentence each."""
    faults = []
    previous: str | None = None
    for receipt in receipts:
        if receipt.sha256 != receipt.digest:
            faults.append(f"receipt {receipt.id} was changed: its sha256 does not match its content")
        if receipt.previous != previous:
            faults.append(f"receipt {receipt.id} does not follow the receipt before it: a receipt was removed")
        previous = receipt.sha256
    return faults


def _append_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    is_new = not path.exists()
    # Only the owner may read it: with the salt, names can be guessed.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash tore the last line
                file.write(b"\n")
        file.write("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
    if is_new and os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _parse_line(raw: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _decode_erasure(values: Any) -> ErasureRecord:
    return ErasureRecord(
        id=str(values["id"]),
        subject=str(values["subject"]),
        parts=tuple(map(str, values["parts"])),
        requested_at=datetime.fromisoformat(values["requested_at"]),
        elsewhere=MappingProxyType(dict(values.get("elsewhere", {}))),
    )
