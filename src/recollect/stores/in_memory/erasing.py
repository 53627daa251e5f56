"""The ledger of erasures in a dictionary: nothing is kept anywhere else, so that what is deleted is gone."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import replace
from datetime import datetime

from recollect.errors import Conflict, NotFound
from recollect.stores.erasing import Erasure
from recollect.stores.in_memory.undo import Undo
from recollect.stores.receipts import ErasureReceipt


class Erasures:
    """Every erasure by its id, and the order in which they were completed."""

    def __init__(self) -> None:
        self.salt = secrets.token_bytes(32)
        self._rows: dict[str, Erasure] = {}
        self._chain: list[str] = []

    def resalt(self, salt: bytes) -> None:
        if self._rows:
            raise Conflict("this store has a ledger of erasures with a key of its own; open another")
        self.salt = salt

    def rows(self) -> list[Erasure]:
        open_ones = [row for row in self._rows.values() if row.receipt is None]
        return [
            *(self._rows[id] for id in self._chain),
            *sorted(open_ones, key=lambda row: (row.requested_at, row.id)),
        ]

    def enter(self, erasure: Erasure) -> None:
        self._rows.setdefault(erasure.id, erasure)

    def add(self, id: str, erased: Counter[str], rederived: int, undo: Undo) -> None:
        row = self._row(id)
        total = Counter(row.erased) + erased
        undo.set(self._rows, id, replace(row, erased=dict(total), rederived=row.rederived + rederived))

    def deleted(self, id: str, at: datetime) -> None:
        row = self._row(id)
        if row.phase == "entered":
            self._rows[id] = replace(row, phase="deleted", deleted_at=at)

    def finish(self, receipt: ErasureReceipt, at: datetime) -> ErasureReceipt:
        row = self._row(receipt.id)
        if row.receipt is not None:
            return row.receipt
        before = self._rows[self._chain[-1]].receipt if self._chain else None
        done = receipt.after(None if before is None else before.sha256, at)
        self._rows[row.id] = replace(row, phase="complete", receipt=done)
        self._chain.append(row.id)
        return done

    def _row(self, id: str) -> Erasure:
        if id not in self._rows:
            raise NotFound(f"there is no erasure {id!r} in this store's ledger; enter it first")
        return self._rows[id]
