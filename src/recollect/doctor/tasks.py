"""Checks of long-running work: leases nobody renews, tasks that were given up, and steps of unknown outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from recollect.doctor.check import OPENED_FIRST, Check, counted
from recollect.doctor.finding import Verdict, failed, passed, warned
from recollect.doctor.patient import Patient
from recollect.stores.base import Task, Tasks
from recollect.stores.ops import TaskStatus
from recollect.values import Space

_PAGE = 500
_UNDER_WAY: tuple[TaskStatus, ...] = ("running", "compensating")
# Whoever takes a task over does so within seconds; and nobody means to hold one for a day.
_ABANDONED, _TOO_LONG = timedelta(minutes=5), timedelta(days=1)


async def leases_are_renewed(patient: Patient) -> Verdict:
    store = _tasks(patient)
    if store is None:
        return _not_looked(patient)
    now, stuck, held = patient.now, 0, 0
    async for _, task in _every(store, *_UNDER_WAY):
        if task.owner is None or task.renewed_at is None or task.lease_ttl is None:
            continue
        held += 1
        stuck += now - (task.renewed_at + task.lease_ttl) > _ABANDONED or task.lease_ttl > _TOO_LONG
    if stuck:
        return warned(
            f"{counted(stuck, 'task is', 'tasks are')} held by somebody who does not renew",
            "recollect tasks list --status running, and run them again: whoever does takes the lease over",
        )
    return passed(f"{counted(held, 'task is', 'tasks are')} under way, and held by somebody alive")


async def nothing_is_poisoned(patient: Patient) -> Verdict:
    store = _tasks(patient)
    if store is None:
        return _not_looked(patient)
    given_up = [task async for _, task in _every(store, "poisoned")]
    if given_up:
        return failed(
            f"{counted(len(given_up), 'task was', 'tasks were')} given up after all attempts",
            "recollect tasks list --status poisoned, mend the cause, then recollect tasks retry ID",
        )
    return passed("no task was given up")


async def every_outcome_is_known(patient: Patient) -> Verdict:
    store = _tasks(patient)
    if store is None:
        return _not_looked(patient)
    unknown = 0
    async for space, task in _every(store, "ready", *_UNDER_WAY):
        if task.owner is None:  # somebody who holds it finds out
            unknown += any(step.status == "started" for step in await store.steps(space, task.id))
    if unknown:
        return warned(
            f"{counted(unknown, 'task has', 'tasks have')} a step that was begun, and nobody knows how it ended",
            "recollect tasks show ID, look for its idempotency key, then checkpoints.skip or recollect tasks retry ID",
        )
    return passed("no step waits for somebody to say how it ended")


def _tasks(patient: Patient) -> Tasks | None:
    place = patient.place_of("checkpoints")
    return place.store if place.error is None and isinstance(place.store, Tasks) else None


def _not_looked(patient: Patient) -> Verdict:
    return warned(patient.place_of("checkpoints").closed, OPENED_FIRST)


async def _every(store: Tasks, *statuses: TaskStatus) -> AsyncIterator[tuple[Space, Task]]:
    for tenant in await store.tenants():
        for space in await store.task_spaces(tenant):
            for status in statuses:
                after: str | None = None
                while page := await store.tasks(space, status=status, limit=_PAGE, after=after):
                    for task in page:
                        yield space, task
                    after = page[-1].id


CHECKS = (
    Check(
        "tasks.leases",
        "Whoever holds a task is alive",
        "A task that nobody goes on with waits for ever, and whoever asked for it waits with it.",
        leases_are_renewed,
    ),
    Check(
        "tasks.poisoned",
        "No task was given up",
        "A task that failed at every attempt needs a person: nothing will try it again.",
        nothing_is_poisoned,
    ),
    Check(
        "tasks.unknown",
        "Every outcome is known",
        "A step that may have been done must not be done blindly again: somebody has to look, and say.",
        every_outcome_is_known,
    ),
)
