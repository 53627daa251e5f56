"""The disk that loses power keeps what was synced, and of the rest whatever a real one could."""

from __future__ import annotations

import random

from tests.crash.disk import (
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


def after(*events: Event) -> Disk:
    disk = Disk()
    for event in events:
        disk.apply(event)
    return disk


def test_what_was_synced_is_kept_and_the_rest_is_not():
    disk = after(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Wrote(3, 3, b"two"))
    assert disk.with_nothing_unsynced() == {"a": b"one"}
    assert disk.with_all() == {"a": b"onetwo"}
    assert disk.at_risk == 1


def test_a_sync_covers_only_what_was_written_before_it_began():
    disk = after(OPEN, FolderSynced(), Wrote(3, 0, b"one"), SyncBegan(1, 3), Wrote(3, 3, b"two"), SyncEnded(1))
    assert disk.with_nothing_unsynced() == {"a": b"one"}


def test_a_name_is_as_volatile_as_the_bytes():
    assert after(OPEN, Wrote(3, 0, b"one"), *SYNC).with_nothing_unsynced() == {}
    removed = after(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Removed("a"))
    assert (removed.with_all(), removed.with_nothing_unsynced()) == ({}, {"a": b"one"})
    # The file that is made in its place is another.
    again = after(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Removed("a"), OPEN, Wrote(3, 0, b"2"))
    assert (again.with_all(), again.with_nothing_unsynced()) == ({"a": b"2"}, {"a": b"one"})


def test_a_file_that_is_cut_may_come_back_in_its_old_length():
    disk = after(OPEN, FolderSynced(), Wrote(3, 0, b"one"), *SYNC, Cut(3, 1))
    assert (disk.with_all(), disk.with_nothing_unsynced()) == ({"a": b"o"}, {"a": b"one"})


def test_of_what_was_not_synced_any_sectors_may_be_there():
    old, new = b"o" * 4 * SECTOR, b"n" * 4 * SECTOR
    disk = after(OPEN, FolderSynced(), Wrote(3, 0, old), *SYNC, Wrote(3, 0, new), Wrote(3, 4 * SECTOR, new))
    chance = random.Random(1)
    seen = {disk.with_some(chance)["a"] for _ in range(500)}
    for content in seen:
        sectors = [content[start : start + SECTOR] for start in range(0, len(content), SECTOR)]
        assert all(len(set(sector)) == 1 for sector in sectors), "a sector is whole or not there"
    assert old in seen
    assert new + new in seen
    assert old + new in seen, "the later write may come first"
    assert any(0 < content[: 4 * SECTOR].count(b"n") < 4 * SECTOR for content in seen), "a write may be torn"
