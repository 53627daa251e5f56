"""One `erase` over stores that share nothing: while one is down it waits, and what a server refuses is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import StoreUnavailable
from recollect.lifecycle import Erasures, Subject
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.redis import RedisStore
from recollect.stores.redis.server import Patience
from recollect.testing import ManualClock
from recollect.testing.samples import ADA, LOG, append, ids, put
from recollect.values import Space
from tests.embedders import HashEmbedder
from tests.servers.redis import RedisServer

ONCE = Patience(answer=3.0, altogether=3.0)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of its own: it is stopped, and its users are few."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


async def held(memory: AgentMemory) -> list[Space]:
    return [
        space
        for store in memory._parts.stores.every
        for space in await store.holdings()  # type: ignore[attr-defined]
    ]


async def test_what_is_in_a_file_and_on_redis_goes_with_one_receipt(redis: RedisServer, tmp_path: Path):
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
        assert [one.id for one in await memory.erasures()] == [receipt.id]
        assert (await memory.verify_erasure(receipt)).holds
        assert bob.scope.space("working") in await held(memory)
        assert not any(space.user == "ada" for space in await held(memory))
        again = await memory.erase(user="ada")
        assert (sum(again.erased.values()), again.previous) == (0, receipt.sha256)


async def test_while_a_store_is_down_nothing_that_waits_for_it_is_deleted(redis: RedisServer, clock: ManualClock):
    # Mutants: an `enter` that gives up with the first store that is down; one that goes on to delete without it.
    facts, logs = InMemoryStore(clock=clock), await RedisStore.open(redis.url, patience=ONCE)
    await facts.write(put("a"))
    await logs.write(append("said"))
    erasures = Erasures([facts, logs], clock)
    redis.stop()
    receipt = await erasures.erase(Subject("acme", user="ada"))
    assert (receipt.status, [row.phase for row in await facts.ledger()]) == ("pending_physical", ["entered"])
    assert "cannot be reached" in receipt.scan.waits[0]
    redis.start()
    # Another process, which knows of nobody: the ledger of the one store tells the other.
    [done] = await Erasures([facts, logs], clock).resume()
    assert (done.id, done.complete, await logs.read(LOG, hidden=True)) == (receipt.id, True, [])
    assert done.erased == {"conversation": 1, "semantic": 1}
    await logs.close()


async def test_with_every_store_down_nothing_is_promised(redis: RedisServer, clock: ManualClock):
    logs = await RedisStore.open(redis.url, patience=ONCE)
    redis.stop()
    with pytest.raises(StoreUnavailable):
        await Erasures([logs], clock).erase(Subject("acme", user="ada"))
    await logs.close()


async def test_a_server_that_keeps_its_files_to_itself_is_waited_for(redis: RedisServer, clock: ManualClock):
    # Mutant: a refusal that counts as done.
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
        await logs.write(append("said"))
        erasures = Erasures([logs], clock)
        receipt = await erasures.erase(Subject("acme", user="ada"))
        assert receipt.status == "pending_physical"
        assert "run BGREWRITEAOF there as an admin" in receipt.scan.waits[0]
        assert "not readable here" in str(receipt.scan.unseen)
        assert (await logs.read(LOG, hidden=True), ids(await logs.read(LOG))) == ([], [])
        [waiting] = await erasures.resume()
        assert waiting.status == "pending_physical"
        admin.bgrewriteaof()
        while admin.info("persistence")["aof_rewrite_in_progress"]:
            continue
        # Nobody but an admin can write the snapshot anew either; whether there is one is not told.
        admin.execute_command("ACL", "SETUSER", "guest", "+bgsave")
        [done] = await erasures.resume()
        assert done.complete
    await logs.close()


async def test_a_store_that_was_never_part_of_it_keeps_what_it_has(redis: RedisServer, clock: ManualClock):
    """Somebody was erased, came back, and their episodes are moved to a Redis: these are new."""
    # Mutant: an older copy learns of every erasure, and not of those alone that it was part of.
    facts, logs = InMemoryStore(clock=clock), await RedisStore.open(redis.url)
    await facts.write(put("a"))
    assert (await Erasures([facts], clock).erase(Subject("acme", user="ada"))).complete
    await logs.write(append("new", space=ADA.space("conversation")))
    await Erasures([facts, logs], clock).catch_up()
    assert ids(await logs.read(LOG)) == ["new"]
    # By another store's hash it would find nobody; that it has none to look for is what keeps it so.
    assert await logs.ledger() == []
    await logs.close()
