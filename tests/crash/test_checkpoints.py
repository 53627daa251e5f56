"""D3: a damaged checkpoint falls back to the previous version, with an event, and never to an empty state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from recollect.durable import TaskEvent
from recollect.errors import StoreCorrupt
from recollect.stores.sqlite import tasks
from tests.crash import mutants
from tests.crash.result_table import Table
from tests.crash.task_worker import open_memory

VERSIONS = 3
DAMAGES = 150
# A small state shares a page with others, a large one has pages of its own.
FILLS = (20, 3000, 30_000)


def make_state(version: int, fill: int) -> dict[str, Any]:
    return {"version": version, "fill": f"{version:05d}" * (fill // 5)}


async def write_versions(folder: Path, fill: int) -> bytes:
    """Return the bytes of a closed store with a few versions of one task."""
    path = folder / f"whole{fill}.db"
    async with open_memory(path) as memory:
        for version in range(1, VERSIONS + 1):
            await memory.checkpoints.checkpoint("t", make_state(version, fill))
    return path.read_bytes()


def flip_bit(whole: bytes, version: int, fill: int, rng: random.Random) -> bytes:
    """Flip one random bit of the stored state."""
    text = f"{version:05d}".encode() * (min(fill, 1000) // 5)
    start = whole.index(text) - 30  # the keys of the state precede its fill
    place = start + rng.randrange(len(text) + 30)
    broken = bytearray(whole)
    broken[place] ^= 1 << rng.randrange(8)
    return bytes(broken)


async def restore(path: Path) -> tuple[dict[str, Any] | None, list[TaskEvent]]:
    events: list[TaskEvent] = []
    async with open_memory(path) as memory:
        memory.checkpoints.on_event = events.append
        return await memory.checkpoints.restore("t"), events


async def find_bad_restores(folder: Path, rng: random.Random, many: int) -> tuple[list[str], int]:
    """Flip `many` bits; return the wrong, missing or silent restores, and the number of bits that changed a state."""
    found: list[str] = []
    seen = 0
    for fill in FILLS:
        whole = await write_versions(folder, fill)
        for number in range(many // len(FILLS)):
            path = folder / f"damaged{fill}-{number}.db"
            path.write_bytes(flip_bit(whole, VERSIONS, fill, rng))
            try:
                state, events = await restore(path)
            except StoreCorrupt as error:
                # Otherwise the bit belonged to the page, and SQLite detected it.
                found += [str(error)] if "all stored versions" in str(error) else []
                continue
            seen += 1
            if state == make_state(VERSIONS, fill) and not events:
                continue
            if state != make_state(VERSIONS - 1, fill) or [event.kind for event in events] != ["corrupt"]:
                found.append(f"restored {str(state)[:60]} with events {[event.kind for event in events]}")
    return found, seen


@pytest.mark.promise("D3")
async def test_damaged_checkpoint_falls_back_to_previous_version(memory_dir: Path, rng: random.Random, table: Table):
    found, seen = await find_bad_restores(memory_dir, rng, DAMAGES)
    table.add_result("D3", f"{seen} times one bit of the newest checkpoint flipped in the file", len(found))
    assert found == []
    assert seen > DAMAGES // 2


async def test_restore_raises_when_every_version_is_damaged(memory_dir: Path, rng: random.Random):
    whole = await write_versions(memory_dir, 3000)
    for version in range(1, VERSIONS + 1):
        text = f"{version:05d}".encode() * 200
        whole = whole.replace(text, text.replace(b"0", b"7", 1))
    path = memory_dir / "all.db"
    path.write_bytes(whole)
    with pytest.raises(StoreCorrupt, match="all stored versions"):
        await restore(path)


@pytest.mark.mutant("D3")
async def test_ignored_checksum_is_detected(
    memory_dir: Path, rng: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "_decode_checkpoint", tasks._decode_checkpoint)  # restored at the end of the test
    mutants.ignore_checksum()
    found, seen = await find_bad_restores(memory_dir, rng, 30)
    table.add_mutant("D3", f"no checksum, {seen} bits", len(found))
    assert found
