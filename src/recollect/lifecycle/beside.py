"""The receipts beside a store: a file of its own, so that an older copy of the store learns what was erased since."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput, StoreCorrupt
from recollect.stores.erasing import Erasure
from recollect.stores.receipts import ErasureReceipt

_MARK = "recollect_erasures"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Known:
    """What such a file says: the key of its hashes, what was asked for, and what was completed."""

    salt: bytes
    entered: tuple[Erasure, ...]
    receipts: tuple[ErasureReceipt, ...]


def read(path: Path) -> Known | None:
    """What the file says; None when there is none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    lines = [told for line in raw.splitlines() if (told := _line(line)) is not None]
    if not lines or lines[0].get(_MARK) != _FORMAT:
        raise StoreCorrupt(f"{path} does not say that it holds erasures; restore it, or move it away")
    try:
        return Known(
            bytes.fromhex(lines[0]["salt"]),
            tuple(_entered(told["entered"]) for told in lines if "entered" in told),
            tuple(ErasureReceipt.from_json(told["receipt"]) for told in lines if "receipt" in told),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreCorrupt(f"{path} is damaged ({error!r:.80}); restore it, or move it away") from error


def keep(path: Path, salt: bytes, erasures: Sequence[Erasure]) -> None:
    """Add what the file does not say yet; it is on disk when this returns."""
    known = read(path)
    if known is not None and known.salt != salt:
        raise BadInput(f"{path} holds the erasures of another store; move it away")
    entered = {one.id for one in known.entered} if known is not None else set()
    done = {one.sha256 for one in known.receipts} if known is not None else set()
    lines: list[dict[str, Any]] = [] if known is not None else [{_MARK: _FORMAT, "salt": salt.hex()}]
    for one in erasures:
        if one.id not in entered:
            lines.append({"entered": _told(one)})
        if one.receipt is not None and one.receipt.sha256 not in done:
            lines.append({"receipt": one.receipt.as_json()})
    if lines:
        _append(path, lines)


def with_receipt(erasure: Erasure, receipt: ErasureReceipt | None) -> Erasure:
    return replace(erasure, receipt=receipt)


def chain_faults(receipts: Sequence[ErasureReceipt]) -> list[str]:
    """What is wrong with receipts in the order of their chain, a sentence each."""
    faults = []
    before: str | None = None
    for receipt in receipts:
        if receipt.sha256 != receipt.digest:
            faults.append(f"receipt {receipt.id} was changed: its sha256 does not fit what it says")
        if receipt.previous != before:
            faults.append(f"receipt {receipt.id} does not follow the one before it: something was taken out")
        before = receipt.sha256
    return faults


def _append(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    new = not path.exists()
    # Nobody else's business: with the key a name can be tried.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        file.seek(0, os.SEEK_END)
        whole = True
        if file.tell():
            file.seek(-1, os.SEEK_END)
            whole = file.read(1) == b"\n"
        # A line that was torn by a crash ends here, and is passed over by those who read.
        text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        file.write((text if whole else "\n" + text).encode())
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    if os.name != "posix":
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _line(raw: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _told(erasure: Erasure) -> dict[str, Any]:
    return {
        "id": erasure.id,
        "subject": erasure.subject,
        "parts": list(erasure.parts),
        "requested_at": erasure.requested_at.isoformat(),
        "elsewhere": dict(erasure.elsewhere),
    }


def _entered(told: Any) -> Erasure:
    return Erasure(
        id=str(told["id"]),
        subject=str(told["subject"]),
        parts=tuple(map(str, told["parts"])),
        requested_at=datetime.fromisoformat(told["requested_at"]),
        elsewhere=MappingProxyType(dict(told.get("elsewhere", {}))),
    )
