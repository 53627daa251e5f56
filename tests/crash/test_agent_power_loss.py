"""R2: after a power loss every effect has its intent, and every acknowledged step is done."""

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
from tests.crash import oracle
from tests.crash.acknowledgments import Ledger
from tests.crash.power_replay import Outage, iterate_outages, judge_outages, rebuild, record_run
from tests.crash.result_table import Table
from tests.crash.task_worker import make_steps, open_memory

TASKS, STEPS = 2, 37
# A step writes fewer pages than a turn of the history, so that each disk gets more random parts.
DRAWS = 3 * int(os.environ.get("CRASH_DRAWS", "1"))
FEWEST = 4000
RESUMED_EVERY = 250


async def find_faults_after(outage: Outage, folder: Path) -> list[str]:
    path = rebuild(outage.files, folder)
    try:
        store = SqliteStore.open(path, readers=1)
    except StoreError as error:
        return [f"the store cannot be opened: {error}"]
    try:
        found = await _find_store_faults(store, outage)
    finally:
        await store.close()
    if not found and outage.moment % RESUMED_EVERY == 0:
        found = await _find_faults_after_resume(path)
    return found


async def _find_store_faults(store: SqliteStore, outage: Outage) -> list[str]:
    records = await oracle.load_records(store)
    found = [fault for record in records for fault in record.find_faults()]
    return [*await store.check(), *found, *oracle.find_lost_acknowledgments(records, outage.notes)]


async def _find_faults_after_resume(path: Path) -> list[str]:
    """Resume all tasks and return steps that ran again or did not run."""
    ran: Counter[tuple[str, str]] = Counter()

    def effect(key: str, task: str, name: str) -> None:
        ran[task, name] += 1

    # The leases belong to the ended worker and have expired.
    async with open_memory(path) as memory:
        store = memory.checkpoints._store
        done = [(record.task, name) for record in await oracle.load_records(store) for name in record.completed]
        agent = ResumableAgent(memory, on_conflict="wait")
        for number in range(TASKS):
            await agent.run(f"t{number}", make_steps(STEPS, effect))
        found = [fault for record in await oracle.load_records(store) for fault in record.find_faults()]
        left = TASKS * STEPS - len(done)
    if set(ran) & set(done) or sum(ran.values()) != left:
        found.append(f"{len(set(ran) & set(done))} steps ran again, and {sum(ran.values())} of {left} open steps ran")
    return found


def record_tasks(folder: Path, ledger: Ledger, tasks: int, mutant: str = ""):
    program = ("task_worker", "run", folder / "store" / "store.db", ledger.writing, tasks, STEPS)
    return record_run(folder, program, ledger, mutant)


@pytest.mark.promise("R2")
@pytest.mark.timeout(300 + 60 * DRAWS)
async def test_power_loss_leaves_no_effect_without_durable_intent(
    tmp_path: Path, memory_dir: Path, ledger: Ledger, rng: random.Random, table: Table
):
    cases = iterate_outages(record_tasks(tmp_path, ledger, TASKS), rng, DRAWS)
    many, found = await judge_outages(cases, find_faults_after, memory_dir)
    table.add_result("R2", f"{many} possible disks after a power loss, {TASKS * STEPS} steps under strace", len(found))
    assert found == []
    assert many >= FEWEST


@pytest.mark.mutant("R2")
@pytest.mark.parametrize(
    ("mutant", "fault"),
    [
        ("synchronous_normal", "without an intent"),
        ("skip_intent", "without an intent"),
        ("split_batches", "the journal lists"),
    ],
)
async def test_durability_mutant_is_detected(
    mutant: str, fault: str, tmp_path: Path, memory_dir: Path, ledger: Ledger, rng: random.Random, table: Table
):
    cases = iterate_outages(record_tasks(tmp_path, ledger, 1, mutant), rng, 1)
    many, found = await judge_outages(islice(cases, 0, None, 8), find_faults_after, memory_dir)
    what = {
        "synchronous_normal": "synchronous=NORMAL",
        "skip_intent": "no intent",
        "split_batches": "a transaction for each write",
    }[mutant]
    table.add_mutant("R2", f"{what}, {many} disks", len(found))
    assert any(fault in fault_text for fault_text in found)
