"""Contracts of a store as a whole: reopening, health and erasure."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, get_args

import pytest

from recollect.errors import Conflict, EmbeddingModelMismatch, FencedOut, LeaseHeld, NotFound, Unsupported
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.erasure import ErasureReceipt, ErasureRecord, ErasureSelection, ErasureStore
from recollect.stores.filters import Where
from recollect.stores.health import RepairTarget
from recollect.stores.writes import Delete, DropTask, Embed, Touch, Write
from recollect.testing.factories import (
    ADA,
    BOB,
    EAST,
    EVERYTHING,
    LOG,
    MODEL,
    OTHER_MODEL,
    SPACE,
    START,
    TASKS,
    AsyncContract,
    find_matching,
    find_nearest,
    gather_evidence,
    list_ids,
    make_append,
    make_note,
    make_put,
    make_save,
    make_turn,
    make_vector,
)
from recollect.testing.tasks import read_whole_task
from recollect.types import Space


class FullStore(Records, Log, Tasks, Protocol):
    """Store with all three protocols."""


Reopen = Callable[[], Awaitable[FullStore]]


class DurableContract(AsyncContract):
    """Data before and after a reopen is equal."""

    async def test_reopen_keeps_items(self, store: FullStore, reopen: Reopen) -> None:
        await store.write(
            *(make_turn(f"i{n}", "s", n, vector=[1, n, 0, 0], terms=f"word w{n}", metadata={"n": n}) for n in range(9))
        )
        await store.write(Delete(SPACE, "i3"), make_put("i4", [0, 0, 1, 0], "changed"), Touch(SPACE, ("i5",), START))
        before = await _read_contents(store)
        store = await reopen()
        assert await _read_contents(store) == before
        with pytest.raises(EmbeddingModelMismatch):
            await store.bind_model(OTHER_MODEL)
        await store.write(make_put("later", [1, 1, 1, 1], "word"))
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 1, 1, 1), limit=1)) == ["later"]

    async def test_reopen_keeps_entries(self, store: FullStore, reopen: Reopen) -> None:
        await store.write(*(make_append(f"e{n}", cap=3) for n in range(5)))
        before = await store.read(LOG)
        store = await reopen()
        assert await store.read(LOG) == before
        await store.write(make_append("e4"), make_append("e5"))
        after = await store.read(LOG)
        assert list_ids(after) == ["e2", "e3", "e4", "e5"]
        assert after[-1].seq > before[-1].seq

    async def test_reopen_keeps_leases_and_fences(self, store: FullStore, reopen: Reopen) -> None:
        lease = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
        await store.write(make_note("a", lease.fence), make_save("[1]", fence=lease.fence))
        before = await read_whole_task(store)
        store = await reopen()
        assert await read_whole_task(store) == before
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", timedelta(minutes=1))
        again = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
        assert again.fence > lease.fence
        with pytest.raises(FencedOut):
            await store.write(make_save("[2]", fence=lease.fence))

    async def test_reopen_keeps_the_model_in_preparation(self, store: FullStore, reopen: Reopen) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]), make_put("b", [0, 1, 0, 0]))
        await store.find_unembedded(OTHER_MODEL)
        await store.write(Embed(SPACE, "a", make_vector(1, 0, 0)[None], OTHER_MODEL, 1))
        store = await reopen()
        assert await store.model() == MODEL
        assert list_ids(await store.find_unembedded(OTHER_MODEL)) == ["b"]
        await store.write(Embed(SPACE, "b", make_vector(0, 1, 0)[None], OTHER_MODEL, 1))
        await store.activate_model(OTHER_MODEL)
        store = await reopen()
        assert await store.model() == OTHER_MODEL
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(0, 1, 0))) == ["b", "a"]


async def _read_contents(store: FullStore) -> list[object]:
    return [
        await store.find(EVERYTHING),
        await find_nearest(store, EVERYTHING, make_vector(1, 2, 0, 0), limit=99),
        await find_matching(store, EVERYTHING, "word", "w5", "changed", limit=99),
        list_ids(await gather_evidence(store, limit=1, reach=1)),
        await store.paths(SPACE),
        await store.spaces(),
        await store.model(),
    ]


async def _read_sample(store: Store) -> tuple[list[str], list[str], list[str]]:
    """Return the data found by filter, by term and in a log."""
    items = await store.find(Where(SPACE)) if isinstance(store, Records) else []
    found = await find_matching(store, Where(SPACE), "rare") if isinstance(store, Records) else None
    entries = await store.read(LOG) if isinstance(store, Log) else []
    return list_ids(items), sorted(list_ids(found)) if found else [], [entry.id for entry in entries]


class HealthContract(AsyncContract):
    """Statistics, integrity and repair."""

    async def test_empty_store_is_healthy(self, store: Store) -> None:
        vitals = await store.read_stats()
        assert vitals.engine
        assert (vitals.items, vitals.recent_items, vitals.superseded, vitals.oldest) == (0, 0, 0, None)
        assert (await store.check_integrity()).problems == []

    async def test_stats_count_items_and_integrity_is_clean(self, store: Store) -> None:
        await fill_store(store)
        vitals, sound = await store.read_stats(), await store.check_integrity()
        assert vitals.items == (6 if isinstance(store, Records) else 0)
        assert sound.problems == []
        assert not any((sound.missing_vectors, sound.orphaned_vectors, sound.missing_terms, sound.orphaned_terms))

    async def test_health_does_not_show_content(self, store: Store) -> None:
        await fill_store(store)
        assert "rare" not in f"{await store.read_stats()} {await store.check_integrity()}"

    async def test_repair_keeps_all_data(self, store: Store) -> None:
        await fill_store(store)
        before = await _read_sample(store)
        for what in get_args(RepairTarget):
            with suppress(Unsupported):
                await store.repair(what)
        assert await _read_sample(store) == before
        assert (await store.check_integrity()).problems == []


class ErasableStore(Records, Log, Tasks, ErasureStore, Protocol):
    """Store with all protocols."""


class ErasableRecords(Records, ErasureStore, Protocol):
    """Store with records."""


class ErasableLogsAndTasks(Log, Tasks, ErasureStore, Protocol):
    """Store with logs and tasks."""


def make_erasure(id: str = "e1") -> ErasureRecord:
    told = {"a fingerprint": "its hash"}
    return ErasureRecord(id=id, subject=f"hash of {id}", parts=("tenant", "user"), requested_at=START, elsewhere=told)


def make_receipt(id: str = "e1") -> ErasureReceipt:
    return ErasureReceipt(
        id=id, subject=f"hash of {id}", parts=("tenant", "user"), status="pending_physical", requested_at=START
    )


async def fill_store(store: object) -> None:
    """Write data of two users with each protocol of the store."""
    for who, scope in (("a", ADA), ("b", BOB)):
        if isinstance(store, Records):
            of_user: dict[str, Any] = {"metadata": {f"of_{who}": who}, "scope": scope}
            await store.write(*(make_put(f"{who}{n}", [1, n, 0, 0], "word rare", **of_user) for n in range(3)))
        if isinstance(store, Log):
            await store.write(*(make_append(f"{who}{n}", space=scope.space("conversation")) for n in range(2)))
        if isinstance(store, Tasks):
            await store.write(make_save(json.dumps({"of": who}), task=who))


async def wipe(store: ErasureStore, *spaces: Space, writes: Sequence[Write] = ()) -> dict[str, int]:
    """Delete spaces and rows in the sample erasure, and return its counts of deleted rows, without zeros."""
    await store.add_erasure(make_erasure())
    await store.wipe("e1", ErasureSelection(spaces, tuple(writes)))
    [row] = await store.ledger()
    return {tier: count for tier, count in row.erased.items() if count}


class ErasureLedgerContract(AsyncContract):
    """Ledger of erasures: phases, receipts and the salt."""

    async def test_erasure_passes_each_phase_once(self, store: ErasureStore) -> None:
        await store.add_erasure(make_erasure())
        await store.add_erasure(ErasureRecord(id="e1", subject="another", parts=(), requested_at=START))
        [row] = await store.ledger()
        assert (row.subject, row.phase, row.deleted_at) == ("hash of e1", "entered", None)
        assert (row.parts, row.requested_at, row.elsewhere) == (
            ("tenant", "user"), START, {"a fingerprint": "its hash"},
        )  # fmt: skip
        await store.mark_deleted("e1", START)
        [row] = await store.ledger(unfinished=True)
        assert (row.phase, row.deleted_at is not None) == ("deleted", True)
        done = await store.finish_erasure(make_receipt(), START)
        assert (done.status, done.sha256, done.previous) == ("complete", done.digest, None)
        assert await store.finish_erasure(make_receipt(), START) == done
        assert await store.ledger(unfinished=True) == []
        [row] = await store.ledger()
        assert (row.phase, row.receipt) == ("complete", done)

    async def test_receipts_are_chained(self, store: ErasureStore) -> None:
        for id in ("e1", "e2", "e3"):
            await store.add_erasure(make_erasure(id))
        done = [await store.finish_erasure(make_receipt(id), START) for id in ("e2", "e1")]
        assert [receipt.previous for receipt in done] == [None, done[0].sha256]
        assert [row.id for row in await store.ledger()] == ["e2", "e1", "e3"]

    async def test_set_salt_with_a_ledger_raises_conflict(self, store: ErasureStore) -> None:
        assert await store.salt() == await store.salt() != b""
        await store.set_salt(b"k" * 32)
        assert await store.salt() == b"k" * 32
        await store.add_erasure(make_erasure())
        with pytest.raises(Conflict):
            await store.set_salt(b"other" * 8)

    async def test_wipe_of_an_unknown_erasure_deletes_nothing(self, store: ErasureStore) -> None:
        await fill_store(store)
        before = {*await store.list_traced_spaces()}
        with pytest.raises(NotFound):
            await store.wipe("unknown", ErasureSelection((SPACE, LOG)))
        assert {*await store.list_traced_spaces()} == before != set()


class ErasureItemsContract(AsyncContract):
    """Deletion of items."""

    async def test_wipe_of_a_space_removes_all_items(self, store: ErasableRecords) -> None:
        await fill_store(store)
        assert await store.check() == []  # also applies writes that the store has delayed
        await wipe(store, SPACE)
        assert SPACE not in await store.list_traced_spaces()
        assert await store.find(Where(SPACE)) == []
        assert await find_nearest(store, Where(SPACE), EAST) == []
        assert await find_matching(store, Where(SPACE), "rare") == []
        assert await store.paths(SPACE) == (await gather_evidence(store)).speakers == frozenset()
        assert await store.check() == []

    async def test_wipe_keeps_items_of_other_spaces(self, store: ErasableRecords) -> None:
        await fill_store(store)
        theirs = Where(BOB.space("semantic"))
        before = await store.find(theirs), await find_matching(store, theirs, "rare")
        await wipe(store, SPACE)
        assert (await store.find(theirs), await find_matching(store, theirs, "rare")) == before

    async def test_wiped_space_starts_empty_when_reused(self, store: ErasableRecords) -> None:
        await fill_store(store)
        await find_nearest(store, Where(SPACE), EAST)  # fills the cache of the store
        await wipe(store, SPACE)
        await store.write(make_put("new", [0, 0, 0, 1], "other"))
        assert list_ids(await find_nearest(store, Where(SPACE), make_vector(1, 1, 1, 1), limit=9)) == ["new"]
        assert await store.paths(SPACE) == frozenset()

    async def test_ledger_counts_deleted_items(self, store: ErasableRecords) -> None:
        await fill_store(store)
        await wipe(store, writes=[Delete(SPACE, "a0"), Delete(SPACE, "not there"), make_put("a1")])
        assert await store.paths(SPACE) == {"of_a"}
        assert await wipe(store, SPACE) == {"semantic": 3}
        [row] = await store.ledger()
        assert row.rederived == 1

    async def test_wipe_removes_paths_of_deleted_items(self, store: ErasableRecords) -> None:
        await store.write(make_put("a", metadata={"secret": {"name": 1}}), make_put("b", metadata={"open": 1}))
        await wipe(store, writes=[Delete(SPACE, "a")])
        assert await store.paths(SPACE) == {"open"}

    async def test_refused_wipe_deletes_nothing(self, store: ErasableRecords) -> None:
        await fill_store(store)
        theirs = BOB.space("semantic")
        with pytest.raises(Conflict):
            await wipe(store, theirs, writes=[Delete(SPACE, "a0", expect=7)])
        assert (len(await store.find(Where(SPACE))), len(await store.find(Where(theirs)))) == (3, 3)
        [row] = await store.ledger()
        assert not any(row.erased.values())


class ErasureLogsContract(AsyncContract):
    """Deletion of logs and tasks."""

    async def test_wipe_of_a_log_removes_all_entries(self, store: ErasableLogsAndTasks) -> None:
        await fill_store(store)
        await wipe(store, LOG)
        assert LOG not in await store.list_traced_spaces()
        assert (await store.read(LOG, hidden=True), await store.logs(LOG, hidden=True)) == ([], [])
        assert await store.owners("acme") == [Space("acme", "conversation", user="bob", agent="helper")]
        assert LOG not in await store.last_seqs("acme")
        assert await store.check() == []

    async def test_wipe_keeps_logs_and_tasks_of_other_spaces(self, store: ErasableLogsAndTasks) -> None:
        await fill_store(store)
        await wipe(store, LOG, writes=[DropTask(TASKS, "a")])
        assert list_ids(await store.read(BOB.space("conversation"))) == ["b0", "b1"]
        assert list_ids(await store.tasks(TASKS)) == ["b"]
        assert await store.checkpoints(TASKS, "a", hidden=True) == []

    async def test_wiped_log_starts_empty_when_reused(self, store: ErasableLogsAndTasks) -> None:
        await fill_store(store)
        await wipe(store, LOG)
        await store.write(make_append("new"))
        assert list_ids(await store.read(LOG)) == ["new"]
        assert LOG in await store.list_traced_spaces()

    async def test_ledger_counts_deleted_entries_and_tasks(self, store: ErasableLogsAndTasks) -> None:
        await fill_store(store)
        assert await wipe(store, writes=[DropTask(TASKS, "a"), DropTask(TASKS, "not there")]) == {"checkpoints": 1}
        assert await wipe(store, LOG) == {"conversation": 2, "checkpoints": 1}

    async def test_fences_increase_after_a_wipe(self, store: ErasableLogsAndTasks) -> None:
        await store.claim(TASKS, "a", "worker", timedelta(minutes=1))
        lease = await store.claim(TASKS, "b", "worker", timedelta(minutes=1))
        await wipe(store, TASKS)
        assert TASKS not in await store.list_traced_spaces()
        again = await store.claim(TASKS, "a", "worker", timedelta(minutes=1))
        assert again.fence > lease.fence


class ErasureFilesContract(AsyncContract):
    """Byte scan of a store that owns or rewrites its files."""

    async def test_scan_after_purge_finds_nothing(self, store: ErasureStore) -> None:
        await fill_store(store)
        held = await store.list_traced_spaces()
        await wipe(store, *(space for space in (SPACE, LOG) if space in held))
        assert await store.purge_copies()
        [row] = await store.ledger()
        assert (await store.scan(row.evidence, row.key)).is_clean


class ErasureContract(ErasureLedgerContract, ErasureItemsContract, ErasureLogsContract, ErasureFilesContract):
    """Contract of `ErasureStore` for a store with all protocols."""

    async def test_wipe_of_items_and_entries_is_atomic(self, store: ErasableStore) -> None:
        await fill_store(store)
        with pytest.raises(Conflict):
            await wipe(store, LOG, writes=[Delete(SPACE, "a0", expect=7)])
        assert (len(await store.find(Where(SPACE))), len(await store.read(LOG))) == (3, 2)
        counts = await wipe(store, SPACE, LOG, writes=[DropTask(TASKS, "a")])
        assert counts == {"semantic": 3, "conversation": 2, "checkpoints": 1}
