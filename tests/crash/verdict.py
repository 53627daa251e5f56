"""What must be true of tasks, whatever happened to the workers: judged by the oracle's lines and the store's rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from recollect.stores.base import Step
from tests.crash.agents import EPISODES, SPACE, name_of, remembers
from tests.crash.places import LogAndTasks

_ALL = 10**6


def faults_of_lines(lines: Iterable[Sequence[str]]) -> list[str]:
    """No fence twice, no step completed twice, one key for each step and no other's."""
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
    found = [f"fence {fence} of {task} was given {many} times" for (task, fence), many in fences.items() if many > 1]
    found += [f"{task} {step} was completed {many} times" for (task, step), many in finished.items() if many > 1]
    found += [f"{task} {step} had {len(many)} keys" for (task, step), many in keys.items() if len(many) > 1]
    if len({key for many in keys.values() for key in many}) < len(keys):
        found.append("two steps had the same key")
    return found


def effects(lines: Iterable[Sequence[str]]) -> dict[str, tuple[str, str]]:
    """What a receiver that honours the keys has done: each key once."""
    return {words[0]: (words[1], words[2]) for kind, *words in lines if kind == "effect"}


class Story(NamedTuple):
    """A task as the store tells it. `state` is None where the newest checkpoint is damaged."""

    task: str
    status: str
    state: dict[str, Any] | None
    journal: list[Step]
    remembered: Counter[str]

    @property
    def completed(self) -> list[str]:
        return list((self.state or {}).get("completed", []))

    def faults(self) -> list[str]:
        """What was counted, what counts as done, what the journal says and what was remembered are one story."""
        if self.state is None:
            return [f"the newest checkpoint of {self.task} is damaged"]
        found = []
        done = self.completed
        noted = [one.key for one in self.journal if one.status == "completed"]
        if done != [name_of(place) for place in range(len(done))] or sorted(noted) != sorted(done):
            found.append(f"{self.task} has completed {done}, by its journal {noted}")
        results = list(self.state.get("results", {}).values())
        if self.state.get("count", 0) != len(done) or results != list(range(len(done))):
            found.append(f"{self.task} has counted {self.state.get('count')} steps, and {len(done)} are completed")
        for place, name in enumerate(done):
            many = self.remembered[f"{self.task} {name}"]
            if many != remembers(place):
                found.append(f"{self.task} {name} was remembered {many} times")
        return found


def forgotten(stories: Iterable[Story], told: Iterable[Sequence[str]]) -> list[str]:
    """Effects that no intent in the store stands behind, and steps that were told to be done and are not."""
    intents: set[tuple[str, str, str]] = set()
    done: set[tuple[str, str]] = set()
    for story in stories:
        intents |= {(one.idempotency_key, story.task, one.key) for one in story.journal}
        done |= {(story.task, name) for name in story.completed}
    found = []
    for kind, *words in told:
        if kind == "effect" and tuple(words) not in intents:
            found.append(f"{words[1]} {words[2]} took effect without an intent")
        if kind == "finished" and (words[0], words[1]) not in done:
            found.append(f"{words[0]} {words[1]} was told to be done, and is not")
    return found


async def stories(store: LogAndTasks) -> list[Story]:
    """Every task that a store has."""
    remembered = Counter(entry.content for entry in await store.read(EPISODES, limit=_ALL))
    return [
        Story(
            task.id,
            task.status,
            await _state(store, task.id),
            await store.steps(SPACE, task.id),
            remembered,
        )
        for task in await store.tasks(SPACE, limit=_ALL)
    ]


async def completed(store: LogAndTasks, task: str) -> list[str]:
    return list((await _state(store, task) or {}).get("completed", []))


async def _state(store: LogAndTasks, task: str) -> dict[str, Any] | None:
    newest = await store.checkpoint(SPACE, task)
    if newest is None:
        return {}
    found: dict[str, Any] | None = json.loads(newest.state)["state"] if newest.intact else None
    return found
