"""Values as the server keeps them, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.errors import StoreCorrupt
from recollect.stores.base import Checkpoint, Step, Task
from recollect.stores.ops import Entry, Journal, Save
from recollect.values import NOTHING

Parts = list[Any]

_MICROSECOND = timedelta(microseconds=1)
# Before 1970 is a moment as well; added to each, all are positive and sort as texts.
_OFFSET = 1 << 62
_DIGITS = 20
NEVER = b"9" * _DIGITS
"""Later than any moment that can be written."""


def moment(at: datetime | None) -> bytes:
    """As digits that sort by time."""
    return NEVER if at is None else b"%020d" % (to_micros(at) + _OFFSET)


def header(entry: Entry) -> bytes:
    """What the scripts have to know of an entry."""
    kind = entry.kind.encode()
    return b"%s%s%010d%s%s" % (moment(entry.expires_at), moment(entry.at), len(kind), kind, entry.id.encode())


def entry_value(entry: Entry) -> bytes:
    """All of an entry but its place, which the server puts before it."""
    return _dumped(
        [
            entry.id,
            entry.kind,
            entry.content,
            dict(entry.metadata),
            entry.importance,
            to_micros(entry.at),
            _micros(entry.expires_at),
        ]
    )


def read(value: bytes) -> Any:
    """What we have written as JSON; what somebody else has written under our names is told of."""
    try:
        return json.loads(value)
    except ValueError as error:
        raise StoreCorrupt(f"a value under our names cannot be read ({error}); restore a backup") from error


def entry_of(value: bytes) -> Entry:
    return entry_from(value, parts_of(value))


def parts_of(value: bytes) -> Parts:
    """What is kept of an entry, before anything is made of it: its kind is the second, its content the third."""
    parts: Parts = read(value[_DIGITS:])
    return parts


def entry_from(value: bytes, parts: Parts) -> Entry:
    id, kind, content, metadata, importance, at, expires_at = parts
    return Entry(
        id=id,
        kind=kind,
        content=content,
        metadata=_frozen(metadata),
        importance=importance,
        at=from_micros(at),
        expires_at=_moment(expires_at),
        seq=int(value[:_DIGITS]),
    )


def open_row(task: Task) -> bytes:
    """A task's row without its end, the fence: that of a new holder is given by the server."""
    row = [
        task.version,
        task.status,
        task.owner,
        _micros(task.renewed_at),
        _length(task.lease_ttl),
        task.plan_hash,
        _length(task.ttl),
        _micros(task.expires_at),
        to_micros(task.created_at),
        to_micros(task.updated_at),
    ]
    return _dumped(row)[:-1] + b","


def row(task: Task) -> bytes:
    return b"%s%d]" % (open_row(task), task.fence)


def task_from(name: str, row: bytes) -> Task | None:
    """The task of a row; an empty one is of none."""
    if not row:
        return None
    version, status, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at, fence = read(row)
    return Task(
        id=name,
        status=status,
        version=version,
        fence=fence,
        owner=owner,
        renewed_at=_moment(renewed_at),
        lease_ttl=_span(lease_ttl),
        plan_hash=plan_hash,
        ttl=_span(ttl),
        expires_at=_moment(expires_at),
        created_at=from_micros(created_at),
        updated_at=from_micros(updated_at),
    )


def end_of(task: Task | None) -> bytes:
    """Where a task stands among those that expire; nothing for those that do not."""
    return b"" if task is None or task.expires_at is None else moment(task.expires_at) + b":"


def state_value(task: Task, save: Save) -> bytes:
    new = Checkpoint(task.version, task.fence, save.schema, save.state, task.updated_at, intact=True)
    return checkpoint_value(new, save.sha256)


def checkpoint_value(one: Checkpoint, sha256: str | None = None) -> bytes:
    """A version of a state, after its checksum and a line about it."""
    state = one.state.encode()
    checksum = sha256 or hashlib.sha256(state).hexdigest()
    return b"%s%s\n%s" % (checksum.encode(), _dumped([one.fence, one.schema, to_micros(one.at)]), state)


def checkpoint_of(version: bytes, value: bytes) -> Checkpoint:
    """A version of a state. Damage is told, not raised."""
    about, _, state = value[64:].partition(b"\n")
    intact = hashlib.sha256(state).hexdigest().encode() == value[:64]
    try:
        fence, schema, at = json.loads(about)
        return Checkpoint(int(version), fence, schema, state.decode("utf-8", "replace"), from_micros(at), intact)
    except (ValueError, TypeError, OverflowError):
        return Checkpoint(int(version), 0, 0, state.decode("utf-8", "replace"), from_micros(0), intact=False)


def note_value(note: Journal, now: datetime) -> bytes:
    return _noted(note, now)


def step_value(step: Step) -> bytes:
    return _noted(step, step.at)


def _noted(one: Journal | Step, at: datetime) -> bytes:
    return _dumped(
        [
            one.status,
            one.attempts,
            one.fence,
            one.idempotency_key,
            one.input_sha,
            one.result,
            one.error,
            to_micros(at),
        ]
    )


def step_of(key: bytes, value: bytes) -> Step:
    status, attempts, fence, idempotency_key, input_sha, result, error, at = read(value)
    return Step(
        key=key.decode(),
        status=status,
        attempts=attempts,
        fence=fence,
        idempotency_key=idempotency_key,
        input_sha=input_sha,
        result=result,
        error=error,
        at=from_micros(at),
    )


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _frozen(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(metadata)) if metadata else NOTHING


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _length(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND


def _span(micros: int | None) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=micros)
