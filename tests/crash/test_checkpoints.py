"""D3: a damaged checkpoint gives way to the one before it, with a word about it, and never to nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import StoreCorrupt
from recollect.runtime import Event
from recollect.stores.sqlite import tasks
from tests.crash import mutants
from tests.crash.agents import opened
from tests.crash.table import Table

VERSIONS = 3
DAMAGES = 150
# A small state lies among others in a page, a large one in pages of its own.
FILLS = (20, 3000, 30_000)


def state_of(version: int, fill: int) -> dict[str, Any]:
    return {"version": version, "fill": f"{version:05d}" * (fill // 5)}


async def kept(folder: Path, fill: int) -> bytes:
    """A closed store with a few versions of one task, as bytes."""
    path = folder / f"whole{fill}.db"
    async with opened(path) as memory:
        for version in range(1, VERSIONS + 1):
            await memory.checkpoints.checkpoint("t", state_of(version, fill))
    return path.read_bytes()


def damaged(whole: bytes, version: int, fill: int, chance: random.Random) -> bytes:
    """One bit of the stored state is another: a number, a name or a bracket, wherever it falls."""
    text = f"{version:05d}".encode() * (min(fill, 1000) // 5)
    start = whole.index(text) - 30  # the state's own names stand before its fill
    place = start + chance.randrange(len(text) + 30)
    broken = bytearray(whole)
    broken[place] ^= 1 << chance.randrange(8)
    return bytes(broken)


async def restored(path: Path) -> tuple[dict[str, Any] | None, list[Event]]:
    told: list[Event] = []
    async with opened(path) as memory:
        memory.checkpoints.on_event = told.append
        return await memory.checkpoints.restore("t"), told


async def believed(folder: Path, chance: random.Random, many: int) -> tuple[list[str], int]:
    """Of so many damages, those after which something was restored that was never saved, or nothing, or silently."""
    found: list[str] = []
    seen = 0
    for fill in FILLS:
        whole = await kept(folder, fill)
        for number in range(many // len(FILLS)):
            path = folder / f"damaged{fill}-{number}.db"
            path.write_bytes(damaged(whole, VERSIONS, fill, chance))
            try:
                state, told = await restored(path)
            except StoreCorrupt as error:
                # Else the bit was not the state's but the page's, and SQLite has seen it.
                found += [str(error)] if "every kept version" in str(error) else []
                continue
            seen += 1
            if state == state_of(VERSIONS, fill) and not told:
                continue
            if state != state_of(VERSIONS - 1, fill) or [event.kind for event in told] != ["corrupt"]:
                found.append(f"restored {str(state)[:60]} and told {[event.kind for event in told]}")
    return found, seen


async def test_a_damaged_checkpoint_gives_way_to_the_one_before(quick: Path, chance: random.Random, table: Table):
    found, seen = await believed(quick, chance, DAMAGES)
    table.held("D3", f"{seen} times one bit of the newest checkpoint flipped in the file", len(found))
    assert found == []
    assert seen > DAMAGES // 2


async def test_with_every_version_damaged_it_is_said(quick: Path, chance: random.Random):
    whole = await kept(quick, 3000)
    for version in range(1, VERSIONS + 1):
        text = f"{version:05d}".encode() * 200
        whole = whole.replace(text, text.replace(b"0", b"7", 1))
    path = quick / "all.db"
    path.write_bytes(whole)
    with pytest.raises(StoreCorrupt, match="every kept version"):
        await restored(path)


async def test_a_checksum_that_nobody_looks_at_is_seen(
    quick: Path, chance: random.Random, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "_checkpoint", tasks._checkpoint)  # so that it comes back when the test is over
    mutants.unchecked()
    found, seen = await believed(quick, chance, 30)
    table.seen("D3", f"no checksum, {seen} bits", len(found))
    assert found
