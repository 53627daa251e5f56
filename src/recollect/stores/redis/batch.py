"""A batch decided: from the tasks as they were seen, by the rules that all backends share, to what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from recollect.stores import leases
from recollect.stores.base import Task
from recollect.stores.ops import (
    Append,
    Clear,
    Drop,
    DropTask,
    Journal,
    LogWrite,
    Restore,
    Save,
    SetStatus,
    TaskWrite,
    Write,
)
from recollect.stores.redis import values
from recollect.stores.redis.keys import TaskName, prefix_of, raw, task_of, within
from recollect.values import Space

Rows = Mapping[TaskName, bytes]


@dataclass(slots=True)
class Decision:
    """What the script is told to write, and the rows that tasks will have then; `open` ones end in what it answers."""

    orders: list[bytes] = field(default_factory=list)
    rows: dict[TaskName, bytes] = field(default_factory=dict)
    open: dict[TaskName, bytes] = field(default_factory=dict)
    entries: list[bytes] = field(default_factory=list)
    """Those that are added to logs, in their order; the server answers with their places."""

    def closed(self, answer: bytes) -> dict[TaskName, bytes]:
        """The rows as they were written."""
        return self.rows | {name: row + answer + b"]" for name, row in self.open.items()}

    def order(self, verb: bytes, space: Space, *rest: bytes) -> None:
        self.orders += (verb, prefix_of(space), within(space), *rest)


def tasks_in(writes: Sequence[Write]) -> list[TaskName]:
    """The tasks whose rows decide about a batch."""
    return list(dict.fromkeys(name for write in writes if (name := task_of(write)) is not None))


def decided(writes: Sequence[Write], seen: Rows, now: datetime) -> Decision:
    """Every write in its order, or the first refusal as an exception."""
    decision = Decision()
    tasks = {name: values.task_from(name[1], row) for name, row in seen.items()}
    ends = {name: values.end_of(task) for name, task in tasks.items()}
    for write in writes:
        if isinstance(write, LogWrite):
            _log(decision, write)
        elif isinstance(write, TaskWrite):
            name = (write.space, write.task)
            tasks[name] = _task(decision, write, tasks[name], now)
            if isinstance(write, DropTask):
                decision.order(b"gone", write.space, raw(write.task), ends[name])
                ends[name] = b""
    for name, task in tasks.items():
        decision.rows[name] = b"" if task is None else values.row(task)
        if task is not None and decision.rows[name] != seen[name]:
            decision.order(b"row", name[0], raw(name[1]), decision.rows[name], ends[name], values.end_of(task))
    return decision


def put_in_hands(claim: leases.Claim, seen: bytes, now: datetime) -> tuple[Task, Decision]:
    """A claim: the task with its new holder. Its fence is given where it is written."""
    held = values.task_from(claim.task, seen)
    task = leases.claimed(held, claim, 0, now)
    row = values.open_row(task)
    decision = Decision(open={(claim.space, claim.task): row})
    decision.order(b"claim", claim.space, raw(claim.task), row, values.end_of(held), values.end_of(task))
    return task, decision


def put_back(name: TaskName, task: Task, seen: bytes) -> Decision:
    """A task that somebody changed by its lease alone."""
    decision = Decision(rows={name: values.row(task)})
    before = values.end_of(values.task_from(name[1], seen))
    decision.order(b"row", name[0], raw(name[1]), decision.rows[name], before, values.end_of(task))
    return decision


def _log(decision: Decision, write: LogWrite) -> None:
    match write:
        case Append():
            cap = b"" if write.cap is None else b"%d" % write.cap
            entry, value = write.entry, values.entry_value(write.entry)
            decision.entries.append(value)
            decision.order(b"append", write.space, raw(entry.id), values.header(entry), value, cap, b"%d" % write.seq)
        case Clear():
            decision.order(b"clear", write.space)
        case Drop():
            decision.order(b"drop", write.space, b"%d" % len(write.seqs), *(b"%d" % seq for seq in write.seqs))


def _task(decision: Decision, write: TaskWrite, held: Task | None, now: datetime) -> Task | None:
    match write:
        case DropTask():
            leases.check_drop(held, write, now)
            return None
        case Save():
            task = leases.saved(held, write, now)
            state = values.state_value(task, write)
            decision.order(b"state", write.space, raw(write.task), b"%d" % task.version, state, b"%d" % write.keep)
            return task
        case Journal():
            task = leases.noted(held, write, now)
            decision.order(b"note", write.space, raw(write.task), raw(write.step), values.note_value(write, now))
            return task
        case SetStatus():
            return leases.noted(held, write, now)
        case Restore():
            task = leases.restored(held, write)
            _restore(decision, write)
            return task


def _restore(decision: Decision, write: Restore) -> None:
    space, task = write.space, raw(write.task)
    every = b"%d" % (write.known.version + 1)
    for one in write.checkpoints:
        decision.order(b"state", space, task, b"%d" % one.version, values.checkpoint_value(one), every)
    for step in write.steps:
        decision.order(b"note", space, task, raw(step.key), values.step_value(step))
    decision.order(b"fenced", space, b"%d" % write.highest_fence)
