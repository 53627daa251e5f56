"""D1: acknowledged writes of either durability class survive SIGKILL at any moment."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from recollect.stores.sqlite import SqliteStore
from tests.crash import turn_history
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table

KILLS = int(os.environ.get("CRASH_KILLS", "200"))
# A new store every 20 kills, so that kills also hit the creation of a store.
KILLS_A_STORE = 20
MUTANT_KILLS = 12


class Killing:
    """Writers that are killed at random moments, and their stores."""

    def __init__(self, folder: Path, ledger: Ledger, rng: random.Random, mutant: str = "") -> None:
        self._folder = folder
        self._ledger = ledger
        self._rng = rng
        self._fork_server = ForkServer(ledger.writing, mutant=mutant)
        self._turn = 0
        self.acknowledged = 0

    async def kill(self, number: int) -> list[str]:
        """Start a writer, kill it at a random moment, and return the faults of the store."""
        path = self._folder / f"store{number // KILLS_A_STORE}.db"
        if not path.exists():
            self._turn = 0
        child = self._fork_server.start_child("history_writer", "on", path, self._ledger.writing, self._turn)
        # Most writers are killed some turns and a random time after their start, a few before the first turn.
        turns = self._rng.randint(1, 4) if self._rng.random() < 0.9 else 0
        notes = [line for _ in range(turns) for line in self._ledger.wait(30)]
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        self._fork_server.kill(child)
        notes += self._ledger.read()
        self.acknowledged += len(notes)
        acknowledged = max((int(turn) for _, turn in notes), default=self._turn)

        store = SqliteStore.open(path, readers=1)
        # The last turn may have been committed and not yet acknowledged, but then all of it.
        found = await turn_history.find_faults(store, acknowledged, acknowledged + 1)
        self._turn = turn_history.find_turn(await turn_history.load_snapshot(store)) or 0
        await store.close()
        return found

    def close(self) -> None:
        self._fork_server.close()


@pytest.mark.promise("D1")
@pytest.mark.timeout(300 + 2 * KILLS)
async def test_acknowledged_write_survives_kill_at_any_moment(
    tmp_path: Path, ledger: Ledger, rng: random.Random, table: Table
):
    killing = Killing(tmp_path, ledger, rng)
    found = [fault for number in range(KILLS) for fault in await killing.kill(number)]
    killing.close()
    table.add_result(
        "D1", f"{KILLS} kills -9 among {killing.acknowledged} acknowledged turns, durable and fast", len(found)
    )
    assert found == []
    assert killing.acknowledged > KILLS, "too few writes between the kills"


@pytest.mark.mutant("D1")
async def test_acknowledgment_before_commit_is_detected(
    tmp_path: Path, ledger: Ledger, rng: random.Random, table: Table
):
    killing = Killing(tmp_path, ledger, rng, mutant="acknowledge_before_commit")
    lost = 0
    for number in range(MUTANT_KILLS):
        # Another store each time: the history of this one has a gap now.
        lost += any("acknowledged" in fault for fault in await killing.kill(number * KILLS_A_STORE))
    killing.close()
    table.add_mutant("D1", f"acknowledged before the commit, {MUTANT_KILLS} kills", lost)
    assert lost > 0
