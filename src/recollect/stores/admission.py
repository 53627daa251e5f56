"""What no store takes: a bad write is refused by every backend in the same words, before anything is written."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from datetime import timedelta

from recollect.errors import BadInput, BadQuery, BadVector, EmbeddingModelMismatch
from recollect.stores.ops import (
    Append,
    DropTask,
    Embed,
    Journal,
    Model,
    Put,
    Restore,
    Save,
    SetStatus,
    Vectors,
    Write,
)
from recollect.stores.vectors import MOST_PASSAGES, kept
from recollect.values import MemoryItem, is_simple, plain_json

# More than a space can hold, and small enough for every database's idea of a number.
_MOST_RESULTS = 1 << 31

_SHA256 = re.compile(r"[0-9a-f]{64}")

# Longer than any lease or task can be meant to live, and short enough that no date overflows.
_LONGEST = timedelta(days=36_525)


def admitted(write: Write) -> Write:
    """The write as stores keep it, or `BadInput` saying what is wrong with it."""
    match write:
        case Put():
            return _put(write)
        case Embed():
            return dataclasses.replace(write, vectors=_vectors(write.vectors, write.model))
        case Append():
            return _append(write)
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
        case _:
            pass
    return write


def count_of(limit: int) -> int:
    """A number of results to return."""
    if limit < 0:
        raise BadQuery(f"limit is how many results are wanted, not {limit}")
    return min(limit, _MOST_RESULTS)


def check_claim(task: str, owner: str, ttl: timedelta) -> None:
    _check_name("task", task)
    _check_name("owner", owner)
    check_ttl(ttl)


def check_ttl(ttl: timedelta) -> None:
    if not timedelta() < ttl <= _LONGEST:
        raise BadInput(f"a ttl is longer than nothing and at most {_LONGEST.days:,} days, not {ttl}")


def check_text(texts: Iterable[str | None]) -> None:
    """Refuse half a character: it could be written nowhere but in this process's memory."""
    try:
        for text in texts:
            if text is not None and not text.isascii():  # which is known without looking
                text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"a text has half a character (a lone surrogate) at {error.start}; decode it properly"
        ) from error


def mismatch(stored: Model, given: Model) -> EmbeddingModelMismatch:
    return EmbeddingModelMismatch(
        f"this store was written with the embedding model {stored.name!r} ({stored.dim} dimensions, "
        f"{stored.fingerprint[:12]}), not {given.name!r} ({given.dim} dimensions, {given.fingerprint[:12]}); "
        f"open it with {stored.name!r}, or change it with `await memory.reembed(...)` or `recollect reembed`"
    )


def _put(put: Put) -> Put:
    item = put.item
    _check_name("item", item.id)
    check_text(_texts(item))
    if item.turn is not None and not math.isfinite(item.turn.position):
        raise BadInput(f"a turn's position is a finite number, not {item.turn.position}")
    # Terms are kept as one line of text, and taken out of the index again by splitting it.
    if put.terms and (" ".join(put.terms).split() != list(put.terms)):
        raise BadInput("a term is one analysed word: not empty, and without white space")
    check_text(put.terms or ())
    if item.metadata:
        item = dataclasses.replace(item, metadata=_metadata(item.metadata))
    vectors = None if put.vectors is None else _vectors(put.vectors, put.model)
    if item is put.item and vectors is put.vectors:  # there was nothing to change
        return put
    return dataclasses.replace(put, item=item, vectors=vectors)


def _append(append: Append) -> Append:
    entry = append.entry
    _check_name("entry", entry.id)
    check_text((entry.kind, entry.content))
    if append.cap is not None and append.cap < 1:
        raise BadInput(f"cap is how many entries a log keeps, at least one, not {append.cap}")
    if not math.isfinite(entry.importance):
        raise BadInput(f"importance is a number from 0 to 1, not {entry.importance!r}")
    # Most is, at two levels where it stands in an envelope; whoever keeps the entry itself makes a copy of it.
    if not entry.metadata or is_simple(entry.metadata, deep=2):
        return append
    return dataclasses.replace(append, entry=dataclasses.replace(entry, metadata=_metadata(entry.metadata)))


def _check_save(save: Save) -> None:
    _check_name("task", save.task)
    check_text((save.state,))
    if save.sha256 is not None and not _SHA256.fullmatch(save.sha256):
        raise BadInput(f"a state's sha256 is 64 hex digits, not {save.sha256!r:.80}; leave it out to have it made")
    if save.ttl is not None:
        check_ttl(save.ttl)
    if save.keep < 1:
        raise BadInput(f"keep is how many versions a task keeps, at least one, not {save.keep}")


def _check_restore(restore: Restore) -> None:
    _check_name("task", restore.task)
    check_text((restore.known.plan_hash, *(one.state for one in restore.checkpoints)))
    for step in restore.steps:
        _check_name("step", step.key)
        check_text((step.idempotency_key, step.input_sha, step.result, step.error))
    for one in restore.checkpoints:
        if not one.intact or one.version > restore.known.version:
            raise BadInput(f"version {one.version} of task {restore.task!r} is damaged or ahead of it; leave it out")


def _vectors(given: Vectors, model: Model | None) -> Vectors:
    if model is None:
        raise BadInput("vectors need to say which model made them")
    rows = kept(given, model.dim)
    if len(rows) > MOST_PASSAGES:
        raise BadVector(f"an item has at most {MOST_PASSAGES} vectors, not {len(rows)}; join some of its passages")
    return rows


def _metadata(given: object) -> dict[str, object]:
    plain = plain_json(dict(given) if not isinstance(given, dict) else given)  # type: ignore[call-overload]
    assert isinstance(plain, dict)
    check_text(_strings(plain))
    return plain


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _texts(item: MemoryItem) -> Iterable[str | None]:
    yield from (item.content, item.source, item.key, item.superseded_by)
    yield from (item.scope.tenant, item.scope.user, item.scope.agent, item.scope.session)
    if item.turn is not None:
        yield from (item.turn.session, item.turn.speaker)
    yield from item.derived_from


def _check_name(what: str, name: str) -> None:
    if not name:
        raise BadInput(f"the id of the {what} is empty; give it a name")
    check_text((name,))
