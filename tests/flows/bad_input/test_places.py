"""Bad store locations: a file that is not a recollect store raises and is not changed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from recollect import AgentMemory
from recollect.errors import BadSettings, SchemaTooNew, StoreCorrupt, StoreUnavailable
from tests.embedders import HashEmbedder


async def open_memory(place: Any) -> AgentMemory:
    return await AgentMemory.open(place, embedder=HashEmbedder())


def set_version(file: Path, change: int) -> None:
    connection = apsw.Connection(str(file))
    connection.pragma("user_version", connection.pragma("user_version") + change)
    connection.close()


@contextmanager
def public_directory() -> Iterator[Path]:
    """Create a directory that other users may enter; pytest's directories are private."""
    directory = Path(tempfile.mkdtemp(prefix="recollect-test-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Drop root privileges if the tests run as root, because root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_open_in_a_missing_directory_raises(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await open_memory(tmp_path / "no" / "agent.db")


async def test_open_a_directory_raises(tmp_path: Path):
    with pytest.raises(StoreUnavailable):
        await open_memory(tmp_path)


async def test_open_in_a_read_only_directory_raises():
    with public_directory() as directory:
        directory.chmod(0o555)
        with as_unprivileged_user(), pytest.raises(StoreUnavailable):
            await open_memory(directory / "agent.db")


async def test_write_to_a_read_only_file_raises():
    with public_directory() as directory:
        await (await open_memory(directory / "agent.db")).close()
        (directory / "agent.db").chmod(0o444)
        directory.chmod(0o555)
        with as_unprivileged_user(), pytest.raises(StoreUnavailable, match="writable"):
            await (await open_memory(directory / "agent.db")).remember("x")


@pytest.mark.parametrize(
    "content", [b"just some text, and quite a bit of it\n" * 100, b"\x00" * 4096, b"SQLite format 3"]
)
async def test_open_a_file_that_is_not_a_database_leaves_it_unchanged(tmp_path: Path, content: bytes):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        await open_memory(file)
    assert file.read_bytes() == content


async def test_open_a_database_of_another_program_leaves_it_unchanged(tmp_path: Path):
    file = tmp_path / "theirs.db"
    with apsw.Connection(str(file)) as theirs:
        theirs.execute("create table theirs (x); insert into theirs values (1)")
    theirs.close()
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        await open_memory(file)
    assert file.read_bytes() == before


async def test_open_a_store_of_a_newer_version_leaves_it_unchanged(tmp_path: Path):
    file = tmp_path / "agent.db"
    memory = await open_memory(file)
    await memory.remember("The cello is in the attic.")
    await memory.close()
    set_version(file, +1000)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await open_memory(file)
    set_version(file, -1000)
    async with await open_memory(file) as again:
        assert (await again.stats()).items == 1


@pytest.mark.parametrize("place", ["mysql://x", "://", {"semantik": "memory://"}, {"semantic": "nope://"}])
async def test_open_with_an_unknown_url_raises(place: Any):
    with pytest.raises(BadSettings):
        await open_memory(place)


@pytest.mark.parametrize("store", ["", "  ", ":memory:", "file:x.db?mode=ro", 5, b"x.db", {"semantic": ""}])
async def test_open_with_an_invalid_store_raises_and_creates_nothing(store: Any, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match="path"):
        await AgentMemory.open(store, embedder=HashEmbedder())
    assert os.listdir(tmp_path) == []
