"""What a store promises to those who erase: a ledger, a deletion that leaves nothing, and an honest look."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Protocol

import pytest

from recollect.errors import Conflict, NotFound
from recollect.stores.base import Log, Records, Store, Tasks
from recollect.stores.erasing import Doomed, Erasing, Erasure
from recollect.stores.ops import Delete, DropTask, Write
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.where import Where
from recollect.testing.samples import ADA, BOB, LOG, SPACE, START, TASKS, append, ids, item, put, save, vector
from recollect.values import Scope, Space


class Everything(Records, Log, Tasks, Erasing, Protocol):
    """A store that keeps all protocols."""


class Items(Records, Erasing, Protocol):
    """A store that keeps records, at least."""


class LogsAndTasks(Log, Tasks, Erasing, Protocol):
    """A store that keeps logs and tasks, at least."""


def erasure(id: str = "e1") -> Erasure:
    told = {"a fingerprint": "its hash"}
    return Erasure(id=id, subject=f"hash of {id}", parts=("tenant", "user"), requested_at=START, elsewhere=told)


def receipt(id: str = "e1") -> ErasureReceipt:
    return ErasureReceipt(
        id=id, subject=f"hash of {id}", parts=("tenant", "user"), status="pending_physical", requested_at=START
    )


def facts(who: str, scope: Scope) -> list[Write]:
    return [put(f"{who}{n}", [1, n, 0, 0], "word rare", metadata={f"of_{who}": n}, scope=scope) for n in range(3)]


def said(who: str, scope: Scope) -> list[Write]:
    return [append(f"{who}{n}", space=scope.space("conversation")) for n in range(2)]


async def filled(store: Store) -> None:
    """What two people have, in whatever the store keeps."""
    for who, scope in (("a", ADA), ("b", BOB)):
        if isinstance(store, Records):
            await store.write(*facts(who, scope))
        if isinstance(store, Log):
            await store.write(*said(who, scope))
        if isinstance(store, Tasks):
            await store.write(save(json.dumps({"of": who}), task=who))


class ErasingLedger:
    """How far an erasure has got is known to whoever comes next, and it goes on from there."""

    pytestmark = pytest.mark.asyncio

    async def test_an_erasure_goes_through_its_phases_once(self, store: Erasing) -> None:
        await store.enter(erasure())
        await store.enter(Erasure(id="e1", subject="another", parts=(), requested_at=START))
        [row] = await store.ledger()
        assert (row.subject, row.phase, row.deleted_at) == ("hash of e1", "entered", None)
        assert (row.parts, row.requested_at, row.elsewhere) == (
            ("tenant", "user"), START, {"a fingerprint": "its hash"},
        )  # fmt: skip
        await store.deleted("e1")
        [row] = await store.ledger(unfinished=True)
        assert (row.phase, row.deleted_at is not None) == ("deleted", True)
        done = await store.finish(receipt())
        assert (done.status, done.sha256, done.previous) == ("complete", done.digest, None)
        assert await store.finish(receipt()) == done
        assert await store.ledger(unfinished=True) == []
        [row] = await store.ledger()
        assert (row.phase, row.receipt) == ("complete", done)

    async def test_each_receipt_names_the_one_before(self, store: Erasing) -> None:
        for id in ("e1", "e2", "e3"):
            await store.enter(erasure(id))
        done = [await store.finish(receipt(id)) for id in ("e2", "e1")]
        assert [one.previous for one in done] == [None, done[0].sha256]
        assert [row.id for row in await store.ledger()] == ["e2", "e1", "e3"]

    async def test_the_key_of_the_hashes_stays_once_there_is_a_ledger(self, store: Erasing) -> None:
        assert await store.salt() == await store.salt() != b""
        await store.resalt(b"k" * 32)
        assert await store.salt() == b"k" * 32
        await store.enter(erasure())
        with pytest.raises(Conflict):
            await store.resalt(b"other" * 8)

    async def test_nothing_is_deleted_for_what_was_not_entered(self, store: Erasing) -> None:
        await filled(store)
        before = {*await store.holdings()}
        with pytest.raises(NotFound):
            await store.wipe("unknown", Doomed((SPACE, LOG)))
        assert {*await store.holdings()} == before != set()


class ErasingItems:
    """Of items that were wiped nothing can be asked for, and nothing else has changed."""

    pytestmark = pytest.mark.asyncio

    async def test_of_a_space_that_was_wiped_nothing_is_left(self, store: Items) -> None:
        await filled(store)
        assert await store.check() == []  # and a store that puts things into their places later has done so
        await store.enter(erasure())
        await store.wipe("e1", Doomed((SPACE,)))
        assert SPACE not in await store.holdings()
        assert await store.find(Where(SPACE)) == []
        assert await store.nearest(Where(SPACE), vector(1, 0, 0, 0)) == []
        assert (await store.matching(Where(SPACE), ["rare"])).found == ()
        assert (await store.paths(SPACE), await store.speakers(SPACE)) == (frozenset(), frozenset())
        assert await store.check() == []

    async def test_what_others_have_is_as_it_was(self, store: Items) -> None:
        await filled(store)
        theirs = Where(BOB.space("semantic"))
        before = await store.find(theirs), await store.matching(theirs, ["rare"])
        await store.enter(erasure())
        await store.wipe("e1", Doomed((SPACE,)))
        assert (await store.find(theirs), await store.matching(theirs, ["rare"])) == before

    async def test_a_space_that_comes_back_begins_anew(self, store: Items) -> None:
        await filled(store)
        await store.nearest(Where(SPACE), vector(1, 0, 0, 0))  # which a store may keep a copy for
        await store.enter(erasure())
        await store.wipe("e1", Doomed((SPACE,)))
        await store.write(put("new", [0, 0, 0, 1], "other"))
        assert ids(await store.nearest(Where(SPACE), vector(1, 1, 1, 1), limit=9)) == ["new"]
        assert await store.paths(SPACE) == frozenset()

    async def test_the_ledger_counts_the_items_that_each_deletion_took(self, store: Items) -> None:
        await filled(store)
        await store.enter(erasure())
        kept = item("a1", metadata={})
        await store.wipe("e1", Doomed((), (Delete(SPACE, "a0"), Delete(SPACE, "not there"), put(kept.id))))
        assert await store.paths(SPACE) == {"of_a"}
        await store.wipe("e1", Doomed((SPACE,)))
        [row] = await store.ledger()
        assert ({tier: count for tier, count in row.erased.items() if count}, row.rederived) == ({"semantic": 3}, 1)

    async def test_paths_that_only_the_deleted_carried_are_forgotten(self, store: Items) -> None:
        await store.write(put("a", metadata={"secret": {"name": 1}}), put("b", metadata={"open": 1}))
        await store.enter(erasure())
        await store.wipe("e1", Doomed((), (Delete(SPACE, "a"),)))
        assert await store.paths(SPACE) == {"open"}

    async def test_a_deletion_that_is_refused_deletes_nothing(self, store: Items) -> None:
        await filled(store)
        await store.enter(erasure())
        theirs = BOB.space("semantic")
        with pytest.raises(Conflict):
            await store.wipe("e1", Doomed((theirs,), (Delete(SPACE, "a0", expect=7),)))
        assert (len(await store.find(Where(SPACE))), len(await store.find(Where(theirs)))) == (3, 3)
        [row] = await store.ledger()
        assert not any(row.erased.values())


class ErasingLogs:
    """Of logs and tasks that were wiped nothing can be asked for, and nothing else has changed."""

    pytestmark = pytest.mark.asyncio

    async def test_of_a_log_that_was_wiped_nothing_is_left(self, store: LogsAndTasks) -> None:
        await filled(store)
        await store.enter(erasure())
        await store.wipe("e1", Doomed((LOG,)))
        assert LOG not in await store.holdings()
        assert (await store.read(LOG, hidden=True), await store.logs(LOG, hidden=True)) == ([], [])
        assert await store.owners("acme") == [Space("acme", "conversation", user="bob", agent="helper")]
        assert LOG not in await store.counted("acme")
        assert await store.check() == []

    async def test_what_others_said_and_do_is_as_it_was(self, store: LogsAndTasks) -> None:
        await filled(store)
        await store.enter(erasure())
        await store.wipe("e1", Doomed((LOG,), (DropTask(TASKS, "a"),)))
        assert ids(await store.read(BOB.space("conversation"))) == ["b0", "b1"]
        assert ids(await store.tasks(TASKS)) == ["b"]
        assert await store.checkpoints(TASKS, "a", hidden=True) == []

    async def test_a_log_that_comes_back_begins_anew(self, store: LogsAndTasks) -> None:
        await filled(store)
        await store.enter(erasure())
        await store.wipe("e1", Doomed((LOG,)))
        await store.write(append("new"))
        assert ids(await store.read(LOG)) == ["new"]
        assert LOG in await store.holdings()

    async def test_the_ledger_counts_what_each_deletion_took(self, store: LogsAndTasks) -> None:
        await filled(store)
        await store.enter(erasure())
        await store.wipe("e1", Doomed((), (DropTask(TASKS, "a"), DropTask(TASKS, "not there"))))
        await store.wipe("e1", Doomed((LOG,)))
        [row] = await store.ledger()
        counts = {tier: count for tier, count in row.erased.items() if count}
        assert counts == {"conversation": 2, "checkpoints": 1}

    async def test_a_fence_is_never_given_twice_though_the_space_was_wiped(self, store: LogsAndTasks) -> None:
        await store.claim(TASKS, "a", "worker", timedelta(minutes=1))
        lease = await store.claim(TASKS, "b", "worker", timedelta(minutes=1))
        await store.enter(erasure())
        await store.wipe("e1", Doomed((TASKS,)))
        assert TASKS not in await store.holdings()
        again = await store.claim(TASKS, "a", "worker", timedelta(minutes=1))
        assert again.fence > lease.fence


class ErasingFiles:
    """Of a store whose files are its own, or which can have them written anew."""

    pytestmark = pytest.mark.asyncio

    async def test_after_settling_a_look_finds_nothing(self, store: Erasing) -> None:
        await filled(store)
        await store.enter(erasure())
        held = await store.holdings()
        await store.wipe("e1", Doomed(tuple(space for space in (SPACE, LOG) if space in held)))
        assert await store.settle()
        [row] = await store.ledger()
        assert (await store.scan(row.evidence)).clean


class ErasingContract(ErasingLedger, ErasingItems, ErasingLogs, ErasingFiles):
    """Everything that `Erasing` promises of a store that keeps all protocols."""

    async def test_items_and_entries_go_in_one_deletion_or_stay(self, store: Everything) -> None:
        await filled(store)
        await store.enter(erasure())
        with pytest.raises(Conflict):
            await store.wipe("e1", Doomed((LOG,), (Delete(SPACE, "a0", expect=7),)))
        assert (len(await store.find(Where(SPACE))), len(await store.read(LOG))) == (3, 2)
        await store.wipe("e1", Doomed((SPACE, LOG), (DropTask(TASKS, "a"),)))
        [row] = await store.ledger()
        counts = {tier: count for tier, count in row.erased.items() if count}
        assert counts == {"semantic": 3, "conversation": 2, "checkpoints": 1}
