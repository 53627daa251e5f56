"""R1 at each failpoint: a task that is killed at any named point of a run resumes from there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from recollect.durable.failpoints import FAILPOINTS_VARIABLE, RUN_POINTS
from recollect.stores.sqlite import SqliteStore
from tests.crash import oracle
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.result_table import Table

STEPS = 6
AT_ONCE = 3
# Points that a run passes at every step; it passes the others once.
REPEATED_POINTS = ("body.before", "body.after", "completion.before", "completion.after")


@pytest.mark.promise("R1")
async def test_task_killed_at_each_failpoint_resumes(tmp_path: Path, rng: random.Random, table: Table):
    visited = tmp_path / "visited"
    visits = {point: rng.randint(1, STEPS) if point in REPEATED_POINTS else 1 for point in RUN_POINTS}
    found: list[str] = []
    # A few at a time: they mostly wait for leases to expire.
    for some in (RUN_POINTS[start : start + AT_ONCE] for start in range(0, len(RUN_POINTS), AT_ONCE)):
        ledgers = {point: Ledger() for point in some}
        fork_server = ForkServer(*(ledger.writing for ledger in ledgers.values()))
        # The first worker is killed; the second one resumes the task and is not killed.
        for kills in (True, False):
            workers = []
            for point, ledger in ledgers.items():
                rules = f"visited={visited}" + (f";{point}=kill9@{visits[point]}" if kills else "")
                args = ("flaky", tmp_path / f"{point}.db", ledger.writing, 1, STEPS)
                workers.append(fork_server.start_child("task_worker", *args, environ={FAILPOINTS_VARIABLE: rules}))
            for worker in workers:
                fork_server.wait(worker)
        fork_server.close()
        for point, ledger in ledgers.items():
            wrong = await find_faults(tmp_path / f"{point}.db", ledger.read())
            found += [f"{point}@{visits[point]}: {fault}" for fault in wrong]
            ledger.close()
    seen = set(visited.read_text().split())
    table.add_result("R1", f"killed at each of {len(seen)} failpoints, of {len(RUN_POINTS)}", len(found))
    assert found == []
    assert seen == set(RUN_POINTS)


async def find_faults(path: Path, lines: list[list[str]]) -> list[str]:
    store = SqliteStore.open(path, readers=1)
    [record] = await oracle.load_records(store)
    found = oracle.find_note_faults(lines) + record.find_faults() + await store.check()
    await store.close()
    if (record.status, len(record.completed)) != ("done", STEPS):
        found.append(f"the task ended as {record.status} with {record.completed}")
    if lines.count(["end"]) != 1:
        found.append(f"{lines.count(['end'])} of the two workers finished, expected 1")
    if len(oracle.collect_effects(lines)) != STEPS:
        found.append(f"{len(oracle.collect_effects(lines))} effects landed, of {STEPS}")
    return found
