"""Values as the server keeps them, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from recollect.clock import from_micros, to_micros
from recollect.stores.base import Checkpoint, Step, Task
from recollect.stores.damage import (
    MISREAD,
    Misshapen,
    damaged,
    mapping,
    maybe_moment,
    maybe_span,
    maybe_text,
    number,
    one_of,
    text,
    texts,
    whole,
)
from recollect.stores.damage import moment as moment_of
from recollect.stores.ops import Entry, Journal, Save
from recollect.stores.task import STEP_STATUSES, TASK_STATUSES
from recollect.values import NOTHING

Parts = list[Any]

_MICROSECOND = timedelta(microseconds=1)
# Before 1970 is a moment as well; added to each, all are positive and sort as texts.
_OFFSET = 1 << 62
_DIGITS = 20
NEVER = b"9" * _DIGITS
"""Later than any moment that can be written."""

# Made once: `json.dumps` makes one for every value that is written otherwise than it thinks.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


def names_in(value: bytes) -> tuple[str, str, str]:
    """The tenant, user and agent that an owner remembers."""
    try:
        tenant, user, agent = texts("names", json.loads(value))
    except MISREAD as error:
        raise damaged("the name of an owner", error) from error
    return tenant, user, agent


def entries_of(values: Sequence[bytes]) -> list[Entry]:
    """Entries as they are kept, each behind its place; they are read together, which takes half as long."""
    try:
        every = json.loads(b"[" + b",".join([value[_DIGITS:] for value in values]) + b"]")
    except MISREAD:
        every = []
    if len(every) != len(values):
        every = [parts_of(value) for value in values]  # says what is wrong with one
    return [entry_from(value[:_DIGITS], parts) for value, parts in zip(values, every, strict=True)]


def parts_of(value: bytes) -> Parts:
    """What is kept of an entry, before anything is made of it: its kind is the second, its content the third."""
    try:
        return _told(json.loads(value[_DIGITS:]))
    except MISREAD as error:
        raise damaged("an entry of a log", error) from error


def rows_of(listed: bytes) -> list[tuple[str, Parts]]:
    """The same of several that a script lists as JSON: the place of each, and what is kept there.

    None is what the server has under an id that stands in the order of its log and nowhere else.
    """
    try:
        rows = []
        for row in json.loads(listed):
            if row is None:
                raise Misshapen("it is gone")
            place, parts = row
            rows.append((place, _told(parts)))
    except MISREAD as error:
        raise damaged("an entry of a log", error) from error
    return rows


def _told(parts: Parts) -> Parts:
    text("kind", parts[1])
    text("content", parts[2])
    return parts


def entry_from(place: bytes | str, parts: Parts) -> Entry:
    try:
        id, kind, content, metadata, importance, at, expires_at = parts
        return Entry(
            id=text("id", id),
            kind=text("kind", kind),
            content=text("content", content),
            metadata=_frozen(mapping("metadata", metadata)),
            importance=number("importance", importance),
            at=moment_of("at", at),
            expires_at=maybe_moment("expires_at", expires_at),
            seq=int(place),
        )
    except MISREAD as error:
        raise damaged("an entry of a log", error) from error


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
    try:
        told = json.loads(row)
        version, status, owner, renewed_at, lease_ttl, plan_hash, ttl, expires_at, created_at, updated_at, fence = told
        return Task(
            id=name,
            status=one_of("status", status, TASK_STATUSES),
            version=whole("version", version),
            fence=whole("fence", fence),
            owner=maybe_text("owner", owner),
            renewed_at=maybe_moment("renewed_at", renewed_at),
            lease_ttl=maybe_span("lease_ttl", lease_ttl),
            plan_hash=maybe_text("plan_hash", plan_hash),
            ttl=maybe_span("ttl", ttl),
            expires_at=maybe_moment("expires_at", expires_at),
            created_at=moment_of("created_at", created_at),
            updated_at=moment_of("updated_at", updated_at),
        )
    except MISREAD as error:
        raise damaged(f"the row of task {name!r:.80}", error) from error


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
        told = whole("fence", fence), whole("schema", schema)
        return Checkpoint(int(version), *told, state.decode("utf-8", "replace"), moment_of("at", at), intact)
    except MISREAD:
        number = int(version) if version.isdigit() else 0
        return Checkpoint(number, 0, 0, state.decode("utf-8", "replace"), from_micros(0), intact=False)


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
    try:
        status, attempts, fence, idempotency_key, input_sha, result, failed, at = json.loads(value)
        return Step(
            key=key.decode(),
            status=one_of("status", status, STEP_STATUSES),
            attempts=whole("attempts", attempts),
            fence=whole("fence", fence),
            idempotency_key=text("idempotency_key", idempotency_key),
            input_sha=maybe_text("input_sha", input_sha),
            result=maybe_text("result", result),
            error=maybe_text("error", failed),
            at=moment_of("at", at),
        )
    except MISREAD as error:
        raise damaged("the note about a step", error) from error


def _dumped(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def _frozen(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(metadata)) if metadata else NOTHING


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _length(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND
