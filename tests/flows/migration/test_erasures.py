"""What a migration makes of erasures: nobody who is on their way out is copied, and receipts are told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect import AgentMemory, Conflict
from recollect.memory import migrate_store
from recollect.stores.erasing import Erasure
from recollect.stores.sqlite import SqliteStore
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder


async def test_receipts_stay_with_the_store_that_they_are_verified_by(source: Path, clock: ManualClock, tmp_path: Path):
    assert (await migrate_store(source, tmp_path / "early.db")).notes == ()
    async with AgentMemory.open(source, embedder=HashEmbedder(), clock=clock, tenant="acme") as memory:
        await memory.erase(user="ada")
    report = await migrate_store(source, tmp_path / "late.db")
    assert len(report.notes) == 1
    assert "1 erasures" in report.notes[0]


async def test_one_who_is_being_erased_is_not_copied(source: Path, clock: ManualClock, tmp_path: Path):
    # Mutant: the ledger is not looked at.
    store = SqliteStore.open(source, clock=clock)
    await store.enter(Erasure(id="e1", subject="0" * 64, parts=("user",), requested_at=clock()))
    await store.close()
    with pytest.raises(Conflict, match="recollect lifecycle"):
        await migrate_store(source, tmp_path / "target.db")
