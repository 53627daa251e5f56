"""D1 on Chroma: killed between the steps of a batch, a writer leaves all of it or nothing; a server may go, too."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import Conflict, StoreUnavailable
from recollect.stores.chroma import ChromaStore
from recollect.stores.chroma.chain import NAME, Chain
from recollect.stores.ops import Delete, Put
from recollect.stores.where import Where
from recollect.testing.samples import BOB, EVERYTHING, SPACE, ids, item, put, vector
from tests.crash.processes import start
from tests.crash.table import Table
from tests.servers.chroma import ChromaServer

LIVES = int(os.environ.get("CRASH_CHROMA", "20"))
WRITERS = 3
GONE = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    started = ChromaServer(tmp_path_factory.mktemp("chroma") / "data").start()
    yield started
    started.kill()


@pytest.fixture
def url(server: ChromaServer, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    return server.create(f"of.{request.node.name}")


def lived(url: str, ledger: Path, chance: random.Random, lives: int, mutant: str = "") -> list[str]:
    """What was wrong after a number of lives, each ended at another step."""
    ends = [chance.choice((-1, 1)) * chance.randint(1, 16) for _ in range(lives)]
    program = start("chroma_lives", url, ledger, mutant, *ends)
    said, complaints = program.communicate()
    assert not complaints, complaints
    return said.splitlines()


@pytest.mark.timeout(60 + 10 * LIVES)
def test_killed_in_a_directory_a_writer_leaves_no_half_of_a_batch(
    tmp_path: Path, chance: random.Random, table: Table
) -> None:
    found = lived(f"chroma:{tmp_path / 'chroma'}", tmp_path / "ledger", chance, LIVES)
    table.held("D1", f"{LIVES} kills of a writer to a Chroma directory", len(found))
    assert found == []
    assert (tmp_path / "ledger").stat().st_size > LIVES


@pytest.mark.timeout(60 + 20 * LIVES)
def test_killed_with_a_server_a_writer_leaves_no_half_of_a_batch(
    url: str, tmp_path: Path, chance: random.Random, table: Table
) -> None:
    found = lived(url, tmp_path / "ledger", chance, LIVES)
    table.held("D1", f"{LIVES} kills of a writer to a Chroma server", len(found))
    assert found == []


def test_without_the_chain_a_half_batch_is_seen(tmp_path: Path, chance: random.Random, table: Table) -> None:
    found = lived(f"chroma:{tmp_path / 'chroma'}", tmp_path / "ledger", chance, 12, mutant="placed_first")
    table.seen("D1", "no chain", len(found))
    assert any("half a batch" in fault for fault in found)


async def counted(url: str, times: int) -> tuple[int, int]:
    """How often several writers were told that they had counted on, and how far they came together."""
    stores = [await ChromaStore.open(url, settle_after=5) for _ in range(WRITERS)]
    await stores[0].write(put("count", [1, 0, 0, 0], content="0"))

    async def count(store: ChromaStore) -> int:
        counts = 0
        while counts < times:
            [seen] = await store.get(SPACE, "count")
            more = put("count", [1, 0, 0, 0], content=str(int(seen.content) + 1))
            try:
                await store.write(Put(item=more.item, vectors=more.vectors, model=more.model, expect=seen.version))
            except Conflict:
                continue
            counts += 1
        return counts

    told = sum(await asyncio.gather(*(count(store) for store in stores)))
    reached = {(await store.get(SPACE, "count"))[0].content for store in stores}
    for store in stores:
        await store.close()
    assert len(reached) == 1
    return told, int(reached.pop())


async def test_of_many_writers_at_once_none_is_overwritten(url: str, table: Table) -> None:
    told, reached = await counted(url, 8)
    table.held("D4", f"{told} counted by {WRITERS} clients of one Chroma server", abs(told - reached))
    assert told == reached == 8 * WRITERS


async def test_writers_that_believe_they_won_are_seen(url: str, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "won", lambda self, batch: True)
    told, reached = await counted(url, 6)
    table.seen("D4", "nobody looks who was first", abs(told - reached))
    assert told > reached


async def test_a_writer_that_slept_while_others_swept_is_not_lost_and_undoes_nothing(url: str) -> None:
    sleeper = await ChromaStore.open(url)
    await sleeper.write(put("a", [1, 0, 0, 0], content="first"), put("b", [0, 1, 0, 0]))
    asleep, awake = threading.Event(), threading.Event()
    collections = sleeper._engine.collections
    add = collections.add

    def slow(name: str, *given: Any, **named: Any) -> None:
        if name == NAME and not asleep.is_set():
            asleep.set()
            assert awake.wait(60)
        add(name, *given, **named)

    setattr(collections, "add", slow)  # noqa: B010
    late = asyncio.create_task(sleeper.write(put("c", [0, 0, 1, 0], content="late")))
    await asyncio.to_thread(asleep.wait, 60)
    other = await ChromaStore.open(url)
    # A delete is swept at once: the number that the sleeper is about to take has been used, and is free again.
    await other.write(put("a", [1, 0, 0, 0], content="second"))
    await other.write(Delete(SPACE, "b"))
    awake.set()
    await late
    for store in (sleeper, other):
        assert {one.id: one.content for one in await store.find(EVERYTHING)} == {"a": "second", "c": "late"}
        assert ids(await store.nearest(EVERYTHING, vector(0, 0, 1, 0), limit=1)) == ["c"]
    await other.close()
    assert await sleeper.check() == []
    await sleeper.close()


async def test_what_a_sleeper_puts_into_its_place_too_late_is_not_seen(url: str) -> None:
    sleeper = await ChromaStore.open(url, settle_after=100)
    await sleeper.write(put("a", [1, 0, 0, 0], "old", content="old"), put("gone", [0, 1, 0, 0], "old"))
    stale = list(sleeper._engine._pending.values())
    other = await ChromaStore.open(url)
    await other.write(put("a", [0, 0, 1, 0], "new", content="new"), Delete(SPACE, "gone"))
    sleeper._engine.places.put(stale, sleeper._engine.models)
    third = await ChromaStore.open(url)
    for store in (sleeper, other, third):
        assert {one.id: one.content for one in await store.find(EVERYTHING)} == {"a": "new"}
        assert (await store.matching(EVERYTHING, ("old",))).found == ()
        [near] = await store.nearest(EVERYTHING, vector(0, 0, 1, 0))
        assert round(near.score, 3) == 1.0
        await store.close()


async def test_a_server_that_goes_and_comes_back_loses_nothing(server: ChromaServer, url: str, table: Table) -> None:
    store = await ChromaStore.open(url, settle_after=4, patience=60)
    acknowledged, unknown = set[str](), set[str]()
    for round in range(3):
        for number in range(6):
            await store.write(put(name := f"r{round}-{number}", [1, number, 0, 0]))
            acknowledged.add(name)
        dying = asyncio.create_task(store.write(put(f"r{round}-dying", [1, 1, 1, 0])))
        await asyncio.sleep(0.01 * round)
        await asyncio.to_thread(server.kill)
        try:
            await dying
            acknowledged.add(f"r{round}-dying")
        except StoreUnavailable:
            unknown.add(f"r{round}-dying")
        with pytest.raises(StoreUnavailable, match="is it running"):
            await store.write(Put(item=item("refused")))
        with pytest.raises(StoreUnavailable, match="is it running"):
            await store.find(EVERYTHING)
        await asyncio.to_thread(server.start)
    there = set(ids(await store.find(EVERYTHING)))
    lost = acknowledged - there
    table.held("D7", f"3 kills of a Chroma server, {len(acknowledged)} batches acknowledged", len(lost))
    assert not lost
    assert there <= acknowledged | unknown
    assert await store.check() == []
    await store.close()


class Writer:
    """Writes pairs, each in one batch, and notes what it was told."""

    def __init__(self, store: ChromaStore, name: str) -> None:
        self._store = store
        self._name = name
        self.acknowledged: list[str] = []
        self.doubtful: list[str] = []
        self.enough: int | None = None

    async def run(self) -> None:
        while self.enough is None or len(self.acknowledged) < self.enough:
            pair = f"{self._name}-{len(self.acknowledged) + len(self.doubtful)}"
            try:
                await self._store.write(put(pair, [1, 0, 0, 0]), put(pair, [1, 0, 0, 0], scope=BOB))
                self.acknowledged.append(pair)
            except StoreUnavailable:
                self.doubtful.append(pair)
                await asyncio.sleep(0.1)  # nobody hammers a server that is gone


async def gone_for_a_while(server: ChromaServer, url: str) -> tuple[int, int, list[str]]:
    """How many pairs were acknowledged and how many calls failed, and what is wrong afterwards."""
    stores = [await ChromaStore.open(url, settle_after=8) for _ in range(WRITERS)]
    writers = [Writer(store, f"w{number}") for number, store in enumerate(stores)]
    running = [asyncio.create_task(writer.run()) for writer in writers]
    while any(len(writer.acknowledged) < 5 for writer in writers):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(GONE)
    await asyncio.to_thread(server.start)
    for writer in writers:
        writer.enough = len(writer.acknowledged) + 5
    await asyncio.gather(*running)
    there = [set(ids(await stores[0].find(where))) for where in (EVERYTHING, Where(BOB.space("semantic")))]
    acknowledged = {pair for writer in writers for pair in writer.acknowledged}
    found = [f"{len(acknowledged - kept)} pairs lost" for kept in there if acknowledged - kept]
    found += [f"half of {pair}" for pair in there[0] ^ there[1]] + [str(one) for one in await stores[0].check()]
    for store in stores:
        await store.close()
    return len(acknowledged), sum(len(writer.doubtful) for writer in writers), found


async def test_a_server_that_is_gone_for_ten_seconds_is_told_of_and_leaves_nothing_half_done(
    server: ChromaServer, url: str, table: Table
) -> None:
    done, told, found = await gone_for_a_while(server, url)
    table.held("D8", f"a Chroma server gone for {GONE} s: {done} batches, {told} calls told of it", len(found))
    assert found == []
    assert told >= WRITERS


async def test_writers_that_take_silence_for_consent_are_seen(
    server: ChromaServer, url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ChromaStore.write

    async def unheard(store: ChromaStore, *writes: Any) -> None:
        with suppress(StoreUnavailable):
            await write(store, *writes)

    monkeypatch.setattr(ChromaStore, "write", unheard)
    monkeypatch.setattr("tests.crash.test_chroma.GONE", 1)
    _, _, found = await gone_for_a_while(server, url)
    table.seen("D8", "a Chroma server's silence is taken for consent", len(found))
    assert any("lost" in fault for fault in found)
