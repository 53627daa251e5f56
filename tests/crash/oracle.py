"""Invariants of tasks after crashes of workers and servers, checked with the noted lines and the store's rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from recollect.stores.writes import Step
from tests.crash.store_locations import LogAndTasks
from tests.crash.task_worker import EPISODES, SPACE, make_step_name, stores_episode

_ALL = 10**6


def find_note_faults(lines: Iterable[Sequence[str]]) -> list[str]:
    """Return repeated fences, steps completed twice, and idempotency keys that changed or are shared."""
    fences: Counter[tuple[str, int]] = Counter()
    finished: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, *words in lines:
        if kind == "claim":
            fences[words[0], int(words[1])] += 1
        elif kind == "finished":
            finished[words[0], words[1]] += 1
        elif kind == "effect":
            keys[words[1], words[2]].add(words[0])
    found = [f"fence {fence} of {task} was granted {many} times" for (task, fence), many in fences.items() if many > 1]
    found += [f"{task} {step} was completed {many} times" for (task, step), many in finished.items() if many > 1]
    found += [f"{task} {step} had {len(many)} keys" for (task, step), many in keys.items() if len(many) > 1]
    if len({key for many in keys.values() for key in many}) < len(keys):
        found.append("two steps had the same key")
    return found


def collect_effects(lines: Iterable[Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Return the effects by idempotency key, so that a repeated key counts once."""
    return {words[0]: (words[1], words[2]) for kind, *words in lines if kind == "effect"}


class TaskRecord(NamedTuple):
    """A task as stored. `state` is None if the newest checkpoint is damaged."""

    task: str
    status: str
    state: dict[str, Any] | None
    journal: list[Step]
    remembered: Counter[str]

    @property
    def completed(self) -> list[str]:
        return list((self.state or {}).get("completed", []))

    def find_faults(self) -> list[str]:
        """Return the contradictions between the state, the completed steps, the journal and the episodes."""
        if self.state is None:
            return [f"the newest checkpoint of {self.task} is damaged"]
        found = []
        done = self.completed
        journaled = [step.key for step in self.journal if step.status == "completed"]
        if done != [make_step_name(place) for place in range(len(done))] or sorted(journaled) != sorted(done):
            found.append(f"{self.task} has completed {done}, the journal lists {journaled}")
        results = list(self.state.get("results", {}).values())
        if self.state.get("count", 0) != len(done) or results != list(range(len(done))):
            found.append(f"{self.task} has counted {self.state.get('count')} steps, and {len(done)} are completed")
        for place, name in enumerate(done):
            many = self.remembered[f"{self.task} {name}"]
            if many != stores_episode(place):
                found.append(f"{self.task} {name} was stored {many} times")
        return found


def find_lost_acknowledgments(records: Iterable[TaskRecord], notes: Iterable[Sequence[str]]) -> list[str]:
    """Return effects without a stored intent, and steps that were acknowledged as done but are not."""
    intents: set[tuple[str, str, str]] = set()
    done: set[tuple[str, str]] = set()
    for record in records:
        intents |= {(step.idempotency_key, record.task, step.key) for step in record.journal}
        done |= {(record.task, name) for name in record.completed}
    found = []
    for kind, *words in notes:
        if kind == "effect" and tuple(words) not in intents:
            found.append(f"{words[1]} {words[2]} took effect without an intent")
        if kind == "finished" and (words[0], words[1]) not in done:
            found.append(f"{words[0]} {words[1]} was acknowledged as done, and is not")
    return found


async def load_records(store: LogAndTasks) -> list[TaskRecord]:
    """Return all tasks of a store."""
    remembered = Counter(entry.content for entry in await store.read(EPISODES, limit=_ALL))
    return [
        TaskRecord(
            task.id,
            task.status,
            await _state(store, task.id),
            await store.steps(SPACE, task.id),
            remembered,
        )
        for task in await store.tasks(SPACE, limit=_ALL)
    ]


async def load_completed(store: LogAndTasks, task: str) -> list[str]:
    return list((await _state(store, task) or {}).get("completed", []))


async def _state(store: LogAndTasks, task: str) -> dict[str, Any] | None:
    newest = await store.checkpoint(SPACE, task)
    if newest is None:
        return {}
    found: dict[str, Any] | None = json.loads(newest.state)["state"] if newest.intact else None
    return found
