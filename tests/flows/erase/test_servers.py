"""`erase` over several stores: it is pending while one is down or refuses to rewrite its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.erasure import Eraser, ErasureSubject
from recollect.errors import StoreUnavailable
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.redis import RedisStore
from recollect.stores.redis.client import RedisTimeouts
from recollect.testing import ManualClock
from recollect.testing.factories import ADA, LOG, list_ids, make_append, make_put
from recollect.types import Space
from tests.embedders import HashEmbedder
from tests.servers.redis import RedisServer

NO_RETRY = RedisTimeouts(response=3.0, total=3.0)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Start a server for one test, which stops it or adds users to it."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


async def list_spaces(memory: AgentMemory) -> list[Space]:
    return [
        space
        for store in memory._engine.stores.all_stores
        for space in await store.list_traced_spaces()  # type: ignore[attr-defined]
    ]


async def test_erase_over_file_and_redis_returns_one_receipt(redis: RedisServer, tmp_path: Path):
    place = {"default": str(tmp_path / "facts.db"), "episodic": redis.url, "checkpoints": redis.url}
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder()) as memory:
        await memory.remember("Ada lives in Lisbon.")
        await memory.start_task("find a flat")
        await memory.record_step("look around", "search", "nothing")
        await memory.checkpoints.checkpoint("t", {"for": "ada"})
        bob = memory.scoped(user="bob")
        await bob.start_task("find a house")
        receipt = await memory.erase(user="ada")
        assert (receipt.complete, receipt.erased["semantic"], receipt.erased["checkpoints"]) == (True, 1, 1)
        assert receipt.erased["episodic"] > 0
        assert [row.id for row in await memory.erasures()] == [receipt.id]
        assert (await memory.verify_erasure(receipt)).holds
        assert bob.scope.space("working") in await list_spaces(memory)
        assert not any(space.user == "ada" for space in await list_spaces(memory))
        again = await memory.erase(user="ada")
        assert (sum(again.erased.values()), again.previous) == (0, receipt.sha256)


async def test_erase_with_one_store_down_is_pending_and_deletes_nothing(redis: RedisServer, clock: ManualClock):
    # Mutants: `enter_erasure` fails with the first store that is down; rows are deleted although a store is down.
    facts, logs = InMemoryStore(clock=clock), await RedisStore.open(redis.url, patience=NO_RETRY)
    await facts.write(make_put("a"))
    await logs.write(make_append("said"))
    erasures = Eraser([facts, logs], clock)
    redis.stop()
    receipt = await erasures.erase(ErasureSubject("acme", user="ada"))
    assert (receipt.status, [row.phase for row in await facts.ledger()]) == ("pending_physical", ["entered"])
    assert "cannot be reached" in receipt.scan.waits[0]
    redis.start()
    # Another process has no erasure in memory; it copies the ledger of one store to the other.
    [done] = await Eraser([facts, logs], clock).resume()
    assert (done.id, done.complete, await logs.read(LOG, hidden=True)) == (receipt.id, True, [])
    assert done.erased == {"conversation": 1, "semantic": 1}
    await logs.close()


async def test_erase_with_every_store_down_raises_store_unavailable(redis: RedisServer, clock: ManualClock):
    logs = await RedisStore.open(redis.url, patience=NO_RETRY)
    redis.stop()
    with pytest.raises(StoreUnavailable):
        await Eraser([logs], clock).erase(ErasureSubject("acme", user="ada"))
    await logs.close()


async def test_erase_is_pending_until_server_rewrites_its_files(redis: RedisServer, clock: ManualClock):
    # Mutant: a refused rewrite counts as completed.
    with redis.client() as admin:
        admin.execute_command(
            "ACL",
            "SETUSER",
            "guest",
            "on",
            ">pass",
            "~recollect:*",
            "+@read",
            "+@write",
            "+@scripting",
            "+info",
            "+time",
        )
        logs = await RedisStore.open(redis.url.replace("redis://", "redis://guest:pass@"))
        await logs.write(make_append("said"))
        erasures = Eraser([logs], clock)
        receipt = await erasures.erase(ErasureSubject("acme", user="ada"))
        assert receipt.status == "pending_physical"
        assert "run BGREWRITEAOF there as an admin" in receipt.scan.waits[0]
        assert "not readable here" in str(receipt.scan.unseen)
        assert (await logs.read(LOG, hidden=True), list_ids(await logs.read(LOG))) == ([], [])
        [waiting] = await erasures.resume()
        assert waiting.status == "pending_physical"
        admin.bgrewriteaof()
        while admin.info("persistence")["aof_rewrite_in_progress"]:
            continue
        # Rewriting the snapshot needs a permission too, even if no snapshot exists.
        admin.execute_command("ACL", "SETUSER", "guest", "+bgsave")
        [done] = await erasures.resume()
        assert done.complete
    await logs.close()


async def test_catch_up_keeps_data_of_a_store_added_after_the_erasure(redis: RedisServer, clock: ManualClock):
    """An erased user returns, and their new episodes are stored on Redis."""
    # Mutant: every erasure is replayed on a store, not only those that covered it.
    facts, logs = InMemoryStore(clock=clock), await RedisStore.open(redis.url)
    await facts.write(make_put("a"))
    assert (await Eraser([facts], clock).erase(ErasureSubject("acme", user="ada"))).complete
    await logs.write(make_append("new", space=ADA.space("conversation")))
    await Eraser([facts, logs], clock).catch_up()
    assert list_ids(await logs.read(LOG)) == ["new"]
    # The hash of another store would not match here; the ledger must have no row anyway.
    assert await logs.ledger() == []
    await logs.close()
