"""R2: after a power cut no effect is without its intent, and no step that was told is done is undone."""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from recollect import ResumableAgent
from recollect.errors import StoreError
from recollect.stores.sqlite import SqliteStore
from tests.crash import verdict
from tests.crash.agents import opened, steps_of
from tests.crash.ledger import Ledger
from tests.crash.replay import Outage, judged, outages, rebuild, recorded
from tests.crash.table import Table

TASKS, STEPS = 2, 44
# A step writes fewer pages than a turn of the history: more parts of each disk are looked at.
DRAWS = 3 * int(os.environ.get("CRASH_DRAWS", "1"))
FEWEST = 4000
RESUMED_EVERY = 250


async def faults_after(outage: Outage, folder: Path) -> list[str]:
    path = rebuild(outage.files, folder)
    try:
        store = SqliteStore.open(path, readers=1)
    except StoreError as error:
        return [f"it cannot be opened: {error}"]
    try:
        found = await _faults_of(store, outage)
    finally:
        await store.close()
    if not found and outage.moment % RESUMED_EVERY == 0:
        found = await _faults_of_resuming(path)
    return found


async def _faults_of(store: SqliteStore, outage: Outage) -> list[str]:
    stories = await verdict.stories(store)
    found = [fault for story in stories for fault in story.faults()]
    return [*await store.check(), *found, *verdict.forgotten(stories, outage.told)]


async def _faults_of_resuming(path: Path) -> list[str]:
    """What comes back goes on: what was done is not done again, and all the rest is."""
    ran: Counter[tuple[str, str]] = Counter()

    def effect(key: str, task: str, name: str) -> None:
        ran[task, name] += 1

    # All leases are another's, who is gone: their time is up by then.
    async with opened(path) as memory:
        store = memory.checkpoints.store
        done = [(story.task, name) for story in await verdict.stories(store) for name in story.completed]
        agent = ResumableAgent(memory, on_conflict="wait")
        for number in range(TASKS):
            await agent.run(f"t{number}", steps_of(STEPS, effect))
        found = [fault for story in await verdict.stories(store) for fault in story.faults()]
        left = TASKS * STEPS - len(done)
    if set(ran) & set(done) or sum(ran.values()) != left:
        found.append(
            f"{len(set(ran) & set(done))} steps were done again, and {sum(ran.values())} of {left} that were left"
        )
    return found


def happening(folder: Path, ledger: Ledger, tasks: int, mutant: str = ""):
    program = ("agents", "run", folder / "store" / "store.db", ledger.writing, tasks, STEPS)
    return recorded(folder, program, ledger, mutant)


@pytest.mark.timeout(300 + 60 * DRAWS)
async def test_no_effect_is_without_a_durable_intent(
    tmp_path: Path, quick: Path, ledger: Ledger, chance: random.Random, table: Table
):
    cases = outages(happening(tmp_path, ledger, TASKS), chance, DRAWS)
    many, found = await judged(cases, faults_after, quick)
    table.held("R2", f"{many} disks as a power cut could leave them, {TASKS * STEPS} steps under strace", len(found))
    assert found == []
    assert many >= FEWEST


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        ("normal", "without an intent"),
        ("no_intent", "without an intent"),
        ("split", "by its journal"),
    ],
)
async def test_what_would_be_wrong_is_seen(
    mutant: str, fault: str, tmp_path: Path, quick: Path, ledger: Ledger, chance: random.Random, table: Table
):
    cases = outages(happening(tmp_path, ledger, 1, mutant), chance, 1)
    many, found = await judged(islice(cases, 0, None, 8), faults_after, quick)
    what = {"normal": "synchronous=NORMAL", "no_intent": "no intent", "split": "a transaction for each write"}[mutant]
    table.seen("R2", f"{what}, {many} disks", len(found))
    assert any(fault in one for one in found)
