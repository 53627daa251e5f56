"""R1, place by place: killed at every named point of a run, a task goes on from there."""

from __future__ import annotations

import random
from pathlib import Path

from recollect.runtime.failpoints import POINTS, VARIABLE
from recollect.stores.sqlite import SqliteStore
from tests.crash import verdict
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.table import Table

STEPS = 6
AT_ONCE = 3
# What happens at every step can happen at any of them; the rest once in a run.
OFTEN = ("body.before", "body.after", "completion.before", "completion.after")


async def test_killed_at_every_named_point_a_task_goes_on(tmp_path: Path, chance: random.Random, table: Table):
    visited = tmp_path / "visited"
    visits = {point: chance.randint(1, STEPS) if point in OFTEN else 1 for point in POINTS}
    found: list[str] = []
    # A few at a time: they mostly wait for leases to run out.
    for some in (POINTS[start : start + AT_ONCE] for start in range(0, len(POINTS), AT_ONCE)):
        ledgers = {point: Ledger() for point in some}
        nursery = Nursery(*(ledger.writing for ledger in ledgers.values()))
        # Twice: the second worker comes over what the first has left, and is not killed.
        for kills in (True, False):
            workers = []
            for point, ledger in ledgers.items():
                rules = f"visited={visited}" + (f";{point}=kill9@{visits[point]}" if kills else "")
                given = ("troubled", tmp_path / f"{point}.db", ledger.writing, 1, STEPS)
                workers.append(nursery.child("agents", *given, environ={VARIABLE: rules}))
            for worker in workers:
                nursery.wait(worker)
        nursery.end()
        for point, ledger in ledgers.items():
            wrong = await faults(tmp_path / f"{point}.db", ledger.read())
            found += [f"{point}@{visits[point]}: {fault}" for fault in wrong]
            ledger.close()
    seen = set(visited.read_text().split())
    table.held("R1", f"killed at each of {len(seen)} named points, of {len(POINTS)} there are", len(found))
    assert found == []
    assert seen == set(POINTS)


async def faults(path: Path, lines: list[list[str]]) -> list[str]:
    store = SqliteStore.open(path, readers=1)
    [story] = await verdict.stories(store)
    found = verdict.faults_of_lines(lines) + story.faults() + await store.check()
    await store.close()
    if (story.status, len(story.completed)) != ("done", STEPS):
        found.append(f"the task ended as {story.status} with {story.completed}")
    if lines.count(["end"]) != 1:
        found.append(f"{lines.count(['end'])} of the two workers came to their end: nobody was killed, or both")
    if len(verdict.effects(lines)) != STEPS:
        found.append(f"{len(verdict.effects(lines))} effects landed, of {STEPS}")
    return found
