"""E1 to E3: what was erased is in no byte of the store, whoever was looking, whenever the process was killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.lifecycle import beside
from recollect.memory import restore_store
from recollect.runtime.failpoints import ERASURE_POINTS, VARIABLE
from recollect.stores.sqlite import SqliteStore
from tests.crash import canaries, mutants
from tests.crash.canaries import EACH, Canary, left
from tests.crash.eraser import again
from tests.crash.processes import ROOT, command, environment, line_of, start, tell
from tests.crash.table import Table
from tests.embedders import HashEmbedder

Told = dict[str, list[Canary]]

ASKED = 20


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told, Told]:
    """A store with the canaries of two users, once for all; each test works on a copy."""
    path = tmp_path_factory.mktemp("erasure") / "filled.db"
    told = asyncio.run(canaries.fill(path, "ada", "bob"))
    ada, bob = told["ada"], told["bob"]
    assert left(path, ada) == left(path, bob) == EACH * len(ada)
    return path, ada, bob


@pytest.fixture(scope="module")
def erased(filled: tuple[Path, Told, Told], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store after its erasure, for those who restore an older one; and the receipt."""
    path = Path(shutil.copyfile(filled[0], tmp_path_factory.mktemp("erased") / "agent.db"))
    return path, run("erase", path)["receipt"]


@pytest.fixture
def copied(filled: tuple[Path, Told, Told], tmp_path: Path) -> Path:
    return Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))


def run(*arguments: object, mutant: str = "", rules: str = "") -> dict[str, Any]:
    """What the process told; nothing when it was killed."""
    done = subprocess.run(
        command("eraser", *arguments),
        cwd=ROOT,
        env={**environment(mutant), **({VARIABLE: rules} if rules else {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, -9), done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return told


def everything(path: Path) -> Counter[str]:
    """How much each user still has, by any space that is theirs."""

    async def counted() -> Counter[str]:
        store = SqliteStore.open(path, readers=1)
        found = Counter(space.user or f"agent {space.agent}" for space in await store.holdings())
        assert await store.check() == []
        await store.close()
        return found

    return asyncio.run(counted())


def test_of_a_hundred_canaries_a_tier_none_is_left_while_others_look_on(
    filled: tuple[Path, Told, Told], copied: Path, table: Table
):
    _, ada, bob = filled
    onlooker = start("eraser", "look on", copied, "idle")
    assert json.loads(line_of(onlooker)) == {"found": 5}
    line_of(onlooker)
    receipt = run("erase", copied)["receipt"]
    tell(onlooker)
    seen = json.loads(line_of(onlooker))
    found = left(copied, ada)
    onlooker.communicate()
    table.held("E1", f"{EACH * len(ada)} canaries of {len(ada)} kinds erased beside an open reader", found)
    assert (receipt["status"], found) == ("complete", 0)
    assert sum(receipt["erased"].values()) == EACH * len(ada)
    # Of the other process nothing is found, and its copies in memory are gone with its next question.
    assert seen == {"found": 0, "others": 5, "cached": 1}
    assert left(copied, bob) == EACH * len(bob)
    assert set(everything(copied)) == {"bob", "agent helper"}


def test_a_reader_in_the_middle_of_a_question_makes_it_pending_until_it_has_its_answer(
    filled: tuple[Path, Told, Told], copied: Path, table: Table
):
    onlooker = start("eraser", "look on", copied, "hold")
    line_of(onlooker), line_of(onlooker)
    receipt = run("erase", copied)["receipt"]
    waiting = asyncio.run(again(copied))
    tell(onlooker)
    line_of(onlooker)
    done = asyncio.run(again(copied))
    found = left(copied, filled[1])
    onlooker.communicate()
    table.held("E1", "erased while a reader stood at an earlier moment: pending, then complete", found)
    assert (receipt["status"], waiting["receipts"]) == ("pending_physical", [])
    assert [one["status"] for one in done["receipts"]] == ["complete"]
    assert (done["holds"], found) == ([True], 0)


@pytest.mark.parametrize("mutant", ["words_left", "log_left", "gaps_left"])
def test_mutants_leave_canaries_behind(filled: tuple[Path, Told, Told], copied: Path, table: Table, mutant: str):
    reader = SqliteStore.open(copied, readers=1)  # or the log would go when the last process closes it
    receipt = run("erase", copied, mutant=mutant)["receipt"]
    found = left(copied, filled[1])
    asyncio.run(reader.close())
    told = " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split())
    table.seen("E1", told, found)
    assert found > 0
    # And the product's own look at its bytes has seen it too.
    assert receipt["status"] == "pending_physical"


def test_killed_in_any_phase_the_next_process_ends_what_was_begun(
    filled: tuple[Path, Told, Told], tmp_path: Path, table: Table
):
    source, ada, bob = filled
    visited = tmp_path / "visited"
    faults = []
    for point in ERASURE_POINTS:
        path = Path(shutil.copyfile(source, tmp_path / f"{point}.db"))
        assert run("erase", path, rules=f"visited={visited};{point}=kill9@1") == {}
        done = asyncio.run(again(path))
        faults += [f"{point}: {fault}" for fault in _faults(path, done, ada, bob)]
    seen = set(visited.read_text().split())
    table.held("E2", f"killed at each of {len(seen)} points of an erasure, then gone on with", len(faults))
    assert faults == []
    assert seen == set(ERASURE_POINTS)


def test_a_ledger_that_is_written_last_is_seen(filled: tuple[Path, Told, Told], copied: Path, table: Table):
    run("erase", copied, mutant="ledger_last", rules="erase.deleted=kill9@1")
    faults = _faults(copied, asyncio.run(again(copied)), filled[1], filled[2])
    table.seen("E2", "the ledger's row is written last", len(faults))
    assert faults


def _faults(path: Path, done: dict[str, Any], ada: Told, bob: Told) -> list[str]:
    """What is wrong after a process that was killed and one that came after it."""
    found = list(done["faults"])
    if [one["status"] for one in done["receipts"]] != ["complete"] or done["holds"] != [True]:
        found.append(f"the receipts are {done['receipts']}, and hold: {done['holds']}")
    elif sum(done["receipts"][0]["erased"].values()) != EACH * len(ada):
        found.append(f"the receipt counts {done['receipts'][0]['erased']}")
    if count := left(path, ada):
        found.append(f"{count} canaries are left")
    if (count := left(path, bob)) != EACH * len(bob):
        found.append(f"{count} canaries of the other are there")
    known = beside.read(beside_of(path))
    if known is None or len(known.entered) != 1 or len(known.receipts) != 1:
        found.append("the file beside the store does not tell of the one erasure")
    return found


class TestRestoring:
    """E3."""

    async def test_an_older_copy_that_takes_the_place_of_the_store_forgets_before_it_serves(
        self, filled: tuple[Path, Told, Told], erased: tuple[Path, dict[str, Any]], copied: Path, table: Table
    ):
        # As an operator would, who knows of no command: the backup is put where the store was.
        shutil.copyfile(beside_of(erased[0]), beside_of(copied))
        found = await self._recalled(copied, filled[1])
        table.held("E3", f"{3 * ASKED} recalls from an older copy in the place of the store", found)
        assert (found, left(copied, filled[1])) == (0, 0)
        assert set(everything_of(copied)) == {"bob", "agent helper"}

    async def test_a_backup_restored_with_the_receipts_forgets(
        self, filled: tuple[Path, Told, Told], erased: tuple[Path, dict[str, Any]], tmp_path: Path, table: Table
    ):
        restored = tmp_path / "elsewhere" / "new.db"
        restored.parent.mkdir()
        done = await restore_store(filled[0], restored, beside_of(erased[0]))
        found = await self._recalled(restored, filled[1])
        table.held("E3", f"{3 * ASKED} recalls from a backup restored with the receipts", found)
        assert [one.id for one in done.replayed] == [erased[1]["id"]]
        assert (found, left(restored, filled[1])) == (0, 0)
        assert sorted(file.name for file in restored.parent.iterdir()) == ["new.db", "new.db.erasures.jsonl"]

    async def test_without_the_replay_the_older_copy_remembers(
        self, filled: tuple[Path, Told, Told], copied: Path, table: Table
    ):
        found = await self._recalled(copied, filled[1])
        table.seen("E3", "nothing is replayed", found)
        assert found > 0

    async def _recalled(self, path: Path, told: Told) -> int:
        """How often somebody's own words find something of theirs, in a recall or in a tier that is asked itself."""
        found = 0
        async with AgentMemory.open(
            path, tenant="acme", user="ada", agent="helper", session="session-of-ada", embedder=HashEmbedder()
        ) as memory:
            for tier in ("semantic items", "conversation entries", "episodic entries"):
                for canary in told[tier][:ASKED]:
                    answers = (
                        await memory.recall(canary.text),
                        await memory.semantic.search(canary.word, min_relevance=0.0, mode="text"),
                        await memory.conversation.search(canary.word),
                        await memory.episodic.search(canary.word),
                    )
                    found += any(canary.word in str(answer) for answer in answers)
        return found


def beside_of(path: Path) -> Path:
    return path.with_name(path.name + ".erasures.jsonl")


def everything_of(path: Path) -> Counter[str]:
    import threading

    held: list[Counter[str]] = []
    thread = threading.Thread(target=lambda: held.append(everything(path)))  # a loop runs here already
    thread.start()
    thread.join()
    return held[0]
