"""Vectors as stores keep them: checked, normalised and rounded alike, so that every backend gives one answer."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from recollect.errors import BadVector

# float16 moves a cosine of unit vectors by about 1e-5: far below what an embedding model means, at half the bytes.
STORED = np.dtype("<f2")

MOST_PASSAGES = 64

# Closer to one than float32 can tell a sum of squares from it.
_UNIT = 1e-6
# So far from one the length of a unit vector may be once its numbers are float16.
_ROUNDED = 2**-11


def normalised(given: ArrayLike, dim: int | None = None) -> NDArray[np.float32]:
    """One or more vectors as rows of unit length; `BadVector` when they are not finite or not of `dim`."""
    if is_unit(given) and dim in (None, len(given)):
        return given[np.newaxis]
    if _are_unit(given) and dim in (None, given.shape[1]):
        return given
    try:
        rows = np.atleast_2d(np.asarray(given, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise BadVector(f"an embedder has to answer with numbers: {error}") from error
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise BadVector(f"an embedder has to answer with one flat vector a text, not an array of shape {rows.shape}")
    if dim is not None and rows.shape[1] != dim:
        raise BadVector(f"a vector has {rows.shape[1]} dimensions where {dim} are expected; is it the right embedder?")
    if not np.isfinite(rows).all():
        raise BadVector("a vector has entries that are not finite (NaN or infinity); nothing was stored")
    # Scaled first: the square of a large float32 overflows, of a small one vanishes.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest == 0.0, 1.0, largest)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.ascontiguousarray(scaled / np.where(length == 0.0, 1.0, length), dtype=np.float32)


def kept(given: ArrayLike, dim: int) -> NDArray[np.float32]:
    """The same to be written; rows that a store has rounded before are left as they are.

    To make them a little longer or shorter and round again would move some of them, and a copy would not be the same.
    """
    rows = normalised(given, dim)
    before = np.asarray(given, dtype=np.float32).reshape(rows.shape)
    with np.errstate(over="ignore"):  # what is too large for float16 has not come from there
        if not (packed(before[:, 0]) == before[:, 0]).any():  # nearly always, and known by one number of each
            return rows
        rounded = (packed(before) == before).all(axis=1)
    rounded &= np.abs(np.linalg.norm(before, axis=1) - 1.0) <= _ROUNDED
    return np.where(rounded[:, np.newaxis], before, rows)


def is_unit(given: ArrayLike) -> TypeGuard[NDArray[np.float32]]:
    """Whether it is a vector as a question's comes from its embedder. What is not finite has no length of one."""
    return _are_plain(given, 1) and _is_one(given)


def _are_unit(given: ArrayLike) -> TypeGuard[NDArray[np.float32]]:
    """The same of some, as those of an item's passages come."""
    return _are_plain(given, 2) and all(map(_is_one, given))


def _are_plain(given: ArrayLike, dimensions: int) -> TypeGuard[NDArray[np.float32]]:
    return (
        type(given) is np.ndarray
        and given.dtype == np.float32
        and given.ndim == dimensions
        and given.flags.c_contiguous
    )


def _is_one(vector: NDArray[np.float32]) -> bool:
    # By `vdot`, which tells nobody of what is too large to be squared: that is not of length one.
    return abs(float(np.vdot(vector, vector)) - 1.0) < _UNIT


def packed(rows: NDArray[np.float32]) -> NDArray[np.float16]:
    return rows.astype(STORED)


def unpacked(data: bytes, dim: int) -> NDArray[np.float16]:
    return np.frombuffer(data, dtype=STORED).reshape(-1, dim)
