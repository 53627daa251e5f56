"""Contract of provable erasure: the store protocol, the ledger of erasures, and chained receipts without names."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from recollect.clock import to_utc
from recollect.errors import BadInput, NotFound
from recollect.stores.base import Store
from recollect.stores.codec import (
    decode_choice,
    decode_counts,
    decode_float,
    decode_int,
    decode_optional_text,
    decode_text,
    decode_text_mapping,
    decode_texts,
    detect_corruption,
)
from recollect.stores.writes import Write
from recollect.types import EMPTY_MAPPING, Space

ReceiptStatus = Literal["complete", "pending_physical"]
_FORMAT_KEY = "recollect_erasure"
_FORMAT_VERSION = 1
_KEY_FIELDS = ("evidence_key_sha256", "evidence_key")


@dataclass(frozen=True, slots=True)
class ByteScan:
    """Result of a search for deleted data in every byte that a store owns."""

    files: int = 0
    bytes: int = 0
    pieces: int = 0
    """Number of pieces of texts, ids and vectors that were searched for."""
    of: int = 0
    """Number of pieces deleted; higher than `pieces` if those are a sample."""
    shared: int = 0
    """Pieces found that existing rows also contain."""
    found: int = 0
    """Pieces found outside existing rows."""
    words: int = 0
    """Terms in an index that no item has."""
    unseen: tuple[str, ...] = ()
    """Places with possible copies that the store cannot read, one sentence each."""
    waits: tuple[str, ...] = ()
    """Actions required before the erasure is complete, one sentence each."""
    writers_waited: float = 0.0
    """Seconds for which the removal of the bytes before this scan kept other connections from writing to a file."""

    @property
    def is_clean(self) -> bool:
        return self.found == 0 and self.words == 0 and not self.waits

    def merge(self, other: ByteScan) -> ByteScan:
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _FIELDS}
        return ByteScan(**sums | {name: tuple(dict.fromkeys(sums[name])) for name in ("unseen", "waits")})

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; empty lists of sentences, and a wait of 0 seconds, are left out."""
        values = {name: getattr(self, name) for name in _FIELDS}
        # Receipts of release 0.1 have no `writers_waited`, and keep their digest.
        left_out = {name for name in _OPTIONAL_FIELDS if not values[name]}
        return {name: _encode_value(value) for name, value in values.items() if name not in left_out}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ByteScan:
        decoders: dict[str, Callable[[str, Any], Any]] = {name: _OPTIONAL_FIELDS.get(name, decode_int) for name in data}
        return cls(**{name: decode(name, data[name]) for name, decode in decoders.items()})


_FIELDS = tuple(field.name for field in fields(ByteScan))
_OPTIONAL_FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "unseen": decode_texts, "waits": decode_texts, "writers_waited": decode_float,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """Proof of an erasure: counts by tier and the result of the byte scan, without content or names.

    `subject` is the sha256 of the erased scope, keyed by the salt of the store. A receipt that is not complete has no
    `completed_at` and no place in the chain.
    """

    id: str
    subject: str
    parts: tuple[str, ...]
    status: ReceiptStatus
    requested_at: datetime
    deleted_at: datetime | None = None
    completed_at: datetime | None = None
    erased: Mapping[str, int] = field(default_factory=lambda: EMPTY_MAPPING)
    """Deleted rows by tier: items, entries and tasks, including expired and derived ones.

    An indexed message counts as two rows and a summary as one, while `Stats` counts each message once.
    """
    rederived: int = 0
    """Number of rows that were rewritten without the erased content."""
    scan: ByteScan = ByteScan()
    previous: str | None = None
    """The sha256 of the previous receipt; None for the first."""
    sha256: str = ""
    evidence_key_sha256: str = ""
    """The sha256 of the evidence key; empty in receipts of release 0.1, whose evidence is keyed by the store's salt."""
    evidence_key: str = ""
    """Key of the hashes of the erased data, in hex. Only the receipt that `erase` returns has it; stores drop it."""

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @property
    def found_nothing(self) -> bool:
        """True if the store held no data of the subject. An older copy may still hold some, so the receipt is kept."""
        return not any(self.erased.values()) and not self.rederived

    @property
    def digest(self) -> str:
        """The sha256 that belongs in this receipt."""
        values = {name: value for name, value in self.as_json().items() if name not in ("sha256", "evidence_key")}
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def chain_to(self, previous: str | None, at: datetime) -> ErasureReceipt:
        """Return the completed receipt, chained to the sha256 of the previous one."""
        chained = replace(self, status="complete", completed_at=at, previous=previous)
        return replace(chained, sha256=chained.digest)

    def as_json(self) -> dict[str, Any]:
        values = {field.name: _encode_value(getattr(self, field.name)) for field in fields(self)}
        left_out = {name for name in _KEY_FIELDS if not values[name]}
        return {_FORMAT_KEY: _FORMAT_VERSION, **{name: value for name, value in values.items() if name not in left_out}}

    @classmethod
    def from_json(cls, data: Any) -> ErasureReceipt:
        """Return the receipt from its JSON object; raise `BadInput` if it is not one."""
        try:
            if data[_FORMAT_KEY] != _FORMAT_VERSION:
                raise BadInput(f"a receipt must have format {_FORMAT_VERSION}; got {data[_FORMAT_KEY]!r:.20}")
            return cls(
                id=decode_text("id", data["id"]),
                subject=decode_text("subject", data["subject"]),
                parts=decode_texts("parts", data["parts"]),
                status=decode_choice("status", data["status"], get_args(ReceiptStatus)),
                requested_at=datetime.fromisoformat(data["requested_at"]),
                deleted_at=_parse_moment(data["deleted_at"]),
                completed_at=_parse_moment(data["completed_at"]),
                erased=MappingProxyType(decode_counts("erased", data["erased"])),
                rederived=decode_int("rederived", data["rederived"]),
                scan=ByteScan.from_json(data["scan"]),
                previous=decode_optional_text("previous", data["previous"]),
                sha256=decode_text("sha256", data["sha256"]),
                **{name: decode_text(name, data[name]) for name in _KEY_FIELDS if name in data},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"not a receipt of an erasure: {error!r:.120}") from error

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {tier}" for tier, count in sorted(self.erased.items()) if count)
        scan = self.scan
        total = "" if scan.pieces == scan.of else f" of {scan.of:,}"
        pieces = f"{scan.pieces:,}{total} piece{'s' * (scan.of != 1)}"
        searched = f"{scan.bytes:,} bytes of {scan.files} file{'s' * (scan.files != 1)}"
        lines = [
            f"erasure {self.id}: {self.status}",
            f"  erased     {counts or 'nothing was there'}",
            f"  rederived  {self.rederived:,}",
            f"  looked for {pieces} in {searched}: {scan.found + scan.words} found",
        ]
        if scan.writers_waited:
            lines.append(f"  writers    waited {scan.writers_waited:,.3f} s")
        lines += [f"  not seen   {place}" for place in scan.unseen]
        lines += [f"  waits for  {action}" for action in scan.waits]
        if self.complete:
            lines.append(f"  sha256     {self.sha256}, after {self.previous or 'none'}")
        return "\n".join(lines)


def _encode_value(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case ByteScan():
            return value.as_json()
        case tuple():
            return list(value)
        case Mapping():
            return dict(sorted(value.items()))
    return value


def _parse_moment(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)


ErasurePhase = Literal["entered", "deleted", "complete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord:
    """Row of the erasure ledger: the subject as a hash, and the progress of its erasure."""

    id: str
    subject: str
    parts: tuple[str, ...]
    requested_at: datetime
    elsewhere: Mapping[str, str] = field(default_factory=lambda: EMPTY_MAPPING)
    """Hash of the subject in each other store, by the fingerprint of the salt of that store."""
    phase: ErasurePhase = "entered"
    deleted_at: datetime | None = None
    erased: Mapping[str, int] = field(default_factory=lambda: EMPTY_MAPPING)
    rederived: int = 0
    evidence: bytes = b""
    """Keyed hashes that let the store search for the deleted data; no text, name or vector."""
    key: bytes = b""
    """Random key of these hashes. The store drops it when the erasure is complete: then only the receipt has it."""
    receipt: ErasureReceipt | None = None

    def as_json_columns(self) -> dict[str, Any]:
        """Return the fields of the row, with collections and the receipt as JSON texts."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        texts = {name: json.dumps(_encode_value(columns[name])) for name in ("parts", "elsewhere", "erased")}
        return columns | texts | {"receipt": self.receipt and json.dumps(self.receipt.as_json())}

    @classmethod
    def from_json_columns(
        cls, *, parts: str, elsewhere: str, erased: str, receipt: str | None, **rest: Any
    ) -> ErasureRecord:
        """Return the row from its JSON columns and its other fields."""
        with detect_corruption("a row of the erasure ledger"):
            return cls(
                parts=decode_texts("parts", json.loads(parts)),
                elsewhere=MappingProxyType(decode_text_mapping("elsewhere", json.loads(elsewhere))),
                erased=MappingProxyType(decode_counts("erased", json.loads(erased))),
                receipt=None if receipt is None else ErasureReceipt.from_json(json.loads(receipt)),
                **rest,
            )


@dataclass(frozen=True, slots=True)
class ErasureSelection:
    """Data to delete in one transaction: whole spaces, and writes for rows of shared spaces."""

    spaces: tuple[Space, ...] = ()
    writes: tuple[Write, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spaces or self.writes)


ErasureChange = Callable[[ErasureRecord | None, ErasureReceipt | None], ErasureRecord]
"""A pure function from a row of the ledger and the last receipt of the chain to the new row."""


@runtime_checkable
class ErasureStore(Store, Protocol):
    """Store that can prove that deleted data is gone."""

    @property
    def receipts(self) -> Path | None:
        """File with copies of the receipts, which survives the restore of an older store; None if there is none."""
        return None

    @abstractmethod
    async def salt(self) -> bytes:
        """Return the key of the hashed subjects, which is created with the store and shared by its copies.

        It is available while the store is open, also if the server is down.
        """

    @abstractmethod
    async def set_salt(self, salt: bytes) -> None:
        """Replace the key by that of existing receipts; raise `Conflict` if the ledger is not empty."""

    @abstractmethod
    async def ledger(self, *, unfinished: bool = False) -> list[ErasureRecord]:
        """Return the erasures: complete ones in the order of their chain, then the others by time.

        With `unfinished`, complete ones are left out.
        """

    @abstractmethod
    async def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        """Replace a row of the ledger durably, in one transaction, and return the new row.

        `change` gets the row, or None if there is none, and the last receipt of the chain. It may be called again. A
        row that gets its receipt becomes the last of the chain, and only a sample of its evidence is kept.
        """

    @abstractmethod
    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        """Delete the selection and record its counts and evidence in the same transaction.

        A deleted space leaves no items, terms, vectors, entries, tasks, filter paths or name. Several calls add up in
        the row. Servers that share no transaction use one each.
        """

    @abstractmethod
    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        """Search for deleted bytes in everything that the store owns; the result names the places it cannot read.

        `key` is the key of the hashes in `evidence`.
        """

    async def purge_copies(self, *, thorough: bool = False, deferrable: bool = False) -> bool:
        """Remove remaining copies from caches and logs; return False if that has to be repeated later.

        With `thorough`, a store on a server also overwrites files that all databases of the server share. With
        `deferrable`, a store may skip a step for which writers would wait too long.
        """
        return True

    async def add_erasure(self, record: ErasureRecord) -> None:
        """Add an erasure; an existing one is not changed."""
        await self.change_erasure(record.id, lambda row, last: row or record)

    async def mark_deleted(self, id: str, at: datetime) -> None:
        """Record that all rows of the erasure are deleted."""

        def mark(row: ErasureRecord | None, last: ErasureReceipt | None) -> ErasureRecord:
            row = require_erasure(id, row)
            return replace(row, phase="deleted", deleted_at=to_utc(at)) if row.phase == "entered" else row

        await self.change_erasure(id, mark)

    async def finish_erasure(self, receipt: ErasureReceipt, at: datetime) -> ErasureReceipt:
        """Chain the receipt to the previous one and store it; return it, or the one that another process has stored."""

        def finish(row: ErasureRecord | None, last: ErasureReceipt | None) -> ErasureRecord:
            row = require_erasure(receipt.id, row)
            if row.receipt is not None:
                return row
            kept = replace(receipt, evidence_key="")
            chained = kept.chain_to(None if last is None else last.sha256, at)
            return replace(row, phase="complete", receipt=chained, key=b"")

        finished = (await self.change_erasure(receipt.id, finish)).receipt
        assert finished is not None
        return finished

    async def list_traced_spaces(self) -> list[Space]:
        """Return every space of every tenant that the store has a trace of, also empty ones."""
        return [trace.space for trace in await self.trace_spaces()]


def require_erasure(id: str, row: ErasureRecord | None) -> ErasureRecord:
    """Return the row; raise `NotFound` if there is none."""
    if row is None:
        raise NotFound(f"no erasure {id!r} in this store's ledger; add it first")
    return row
