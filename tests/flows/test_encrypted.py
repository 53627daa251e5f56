"""A memory with a key, from end to end: backed up, erased, restored, moved and exported like any other."""

from __future__ import annotations

from pathlib import Path

from recollect import AgentMemory, Settings
from recollect.memory import migrate_store, restore_store
from tests.embedders import HashEmbedder

SETTINGS = Settings(encryption_key="feed" * 16)
SAID = "The code of the locker is heliotrope."


def opened(path: Path, user: str = "ada"):
    return AgentMemory.open(path, user=user, embedder=HashEmbedder(), settings=SETTINGS)


def held(folder: Path) -> bytes:
    return b"\0".join(file.read_bytes() for file in folder.iterdir())


async def test_everything_that_is_done_to_a_store_is_done_to_an_encrypted_one(tmp_path: Path):
    store, backup, restored, moved = (tmp_path / f"{name}.db" for name in ("agent", "backup", "restored", "moved"))
    async with opened(store) as memory:
        await memory.remember(SAID)
        await memory.scoped(user="bob").remember("Bob likes tea.")
        await memory.record_turn("Where is the heliotrope?", "In the locker.")
        await memory.lifecycle.run_once()
        await memory.backup(str(backup))
        assert b"heliotrope" not in held(tmp_path)
        receipt = await memory.erase(user="ada")
        assert receipt.complete
        assert receipt.scan.pieces > 0
        assert (await memory.verify_erasure(receipt)).holds
        assert await memory.check() == []
    async with opened(backup) as old:
        assert "heliotrope" in str(await old.recall("the code of the locker"))
    done = await restore_store(backup, restored, tmp_path / "agent.db.erasures.jsonl", settings=SETTINGS)
    assert len(done.replayed) == 1
    assert (await migrate_store(restored, moved, settings=SETTINGS)).held > 0
    for path in (restored, moved):
        async with opened(path) as again:
            assert not await again.recall("the code of the locker")
        async with opened(path, "bob") as bobs:
            assert "tea" in str(await bobs.recall("tea"))
    assert b"heliotrope" not in held(tmp_path)
    async with opened(moved, "bob") as memory:
        await memory.export(str(tmp_path / "export.jsonl"))  # which is for reading, and not encrypted
    assert b"likes tea" in (tmp_path / "export.jsonl").read_bytes()
