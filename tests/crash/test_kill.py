"""D1: what was acknowledged survives SIGKILL at any instant, whatever its durability class."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from recollect.stores.sqlite import SqliteStore
from tests.crash import history
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.table import Table

KILLS = int(os.environ.get("CRASH_KILLS", "200"))
# A new store now and then: its first moments are as good a time to die as any.
KILLS_A_STORE = 20
MUTANT_KILLS = 12


class Killing:
    """A nursery of writers that are killed, and the stores they leave."""

    def __init__(self, folder: Path, ledger: Ledger, chance: random.Random, mutant: str = "") -> None:
        self._folder = folder
        self._ledger = ledger
        self._chance = chance
        self._nursery = Nursery(ledger.writing, mutant=mutant)
        self._turn = 0
        self.acknowledged = 0

    async def kill(self, number: int) -> list[str]:
        """One more writer, killed at a random moment; what is then wrong with the store."""
        path = self._folder / f"store{number // KILLS_A_STORE}.db"
        if not path.exists():
            self._turn = 0
        child = self._nursery.child("scribe", "on", path, self._ledger.writing, self._turn)
        # Once it writes, let it write some turns and for a random while; a few are killed before they have begun.
        turns = self._chance.randint(1, 4) if self._chance.random() < 0.9 else 0
        came = [line for _ in range(turns) for line in self._ledger.wait(30)]
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        self._nursery.kill(child)
        came += self._ledger.read()
        self.acknowledged += len(came)
        told = max((int(turn) for _, turn in came), default=self._turn)

        store = SqliteStore.open(path, readers=1)
        # The last turn may have been committed and not yet acknowledged, but then all of it.
        found = await history.faults(store, told, told + 1)
        self._turn = history.turn_of(await history.seen(store)) or 0
        await store.close()
        return found

    def end(self) -> None:
        self._nursery.end()


@pytest.mark.timeout(300 + 2 * KILLS)
async def test_what_was_acknowledged_survives_a_kill_at_any_moment(
    tmp_path: Path, ledger: Ledger, chance: random.Random, table: Table
):
    killing = Killing(tmp_path, ledger, chance)
    found = [fault for number in range(KILLS) for fault in await killing.kill(number)]
    killing.end()
    table.held("D1", f"{KILLS} kills -9 among {killing.acknowledged} acknowledged turns, durable and fast", len(found))
    assert found == []
    assert killing.acknowledged > KILLS, "too few writes for a kill to fall among them"


async def test_a_write_that_is_acknowledged_too_early_is_seen(
    tmp_path: Path, ledger: Ledger, chance: random.Random, table: Table
):
    killing = Killing(tmp_path, ledger, chance, mutant="early")
    lost = 0
    for number in range(MUTANT_KILLS):
        # Another store each time: this one's history has a gap from here on.
        lost += any("acknowledged" in fault for fault in await killing.kill(number * KILLS_A_STORE))
    killing.end()
    table.seen("D1", f"acknowledged before the commit, {MUTANT_KILLS} kills", lost)
    assert lost > 0
