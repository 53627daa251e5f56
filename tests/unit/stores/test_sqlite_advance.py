"""A step that is written by one statement is decided as the rules decide it: every case beside the reference store."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import RecollectError
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.ops import SetStatus, TaskWrite
from recollect.stores.sqlite import SqliteStore
from recollect.testing.clock import ManualClock
from recollect.testing.samples import MINUTE, SECOND, TASKS, note, save

RIGHT, STALE, NONE = "right", "stale", "none"
Store = InMemoryStore | SqliteStore


async def lived(store: Store, clock: ManualClock, name: str, step: dict[str, Any]) -> list[object]:
    """A task that was begun, taken over, and then told a step; what came of it."""
    await store.claim(TASKS, name, "before", SECOND)
    clock.forward(MINUTE)
    fence = (await store.claim(TASKS, name, "now", MINUTE)).fence
    lasts = timedelta(hours=1) if step["lasting"] else None
    await store.write(*(save(f"[{n}]", task=name, fence=fence, expect=n, ttl=lasts) for n in range(4)))
    clock.forward(SECOND)
    fences = {RIGHT: fence, STALE: fence - 1, NONE: None}
    told = name if step["also"] != "another task" else f"{name} of another"
    saved = save(
        "[4]",
        task=told,
        fence=fences[step["fence"]],
        expect={RIGHT: 4, STALE: 3, NONE: None}[step["expect"]],
        ttl=step["ttl"],
        status=step["status"],
    )
    notes = [note(f"s{n}", fences[one] or 0, task=name) for n, one in enumerate(step["notes"])]
    writes: list[TaskWrite] = [saved, *notes]
    if step["also"] == "a status":
        writes.append(SetStatus(space=TASKS, task=name, status="poisoned", fence=fence))
    try:
        await store.write(*writes)
    except RecollectError as error:
        said: str | None = f"{type(error).__name__}: {error}"
    else:
        said = None
    return [
        said,
        await store.task(TASKS, name),
        await store.checkpoints(TASKS, name),
        await store.steps(TASKS, name),
        await store.checkpoints(TASKS, told),
    ]


CASES = {
    "fence": (RIGHT, STALE, NONE),
    "expect": (RIGHT, STALE, NONE),
    "notes": ((), (RIGHT, RIGHT), (RIGHT, STALE)),
    "ttl": (None, timedelta(days=2)),
    "lasting": (True, False),
    "status": (None, "done"),
}


@pytest.mark.parametrize("also", ["nothing", "another task", "a status"])
async def test_a_step_is_decided_by_the_rules(also: str, tmp_path: Path):
    # Mutants: no fence, no version, no ttl, no end in the statement; a note of another fence, a status let through.
    clock, other = ManualClock(), ManualClock()
    store, reference = SqliteStore.open(tmp_path / "store.db", readers=1, clock=clock), InMemoryStore(clock=other)
    try:
        for number, values in enumerate(product(*CASES.values())):
            step = dict(zip(CASES, values, strict=True)) | {"also": also}
            found = await lived(store, clock, f"t{number}", step)
            assert found == await lived(reference, other, f"t{number}", step), step
    finally:
        await store.close()
