"""E1 to E3 over stores that share nothing: logs and tasks on Redis, facts in a Chroma directory or on its server."""

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
from recollect.lifecycle import ledgers
from recollect.memory import finish_erasures
from recollect.runtime.failpoints import ERASURE_POINTS
from recollect.stores.chroma import ChromaStore
from recollect.stores.redis import RedisStore
from recollect.stores.redis.ledger import Ledger
from tests.crash import canaries, mutants
from tests.crash.canaries import EACH, Canary, left_in
from tests.crash.eraser import again
from tests.crash.erasing_lives import WIPE
from tests.crash.places import LOGS_AND_TASKS
from tests.crash.processes import ROOT, command, environment
from tests.crash.table import Table
from tests.crash.test_erasure import run
from tests.embedders import HashEmbedder
from tests.servers.chroma import ChromaServer
from tests.servers.redis import RedisServer

Told = dict[str, list[Canary]]

ASKED = 10
# How many questions an erasure asks of its stores is not known here; beyond the last it is not killed.
STEPS = (4, 16, 32, 48, 60)
FEW = 10


@dataclass
class Pair:
    """A Redis and a Chroma directory, filled; each test has a copy."""

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
        """All that the two keep on disk; not what the server says of itself."""
        return [path for path in sorted(self.directory.rglob("*")) if path.name != "server.log"]


@dataclass(frozen=True)
class Filled:
    directory: Path
    ada: Told
    bob: Told


def _filled(directory: Path, each: int) -> Filled:
    # Nobody waits for the disk while it is filled; the copies are as careful as they have to be.
    server = RedisServer(directory / "redis", "--appendonly", "yes", durable=False).start()

    async def fill() -> dict[str, Told]:
        logs = await RedisStore.open(server.url)
        records = await ChromaStore.open(f"chroma:{directory / 'chroma'}")
        told = await canaries.fill_stores(records, logs, "ada", "bob", each=each, at_once=min(25, each))
        await records.close()
        await logs.close()
        return told

    told = asyncio.run(fill())
    with server.client() as client:
        client.save()
    server.stop()
    made = Filled(directory, told["ada"], told["bob"])
    files = Pair(directory, server).files
    assert left_in(files, made.ada) == left_in(files, made.bob) == each * len(made.ada)
    return made


@pytest.fixture(scope="module")
def many(quick_module: Path) -> Filled:
    """A hundred of each kind."""
    return _filled(quick_module / "many", EACH)


@pytest.fixture(scope="module")
def filled(quick_module: Path) -> Filled:
    """A few of each kind, to be copied often."""
    return _filled(quick_module / "few", FEW)


@pytest.fixture
def copies(quick: Path) -> Iterator[Any]:
    """Makes copies, and ends their servers."""
    made: list[Pair] = []

    def another(of: Filled) -> Pair:
        directory = quick / f"pair{len(made)}"
        shutil.copytree(of.directory, directory)
        made.append(Pair(directory, RedisServer(directory / "redis").start()))
        return made[-1]

    yield another
    for pair in made:
        pair.redis.kill()


async def recalled(place: str, told: Told) -> int:
    """How often somebody's own words find something of theirs."""
    found = 0
    async with AgentMemory.open(
        json.loads(place), tenant="acme", user="ada", agent="helper", session="session-of-ada", embedder=HashEmbedder()
    ) as memory:
        for tier in ("semantic items", "conversation entries", "episodic entries"):
            for canary in told[tier][:ASKED]:
                answers = (
                    await memory.semantic.search(canary.word, min_relevance=0.0, mode="text"),
                    await memory.conversation.search(canary.word),
                    await memory.episodic.search(canary.word),
                )
                found += any(canary.word in str(answer) for answer in answers)
    return found


def test_of_a_hundred_canaries_a_tier_none_is_left_in_either_store(many: Filled, copies: Any, table: Table):
    pair = copies(many)
    with pair.redis.client() as reader:  # in the middle of going through all keys, and of a snapshot
        cursor, _ = reader.scan(0, count=1)
        reader.bgsave()
        receipt = run("erase", pair.place)["receipt"]
        seen = list(reader.scan_iter(match="*session-of-ada*"))
        assert reader.scan(cursor)
    found, others = left_in(pair.files, many.ada), left_in(pair.files, many.bob)
    kinds = len(many.ada)
    table.held("E1", f"{EACH * kinds} canaries of {kinds} kinds erased on Redis and in a Chroma directory", found)
    assert (receipt["status"], receipt["scan"]["found"], found, seen) == ("complete", 0, 0, [])
    assert sum(receipt["erased"].values()) == EACH * kinds
    assert any("copies of the files of" in told for told in receipt["scan"]["unseen"])
    with pair.redis.client() as client:
        client.save()  # what is left of the other is in its files again, none of it compressed
    assert others > 0
    assert asyncio.run(again(pair.place))["faults"] == []


@pytest.mark.parametrize("mutant", ["aof_left", "snapshot_left", "pages_left"])
def test_mutants_leave_canaries_behind(filled: Filled, copies: Any, table: Table, mutant: str):
    pair = copies(filled)
    receipt = run("erase", pair.place, mutant=mutant)["receipt"]
    found = left_in(pair.files, filled.ada)
    told = " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split())
    table.seen("E1", told, found)
    assert found > 0
    # And the product's own look at its bytes has seen it too.
    assert receipt["status"] == "pending_physical"


def _killed(pairs: list[tuple[Pair, str]], mutant: str = "") -> dict[str, str]:
    """What became of each: killed, or ended before it came to that."""
    done = subprocess.run(
        command("erasing_lives", json.dumps([[pair.place, end] for pair, end in pairs])),
        cwd=ROOT,
        env=environment(mutant),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines() if line.endswith(("killed", "ended")))


def _faults(pair: Pair, filled: Filled) -> list[str]:
    done = asyncio.run(again(pair.place))
    found = list(done["faults"])
    if [one["status"] for one in done["receipts"]] != ["complete"] or done["holds"] != [True]:
        return [*found, f"the receipts are {done['receipts']}, and hold: {done['holds']}"]
    if (count := sum(done["receipts"][0]["erased"].values())) != FEW * len(filled.ada):
        found.append(f"the receipt counts {count}")
    if count := left_in(pair.files, filled.ada):
        found.append(f"{count} canaries are left")
    return found


def test_killed_in_any_phase_the_next_process_ends_what_was_begun(filled: Filled, copies: Any, table: Table):
    pairs = [(copies(filled), end) for end in (*ERASURE_POINTS, WIPE, *map(str, STEPS))]
    fates = _killed(pairs)
    faults = [f"{end}: {fault}" for pair, end in pairs for fault in _faults(pair, filled)]
    killed = sum(fate == "killed" for fate in fates.values())
    table.held("E2", f"killed at {killed} places of an erasure over Redis and Chroma, then gone on with", len(faults))
    assert faults == []
    assert killed == len(pairs), fates


def test_a_deletion_that_nobody_counted_is_seen(
    filled: Filled, copies: Any, table: Table, monkeypatch: pytest.MonkeyPatch
):
    async def nothing(self: Ledger) -> None:
        return None

    monkeypatch.setattr(Ledger, "recover", nothing)
    pair = copies(filled)
    assert _killed([(pair, WIPE)]) == {WIPE: "killed"}
    faults = _faults(pair, filled)
    table.seen("E2", "plans that a crash has left are not looked at", len(faults))
    assert faults


@pytest.fixture(scope="module")
def erased(filled: Filled, quick_module: Path) -> Filled:
    """The few after an erasure, at rest."""
    directory = quick_module / "erased"
    shutil.copytree(filled.directory, directory)
    pair = Pair(directory, RedisServer(directory / "redis").start())
    assert run("erase", pair.place)["receipt"]["status"] == "complete"
    pair.redis.stop()
    return Filled(directory, filled.ada, filled.bob)


def _restored(made: Pair, old: Filled, *names: str) -> Pair:
    """Older files in the place of newer ones."""
    made.redis.stop()
    for name in names:
        shutil.rmtree(made.directory / name)
        shutil.copytree(old.directory / name, made.directory / name)
    made.redis.start()
    return made


class TestRestoring:
    """E3."""

    @pytest.mark.parametrize("what", [("redis",), ("chroma",), ("redis", "chroma")], ids="-".join)
    def test_an_older_copy_forgets_before_it_serves(
        self, filled: Filled, erased: Filled, copies: Any, table: Table, what: tuple[str, ...]
    ):
        pair = _restored(copies(erased), filled, *what)
        found = asyncio.run(recalled(pair.place, filled.ada))
        table.held("E3", f"{3 * ASKED} recalls with an older {' and '.join(what)} in its place", found)
        assert (found, left_in(pair.files, filled.ada)) == (0, 0)

    def test_without_what_the_others_know_an_older_redis_remembers(
        self, filled: Filled, erased: Filled, copies: Any, table: Table, monkeypatch: pytest.MonkeyPatch
    ):
        async def nothing(stores: Any) -> None:
            return None

        monkeypatch.setattr(ledgers, "spread", nothing)
        pair = _restored(copies(erased), filled, "redis")
        found = asyncio.run(recalled(pair.place, filled.ada))
        table.seen("E3", "nothing is learned from the other store", found)
        assert found > 0


def test_a_chroma_server_waits_for_its_operator_and_then_it_is_complete(many: Filled, copies: Any, table: Table):
    pair = copies(many)
    server = ChromaServer(pair.chroma).start()
    place = json.dumps({"default": server.url, **dict.fromkeys(LOGS_AND_TASKS, pair.redis.url)})
    try:
        receipt = run("erase", place)["receipt"]
        assert receipt["status"] == "pending_physical"
        assert "finish-erasures --store chroma:DIRECTORY" in receipt["scan"]["waits"][0]
        retained = left_in(pair.chroma.rglob("*"), many.ada)
        server.stop()
        [done] = asyncio.run(finish_erasures(f"chroma:{pair.chroma}"))
        found = left_in(pair.files, many.ada)
        assert (done.status, retained > 0, found) == ("complete", True, 0)
        server.start()
        ended = asyncio.run(again(place))
        [last] = ended["receipts"]
        table.held("E1", f"a Chroma server's files held {retained} canaries, and none after its operator's turn", found)
        assert (last["status"], ended["holds"]) == ("complete", [True])
        assert sum(last["erased"].values()) == EACH * len(many.ada)
    finally:
        server.kill()
