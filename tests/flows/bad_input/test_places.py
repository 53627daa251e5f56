"""Wherever a memory is to be opened: what is no store of ours is named and left alone."""

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

from recollect import AgentMemory, BadSettings, SchemaTooNew, StoreCorrupt, StoreUnavailable
from tests.embedders import HashEmbedder


async def opened(place: Any) -> AgentMemory:
    return await AgentMemory.open(place, embedder=HashEmbedder())


def set_version(file: Path, change: int) -> None:
    connection = apsw.Connection(str(file))
    connection.pragma("user_version", connection.pragma("user_version") + change)
    connection.close()


@contextmanager
def public_directory() -> Iterator[Path]:
    """Where somebody else may look: pytest's own directories are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="recollect-test-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Without root's right to write everywhere, where the tests are run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_missing_directory(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await opened(tmp_path / "no" / "agent.db")


async def test_a_directory_as_a_file(tmp_path: Path):
    with pytest.raises(StoreUnavailable):
        await opened(tmp_path)


async def test_a_read_only_directory():
    with public_directory() as directory:
        directory.chmod(0o555)
        with as_somebody_else(), pytest.raises(StoreUnavailable):
            await opened(directory / "agent.db")


async def test_a_read_only_file():
    with public_directory() as directory:
        await (await opened(directory / "agent.db")).close()
        (directory / "agent.db").chmod(0o444)
        directory.chmod(0o555)
        with as_somebody_else(), pytest.raises(StoreUnavailable, match="writable"):
            await (await opened(directory / "agent.db")).remember("x")


@pytest.mark.parametrize(
    "content", [b"just some text, and quite a bit of it\n" * 100, b"\x00" * 4096, b"SQLite format 3"]
)
async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        await opened(file)
    assert file.read_bytes() == content


async def test_another_programs_database_is_left_alone(tmp_path: Path):
    file = tmp_path / "theirs.db"
    with apsw.Connection(str(file)) as theirs:
        theirs.execute("create table theirs (x); insert into theirs values (1)")
    theirs.close()
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        await opened(file)
    assert file.read_bytes() == before


async def test_a_newer_store_is_not_touched(tmp_path: Path):
    file = tmp_path / "agent.db"
    memory = await opened(file)
    await memory.remember("The cello is in the attic.")
    await memory.close()
    set_version(file, +1000)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await opened(file)
    set_version(file, -1000)
    async with await opened(file) as again:
        assert (await again.stats()).items == 1


@pytest.mark.parametrize("place", ["mysql://x", "://", {"semantik": "memory://"}, {"semantic": "nope://"}])
async def test_an_unknown_place(place: Any):
    with pytest.raises(BadSettings):
        await opened(place)


@pytest.mark.parametrize("store", ["", "  ", ":memory:", "file:x.db?mode=ro", 5, b"x.db", {"semantic": ""}])
async def test_a_store_that_can_only_be_a_mistake_is_refused(store: Any, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match="path"):
        await AgentMemory.open(store, embedder=HashEmbedder())
    assert os.listdir(tmp_path) == []
