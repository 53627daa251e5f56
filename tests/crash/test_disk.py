"""Tests of the disk model: synced bytes survive a power loss, and any part of the unsynced sectors may."""

from __future__ import annotations

import random

from tests.crash.disk_model import (
    SECTOR,
    Cut,
    Disk,
    Event,
    FolderSynced,
    Opened,
    Removed,
    SyncBegan,
    SyncEnded,
    Wrote,
)

OPEN = Opened(3, "a", False)
SYNC = (SyncBegan(1, 3), SyncEnded(1))


def apply_events(*events: Event) -> Disk:
    disk = Disk()
    for event in events:
        disk.apply(event)
    return disk


def test_disk_keeps_synced_bytes_and_loses_the_rest():
    disk = apply_events(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Wrote(3, 3, b"two"))
    assert disk.with_nothing_unsynced() == {"a": b"one"}
    assert disk.with_all() == {"a": b"onetwo"}
    assert disk.at_risk == 1


def test_sync_covers_only_writes_before_its_start():
    disk = apply_events(OPEN, FolderSynced(), Wrote(3, 0, b"one"), SyncBegan(1, 3), Wrote(3, 3, b"two"), SyncEnded(1))
    assert disk.with_nothing_unsynced() == {"a": b"one"}


def test_file_name_is_volatile_until_folder_sync():
    assert apply_events(OPEN, Wrote(3, 0, b"one"), *SYNC).with_nothing_unsynced() == {}
    removed = apply_events(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Removed("a"))
    assert (removed.with_all(), removed.with_nothing_unsynced()) == ({}, {"a": b"one"})
    # A file created under the same name is a different file.
    again = apply_events(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Removed("a"), OPEN, Wrote(3, 0, b"2"))
    assert (again.with_all(), again.with_nothing_unsynced()) == ({"a": b"2"}, {"a": b"one"})


def test_unsynced_truncate_may_be_undone():
    disk = apply_events(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Cut(3, 1))
    assert (disk.with_all(), disk.with_nothing_unsynced()) == ({"a": b"o"}, {"a": b"one"})


def test_unsynced_writes_may_persist_in_any_sectors():
    old, new = b"o" * 4 * SECTOR, b"n" * 4 * SECTOR
    disk = apply_events(OPEN, FolderSynced(), Wrote(3, 0, old), *SYNC, Wrote(3, 0, new), Wrote(3, 4 * SECTOR, new))
    rng = random.Random(1)
    seen = {disk.with_some(rng)["a"] for _ in range(500)}
    for content in seen:
        sectors = [content[start : start + SECTOR] for start in range(0, len(content), SECTOR)]
        assert all(len(set(sector)) == 1 for sector in sectors), "a sector is complete or absent"
    assert old in seen
    assert new + new in seen
    assert old + new in seen, "a later write may persist before an earlier one"
    assert any(0 < content[: 4 * SECTOR].count(b"n") < 4 * SECTOR for content in seen), "a write may be torn"
