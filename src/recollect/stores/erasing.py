"""What a store has to do so that an erasure can be proved: a ledger, a deletion, and a look at its own bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from recollect.stores.base import Store
from recollect.stores.damage import as_written, counts, named_texts, texts
from recollect.stores.ops import Write
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.values import NOTHING, Space

Phase = Literal["entered", "deleted", "complete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A row of the ledger: who is to go, as a hash, and how far that has got."""

    id: str
    subject: str
    parts: tuple[str, ...]
    requested_at: datetime
    elsewhere: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The subject's hash in every store that this concerns, by a fingerprint of that store's key."""
    phase: Phase = "entered"
    deleted_at: datetime | None = None
    erased: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    rederived: int = 0
    evidence: bytes = b""
    """What the store needs to look for what it deleted, in its own form; no text, no name, no vector."""
    receipt: ErasureReceipt | None = None

    @classmethod
    def of_texts(cls, *, parts: str, elsewhere: str, erased: str, receipt: str | None, **rest: Any) -> Erasure:
        """A row whose parts, hashes elsewhere, counts and receipt were kept as JSON."""
        with as_written("a row of the ledger of erasures"):
            return cls(
                parts=texts("parts", json.loads(parts)),
                elsewhere=MappingProxyType(named_texts("elsewhere", json.loads(elsewhere))),
                erased=MappingProxyType(counts("erased", json.loads(erased))),
                receipt=None if receipt is None else ErasureReceipt.from_json(json.loads(receipt)),
                **rest,
            )


@dataclass(frozen=True, slots=True)
class Doomed:
    """What goes in one transaction: whole spaces, and single things of spaces that others share."""

    spaces: tuple[Space, ...] = ()
    writes: tuple[Write, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spaces or self.writes)


@runtime_checkable
class Erasing(Store, Protocol):
    """A store that can prove that something is gone from it."""

    @property
    def receipts(self) -> Path | None:
        """Where receipts are kept beside the store, to survive the restoring of an older copy; None: nowhere."""

    async def salt(self) -> bytes:
        """The key of this store's hashes, made with the store and the same ever after, in its copies too.

        It is known as long as the store is open, also while the server is away.
        """

    async def resalt(self, salt: bytes) -> None:
        """Take the key that receipts beside the store were made with; `Conflict` once this store has a ledger."""

    async def holdings(self) -> list[Space]:
        """Every space that there is any trace of, of every tenant, whether it holds anything or not."""

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        """Every erasure that was entered, completed ones in the order of their chain, then the others by time.

        With `unfinished`, only those that are not complete.
        """

    async def enter(self, erasure: Erasure) -> None:
        """Note an erasure, durably; one that is there already stays as it is."""

    async def wipe(self, id: str, doomed: Doomed) -> None:
        """Delete, and write down in the same transaction what was deleted: its counts, and evidence to look for.

        Of a whole space nothing is left: items, words, vectors, entries, tasks, filter paths, nor its name. The row
        adds up over several calls. Where servers share no transaction it is one for each of them.
        """

    async def deleted(self, id: str) -> None:
        """Note that nothing is left to delete."""

    async def settle(self) -> bool:
        """Drop copies in memory and on disk that deleting left: caches, logs. False when somebody is in the way."""

    async def scan(self, evidence: bytes) -> Scan:
        """Look for deleted bytes in everything that this store owns; told is what it cannot look at."""

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        """Complete an erasure: chain its receipt to the one before and keep it, in one transaction."""
