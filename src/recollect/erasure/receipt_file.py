"""The receipt file beside a store: a restored older copy of the store learns from it what was erased since."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recollect.errors import BadInput, StoreCorrupt
from recollect.stores.erasure import ErasureReceipt, ErasureRecord

_FORMAT_KEY = "recollect_erasures"
_FORMAT_VERSION = 1


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
    """Append the erasures and receipts that the file lacks; they are on disk when this returns.

    Raises `BadInput` if the file belongs to another store.
    """
    file = read_receipt_file(path)
    if file is not None and file.salt != salt:
        raise BadInput(f"{path} is the receipt file of another store; move it away")
    ids = {erasure.id for erasure in file.erasures} if file is not None else set()
    digests = {receipt.sha256 for receipt in file.receipts} if file is not None else set()
    lines: list[dict[str, Any]] = [] if file is not None else [{_FORMAT_KEY: _FORMAT_VERSION, "salt": salt.hex()}]
    for erasure in erasures:
        if erasure.id not in ids:
            lines.append({"entered": _encode_erasure(erasure)})
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
        file.seek(0, os.SEEK_END)
        ends_with_newline = True
        if file.tell():
            file.seek(-1, os.SEEK_END)
            ends_with_newline = file.read(1) == b"\n"
        text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
        file.write((text if ends_with_newline else "\n" + text).encode())
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


def _encode_erasure(erasure: ErasureRecord) -> dict[str, Any]:
    return {
        "id": erasure.id,
        "subject": erasure.subject,
        "parts": list(erasure.parts),
        "requested_at": erasure.requested_at.isoformat(),
        "elsewhere": dict(erasure.elsewhere),
    }


def _decode_erasure(values: Any) -> ErasureRecord:
    return ErasureRecord(
        id=str(values["id"]),
        subject=str(values["subject"]),
        parts=tuple(map(str, values["parts"])),
        requested_at=datetime.fromisoformat(values["requested_at"]),
        elsewhere=MappingProxyType(dict(values.get("elsewhere", {}))),
    )
