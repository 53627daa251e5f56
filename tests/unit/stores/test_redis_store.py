"""The Redis store: one script per batch, the clock of the server, and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from recollect.clock import system_clock
from recollect.errors import Conflict, FencedOut, StoreFull, StoreUnavailable
from recollect.stores.base import TailLimits
from recollect.stores.redis import RedisStore, codec
from recollect.stores.redis.client import RedisTimeouts
from recollect.stores.writes import Clear, Drop, DropTask
from recollect.testing import ManualClock
from recollect.testing.factories import BOB, LOG, MINUTE, SECOND, START, TASKS, list_ids, make_append, make_save
from tests.servers.redis import RedisServer


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    with server.client() as client:
        client.flushall()
    opened = await RedisStore.open(server.url)
    yield opened
    await opened.close()


async def test_batch_of_several_owners_is_atomic_on_a_single_server(store: RedisStore):
    other_log = BOB.space("conversation")
    with pytest.raises(FencedOut):
        await store.write(make_append("a"), make_append("a", space=other_log), make_save(fence=7))
    assert await store.owners("acme") == []
    await store.write(make_append("a"), make_append("a", space=other_log), make_save())
    assert await store.owners("acme") == [LOG, other_log]


async def test_task_dropped_and_saved_in_one_batch_is_kept(store: RedisStore, server: RedisServer):
    """With the same time and state, the new row equals the row that the drop deletes."""
    # Mutant: a row that equals the one read before is never written.
    fixed = await RedisStore.open(server.url, clock=ManualClock(START))
    await fixed.write(make_save())
    await fixed.write(DropTask(TASKS, "t"), make_save())
    task = await fixed.task(TASKS, "t")
    assert task is not None
    assert task.version == 1
    assert await fixed.task_spaces("acme") == [TASKS]
    await fixed.close()


async def test_repeated_append_returns_the_same_seqs(store: RedisStore, server: RedisServer):
    """A batch is repeated if its reply was lost; an entry that was dropped since is not written again."""
    again = await RedisStore.open(server.url, ids=lambda: "one batch")
    first = await again.append(make_append("a"), make_append("b"))
    await store.write(Drop(LOG, (1,)))
    assert (
        await again.append(make_append("a"), make_append("b"))
        == first
        == [
            replace(make_append("a").entry, seq=1),
            replace(make_append("b").entry, seq=2),
        ]
    )
    assert list_ids(await store.read(LOG)) == ["b"]
    await again.close()


async def test_owner_without_data_is_not_listed(store: RedisStore, server: RedisServer):
    """A crash between the owner index and the first batch leaves this state."""
    with server.client() as client:
        client.sadd(codec.build_owner_index_key("acme"), codec.build_owner_prefix(LOG))
    assert await store.owners("acme") == []
    assert await store.task_spaces("acme") == []
    await store.write(make_append("a"))
    assert await store.owners("acme") == [LOG]


async def test_concatenated_names_do_not_collide(store: RedisStore):
    first, second = replace(TASKS, session="a"), replace(TASKS, session="ab")
    await store.write(make_save("[1]", space=first, task="bt"))
    await store.write(make_save("[2]", space=second, task="t"))
    kept = [await store.checkpoints(first, "bt"), await store.checkpoints(second, "t")]
    assert [[one.state for one in versions] for versions in kept] == [["[1]"], ["[2]"]]


async def test_read_tails_of_many_sessions_reads_only_a_few(store: RedisStore, server: RedisServer):
    # Mutant: the whole index is read.
    sessions = [replace(LOG, session=f"s{number:03}") for number in range(400)]
    for place, space in enumerate(sessions):
        await store.write(make_append("a", space=space, at=START + place // 4 * MINUTE))
    with server.client() as client:
        client.config_resetstat()
        tails = await store.read_tails(sessions[7], TailLimits(own_entries=2, other_logs=3, entries_per_log=2))
        assert [tail.space for tail in tails] == [sessions[7], *sessions[-3:]]
        commands = sum(stats["calls"] for stats in client.info("commandstats").values())
        assert commands < 40
        assert await store.logs(LOG) == sessions
        assert await store.owners("acme") == [LOG]


async def test_log_order_ignores_hidden_entries(store: RedisStore):
    old, new, gone = (replace(LOG, session=name) for name in ("old", "new", "gone"))
    hidden = system_clock() - MINUTE
    await store.write(
        make_append("a", space=old, at=START + MINUTE),
        make_append("b", space=old, at=START + 3 * MINUTE, expires_at=hidden),
        make_append("a", space=new, at=START + 2 * MINUTE),
        make_append("b", space=new, at=START, expires_at=hidden),
        make_append("a", space=gone, at=START + 4 * MINUTE, expires_at=hidden),
    )
    for _ in range(2):
        assert await store.logs(LOG) == [old, new]
        tails = await store.read_tails(LOG, TailLimits(own_entries=1, other_logs=1, entries_per_log=9))
        assert [tail.space for tail in tails] == [LOG, new]
        # Dropped entries do not change the order.
        await store.write(*(Drop(space, (2,)) for space in (old, new)), Drop(gone, (1,)))
    assert await store.logs(LOG, hidden=True) == [old, new]
    await store.write(make_append("c", space=old, at=START))
    assert await store.logs(LOG) == [old, new]


async def test_store_uses_the_server_time(server: RedisServer, store: RedisStore):
    now = system_clock()
    lease = await store.claim(TASKS, "t", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - now) < 30 * SECOND
    ahead = ManualClock(now + timedelta(days=3653))
    behind = await RedisStore.open(server.url, clock=ahead)
    # A given clock is used as it is; the other store uses the clock of the server.
    taken = await behind.claim(TASKS, "t", "w2", MINUTE)
    assert taken.fence > lease.fence
    again = await store.claim(TASKS, "t", "w1", MINUTE)
    assert again.fence > taken.fence
    await behind.close()


async def test_stopped_clock_is_resynchronized_before_a_write(store: RedisStore):
    """The monotonic clock stops while a machine sleeps."""
    await store.write(make_append("a", expires_at=system_clock() + MINUTE))
    store._clock.synchronize(b"%d" % 10**15)
    lease = await store.claim(TASKS, "t", "w1", MINUTE)
    assert abs(lease.expires_at - MINUTE - system_clock()) < 30 * SECOND


async def test_cached_rows_do_not_hide_writes_of_another_process(store: RedisStore, server: RedisServer):
    other = await RedisStore.open(server.url)
    await store.write(make_save("[1]"))
    await other.write(make_save("[2]", expect=1))
    with pytest.raises(Conflict, match="at version 2"):
        await store.write(make_save("[x]", expect=1))
    await other.write(DropTask(TASKS, "t"))
    await store.write(make_save("[new]", expect=0))
    found = await other.checkpoint(TASKS, "t")
    assert found is not None
    assert (found.version, found.state) == (1, "[new]")
    await other.close()


async def test_damaged_checkpoint_is_marked_not_raised(store: RedisStore, server: RedisServer):
    await store.write(make_save('{"a": 1}'))
    await store.write(make_save('{"a": 2}'))
    assert await store.check() == []
    key = codec.build_task_key(b"versions", (TASKS, "t"))
    with server.client() as client:
        kept = client.hget(key, "2")
        assert isinstance(kept, bytes)
        client.hset(key, "2", kept.replace(b'"a": 2', b'"a": 3'))
        client.hset(key, "1", b"\xff not ours")
    assert [one.intact for one in await store.checkpoints(TASKS, "t")] == [False, False]
    assert len(await store.check()) == 2


async def test_full_server_raises_store_full_and_allows_deletes(store: RedisStore, server: RedisServer):
    await store.write(make_append("a"), make_save("[1]"))
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreFull, match="maxmemory"):
                await store.write(make_append("b"), make_save("[2]"))
            assert list_ids(await store.read(LOG)) == ["a"]
            await store.write(Clear(LOG), DropTask(TASKS, "t"))
            assert await store.read(LOG) == []
            assert await store.task(TASKS, "t") is None
        finally:
            client.config_set("maxmemory", "0")


async def test_server_restart_raises_unavailable_and_recovers(store: RedisStore, server: RedisServer):
    await store.close()
    store = await RedisStore.open(server.url, patience=RedisTimeouts(response=2, total=2))
    await store.write(make_append("a"))
    await asyncio.to_thread(server.kill)
    try:
        with pytest.raises(StoreUnavailable, match="same ids"):
            await store.write(make_append("b"))
        with pytest.raises(StoreUnavailable):
            await store.recent(LOG)
    finally:
        await asyncio.to_thread(server.start)
    await store.write(make_append("b"))
    assert list_ids(await store.recent(LOG)) == ["a", "b"]
    await store.close()


async def test_reads_fail_fast_after_the_first_connection_timeout(
    store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Recall can use other tiers; a write has no alternative and waits."""
    # Mutants: reads wait as long as writes; a server that is back still counts as unreachable.
    await store.close()
    store = await RedisStore.open(server.url, patience=RedisTimeouts(response=2, total=2))
    await store.write(make_append("a"))
    send, attempts, messages = store._client._send, 0, list[str]()

    async def send_counted(*parts: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await send(*parts)

    async def count_attempts(work: Awaitable[object]) -> int:
        nonlocal attempts
        attempts = 0
        with pytest.raises(StoreUnavailable) as raised:
            await work
        messages.append(str(raised.value))
        return attempts

    monkeypatch.setattr(store._client, "_send", send_counted)
    for _ in range(2):
        await asyncio.to_thread(server.kill)
        try:
            assert await count_attempts(store.recent(LOG)) > 1
            assert await count_attempts(store.recent(LOG)) == 1
            limits = TailLimits(own_entries=1, other_logs=1, entries_per_log=1)
            assert await count_attempts(store.read_tails(LOG, limits)) == 1
            assert await count_attempts(store.entries(LOG, "a")) == 1
            assert await count_attempts(store.checkpoint(TASKS, "t")) == 1
            assert await count_attempts(store.write(make_append("b"))) > 1
        finally:
            await asyncio.to_thread(server.start)
        assert list_ids(await store.recent(LOG)) == ["a"]
        assert ["same ids" in message for message in messages] == [False, False, False, False, False, True]
        messages.clear()
    await store.close()


async def test_cancelled_read_marks_the_server_as_unreachable(
    store: RedisStore, server: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """A caller with a shorter timeout would otherwise wait in vain each time."""
    # Mutant: only a read that waits to the end marks the server.
    send, paused = store._client._send, store._client._wait
    attempts, pauses = 0, asyncio.Queue[None]()

    async def send_counted(*parts: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return await send(*parts)

    async def count_pause(seconds: float) -> float:
        pauses.put_nowait(None)
        return await paused(seconds)

    monkeypatch.setattr(store._client, "_send", send_counted)
    monkeypatch.setattr(store._client, "_wait", count_pause)
    await asyncio.to_thread(server.kill)
    try:
        waiting = asyncio.create_task(store.recent(LOG))
        await pauses.get()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        attempts = 0
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.recent(LOG)
        assert attempts == 1
    finally:
        await asyncio.to_thread(server.start)
    assert await store.recent(LOG) == []


async def test_cancelled_writes_end(store: RedisStore):
    async def on(name: str) -> None:
        while True:
            await store.write(make_append(name))

    for _ in range(10):
        running = [asyncio.create_task(on(name)) for name in "abcd"]
        await asyncio.sleep(0.05)
        for one in running:
            one.cancel()
        done, unfinished = await asyncio.wait(running, timeout=30)
        for one in unfinished:
            one.cancel()
        assert unfinished == set()
        assert all(one.cancelled() for one in done)


async def test_flushed_scripts_are_reloaded(store: RedisStore, server: RedisServer):
    await store.write(make_append("a"))
    with server.client() as client:
        client.script_flush()
    await store.write(make_append("b"))
    assert list_ids(await store.recent(LOG)) == ["a", "b"]


async def test_purge_after_days_sets_a_ttl_on_expired_logs(server: RedisServer):
    with server.client() as client:
        client.flushall()
    store = await RedisStore.open(f"{server.url}?purge_after_days=2")
    brief, kept = (replace(LOG, session=name) for name in ("brief", "kept"))
    soon = system_clock() + MINUTE
    await store.write(
        make_append("a", space=brief, expires_at=soon + MINUTE), make_append("b", space=brief, expires_at=soon)
    )
    await store.write(make_append("a", space=kept), make_append("b", space=kept, expires_at=soon))
    with server.client() as client:
        for key in (codec.build_key(b"order", brief), codec.build_key(b"data", brief)):
            left = timedelta(milliseconds=int(client.pttl(key)))
            assert timedelta(days=2) < left <= timedelta(days=2) + 2 * MINUTE
        assert client.pttl(codec.build_key(b"order", kept)) == client.pttl(codec.build_key(b"data", kept)) == -1
        client.pexpire(codec.build_key(b"order", brief), 1)
        client.pexpire(codec.build_key(b"data", brief), 1)
        await asyncio.sleep(0.05)
    assert await store.logs(LOG, hidden=True) == [kept]
    await store.write(Clear(kept))
    assert await store.owners("acme") == []
    last = make_append("c", space=brief)
    await store.write(last)
    assert [entry.seq for entry in await store.read(brief)] == [3]
    await store.close()


async def test_keys_have_no_ttl_by_default(store: RedisStore, server: RedisServer):
    """A clock jump of the server would delete expired data; instead it is hidden, and dropped by maintenance."""
    await store.write(make_append("a", expires_at=system_clock() - MINUTE), make_save(ttl=SECOND))
    with server.client() as client:
        named = [key for key in client.scan_iter() if b":done:" not in key]
        assert len(named) >= 6
        assert {client.pttl(key) for key in named} == {-1}
