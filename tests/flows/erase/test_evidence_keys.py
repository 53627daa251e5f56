"""The hashes of erased data have a random key that only the returned receipt keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from recollect import AgentMemory
from recollect.stores.erasure import ErasureReceipt, ErasureStore
from recollect.stores.traces import DeletionTraces, select_pieces
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder

SECRET = "Ada's locker in the north hall has the combination heliotrope."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


async def open_memory(path: Path, clock: ManualClock, user: str = "ops") -> AgentMemory:
    return await AgentMemory.open(str(path), user=user, embedder=HashEmbedder(), clock=clock)


async def erase_ada(path: Path, clock: ManualClock) -> ErasureReceipt:
    async with await open_memory(path, clock, "ada") as ada:
        await ada.remember(SECRET)
        return await ada.erase(user="ada")


def get_store(memory: AgentMemory) -> ErasureStore:
    [store] = memory._engine.stores.all_stores
    assert isinstance(store, ErasureStore)
    return store


async def test_no_file_of_a_store_holds_the_key_of_a_complete_erasure(path: Path, clock: ManualClock):
    # Mutants: the row keeps its key; the receipt is stored with it; the log is not emptied at the end.
    async with await open_memory(path, clock, "ada") as ada:
        await ada.remember(SECRET)
        receipt = await ada.erase(user="ada")
        content = b"".join(file.read_bytes() for file in path.parent.iterdir())
    key = bytes.fromhex(receipt.evidence_key)
    assert (receipt.complete, len(key), receipt.sha256) == (True, 32, receipt.digest)
    assert key not in content
    assert key.hex().encode() not in content


async def test_guess_cannot_be_tested_with_the_store_alone(path: Path, clock: ManualClock):
    # Mutant: the evidence is keyed by the salt, which is in the store.
    receipt = await erase_ada(path, clock)
    async with await open_memory(path, clock) as memory:
        store = get_store(memory)
        [row] = await store.ledger()
        pieces = list(select_pieces(SECRET.encode()))
        by_thief = DeletionTraces.from_pieces(await store.salt(), pieces)._rows
        by_owner = DeletionTraces.from_pieces(bytes.fromhex(receipt.evidence_key), pieces)._rows
    assert row.evidence
    assert not any(hashes.astype("<u8").tobytes() in row.evidence for hashes in by_thief)
    assert all(hashes.astype("<u8").tobytes() in row.evidence for hashes in by_owner)


async def test_receipt_with_its_key_is_verified_by_a_scan(path: Path, clock: ManualClock):
    receipt = await erase_ada(path, clock)
    async with await open_memory(path, clock) as memory:
        verified = await memory.verify_erasure(ErasureReceipt.from_json(receipt.as_json()))
        assert (verified.holds, verified.scan.found, verified.scan.pieces > 0) == (True, 0, True)
        await memory.remember(SECRET)  # stored again by another user
        assert (await memory.verify_erasure(receipt)).scan.shared > 0


async def test_receipt_without_its_key_is_verified_by_the_chain_alone(path: Path, clock: ManualClock):
    receipt = await erase_ada(path, clock)
    async with await open_memory(path, clock) as memory:
        verified = await memory.verify_erasure(replace(receipt, evidence_key=""))
    assert (verified.holds, verified.scan.pieces) == (True, 0)
    assert "only the receipt that `erase` returned has the key" in verified.scan.unseen[0]


@pytest.mark.parametrize("key", ["00" * 32, "not hex"])
async def test_receipt_with_another_key_does_not_hold(path: Path, clock: ManualClock, key: str):
    receipt = await erase_ada(path, clock)
    async with await open_memory(path, clock) as memory:
        verified = await memory.verify_erasure(replace(receipt, evidence_key=key))
    assert verified.faults == ("the evidence key is not that of the receipt",)


async def test_pending_erasure_keeps_its_key_until_it_is_complete(path: Path, clock: ManualClock):
    # Mutants: a pending row loses its key, so that the later scan looks for nothing; the pending receipt has no key.
    async with await open_memory(path, clock, "ada") as ada:
        await ada.remember(SECRET)
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("begin; select count(*) from records").fetchall()
        pending = await ada.erase(user="ada")
        [row] = await get_store(ada).ledger()
        assert (pending.complete, pending.evidence_key, len(row.key)) == (False, row.key.hex(), 32)
        reader.close()
        await ada.lifecycle.run_once()
        [row] = await get_store(ada).ledger()
        verified = await ada.verify_erasure(pending)
    assert (row.key, row.receipt is not None) == (b"", True)
    assert (verified.holds, verified.scan.pieces > 0, verified.scan.found) == (True, True, 0)
