"""What is particular to Redis: one script a batch, two servers that share no transaction, and the server's clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect.clock import system_clock
from recollect.errors import Conflict, FencedOut, StoreFull, StoreUnavailable
from recollect.stores.ops import Clear, Drop, DropTask
from recollect.stores.redis import RedisStore, keys
from recollect.stores.redis.server import Patience
from recollect.stores.tails import Reach
from recollect.testing import ManualClock
from recollect.testing.samples import BOB, LOG, MINUTE, SECOND, START, TASKS, append, ids, save
from tests.servers.redis import RedisServer


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    with server.client() as client:
        client.flushall()
    opened = await RedisStore.open(server.url)
    yield opened
    await opened.close()


async def test_a_batch_of_several_owners_is_one_on_a_single_server(store: RedisStore):
    theirs = BOB.space("conversation")
    with pytest.raises(FencedOut):
        await store.write(append("a"), append("a", space=theirs), save(fence=7))
    assert await store.owners("acme") == []
    await store.write(append("a"), append("a", space=theirs), save())
    assert await store.owners("acme") == [LOG, theirs]


async def test_asked_a_second_time_the_places_of_entries_are_told_again(store: RedisStore, server: RedisServer):
    """As it happens when the answer is lost on its way; the entry has gone since, and is not written anew."""
    again = await RedisStore.open(server.url, ids=lambda: "one batch")
    first = await again.append(append("a"), append("b"))
    await store.write(Drop(LOG, (1,)))
    assert (
        await again.append(append("a"), append("b"))
        == first
        == [
            replace(append("a").entry, seq=1),
            replace(append("b").entry, seq=2),
        ]
    )
    assert ids(await store.read(LOG)) == ["b"]
    await again.close()


async def test_an_owner_who_was_listed_and_wrote_nothing_is_passed_over(store: RedisStore, server: RedisServer):
    """As a crash between the list of owners and the first batch leaves it."""
    with server.client() as client:
        client.sadd(keys.index_of("acme"), keys.prefix_of(LOG))
    assert await store.owners("acme") == []
    assert await store.task_spaces("acme") == []
    await store.write(append("a"))
    assert await store.owners("acme") == [LOG]


async def test_names_that_run_into_each_other_are_kept_apart(store: RedisStore):
    first, second = replace(TASKS, session="a"), replace(TASKS, session="ab")
    await store.write(save("[1]", space=first, task="bt"))
    await store.write(save("[2]", space=second, task="t"))
    kept = [await store.checkpoints(first, "bt"), await store.checkpoints(second, "t")]
    assert [[one.state for one in versions] for versions in kept] == [["[1]"], ["[2]"]]


async def test_of_thousands_of_sessions_a_few_are_looked_at(store: RedisStore, server: RedisServer):
    # Mutant: an order that is read to its end.
    sessions = [replace(LOG, session=f"s{number:03}") for number in range(400)]
    for place, space in enumerate(sessions):
        await store.write(append("a", space=space, at=START + place // 4 * MINUTE))
    with server.client() as client:
        client.config_resetstat()
        tails = await store.tails(sessions[7], Reach(own=2, others=3, of_each=2))
        assert [tail.space for tail in tails] == [sessions[7], *sessions[-3:]]
        asked = sum(one["calls"] for one in client.info("commandstats").values())
        assert asked < 40
        assert await store.logs(LOG) == sessions
        assert await store.owners("acme") == [LOG]


async def test_a_log_whose_last_entry_is_hidden_stands_where_its_living_ones_do(store: RedisStore):
    old, new, gone = (replace(LOG, session=name) for name in ("old", "new", "gone"))
    hidden = system_clock() - MINUTE
    await store.write(
        append("a", space=old, at=START + MINUTE),
        append("b", space=old, at=START + 3 * MINUTE, expires_at=hidden),
        append("a", space=new, at=START + 2 * MINUTE),
        append("b", space=new, at=START, expires_at=hidden),
        append("a", space=gone, at=START + 4 * MINUTE, expires_at=hidden),
    )
    for _ in range(2):
        assert await store.logs(LOG) == [old, new]
        tails = await store.tails(LOG, Reach(own=1, others=1, of_each=9))
        assert [tail.space for tail in tails] == [LOG, new]
        # What is dropped leaves them where they are.
        await store.write(*(Drop(space, (2,)) for space in (old, new)), Drop(gone, (1,)))
    assert await store.logs(LOG, hidden=True) == [old, new]
    await store.write(append("c", space=old, at=START))
    assert await store.logs(LOG) == [old, new]


async def test_time_is_the_servers(server: RedisServer, store: RedisStore):
    now = system_clock()
    lease = await store.claim(TASKS, "t", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - now) < 30 * SECOND
    ahead = ManualClock(now + timedelta(days=3653))
    behind = await RedisStore.open(server.url, clock=ahead)
    # A clock that was given is taken at its word; the store with the server's still goes by that.
    taken = await behind.claim(TASKS, "t", "w2", MINUTE)
    assert taken.fence > lease.fence
    again = await store.claim(TASKS, "t", "w1", MINUTE)
    assert again.fence > taken.fence
    await behind.close()


async def test_a_clock_that_was_stopped_is_set_before_anything_is_written(store: RedisStore):
    """A machine that slept for an hour, say: the steady clock did not go on."""
    await store.write(append("a", expires_at=system_clock() + MINUTE))
    store._clock.hear(b"%d" % 10**15)
    lease = await store.claim(TASKS, "t", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - system_clock()) < 30 * SECOND


async def test_another_process_is_seen_though_rows_are_remembered(store: RedisStore, server: RedisServer):
    other = await RedisStore.open(server.url)
    await store.write(save("[1]"))
    await other.write(save("[2]", expect=1))
    with pytest.raises(Conflict, match="at version 2"):
        await store.write(save("[x]", expect=1))
    await other.write(DropTask(TASKS, "t"))
    await store.write(save("[new]", expect=0))
    found = await other.checkpoint(TASKS, "t")
    assert found is not None
    assert (found.version, found.state) == (1, "[new]")
    await other.close()


async def test_a_damaged_version_is_told_and_not_raised(store: RedisStore, server: RedisServer):
    await store.write(save('{"a": 1}'))
    await store.write(save('{"a": 2}'))
    assert await store.check() == []
    key = keys.of_task(b"versions", (TASKS, "t"))
    with server.client() as client:
        kept = client.hget(key, "2")
        assert isinstance(kept, bytes)
        client.hset(key, "2", kept.replace(b'"a": 2', b'"a": 3'))
        client.hset(key, "1", b"\xff not ours")
    assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False, False]
    assert len(await store.check()) == 2


async def test_a_full_server_is_told_and_still_forgets(store: RedisStore, server: RedisServer):
    await store.write(append("a"), save("[1]"))
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreFull, match="maxmemory"):
                await store.write(append("b"), save("[2]"))
            assert ids(await store.read(LOG)) == ["a"]
            await store.write(Clear(LOG), DropTask(TASKS, "t"))
            assert await store.read(LOG) == []
            assert await store.task(TASKS, "t") is None
        finally:
            client.config_set("maxmemory", "0")


async def test_a_server_that_goes_is_told_and_found_again(store: RedisStore, server: RedisServer):
    await store.close()
    store = await RedisStore.open(server.url, patience=Patience(answer=2, altogether=2))
    await store.write(append("a"))
    await asyncio.to_thread(server.kill)
    try:
        with pytest.raises(StoreUnavailable, match="same ids"):
            await store.write(append("b"))
        with pytest.raises(StoreUnavailable):
            await store.recent(LOG)
    finally:
        await asyncio.to_thread(server.start)
    await store.write(append("b"))
    assert ids(await store.recent(LOG)) == ["a", "b"]
    await store.close()


async def test_who_reads_waits_for_a_server_that_goes_and_not_again_while_it_is_gone(
    store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """A question has other tiers to ask; what is written has no other place."""
    # Mutants: who reads is always as patient as who writes; a server that is back is still taken for gone.
    await store.close()
    store = await RedisStore.open(server.url, patience=Patience(answer=2, altogether=2))
    await store.write(append("a"))
    ask, knocks, said = store._server._ask, 0, list[str]()

    async def counted(*parts: Any) -> Any:
        nonlocal knocks
        knocks += 1
        return await ask(*parts)

    async def knocks_of(work: Awaitable[object]) -> int:
        nonlocal knocks
        knocks = 0
        with pytest.raises(StoreUnavailable) as told:
            await work
        said.append(str(told.value))
        return knocks

    monkeypatch.setattr(store._server, "_ask", counted)
    for _ in range(2):
        await asyncio.to_thread(server.kill)
        try:
            assert await knocks_of(store.recent(LOG)) > 1
            assert await knocks_of(store.recent(LOG)) == 1
            assert await knocks_of(store.tails(LOG, Reach(own=1, others=1, of_each=1))) == 1
            assert await knocks_of(store.entries(LOG, "a")) == 1
            assert await knocks_of(store.checkpoint(TASKS, "t")) == 1
            assert await knocks_of(store.write(append("b"))) > 1
        finally:
            await asyncio.to_thread(server.start)
        assert ids(await store.recent(LOG)) == ["a"]
        assert ["same ids" in one for one in said] == [False, False, False, False, False, True]
        said.clear()
    await store.close()


async def test_who_has_less_patience_than_the_store_waits_in_vain_once(
    store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Whoever asks with a time limit of their own would never be told what the others have."""
    # Mutant: only those who wait to the end know of it.
    ask, paused = store._server._ask, store._server._paused
    knocks, pauses = 0, asyncio.Queue[None]()

    async def asked(*parts: Any) -> Any:
        nonlocal knocks
        knocks += 1
        return await ask(*parts)

    async def told(seconds: float) -> float:
        pauses.put_nowait(None)
        return await paused(seconds)

    monkeypatch.setattr(store._server, "_ask", asked)
    monkeypatch.setattr(store._server, "_paused", told)
    await asyncio.to_thread(server.kill)
    try:
        waiting = asyncio.create_task(store.recent(LOG))
        await pauses.get()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        knocks = 0
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.recent(LOG)
        assert knocks == 1
    finally:
        await asyncio.to_thread(server.start)
    assert await store.recent(LOG) == []


async def test_what_is_called_off_ends(store: RedisStore):
    async def on(name: str) -> None:
        while True:
            await store.write(append(name))

    for _ in range(10):
        running = [asyncio.create_task(on(name)) for name in "abcd"]
        await asyncio.sleep(0.05)
        for one in running:
            one.cancel()
        done, going_on = await asyncio.wait(running, timeout=30)
        for one in going_on:
            one.cancel()
        assert going_on == set()
        assert all(one.cancelled() for one in done)


async def test_scripts_that_the_server_forgot_are_told_it_again(store: RedisStore, server: RedisServer):
    await store.write(append("a"))
    with server.client() as client:
        client.script_flush()
    await store.write(append("b"))
    assert ids(await store.recent(LOG)) == ["a", "b"]


async def test_a_log_that_has_expired_is_dropped_by_the_server_where_it_was_told_to(server: RedisServer):
    with server.client() as client:
        client.flushall()
    store = await RedisStore.open(f"{server.url}?purge_after_days=2")
    brief, kept = (replace(LOG, session=name) for name in ("brief", "kept"))
    soon = system_clock() + MINUTE
    await store.write(append("a", space=brief, expires_at=soon + MINUTE), append("b", space=brief, expires_at=soon))
    await store.write(append("a", space=kept), append("b", space=kept, expires_at=soon))
    with server.client() as client:
        for key in (keys.order(brief), keys.data(brief)):
            left = timedelta(milliseconds=int(client.pttl(key)))
            assert timedelta(days=2) < left <= timedelta(days=2) + 2 * MINUTE
        assert client.pttl(keys.order(kept)) == client.pttl(keys.data(kept)) == -1
        client.pexpire(keys.order(brief), 1)
        client.pexpire(keys.data(brief), 1)
        await asyncio.sleep(0.05)
    assert await store.logs(LOG, hidden=True) == [kept]
    await store.write(Clear(kept))
    assert await store.owners("acme") == []
    last = append("c", space=brief)
    await store.write(last)
    assert [entry.seq for entry in await store.read(brief)] == [3]
    await store.close()


async def test_unless_told_to_the_server_drops_nothing(store: RedisStore, server: RedisServer):
    """A leap of its clock would cost what has merely expired; it is hidden, and dropped after a look at the clock."""
    await store.write(append("a", expires_at=system_clock() - MINUTE), save(ttl=SECOND))
    with server.client() as client:
        named = [key for key in client.scan_iter() if b":done:" not in key]
        assert len(named) >= 6
        assert {client.pttl(key) for key in named} == {-1}
