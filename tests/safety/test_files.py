"""Files that recollect writes: private, only at the given path, and without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import RecollectError
from recollect.portability.restore import restore_store
from tests.embedders import HashEmbedder


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Set the umask to 0, so that files are world-writable unless they are created private."""
    old = os.umask(0)
    yield
    os.umask(old)


def list_modes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.lstat().st_mode)
        for path in directory.rglob("*")
        if path.is_file()
    }


async def open_filled(place: Any, **more: Any) -> AgentMemory:
    memory = await AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder(), **more)
    await memory.remember("I live in Lisbon.")
    await memory.record_turn("Hello.", "Hi.")
    return memory


@pytest.mark.promise("S7")
async def test_written_files_are_private(tmp_path: Path):
    """Mutants: a store, a backup, an export or the receipt file is created with the default mode."""
    memory = await open_filled(tmp_path / "a.db")
    await memory.export(tmp_path / "a.jsonl")
    await memory.backup(tmp_path / "copy.db")
    await memory.erase(user="nobody")
    await memory.checkpoints.checkpoint("t", {"a": 1})
    while_open = list_modes(tmp_path)
    await memory.close()
    await restore_store(tmp_path / "copy.db", tmp_path / "again.db", tmp_path / "a.db.erasures.jsonl")
    found = while_open | list_modes(tmp_path)
    assert {"a.db", "a.db-wal", "a.db-shm", "a.jsonl", "copy.db", "again.db", "a.db.erasures.jsonl"} <= found.keys()
    # The reserve file contains only zeros.
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077 and "ballast" not in name} == {}


async def test_chroma_directory_is_private(tmp_path: Path):
    memory = await open_filled({"semantic": f"chroma:{tmp_path / 'c'}", "default": str(tmp_path / "a.db")})
    await memory.close()
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


Writer = Callable[[AgentMemory, Path, Path], Awaitable[Any]]
WRITERS: dict[str, Writer] = {
    "export": lambda memory, backup, path: memory.export(path),
    "export, overwriting": lambda memory, backup, path: memory.export(path, overwrite=True),
    "backup": lambda memory, backup, path: memory.backup(path),
    "restore": lambda memory, backup, path: restore_store(backup, path),
}


@pytest.mark.promise("S7")
@pytest.mark.parametrize("writer", WRITERS)
async def test_writers_do_not_overwrite_files_or_follow_links(writer: str, tmp_path: Path):
    """Mutants: an export follows a link to the file that it would replace; both `check_path_is_new` and the check of
    the backup test `exists`, while the copy is moved by `os.replace`."""
    memory = await open_filled(tmp_path / "a.db")
    await memory.backup(tmp_path / "backup.db")
    diary = tmp_path / "diary.txt"
    diary.write_text("mine", "utf-8")
    (tmp_path / "link").symlink_to(diary)
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "out")
    for name in ("link", "dangling", "directory", "pipe", "diary.txt", "a.db", "..", ".", "", "out/..", "no/such/file"):
        with pytest.raises(RecollectError):
            await WRITERS[writer](memory, tmp_path / "backup.db", tmp_path / name if name else Path())
    assert diary.read_text("utf-8") == "mine"
    assert not (tmp_path / "elsewhere").exists()
    assert list((tmp_path / "out").iterdir()) == []
    await memory.close()


@pytest.mark.parametrize("left", ["copy.db.partial", "copy.db.restoring", ".copy.db.partial"])
async def test_link_at_a_temporary_name_is_not_followed(left: str, tmp_path: Path):
    """Mutants: a backup or a restored store has a predictable temporary name."""
    memory = await open_filled(tmp_path / "a.db")
    await memory.backup(tmp_path / "backup.db")
    diary = tmp_path / "diary.txt"
    diary.write_text("mine", "utf-8")
    (tmp_path / left).symlink_to(diary)
    await memory.backup(tmp_path / "copy.db")
    await memory.close()
    (tmp_path / "copy.db").unlink()
    await restore_store(tmp_path / "backup.db", tmp_path / "copy.db")
    assert diary.read_text("utf-8") == "mine"
    assert (tmp_path / left).is_symlink()


async def test_restore_rejects_links_and_pipes(tmp_path: Path):
    memory = await open_filled(tmp_path / "a.db")
    await memory.backup(tmp_path / "backup.db")
    await memory.close()
    (tmp_path / "link").symlink_to(tmp_path / "backup.db")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "none"):
        with pytest.raises(RecollectError):
            await restore_store(tmp_path / name, tmp_path / "fresh.db")
    assert not (tmp_path / "fresh.db").exists()
