"""What an erasure leaves behind: a receipt with counts, times and hashes, chained to the one before, and no names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, get_args

from recollect.errors import BadInput
from recollect.stores.damage import counts, maybe_text, one_of, text, texts, whole
from recollect.values import NOTHING

Status = Literal["complete", "pending_physical"]
_MARK = "recollect_erasure"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Scan:
    """What a look at every byte that a store owns has found of something deleted."""

    files: int = 0
    bytes: int = 0
    pieces: int = 0
    """How many pieces of texts, ids and vectors were looked for."""
    of: int = 0
    """How many there were; more than were looked for when these are a sample."""
    shared: int = 0
    """Found, and held by something that is still there: others said the same."""
    found: int = 0
    """Found where nothing is kept any more."""
    words: int = 0
    """Words in an index that no item has any more."""
    unseen: tuple[str, ...] = ()
    """Where copies may lie that nobody here can look at, a sentence each."""
    waits: tuple[str, ...] = ()
    """What somebody has to do before it can be called gone, a sentence each."""

    @property
    def clean(self) -> bool:
        return self.found == 0 and self.words == 0 and not self.waits

    def plus(self, other: Scan) -> Scan:
        both: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        told: dict[str, Any] = {
            name: tuple(dict.fromkeys(getattr(self, name) + getattr(other, name))) for name in _TOLD
        }
        return Scan(**both, **told)

    def as_json(self) -> dict[str, Any]:
        """Sentences only where there are any: a receipt without them reads as it always did."""
        told = {name: list(said) for name in _TOLD if (said := getattr(self, name))}
        return {name: getattr(self, name) for name in _COUNTS} | told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Scan:
        found: dict[str, Any] = counts("scan", {name: one for name, one in told.items() if name not in _TOLD})
        said: dict[str, Any] = {name: texts(name, told.get(name, [])) for name in _TOLD}
        return cls(**found, **said)


_TOLD = ("unseen", "waits")
_COUNTS = tuple(one.name for one in fields(Scan) if one.name not in _TOLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """That something was erased, how much of each tier, and how thoroughly it was looked for; never what or whose.

    `subject` is the sha256 of who was erased, keyed by the store's salt. A receipt that is not complete yet has
    neither `completed_at` nor a place in the chain.
    """

    id: str
    subject: str
    parts: tuple[str, ...]
    status: Status
    requested_at: datetime
    deleted_at: datetime | None = None
    completed_at: datetime | None = None
    erased: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """How many rows of each tier are gone: items, entries and tasks, those that had expired, and what is made of them.

    A message that is found by meaning is two, and a summary is one; `Stats` counts what was said, once.
    """
    rederived: int = 0
    """How many others were told anew without what is gone."""
    scan: Scan = Scan()
    previous: str | None = None
    """The sha256 of the receipt before; None for the first."""
    sha256: str = ""

    @property
    def complete(self) -> bool:
        return self.status == "complete"

    @property
    def found_nothing(self) -> bool:
        """Whether nothing was held of whoever was to go. It counts all the same: an older copy may hold something."""
        return not any(self.erased.values()) and not self.rederived

    @property
    def digest(self) -> str:
        """The sha256 that this receipt has to carry."""
        told = {name: value for name, value in self.as_json().items() if name != "sha256"}
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def after(self, previous: str | None, at: datetime) -> ErasureReceipt:
        """This receipt, completed and chained to the one before."""
        chained = replace(self, status="complete", completed_at=at, previous=previous)
        return replace(chained, sha256=chained.digest)

    def as_json(self) -> dict[str, Any]:
        moments = {name: getattr(self, name) for name in ("requested_at", "deleted_at", "completed_at")}
        return {
            _MARK: _FORMAT,
            "id": self.id,
            "subject": self.subject,
            "parts": list(self.parts),
            "status": self.status,
            **{name: None if at is None else at.isoformat() for name, at in moments.items()},
            "erased": dict(sorted(self.erased.items())),
            "rederived": self.rederived,
            "scan": self.scan.as_json(),
            "previous": self.previous,
            "sha256": self.sha256,
        }

    @classmethod
    def from_json(cls, told: Any) -> ErasureReceipt:
        """A receipt as it was printed; `BadInput` when it is none."""
        try:
            if told[_MARK] != _FORMAT:
                raise BadInput(f"this receipt has format {told[_MARK]!r:.20}, and this Recollect reads {_FORMAT}")
            return cls(
                id=text("id", told["id"]),
                subject=text("subject", told["subject"]),
                parts=texts("parts", told["parts"]),
                status=one_of("status", told["status"], get_args(Status)),
                requested_at=datetime.fromisoformat(told["requested_at"]),
                deleted_at=_moment(told["deleted_at"]),
                completed_at=_moment(told["completed_at"]),
                erased=MappingProxyType(counts("erased", told["erased"])),
                rederived=whole("rederived", told["rederived"]),
                scan=Scan.from_json(told["scan"]),
                previous=maybe_text("previous", told["previous"]),
                sha256=text("sha256", told["sha256"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"this is no receipt of an erasure: {error!r:.120}") from error

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {tier}" for tier, count in sorted(self.erased.items()) if count)
        scan = self.scan
        of = "" if scan.pieces == scan.of else f" of {scan.of:,}"
        looked = f"{scan.pieces:,}{of} piece{'s' * (scan.of != 1)}"
        within = f"{scan.bytes:,} bytes of {scan.files} file{'s' * (scan.files != 1)}"
        lines = [
            f"erasure {self.id}: {self.status}",
            f"  erased     {counts or 'nothing was there'}",
            f"  rederived  {self.rederived:,}",
            f"  looked for {looked} in {within}: {scan.found + scan.words} found",
        ]
        lines += [f"  not seen   {said}" for said in scan.unseen]
        lines += [f"  waits for  {said}" for said in scan.waits]
        if self.complete:
            lines.append(f"  sha256     {self.sha256}, after {self.previous or 'none'}")
        return "\n".join(lines)


def _moment(told: Any) -> datetime | None:
    return None if told is None else datetime.fromisoformat(told)
