"""Validation of writes: every backend rejects a bad batch with the same errors, before anything is written."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from datetime import timedelta

from recollect.errors import BadInput, BadQuery, BadVector, Conflict, EmbeddingModelMismatch
from recollect.stores.codec import MAX_PASSAGES, prepare_vectors
from recollect.stores.writes import (
    Append,
    DropTask,
    Embed,
    Journal,
    LogWrite,
    Model,
    Put,
    Restore,
    Save,
    SetStatus,
    Vectors,
    Write,
)
from recollect.types import Space
from recollect.validation import check_count, is_simple_mapping, to_plain_json

# SQLite and PostgreSQL accept this as LIMIT, and no space holds as many items.
ALL_VERSIONS = _MAX_RESULTS = 1 << 31

_SHA256 = re.compile(r"[0-9a-f]{64}")

# A date plus this stays below the year 9999.
_MAX_TTL = timedelta(days=36_525)


def validate_write(write: Write) -> Write:
    """Return the write as stores keep it; raise `BadInput` if it is invalid."""
    match write:
        case Put():
            return _validate_put(write)
        case Embed():
            return dataclasses.replace(write, vectors=_validate_vectors(write.vectors, write.model))
        case Append():
            return _validate_append(write)
        case Save():
            _check_save(write)
        case Journal():
            _check_name("task", write.task)
            _check_name("step", write.step)
            check_text((write.idempotency_key, write.input_sha, write.result, write.error))
        case SetStatus() | DropTask():
            _check_name("task", write.task)
        case Restore():
            _check_restore(write)
    return write


def validate_writes(writes: Iterable[Write]) -> list[Write]:
    """Return the writes of a batch as stores keep them; raise `BadInput` if one is invalid."""
    checked = [validate_write(write) for write in writes]
    logs: set[Space] = set()
    for write in checked:
        if isinstance(write, LogWrite):
            if isinstance(write, Append) and write.expect_last is not None and write.space in logs:
                raise BadInput(
                    "expect_last must be on the first write of a batch to its log; "
                    f"entry {write.entry.id!r:.80} follows another write"
                )
            logs.add(write.space)
    return checked


def validate_limit(limit: int) -> int:
    """Return the limit, at most 2^31; raise `BadQuery` if it is negative."""
    return min(check_count("limit", limit, error=BadQuery), _MAX_RESULTS)


def check_claim(task: str, owner: str, ttl: timedelta) -> None:
    _check_name("task", task)
    _check_name("owner", owner)
    check_ttl(ttl)


def check_ttl(ttl: timedelta) -> None:
    if not timedelta() < ttl <= _MAX_TTL:
        raise BadInput(f"ttl must be above 0 and at most {_MAX_TTL.days:,} days; got {ttl}")


def check_text(texts: Iterable[str | None]) -> None:
    """Raise `BadInput` if a text has a lone surrogate, which UTF-8 cannot encode."""
    try:
        for text in texts:
            if text is not None and not text.isascii():
                text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"a text must be valid Unicode; got a lone surrogate at position {error.start}. Decode the text correctly"
        ) from error


def check_last_seq(append: Append, last_seq: int) -> None:
    """Raise `Conflict` if the log has not assigned the expected last `seq`."""
    if append.expect_last not in (None, last_seq):
        raise Conflict(
            f"entry {append.entry.id!r:.80} must follow seq {append.expect_last}, but its log is at seq {last_seq}; "
            "read the log again"
        )


def build_model_mismatch(stored: Model, given: Model) -> EmbeddingModelMismatch:
    return EmbeddingModelMismatch(
        f"this store uses the embedding model {stored.name!r} ({stored.dim} dimensions, {stored.fingerprint[:12]}); "
        f"got {given.name!r} ({given.dim} dimensions, {given.fingerprint[:12]}). Open it with {stored.name!r}, "
        "or change the model with `await memory.reembed(...)` or `recollect reembed`"
    )


def _validate_put(put: Put) -> Put:
    item = put.item
    _check_name("item", item.id)
    check_text((item.content, item.source, item.key, item.superseded_by, *item.derived_from, *(put.terms or ())))
    check_text((item.scope.tenant, item.scope.user, item.scope.agent, item.scope.session))
    if item.turn is not None:
        check_text((item.turn.session, item.turn.speaker))
    if item.turn is not None and not math.isfinite(item.turn.position):
        raise BadInput(f"the position of a turn must be a finite number; got {item.turn.position}")
    # The index stores terms as one text and splits it at white space.
    if put.terms and (" ".join(put.terms).split() != list(put.terms)):
        raise BadInput("a term must be non-empty and without white space")
    if item.metadata:
        item = dataclasses.replace(item, metadata=_validate_metadata(item.metadata))
    vectors = None if put.vectors is None else _validate_vectors(put.vectors, put.model)
    if item is put.item and vectors is put.vectors:
        return put
    return dataclasses.replace(put, item=item, vectors=vectors)


def _validate_append(append: Append) -> Append:
    entry = append.entry
    _check_name("entry", entry.id)
    check_text((entry.kind, entry.content))
    if append.expect_last is not None:
        check_count("expect_last", append.expect_last)
    if append.cap is not None:
        check_count("cap", append.cap, minimum=1)
    if not math.isfinite(entry.importance):
        raise BadInput(f"importance must be a finite number; got {entry.importance!r}")
    if not entry.metadata or is_simple_mapping(entry.metadata, depth=2):
        return append
    return dataclasses.replace(append, entry=dataclasses.replace(entry, metadata=_validate_metadata(entry.metadata)))


def _check_save(save: Save) -> None:
    _check_name("task", save.task)
    check_text((save.state,))
    if save.sha256 is not None and not _SHA256.fullmatch(save.sha256):
        raise BadInput(f"sha256 must be 64 hex digits; got {save.sha256!r:.80}. Leave it out to have it computed")
    if save.ttl is not None:
        check_ttl(save.ttl)
    if save.keep is not None:
        check_count("keep", save.keep, minimum=1)


def _check_restore(restore: Restore) -> None:
    _check_name("task", restore.task)
    check_text((restore.known.plan_hash, *(checkpoint.state for checkpoint in restore.checkpoints)))
    for step in restore.steps:
        _check_name("step", step.key)
        check_text((step.idempotency_key, step.input_sha, step.result, step.error))
    for checkpoint in restore.checkpoints:
        if not checkpoint.intact or checkpoint.version > restore.known.version:
            raise BadInput(
                f"version {checkpoint.version} of task {restore.task!r} is corrupt or newer than the task; leave it out"
            )


def _validate_vectors(given: Vectors, model: Model | None) -> Vectors:
    if model is None:
        raise BadInput("model is required with vectors")
    rows = prepare_vectors(given, model.dim)
    if len(rows) > MAX_PASSAGES:
        raise BadVector(f"an item must have at most {MAX_PASSAGES} vectors; got {len(rows)}. Join some of its passages")
    return rows


def _validate_metadata(given: object) -> dict[str, object]:
    plain = to_plain_json(dict(given) if not isinstance(given, dict) else given)  # type: ignore[call-overload]
    assert isinstance(plain, dict)
    check_text(_iter_strings(plain))
    return plain


def _iter_strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _iter_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_strings(inner)


def _check_name(what: str, name: str) -> None:
    if not name:
        raise BadInput(f"the id of the {what} must not be empty")
    check_text((name,))
