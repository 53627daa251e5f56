"""E1 to E3 over two stores: logs and tasks on Redis, facts in a Chroma directory or on a Chroma server.

Redis is rewritten until no byte is left. Chroma deletes its records and keeps bytes, which the receipt names.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.durable.failpoints import ERASURE_POINTS
from recollect.erasure import ledger
from recollect.stores.chroma import ChromaStore
from recollect.stores.erasure import ErasureRecord
from recollect.stores.filters import Where
from recollect.stores.redis import RedisStore
from recollect.stores.redis.erasure import RedisErasures
from tests.crash import canaries, mutants
from tests.crash.canaries import EACH, Canary, count_left_in
from tests.crash.erase_worker import resume_erasure
from tests.crash.multi_store_eraser import WIPE
from tests.crash.process_launcher import ROOT, command, environment
from tests.crash.result_table import Table
from tests.crash.store_locations import LOGS_AND_TASKS
from tests.crash.test_erasure import run
from tests.embedders import HashEmbedder
from tests.servers.chroma import ChromaServer
from tests.servers.redis import RedisServer

CanariesByKind = dict[str, list[Canary]]

ASKED = 10
# Numbers of store calls after which the erasure is killed; beyond its last call it would not be killed.
STEPS = (4, 10, 16, 22, 28)
FEW = 10


@dataclass
class Pair:
    """A filled Redis server and Chroma directory; each test has a copy."""

    directory: Path
    redis: RedisServer

    @property
    def place(self) -> str:
        return json.dumps({"default": f"chroma:{self.chroma}", **dict.fromkeys(LOGS_AND_TASKS, self.redis.url)})

    @property
    def chroma(self) -> Path:
        return self.directory / "chroma"

    @property
    def files(self) -> list[Path]:
        """Return all files of Redis except the server's own log."""
        return [path for path in sorted((self.directory / "redis").rglob("*")) if path.name != "server.log"]

    @property
    def all_files(self) -> list[Path]:
        return [*self.files, *sorted(self.chroma.rglob("*"))]

    async def count_facts(self, planted: CanariesByKind) -> int:
        """Return how many canaries are in the texts and metadata that Chroma returns."""
        store = await ChromaStore.open(f"chroma:{self.chroma}")
        found = 0
        for space in await store.list_traced_spaces():
            text = str([space, await store.find(Where(space), limit=10_000), await store.paths(space)])
            found += sum(canary.word in text for kind in planted.values() for canary in kind)
        await store.close()
        return found


@dataclass(frozen=True)
class Filled:
    directory: Path
    ada: CanariesByKind
    bob: CanariesByKind


def _filled(directory: Path, each: int) -> Filled:
    # Without fsync while it is filled; the copies use the durable settings.
    server = RedisServer(directory / "redis", "--appendonly", "yes", durable=False).start()

    async def fill() -> dict[str, CanariesByKind]:
        logs = await RedisStore.open(server.url)
        records = await ChromaStore.open(f"chroma:{directory / 'chroma'}")
        planted = await canaries.fill_stores(records, logs, "ada", "bob", each=each, at_once=min(25, each))
        await records.close()
        await logs.close()
        return planted

    planted = asyncio.run(fill())
    with server.client() as client:
        client.save()
    server.stop()
    made = Filled(directory, planted["ada"], planted["bob"])
    files = Pair(directory, server).all_files
    assert count_left_in(files, made.ada) == count_left_in(files, made.bob) == each * len(made.ada)
    return made


@pytest.fixture(scope="module")
def many(module_memory_dir: Path) -> Filled:
    """Create stores with a hundred canaries of each kind."""
    return _filled(module_memory_dir / "many", EACH)


@pytest.fixture(scope="module")
def filled(module_memory_dir: Path) -> Filled:
    """Create stores with a few canaries of each kind, for tests that copy them often."""
    return _filled(module_memory_dir / "few", FEW)


@pytest.fixture
def copies(memory_dir: Path) -> Iterator[Any]:
    """Yield a function that copies filled stores; stop the servers of the copies at the end."""
    made: list[Pair] = []

    def another(of: Filled) -> Pair:
        directory = memory_dir / f"pair{len(made)}"
        shutil.copytree(of.directory, directory)
        made.append(Pair(directory, RedisServer(directory / "redis").start()))
        return made[-1]

    yield another
    for pair in made:
        pair.redis.kill()


async def count_recalled(place: str, planted: CanariesByKind) -> int:
    """Return how many canaries of the user a search still finds."""
    found = 0
    async with AgentMemory.open(
        json.loads(place), tenant="acme", user="ada", agent="helper", session="session-of-ada", embedder=HashEmbedder()
    ) as memory:
        for tier in ("semantic items", "conversation entries", "episodic entries"):
            for canary in planted[tier][:ASKED]:
                answers = (
                    await memory.semantic.search(canary.word, min_relevance=0.0, mode="text"),
                    await memory.conversation.search(canary.word),
                    await memory.episodic.search(canary.word),
                )
                found += any(canary.word in str(answer) for answer in answers)
    return found


@pytest.mark.promise("E1")
def test_erase_leaves_no_canary_in_either_store(many: Filled, copies: Any, table: Table):
    pair = copies(many)
    with pair.redis.client() as reader:  # with an open key scan and a running snapshot
        cursor, _ = reader.scan(0, count=1)
        reader.bgsave()
        receipt = run("erase", pair.place)["receipt"]
        seen = list(reader.scan_iter(match="*session-of-ada*"))
        assert reader.scan(cursor)
    found, others = count_left_in(pair.files, many.ada), count_left_in(pair.files, many.bob)
    kinds = len(many.ada)
    table.add_result("E1", f"{EACH * kinds} canaries of {kinds} kinds erased on Redis and in a Chroma directory", found)
    assert (receipt["status"], receipt["scan"]["found"], found, seen) == ("pending_physical", 0, 0, [])
    assert sum(receipt["erased"].values()) == EACH * kinds
    assert any("backups of the files of" in text for text in receipt["scan"]["unseen"])
    _check_waits(receipt, pair)
    assert asyncio.run(pair.count_facts(many.ada)) == 0
    assert count_left_in(pair.chroma.rglob("*"), many.ada) > 0  # what the receipt names
    with pair.redis.client() as client:
        client.save()  # writes the other user's data to the files again, uncompressed
    assert others > 0
    assert asyncio.run(resume_erasure(pair.place))["faults"] == []


def _check_waits(receipt: dict[str, Any], pair: Pair) -> None:
    """Assert that the erasure waits for Chroma alone, and names where it keeps bytes."""
    [waits] = receipt["scan"]["waits"]
    assert str(pair.chroma) in waits or "the Chroma server" in waits
    assert "chroma.sqlite3 (write-ahead log, full-text index, free pages)" in waits
    assert "index folders" in waits


@pytest.mark.mutant("E1")
@pytest.mark.parametrize("mutant", ["keep_aof", "keep_snapshot"])
def test_erase_mutant_leaves_canaries(filled: Filled, copies: Any, table: Table, mutant: str):
    pair = copies(filled)
    receipt = run("erase", pair.place, mutant=mutant)["receipt"]
    found = count_left_in(pair.files, filled.ada)
    planted = " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split())
    table.add_mutant("E1", planted, found)
    assert found > 0
    # The scan of the erasure has found it too.
    assert receipt["scan"]["found"] > 0 or len(receipt["scan"]["waits"]) > 1


def run_killed(pairs: list[tuple[Pair, str]], mutant: str = "") -> dict[str, str]:
    """Run the erasures and return for each kill point whether the process was killed or ended before it."""
    done = subprocess.run(
        command("multi_store_eraser", json.dumps([[pair.place, end] for pair, end in pairs])),
        cwd=ROOT,
        env=environment(mutant),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines() if line.endswith(("killed", "ended")))


async def _read_ledgers(pair: Pair) -> list[ErasureRecord]:
    stores: list[RedisStore | ChromaStore] = [
        await RedisStore.open(pair.redis.url),
        await ChromaStore.open(f"chroma:{pair.chroma}"),
    ]
    rows = [row for store in stores for row in await store.ledger()]
    for store in stores:
        await store.close()
    return rows


def _find_faults(pair: Pair, filled: Filled) -> list[str]:
    done = asyncio.run(resume_erasure(pair.place))
    found = list(done["faults"])
    rows = asyncio.run(_read_ledgers(pair))
    if [(row.phase, row.receipt) for row in rows] != [("deleted", None)] * 2:
        found.append(f"the ledgers have {rows}")
    on_chroma = sum(kind.endswith("items") for kind in filled.ada)
    counts = [sum(row.erased.values()) for row in rows]
    # A kill between a deletion and its entry in Chroma's ledger loses a count.
    if counts[0] != FEW * (len(filled.ada) - on_chroma) or counts[1] > FEW * on_chroma:
        found.append(f"the ledgers count {counts}")
    if count := count_left_in(pair.files, filled.ada) + asyncio.run(pair.count_facts(filled.ada)):
        found.append(f"{count} canaries are left")
    return found


@pytest.mark.promise("E2")
def test_erase_killed_in_any_phase_is_finished_by_next_process(filled: Filled, copies: Any, table: Table):
    points = [point for point in ERASURE_POINTS if point != "erase.finished"]  # an erasure on Chroma stays pending
    pairs = [(copies(filled), end) for end in (*points, WIPE, *map(str, STEPS))]
    fates = run_killed(pairs)
    faults = [f"{end}: {fault}" for pair, end in pairs for fault in _find_faults(pair, filled)]
    killed = sum(fate == "killed" for fate in fates.values())
    table.add_result("E2", f"killed at {killed} points of an erasure over Redis and Chroma, then resumed", len(faults))
    assert faults == []
    assert killed == len(pairs), fates


@pytest.mark.mutant("E2")
def test_unrecovered_redis_counts_are_detected(
    filled: Filled, copies: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    async def nothing(self: RedisErasures) -> None:
        return None

    monkeypatch.setattr(RedisErasures, "recover_counts", nothing)
    pair = copies(filled)
    assert run_killed([(pair, WIPE)]) == {WIPE: "killed"}
    faults = _find_faults(pair, filled)
    table.add_mutant("E2", "counts that a crash has left are not recovered", len(faults))
    assert faults


@pytest.fixture(scope="module")
def erased(filled: Filled, module_memory_dir: Path) -> Filled:
    """Erase a copy of the small stores and stop its server."""
    directory = module_memory_dir / "erased"
    shutil.copytree(filled.directory, directory)
    pair = Pair(directory, RedisServer(directory / "redis").start())
    assert run("erase", pair.place)["receipt"]["scan"]["found"] == 0
    pair.redis.stop()
    return Filled(directory, filled.ada, filled.bob)


def _restored(made: Pair, old: Filled, *names: str) -> Pair:
    """Replace files of the copy with older ones."""
    made.redis.stop()
    for name in names:
        shutil.rmtree(made.directory / name)
        shutil.copytree(old.directory / name, made.directory / name)
    made.redis.start()
    return made


class TestRestoring:
    """E3: older copies of one store or both."""

    @pytest.mark.promise("E3")
    @pytest.mark.parametrize("what", [("redis",), ("chroma",), ("redis", "chroma")], ids="-".join)
    def test_older_copy_replays_erasure_before_reads(
        self, filled: Filled, erased: Filled, copies: Any, table: Table, what: tuple[str, ...]
    ):
        pair = _restored(copies(erased), filled, *what)
        found = asyncio.run(count_recalled(pair.place, filled.ada))
        table.add_result("E3", f"{3 * ASKED} recalls with an older {' and '.join(what)} in its place", found)
        assert (found, count_left_in(pair.files, filled.ada), asyncio.run(pair.count_facts(filled.ada))) == (0, 0, 0)

    @pytest.mark.mutant("E3")
    def test_older_redis_without_ledger_sync_returns_erased_data(
        self, filled: Filled, erased: Filled, copies: Any, table: Table, monkeypatch: pytest.MonkeyPatch
    ):
        async def nothing(stores: Any) -> None:
            return None

        monkeypatch.setattr(ledger, "sync_ledgers", nothing)
        pair = _restored(copies(erased), filled, "redis")
        found = asyncio.run(count_recalled(pair.place, filled.ada))
        table.add_mutant("E3", "the ledgers of the stores are not synchronized", found)
        assert found > 0


@pytest.mark.promise("E1")
def test_erase_on_chroma_server_names_what_it_keeps(filled: Filled, copies: Any, table: Table):
    pair = copies(filled)
    server = ChromaServer(pair.chroma).start()
    place = json.dumps({"default": server.url, **dict.fromkeys(LOGS_AND_TASKS, pair.redis.url)})
    try:
        receipt = run("erase", place)["receipt"]
        assert (receipt["status"], receipt["scan"]["found"]) == ("pending_physical", 0)
        _check_waits(receipt, pair)
        assert sum(receipt["erased"].values()) == FEW * len(filled.ada)
    finally:
        server.stop()
    found = asyncio.run(pair.count_facts(filled.ada))
    table.add_result("E1", "canaries that a Chroma server returns after an erasure", found)
    assert found == 0
