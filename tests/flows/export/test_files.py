"""Paths that exports may be written to and read from, and exports and imports that are interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, NotFound, StoreUnavailable
from recollect.types import Progress
from tests.embedders import HashEmbedder
from tests.flows.export.export_file import read

ROOT = Path(__file__).resolve().parents[3]


class TestFiles:
    async def test_export_file_has_mode_0600_and_no_leftovers(self, memory: AgentMemory, tmp_path: Path):
        old = os.umask(0)
        try:
            await memory.export(tmp_path / "a.jsonl")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600
        assert [name for name in os.listdir(tmp_path) if "agent.db" not in name] == ["a.jsonl"]

    async def test_export_overwrites_only_exports_and_only_on_request(self, memory: AgentMemory, tmp_path: Path):
        path = tmp_path / "a.jsonl"
        await memory.export(path)
        await memory.remember("Something new.")
        with pytest.raises(BadInput, match="overwrite=True"):
            await memory.export(path)
        assert len(read(path)) == 2
        await memory.export(path, overwrite=True)
        assert len(read(path)) == 3
        path.write_text("a diary\n", "utf-8")
        with pytest.raises(BadInput, match="not an export"):
            await memory.export(path, overwrite=True)
        assert path.read_text("utf-8") == "a diary\n"

    async def test_links_devices_and_directories_are_rejected(self, memory: AgentMemory, tmp_path: Path):
        await memory.export(tmp_path / "a.jsonl")
        (tmp_path / "link").symlink_to(tmp_path / "a.jsonl")
        (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere.jsonl")
        os.mkfifo(tmp_path / "pipe")
        for place in (tmp_path / "link", tmp_path / "dangling", tmp_path / "pipe", Path("/dev/null"), tmp_path):
            for overwrite in (False, True):
                with pytest.raises(BadInput):
                    await memory.export(place, overwrite=overwrite)
            async with asyncio.timeout(10):
                with pytest.raises(BadInput):
                    await memory.import_from(place)
        assert not (tmp_path / "elsewhere.jsonl").exists()

    @pytest.mark.parametrize("path", ["", " ", "a\x00b", 7, None, "..", "/"])
    async def test_invalid_path_raises_bad_input(self, memory: AgentMemory, path: Any):
        for use in (memory.export, memory.import_from):
            with pytest.raises(BadInput):
                await use(path)

    async def test_missing_file_or_directory_raises(self, memory: AgentMemory, tmp_path: Path):
        with pytest.raises(NotFound, match="no file"):
            await memory.import_from(tmp_path / "none.jsonl")
        with pytest.raises(StoreUnavailable):
            await memory.export(tmp_path / "no" / "such" / "directory.jsonl")

    async def test_failed_export_leaves_no_file(self, memory: AgentMemory, tmp_path: Path):
        await memory.remember("Ada prefers metric units.")

        directory = tmp_path / "out"
        directory.mkdir()

        def stop(progress: Progress) -> None:
            raise RuntimeError("the callback failed")

        with pytest.raises(RuntimeError):
            await memory.export(directory / "a.jsonl", progress=stop)
        assert list(directory.iterdir()) == []


KILLED = """
import asyncio, os, signal, sys
from recollect import AgentMemory
from tests.embedders import HashEmbedder

def progress(progress):
    if progress.done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with AgentMemory.open(sys.argv[1], user="ada", embedder=HashEmbedder()) as memory:
        await memory.import_from(sys.argv[2], progress=progress)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [200, 600, 800])
async def test_killed_import_completes_when_run_again(tmp_path: Path, after: int):
    options: dict[str, Any] = {"user": "ada", "embedder": HashEmbedder()}
    async with AgentMemory.open("memory://", **options) as memory:
        await memory.semantic.add_many([{"content": f"fact number {n}"} for n in range(500)])
        for n in range(60):
            await memory.scoped(session="s1").record_turn(f"message {n} about tea", f"answer {n}")
            await memory.procedural.save(f"p.{n}", "Push a tag.")
        await memory.export(tmp_path / "a.jsonl")
    store, file = tmp_path / "fresh.db", tmp_path / "a.jsonl"
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED, str(store), str(file), str(after)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL
    async with AgentMemory.open(store, **options) as fresh:
        taken = await fresh.import_from(file)
        assert sum(taken.added.values()) > 0
        await fresh.export(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == file.read_bytes()
