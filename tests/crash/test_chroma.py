"""D1, D7 and D8 on Chroma: acknowledged records survive kills of the writer and of the server."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import StoreUnavailable
from recollect.stores.chroma import ChromaStore
from recollect.stores.writes import Put
from recollect.testing.factories import EVERYTHING, list_ids, make_item, make_put
from tests.crash.process_launcher import start
from tests.crash.result_table import Table
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
    """Create a database for the test."""
    return server.create(f"of.{request.node.name}")


def run_lives(url: str, ledger: Path, rng: random.Random, lives: int, mutant: str = "") -> list[str]:
    """Kill `lives` writers, each at a random step, and return the faults found after each."""
    ends = [rng.choice((-1, 1)) * rng.randint(1, 40) for _ in range(lives)]
    program = start("chroma_writer", url, ledger, mutant, *ends)
    output, errors = program.communicate()
    assert not errors, errors
    return output.splitlines()


@pytest.mark.promise("D1")
@pytest.mark.timeout(60 + 10 * LIVES)
def test_kill_of_directory_writer_loses_no_acknowledged_record(
    tmp_path: Path, rng: random.Random, table: Table
) -> None:
    found = run_lives(f"chroma:{tmp_path / 'chroma'}", tmp_path / "acknowledgments", rng, LIVES)
    table.add_result("D1", f"{LIVES} kills of a writer to a Chroma directory", len(found))
    assert found == []
    assert (tmp_path / "acknowledgments").stat().st_size > LIVES


@pytest.mark.promise("D1")
@pytest.mark.timeout(60 + 20 * LIVES)
def test_kill_of_server_client_loses_no_acknowledged_record(
    url: str, tmp_path: Path, rng: random.Random, table: Table
) -> None:
    found = run_lives(url, tmp_path / "acknowledgments", rng, LIVES)
    table.add_result("D1", f"{LIVES} kills of a writer to a Chroma server", len(found))
    assert found == []


@pytest.mark.mutant("D1")
def test_acknowledgment_before_the_write_is_detected(tmp_path: Path, rng: random.Random, table: Table) -> None:
    found = run_lives(f"chroma:{tmp_path / 'chroma'}", tmp_path / "acknowledgments", rng, 12, mutant="write_later")
    table.add_mutant("D1", "a write to Chroma is acknowledged before it is sent", len(found))
    assert any("lost" in fault for fault in found)


async def test_clients_of_different_items_lose_nothing(url: str) -> None:
    stores = [await ChromaStore.open(url) for _ in range(WRITERS)]
    names = [[f"w{writer}-{number}" for number in range(8)] for writer in range(WRITERS)]

    async def fill(store: ChromaStore, own: list[str]) -> None:
        for name in own:
            await store.write(Put(item=make_item(name), expect=0))

    await asyncio.gather(*(fill(store, own) for store, own in zip(stores, names, strict=True)))
    for store in stores:
        assert sorted(list_ids(await store.find(EVERYTHING))) == sorted(name for own in names for name in own)
        await store.close()


@pytest.mark.promise("D7")
async def test_server_restart_loses_no_acknowledged_write(server: ChromaServer, url: str, table: Table) -> None:
    store = await ChromaStore.open(url, patience=60)
    acknowledged, unknown = set[str](), set[str]()
    for round in range(3):
        for number in range(6):
            await store.write(make_put(name := f"r{round}-{number}", [1, number, 0, 0]))
            acknowledged.add(name)
        dying = asyncio.create_task(store.write(make_put(f"r{round}-dying", [1, 1, 1, 0])))
        await asyncio.sleep(0.01 * round)
        await asyncio.to_thread(server.kill)
        try:
            await dying
            acknowledged.add(f"r{round}-dying")
        except StoreUnavailable:
            unknown.add(f"r{round}-dying")
        with pytest.raises(StoreUnavailable, match="check that it runs"):
            await store.write(Put(item=make_item("refused")))
        with pytest.raises(StoreUnavailable, match="check that it runs"):
            await store.find(EVERYTHING)
        await asyncio.to_thread(server.start)
    present = set(list_ids(await store.find(EVERYTHING)))
    lost = acknowledged - present
    table.add_result("D7", f"3 kills of a Chroma server, {len(acknowledged)} writes acknowledged", len(lost))
    assert not lost
    assert present <= acknowledged | unknown
    report = await store.check_integrity()
    assert (report.faults, report.missing_vectors) == ((), 0)
    await store.close()


class Writer:
    """A writer of items that records the outcomes."""

    def __init__(self, store: ChromaStore, name: str) -> None:
        self._store = store
        self._name = name
        self.acknowledged: list[str] = []
        self.doubtful: list[str] = []
        self.enough: int | None = None

    async def run(self) -> None:
        while self.enough is None or len(self.acknowledged) < self.enough:
            name = f"{self._name}-{len(self.acknowledged) + len(self.doubtful)}"
            try:
                await self._store.write(make_put(name, [1, 0, 0, 0]))
                self.acknowledged.append(name)
            except StoreUnavailable:
                self.doubtful.append(name)
                await asyncio.sleep(0.1)  # no busy retries while the server is down


async def run_through_outage(server: ChromaServer, url: str) -> tuple[int, int, list[str]]:
    """Write during an outage; return the acknowledged items, the failed calls and the faults afterwards."""
    stores = [await ChromaStore.open(url) for _ in range(WRITERS)]
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
    present = set(list_ids(await stores[0].find(EVERYTHING)))
    acknowledged = {name for writer in writers for name in writer.acknowledged}
    found = [f"{name} is lost" for name in acknowledged - present]
    report = await stores[0].check_integrity()
    found += [*report.faults, *(["a vector is lost"] if report.missing_vectors else [])]
    for store in stores:
        await store.close()
    return len(acknowledged), sum(len(writer.doubtful) for writer in writers), found


@pytest.mark.promise("D8")
async def test_server_outage_raises_and_loses_nothing(server: ChromaServer, url: str, table: Table) -> None:
    done, failed, found = await run_through_outage(server, url)
    table.add_result("D8", f"a Chroma server gone for {GONE} s: {done} writes, {failed} calls failed", len(found))
    assert found == []
    assert failed >= WRITERS


@pytest.mark.mutant("D8")
async def test_ignored_store_unavailable_is_detected(
    server: ChromaServer, url: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ChromaStore.write

    async def write_ignoring_errors(store: ChromaStore, *writes: Any) -> None:
        with suppress(StoreUnavailable):
            await write(store, *writes)

    monkeypatch.setattr(ChromaStore, "write", write_ignoring_errors)
    monkeypatch.setattr("tests.crash.test_chroma.GONE", 1)
    _, _, found = await run_through_outage(server, url)
    table.add_mutant("D8", "a Chroma server's errors are ignored", len(found))
    assert any("lost" in fault for fault in found)
