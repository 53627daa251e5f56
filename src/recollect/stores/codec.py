"""Encoding and decoding of stored values: vectors as float16, and typed reads that detect corrupt data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recollect.clock import from_micros, to_utc
from recollect.errors import BadVector, StoreCorrupt
from recollect.types import EMPTY_MAPPING, MemoryItem

P = ParamSpec("P")
T = TypeVar("T")

DECODE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Exceptions that Python raises for values of an unexpected type or shape."""


class DecodeError(TypeError):
    """Stored value of the wrong type. The message has the name of the value, not its content."""


def build_corrupt_error(what: str, error: Exception) -> StoreCorrupt:
    """Return the error for corrupt data. The message quotes no stored content."""
    detail = str(error) if isinstance(error, json.JSONDecodeError | DecodeError) else type(error).__name__
    return StoreCorrupt(f"{what} is corrupt ({detail}); restore a backup")


@contextmanager
def detect_corruption(what: str) -> Iterator[None]:
    """Turn decoding errors of the block into `StoreCorrupt`."""
    try:
        yield
    except DECODE_ERRORS as error:
        raise build_corrupt_error(what, error) from error


def detects_corruption(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that turns decoding errors of a function into `StoreCorrupt`."""

    def decorate(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except DECODE_ERRORS as error:
                raise build_corrupt_error(what, error) from error

        return wrapper

    return decorate


def decode_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError(f"{name} is not a string")
    return value


def decode_optional_text(name: str, value: Any) -> str | None:
    return None if value is None else decode_text(name, value)


def decode_int(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DecodeError(f"{name} is not an integer")
    return value


def decode_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DecodeError(f"{name} is not true or false")
    return value


def decode_float(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DecodeError(f"{name} is not a number")
    return value


def decode_mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DecodeError(f"{name} is not a mapping")
    return value


def decode_texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DecodeError(f"{name} is not a list")
    return tuple(decode_text(name, item) for item in value)


def decode_text_mapping(name: str, value: Any) -> dict[str, str]:
    return {key: decode_text(name, item) for key, item in decode_mapping(name, value).items()}


def decode_counts(name: str, value: Any) -> dict[str, int]:
    return {key: decode_int(name, item) for key, item in decode_mapping(name, value).items()}


def decode_time(name: str, micros: Any) -> datetime:
    return from_micros(decode_int(name, micros))


def decode_optional_time(name: str, micros: Any) -> datetime | None:
    return None if micros is None else decode_time(name, micros)


def decode_optional_duration(name: str, micros: Any) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=decode_int(name, micros))


def decode_choice(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise DecodeError(f"{name} is not one of {', '.join(known)}")
    return value


_ITEM_TIMES = ("created_at", "last_accessed", "valid_from", "valid_to", "expires_at", "decayed_at", "learned_at")


def normalize_item(item: MemoryItem, before: MemoryItem | None) -> MemoryItem:
    """Return the item as another process would read it: plain metadata, UTC, and the store's version and counts."""
    times: dict[str, Any] = {name: to_utc(time) for name in _ITEM_TIMES if (time := getattr(item, name)) is not None}
    if before is not None:
        times["last_accessed"] = before.last_accessed
    return replace(
        item,
        version=before.version + 1 if before else 1,
        access_count=(before or item).access_count,
        metadata=MappingProxyType(dict(item.metadata)) if item.metadata else EMPTY_MAPPING,
        turn=replace(item.turn, position=float(item.turn.position)) if item.turn else None,
        derived_from=tuple(item.derived_from),
        **times,
    )


# float16 changes a cosine of unit vectors by about 1e-5 and takes half the bytes of float32.
VECTOR_DTYPE = np.dtype("<f2")

MAX_PASSAGES = 64

# The rounding error of a float32 sum of squares is larger than this.
_UNIT_TOLERANCE = 1e-6
# Rounding to float16 changes the length of a unit vector by at most this.
_ROUNDING_TOLERANCE = 2**-11


def normalize_vectors(given: ArrayLike, dim: int | None = None) -> NDArray[np.float32]:
    """Return one or more vectors as rows of unit length; raise `BadVector` if they are not finite or not of `dim`."""
    try:
        rows = np.atleast_2d(np.ascontiguousarray(given, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise BadVector(f"an embedder must return numbers: {error}") from error
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise BadVector(f"an embedder must return one flat vector per text; got an array of shape {rows.shape}")
    if dim is not None and rows.shape[1] != dim:
        raise BadVector(
            f"a vector must have {dim} dimensions; got {rows.shape[1]}. Check that the embedder is the right one"
        )
    with np.errstate(over="ignore"):
        lengths = np.square(rows).sum(axis=1)
    if (np.abs(lengths - 1.0) < _UNIT_TOLERANCE).all():  # unchanged, so that copies are identical
        return rows
    if not np.isfinite(rows).all():
        raise BadVector("a vector must be finite; got NaN or infinity. Nothing was stored")
    # Scale first: the square of a large float32 overflows, and that of a small float32 underflows.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest == 0.0, 1.0, largest)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.ascontiguousarray(scaled / np.where(length == 0.0, 1.0, length), dtype=np.float32)


def is_unit_vector(vector: NDArray[np.float32]) -> bool:
    """Return True if the vector need not be normalized."""
    return (
        isinstance(vector, np.ndarray)
        and vector.dtype == np.float32
        and vector.ndim == 1
        and abs(float(np.vdot(vector, vector)) - 1.0) < _UNIT_TOLERANCE
    )


def prepare_vectors(given: ArrayLike, dim: int) -> NDArray[np.float32]:
    """Return unit vectors for storage. Rows already rounded to float16 stay exact, so that copies are identical."""
    rows = normalize_vectors(given, dim)
    before = np.asarray(given, dtype=np.float32).reshape(rows.shape)
    with np.errstate(over="ignore"):  # a value too large for float16 was not rounded to it
        if not (pack_vectors(before[:, 0]) == before[:, 0]).any():
            return rows
        rounded = (pack_vectors(before) == before).all(axis=1)
    rounded &= np.abs(np.linalg.norm(before, axis=1) - 1.0) <= _ROUNDING_TOLERANCE
    return np.where(rounded[:, np.newaxis], before, rows)


def pack_vectors(rows: NDArray[np.float32]) -> NDArray[np.float16]:
    return rows.astype(VECTOR_DTYPE)
