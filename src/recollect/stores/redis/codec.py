"""The stored format: key names, and the encoding of entries, tasks, checkpoints and steps.

All keys of one owner (tenant, user, agent) share a hash tag and so one cluster slot: `recollect:{TAG}:…`. The tag is a
hash of the names, so that any character is allowed in a name and an owner index reveals no names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, cast, get_args

from recollect.clock import from_micros, to_micros
from recollect.stores.codec import (
    DECODE_ERRORS,
    DecodeError,
    build_corrupt_error,
    decode_choice,
    decode_counts,
    decode_float,
    decode_int,
    decode_mapping,
    decode_optional_duration,
    decode_optional_text,
    decode_optional_time,
    decode_text,
    decode_text_mapping,
    decode_texts,
    decode_time,
    detect_corruption,
    detects_corruption,
)
from recollect.stores.erasure import ErasurePhase, ErasureReceipt, ErasureRecord
from recollect.stores.writes import STEP_STATUSES, TASK_STATUSES, Checkpoint, Entry, Step, Task
from recollect.types import EMPTY_MAPPING, Space, Tier

EntryFields = list[Any]
"""Id, kind, content, metadata, importance, time and expiry of an entry."""

_MICROSECOND = timedelta(microseconds=1)
# Makes times before 1970 positive, so that all sort as text.
_TIME_OFFSET = 1 << 62
PREFIX_DIGITS = 20


def _to_json(value: Any) -> Any:
    """Return times and durations in microseconds, and a mapping as a dictionary."""
    if isinstance(value, datetime):
        return to_micros(value)
    return value // _MICROSECOND if isinstance(value, timedelta) else dict(value)


# json.dumps builds an encoder on every call with non-default options.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_to_json)


def encode_json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


_Decoders = Mapping[str, Callable[[str, Any], Any]]
# Values are stored as JSON lists of these fields, in this order.
_TASK_FIELDS: _Decoders = {
    "version": decode_int,
    "status": partial(decode_choice, known=TASK_STATUSES),
    "owner": decode_optional_text,
    "renewed_at": decode_optional_time,
    "lease_ttl": decode_optional_duration,
    "plan_hash": decode_optional_text,
    "ttl": decode_optional_duration,
    "expires_at": decode_optional_time,
    "created_at": decode_time,
    "updated_at": decode_time,
    "fence": decode_int,  # last, because the server assigns it
}
_STEP_FIELDS: _Decoders = {
    "status": partial(decode_choice, known=STEP_STATUSES),
    "attempts": decode_int,
    "fence": decode_int,
    "idempotency_key": decode_text,
    "input_sha": decode_optional_text,
    "result": decode_optional_text,
    "error": decode_optional_text,
    "at": decode_time,
}
_FIELD_GETTERS: Mapping[type, Callable[[Any], Any]] = {
    Entry: attrgetter("id", "kind", "content", "metadata", "importance", "at", "expires_at"),
    Task: attrgetter(*_TASK_FIELDS),
    Step: attrgetter(*_STEP_FIELDS),
}


def _decode_fields(decoders: _Decoders, values: list[Any]) -> dict[str, Any]:
    return {name: decode(name, value) for (name, decode), value in zip(decoders.items(), values, strict=True)}


def encode_time(at: datetime | None) -> bytes:
    """Encode a time as 20 digits that sort by time; None sorts last."""
    return b"9" * PREFIX_DIGITS if at is None else b"%020d" % (to_micros(at) + _TIME_OFFSET)


def encode_entry_header(entry: Entry) -> bytes:
    """Encode what the Lua scripts read of an entry: expiry, time, kind and id."""
    kind = entry.kind.encode()
    return b"%s%s%010d%s%s" % (encode_time(entry.expires_at), encode_time(entry.at), len(kind), kind, entry.id.encode())


def encode_row(value: Entry | Task | Step) -> bytes:
    """Encode an entry without its seq, which the server prepends, or a task or step without its name."""
    return encode_json(_FIELD_GETTERS[type(value)](value))


@detects_corruption("the name of an owner")
def decode_owner(value: bytes) -> Space:
    """Return the space of an owner's tasks without a session."""
    tenant, user, agent = decode_texts("names", json.loads(value))
    return Space(tenant, "checkpoints", user, agent)


@detects_corruption("an entry of a log")
def decode_entry(value: bytes) -> Entry:
    """Return the entry of a stored value, which starts with its seq."""
    return build_entry(value[:PREFIX_DIGITS], json.loads(value[PREFIX_DIGITS:]))


@detects_corruption("an entry of a log")
def decode_entry_rows(listed: bytes) -> list[tuple[str, EntryFields]]:
    """Return seq and fields of each entry in a script's JSON answer. A null entry is missing: raise StoreCorrupt."""
    rows: list[Any] = json.loads(listed)
    if None in rows:
        raise DecodeError("it is missing")
    for _, fields in rows:
        decode_text("kind", fields[1])
        decode_text("content", fields[2])
    return rows


@detects_corruption("an entry of a log")
def build_entry(seq: bytes | str, fields: EntryFields) -> Entry:
    id, kind, content, metadata, importance, at, expires_at = fields
    return Entry(
        id=decode_text("id", id),
        kind=decode_text("kind", kind),
        content=decode_text("content", content),
        metadata=MappingProxyType(decode_mapping("metadata", metadata)) if metadata != {} else EMPTY_MAPPING,
        importance=decode_float("importance", importance),
        at=decode_time("at", at),
        expires_at=decode_optional_time("expires_at", expires_at),
        seq=int(seq),
    )


def decode_task(name: str, row: bytes) -> Task | None:
    """Return the task of a row, or None if the row is empty."""
    if not row:
        return None
    try:
        return Task(id=name, **_decode_fields(_TASK_FIELDS, json.loads(row)))
    except DECODE_ERRORS as error:
        raise build_corrupt_error(f"the row of task {name!r:.80}", error) from error


def encode_expiry(task: Task | None) -> bytes:
    """Return the prefix that sorts tasks by expiry; empty for a task that does not expire."""
    return b"" if task is None or task.expires_at is None else encode_time(task.expires_at) + b":"


def encode_checkpoint(state: str, fence: int, schema: int, at: datetime, sha256: str | None = None) -> bytes:
    """Encode a checkpoint: checksum, a line of JSON, and the state."""
    checksum = sha256 or hashlib.sha256(state.encode()).hexdigest()
    return f"{checksum}{_ENCODER.encode([fence, schema, at])}\n{state}".encode()


def decode_checkpoint(version: bytes, value: bytes) -> Checkpoint:
    """Return a checkpoint. If it is damaged, `intact` is False; nothing is raised."""
    about, _, state = value[64:].partition(b"\n")
    intact = hashlib.sha256(state).hexdigest().encode() == value[:64]
    try:
        fence, schema, at = json.loads(about)
        numbers = decode_int("fence", fence), decode_int("schema", schema)
        return Checkpoint(int(version), *numbers, state.decode("utf-8", "replace"), decode_time("at", at), intact)
    except DECODE_ERRORS:
        number = int(version) if version.isdigit() else 0
        return Checkpoint(number, 0, 0, state.decode("utf-8", "replace"), from_micros(0), intact=False)


@detects_corruption("the journal entry of a step")
def decode_step(key: bytes, value: bytes) -> Step:
    return Step(key=key.decode(), **_decode_fields(_STEP_FIELDS, json.loads(value)))


# The fields of a row of the ledger, next to its key and receipt.
_ERASURE_FIELDS: _Decoders = {
    "subject": decode_text,
    "parts": decode_texts,
    "requested_at": decode_time,
    "elsewhere": decode_text_mapping,
    "phase": partial(decode_choice, known=get_args(ErasurePhase)),
    "deleted_at": decode_optional_time,
    "erased": decode_counts,
}


def encode_erasure(erasure: ErasureRecord) -> bytes:
    receipt = None if erasure.receipt is None else erasure.receipt.as_json()
    row = {name: getattr(erasure, name) for name in _ERASURE_FIELDS}
    return encode_json(row | {"key": erasure.key.hex(), "receipt": receipt})


def decode_erasure(id: str, row: bytes, salt: bytes) -> ErasureRecord:
    """Return a row of the ledger. Rows of release 0.1 have no key: their evidence is keyed by the salt."""
    with detect_corruption(f"the row of erasure {id!r:.80}"):
        fields: dict[str, Any] = json.loads(row)
        return ErasureRecord(
            id=id,
            key=bytes.fromhex(fields["key"]) if "key" in fields else salt,
            receipt=None if fields["receipt"] is None else ErasureReceipt.from_json(fields["receipt"]),
            **{name: decode(name, fields[name]) for name, decode in _ERASURE_FIELDS.items()},
        )


@detects_corruption("the counts of a deletion")
def decode_marker(value: bytes) -> tuple[str, dict[str, int]]:
    """Return the id of the erasure and the number of deleted rows by tier."""
    id, counts = json.loads(value)
    return decode_text("erasure", id), decode_counts("counts", counts)


KEY_ROOT = b"recollect:"
ERASURES_PREFIX = KEY_ROOT + b"{erasures}:"
"""The prefix of the erasure ledger's keys, which are all in one slot."""
ERASED_FENCE_KEY = ERASURES_PREFIX + b"fence"
TaskName = tuple[Space, str]


def encode_text(text: str) -> bytes:
    """Encode text, lone surrogates included: a name with them can be looked up, and is not found."""
    return text.encode("utf-8", "surrogatepass")


def build_owner_prefix(space: Space) -> bytes:
    return _build_prefix(space.tenant, space.user, space.agent)


@lru_cache(maxsize=4096)
def _build_prefix(tenant: str, user: str, agent: str) -> bytes:
    return b"%s{%s.%s}:" % (KEY_ROOT, _hash_names(tenant), _hash_names(tenant, user, agent))


def encode_owner(space: Space) -> bytes:
    return encode_text(json.dumps([space.tenant, space.user, space.agent]))


def build_space_name(space: Space) -> bytes:
    return encode_text(f"{space.tier}/{space.session}")


def parse_space(owner: Space, name: bytes) -> Space:
    """Return the space of the same owner that `build_space_name` named."""
    tier, _, session = name.decode("utf-8", "surrogatepass").partition("/")
    return replace(owner, tier=cast(Tier, tier), session=session)


def build_owner_index_key(tenant: str) -> bytes:
    """Return the key of the set of a tenant's owners. Its slot differs from those of the owners."""
    return b"%s{%s}:owners" % (KEY_ROOT, _hash_names(tenant))


def build_key(kind: bytes, space: Space) -> bytes:
    """Return the key of a log's `order` or `data`, or of the `tasks` of a space, their `names` or their `ends`."""
    return b"%s%s:%s" % (build_owner_prefix(space), kind, build_space_name(space))


def build_task_key(kind: bytes, name: TaskName) -> bytes:
    """Return the key of a task's `versions`, its `steps`, or their order (`course`)."""
    space = build_space_name(name[0])
    return b"%s%s:%d:%s%s" % (build_owner_prefix(name[0]), kind, len(space), space, encode_text(name[1]))


def _hash_names(*names: str) -> bytes:
    return hashlib.blake2b(encode_text(json.dumps(names)), digest_size=16).hexdigest().encode()
