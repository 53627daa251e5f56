"""Migration and erasures: a pending erasure blocks the migration, and receipts are noted in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import Conflict
from recollect.portability.migration import migrate_store
from recollect.stores.erasure import ErasureRecord
from recollect.stores.sqlite import SqliteStore
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder


async def test_receipts_are_not_migrated_and_are_noted(source: Path, clock: ManualClock, tmp_path: Path):
    assert (await migrate_store(source, tmp_path / "early.db")).notes == ()
    async with AgentMemory.open(source, embedder=HashEmbedder(), clock=clock, tenant="acme") as memory:
        await memory.erase(user="ada")
    report = await migrate_store(source, tmp_path / "late.db")
    assert len(report.notes) == 1
    assert "1 erasures" in report.notes[0]


async def test_migration_during_pending_erasure_raises_conflict(source: Path, clock: ManualClock, tmp_path: Path):
    # Mutant: the ledger is not read.
    store = SqliteStore.open(source, clock=clock)
    await store.add_erasure(ErasureRecord(id="e1", subject="0" * 64, parts=("user",), requested_at=clock()))
    await store.close()
    with pytest.raises(Conflict, match="recollect lifecycle"):
        await migrate_store(source, tmp_path / "target.db")
