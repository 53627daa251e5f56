"""E1 to E3: erased data is in no byte of the store, with open readers and after a kill at any point."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.durable.failpoints import ERASURE_POINTS, FAILPOINTS_VARIABLE
from recollect.erasure import ledger
from recollect.portability.restore import restore_store
from recollect.stores.sqlite import SqliteStore
from recollect.testing.factories import make_append
from tests.crash import canaries, mutants
from tests.crash.canaries import EACH, Canary, count_left, make_scope
from tests.crash.erase_worker import resume_erasure
from tests.crash.process_launcher import ROOT, command, environment, read_line, send_line, start
from tests.crash.result_table import Table
from tests.embedders import HashEmbedder

CanariesByKind = dict[str, list[Canary]]

ASKED = 20
LEAF_PAGE = 13  # the first byte of a page with rows


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CanariesByKind, CanariesByKind]:
    """Create a store with the canaries of two users; each test copies it."""
    path = tmp_path_factory.mktemp("erasure") / "filled.db"
    planted = asyncio.run(canaries.fill(path, "ada", "bob"))
    ada, bob = planted["ada"], planted["bob"]
    assert count_left(path, ada) == count_left(path, bob) == EACH * len(ada)
    return path, ada, bob


@pytest.fixture(scope="module")
def erased(
    filled: tuple[Path, CanariesByKind, CanariesByKind], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Erase a copy of the store; return it and the receipt, for the tests that restore an older copy."""
    path = Path(shutil.copyfile(filled[0], tmp_path_factory.mktemp("erased") / "agent.db"))
    return path, run("erase", path)["receipt"]


@pytest.fixture
def copied(filled: tuple[Path, CanariesByKind, CanariesByKind], tmp_path: Path) -> Path:
    return Path(shutil.copyfile(filled[0], tmp_path / "agent.db"))


def run(*arguments: object, mutant: str = "", rules: str = "") -> dict[str, Any]:
    """Run the worker and return its last report, or {} if it was killed."""
    done = subprocess.run(
        command("erase_worker", *arguments),
        cwd=ROOT,
        env={**environment(mutant), **({FAILPOINTS_VARIABLE: rules} if rules else {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, -9), done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}
    return report


def count_spaces(path: Path) -> Counter[str]:
    """Return how many spaces each user still has."""

    async def count() -> Counter[str]:
        store = SqliteStore.open(path, readers=1)
        found = Counter(space.user or f"agent {space.agent}" for space in await store.list_traced_spaces())
        assert await store.check() == []
        await store.close()
        return found

    return asyncio.run(count())


@pytest.mark.promise("E1")
def test_erase_leaves_no_canary_beside_open_reader(
    filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table
):
    _, ada, bob = filled
    reader = start("erase_worker", "read", copied, "idle")
    assert json.loads(read_line(reader)) == {"found": 5}
    read_line(reader)
    receipt = run("erase", copied)["receipt"]
    send_line(reader)
    seen = json.loads(read_line(reader))
    found = count_left(copied, ada)
    reader.communicate()
    table.add_result("E1", f"{EACH * len(ada)} canaries of {len(ada)} kinds erased beside an open reader", found)
    assert (receipt["status"], found) == ("complete", 0)
    assert sum(receipt["erased"].values()) == EACH * len(ada)
    # The other process finds nothing, and its next query clears its cache.
    assert seen == {"found": 0, "others": 5, "cached": 1}
    assert count_left(copied, bob) == EACH * len(bob)
    assert set(count_spaces(copied)) == {"bob", "agent helper"}


@pytest.mark.promise("E1")
def test_erase_is_pending_until_open_snapshot_ends(
    filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table
):
    reader = start("erase_worker", "read", copied, "hold")
    read_line(reader), read_line(reader)
    receipt = run("erase", copied)["receipt"]
    waiting = asyncio.run(resume_erasure(copied))
    send_line(reader)
    read_line(reader)
    done = asyncio.run(resume_erasure(copied))
    found = count_left(copied, filled[1])
    reader.communicate()
    table.add_result("E1", "erased while a reader held an older snapshot: pending, then complete", found)
    assert (receipt["status"], waiting["receipts"]) == ("pending_physical", [])
    assert [receipt_data["status"] for receipt_data in done["receipts"]] == ["complete"]
    assert (done["holds"], found) == ([True], 0)


@pytest.mark.promise("E1")
def test_erase_above_vacuum_limit_is_pending_until_lifecycle_runs(
    filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table, monkeypatch: pytest.MonkeyPatch
):
    # Mutant: the receipt is complete although the file was not rewritten.
    monkeypatch.setenv("RECOLLECT_VACUUM_LIMIT_MB", "0")
    write_into_gap(copied, filled[1]["conversation entries"][0].text.encode())
    reader = start("erase_worker", "read", copied, "idle")
    read_line(reader), read_line(reader)
    receipt = run("erase", copied)["receipt"]
    left = count_left(copied, filled[1])
    done = run("resume", copied)
    found = count_left(copied, filled[1])
    reader.communicate()
    table.add_result("E1", f"erased above vacuum_limit_mb: {left} canaries pending, then complete", found)
    assert (receipt["status"], len(receipt["scan"]["waits"])) == ("pending_physical", 1)
    assert left > 0
    assert receipt["scan"]["found"] > 0
    assert (found, done["holds"], done["faults"]) == (0, [True], [])
    assert [receipt_data["status"] for receipt_data in done["receipts"]] == ["complete"]
    assert count_left(copied, filled[2]) == EACH * len(filled[2])


def write_into_gap(path: Path, text: bytes) -> None:
    """Write a text into the unused area of a page, where the split of a page leaves copies of the rows that move."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for page in range(size, len(data), size):  # the first page has another header
        kind, cells, content = data[page], *struct.unpack(">HH", data[page + 3 : page + 7])
        if kind == LEAF_PAGE and cells > 0 and 8 + 2 * cells + 2 * len(text) < content < size:
            at = page + content - len(text) - 8
            data[at : at + len(text)] = text
            path.write_bytes(data)
            return
    raise AssertionError("no page has an unused area")


@pytest.mark.mutant("E1")
@pytest.mark.parametrize("mutant", ["insecure_term_delete", "keep_wal", "keep_page_gaps"])
def test_erase_mutant_leaves_canaries(
    filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table, mutant: str
):
    text = filled[1]["conversation entries"][0].text
    write_into_gap(copied, text.encode())
    reader = SqliteStore.open(copied, readers=1)  # keeps the log, which the last closing process deletes
    asyncio.run(reader.write(make_append("again", space=make_scope("ada").space("conversation"), content=text)))
    receipt = run("erase", copied, mutant=mutant)["receipt"]
    found = count_left(copied, filled[1])
    asyncio.run(reader.close())
    planted = " ".join((mutants.MUTANTS[mutant].__doc__ or mutant).split())
    table.add_mutant("E1", planted, found)
    assert found > 0
    # The scan of the erasure has found it too.
    assert receipt["status"] == "pending_physical"


@pytest.mark.promise("E2")
def test_erase_killed_in_any_phase_is_finished_by_next_process(
    filled: tuple[Path, CanariesByKind, CanariesByKind], tmp_path: Path, table: Table
):
    source, ada, bob = filled
    visited = tmp_path / "visited"
    faults = []
    for point in ERASURE_POINTS:
        path = Path(shutil.copyfile(source, tmp_path / f"{point}.db"))
        assert run("erase", path, rules=f"visited={visited};{point}=kill9@1") == {}
        done = asyncio.run(resume_erasure(path))
        faults += [f"{point}: {fault}" for fault in _find_faults(path, done, ada, bob)]
    seen = set(visited.read_text().split())
    table.add_result("E2", f"killed at each of {len(seen)} points of an erasure, then resumed", len(faults))
    assert faults == []
    assert seen == set(ERASURE_POINTS)


@pytest.mark.promise("E2")
def test_deferred_rewrite_killed_in_any_phase_is_finished_by_next_process(
    filled: tuple[Path, CanariesByKind, CanariesByKind], tmp_path: Path, table: Table, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RECOLLECT_VACUUM_LIMIT_MB", "0")
    source, ada, bob = filled
    points = ERASURE_POINTS[ERASURE_POINTS.index("erase.deleted") :]
    faults = []
    for point in points:
        path = Path(shutil.copyfile(source, tmp_path / f"{point}.db"))
        assert run("erase", path)["receipt"]["status"] == "pending_physical"
        assert run("resume", path, rules=f"{point}=kill9@1") == {}
        done = asyncio.run(resume_erasure(path))
        faults += [f"{point}: {fault}" for fault in _find_faults(path, done, ada, bob)]
    table.add_result("E2", f"killed at each of {len(points)} points of a deferred rewrite, then resumed", len(faults))
    assert faults == []


@pytest.mark.mutant("E2")
def test_ledger_written_last_is_detected(
    filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table
):
    run("erase", copied, mutant="write_ledger_last", rules="erase.deleted=kill9@1")
    faults = _find_faults(copied, asyncio.run(resume_erasure(copied)), filled[1], filled[2])
    table.add_mutant("E2", "the ledger's row is written last", len(faults))
    assert faults


def _find_faults(path: Path, done: dict[str, Any], ada: CanariesByKind, bob: CanariesByKind) -> list[str]:
    """Return the faults of a store and its receipts after a killed process and its successor."""
    found = list(done["faults"])
    if [receipt_data["status"] for receipt_data in done["receipts"]] != ["complete"] or done["holds"] != [True]:
        found.append(f"the receipts are {done['receipts']}, and hold: {done['holds']}")
    elif sum(done["receipts"][0]["erased"].values()) != EACH * len(ada):
        found.append(f"the receipt counts {done['receipts'][0]['erased']}")
    if count := count_left(path, ada):
        found.append(f"{count} canaries are left")
    if (count := count_left(path, bob)) != EACH * len(bob):
        found.append(f"{count} canaries of the other user are there")
    known = ledger.read_receipt_file(receipt_path(path))
    if known is None or len(known.erasures) != 1 or len(known.receipts) != 1:
        found.append("the receipt file beside the store does not list the one erasure")
    return found


class TestRestoring:
    """E3: older copies and backups."""

    @pytest.mark.promise("E3")
    async def test_older_copy_in_place_replays_erasure_before_reads(
        self,
        filled: tuple[Path, CanariesByKind, CanariesByKind],
        erased: tuple[Path, dict[str, Any]],
        copied: Path,
        table: Table,
    ):
        # Like an operator who copies the backup over the store without a command.
        shutil.copyfile(receipt_path(erased[0]), receipt_path(copied))
        found = await self._count_recalled(copied, filled[1])
        table.add_result("E3", f"{3 * ASKED} recalls from an older copy in the place of the store", found)
        assert (found, count_left(copied, filled[1])) == (0, 0)
        assert set(count_spaces_in_thread(copied)) == {"bob", "agent helper"}

    @pytest.mark.promise("E3")
    async def test_backup_restored_with_receipts_replays_erasure(
        self,
        filled: tuple[Path, CanariesByKind, CanariesByKind],
        erased: tuple[Path, dict[str, Any]],
        tmp_path: Path,
        table: Table,
    ):
        restored = tmp_path / "elsewhere" / "new.db"
        restored.parent.mkdir()
        done = await restore_store(filled[0], restored, receipt_path(erased[0]))
        found = await self._count_recalled(restored, filled[1])
        table.add_result("E3", f"{3 * ASKED} recalls from a backup restored with the receipts", found)
        assert [receipt_data.id for receipt_data in done.replayed] == [erased[1]["id"]]
        assert (found, count_left(restored, filled[1])) == (0, 0)
        assert sorted(file.name for file in restored.parent.iterdir()) == ["new.db", "new.db.erasures.jsonl"]

    @pytest.mark.mutant("E3")
    async def test_older_copy_without_receipts_returns_erased_data(
        self, filled: tuple[Path, CanariesByKind, CanariesByKind], copied: Path, table: Table
    ):
        found = await self._count_recalled(copied, filled[1])
        table.add_mutant("E3", "nothing is replayed", found)
        assert found > 0

    async def _count_recalled(self, path: Path, planted: CanariesByKind) -> int:
        """Return how many canaries of the user a recall or a search in a tier still finds."""
        found = 0
        async with AgentMemory.open(
            path, tenant="acme", user="ada", agent="helper", session="session-of-ada", embedder=HashEmbedder()
        ) as memory:
            for tier in ("semantic items", "conversation entries", "episodic entries"):
                for canary in planted[tier][:ASKED]:
                    answers = (
                        await memory.recall(canary.text),
                        await memory.semantic.search(canary.word, min_relevance=0.0, mode="text"),
                        await memory.conversation.search(canary.word),
                        await memory.episodic.search(canary.word),
                    )
                    found += any(canary.word in str(answer) for answer in answers)
        return found


def receipt_path(path: Path) -> Path:
    return path.with_name(path.name + ".erasures.jsonl")


def count_spaces_in_thread(path: Path) -> Counter[str]:
    import threading

    results: list[Counter[str]] = []
    thread = threading.Thread(
        target=lambda: results.append(count_spaces(path))
    )  # this thread already runs an event loop
    thread.start()
    thread.join()
    return results[0]
