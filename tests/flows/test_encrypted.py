"""An encrypted memory end to end: backup, erase, restore, migrate and export."""

from __future__ import annotations

from pathlib import Path

from recollect import AgentMemory, Settings
from recollect.portability.migration import migrate_store
from recollect.portability.restore import restore_store
from tests.embedders import HashEmbedder

SETTINGS = Settings(encryption_key="feed" * 16)
SAID = "The code of the locker is heliotrope."


def open_encrypted(path: Path, user: str = "ada"):
    return AgentMemory.open(path, user=user, embedder=HashEmbedder(), settings=SETTINGS)


def read_folder(folder: Path) -> bytes:
    return b"\0".join(file.read_bytes() for file in folder.iterdir())


async def test_encrypted_store_supports_backup_erase_restore_migrate_and_export(tmp_path: Path):
    store, backup, restored, moved = (tmp_path / f"{name}.db" for name in ("agent", "backup", "restored", "moved"))
    async with open_encrypted(store) as memory:
        await memory.remember(SAID)
        await memory.scoped(user="bob").remember("Bob likes tea.")
        await memory.record_turn("Where is the heliotrope?", "In the locker.")
        await memory.lifecycle.run_once()
        await memory.backup(str(backup))
        assert b"heliotrope" not in read_folder(tmp_path)
        receipt = await memory.erase(user="ada")
        assert receipt.complete
        assert receipt.scan.pieces > 0
        assert (await memory.verify_erasure(receipt)).holds
        assert await memory.check() == []
    async with open_encrypted(backup) as old:
        assert "heliotrope" in str(await old.recall("the code of the locker"))
    done = await restore_store(backup, restored, tmp_path / "agent.db.erasures.jsonl", settings=SETTINGS)
    assert len(done.replayed) == 1
    assert (await migrate_store(restored, moved, settings=SETTINGS)).held > 0
    for path in (restored, moved):
        async with open_encrypted(path) as again:
            assert not await again.recall("the code of the locker")
        async with open_encrypted(path, "bob") as bobs:
            assert "tea" in str(await bobs.recall("tea"))
    assert b"heliotrope" not in read_folder(tmp_path)
    async with open_encrypted(moved, "bob") as memory:
        await memory.export(str(tmp_path / "export.jsonl"))  # an export is readable, not encrypted
    assert b"likes tea" in (tmp_path / "export.jsonl").read_bytes()
