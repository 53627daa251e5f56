"""Normalization of vectors for a store."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.errors import BadVector
from recollect.stores.codec import normalize_vectors


def test_unit_vectors_are_unchanged():
    rows = normalize_vectors(np.random.default_rng(1).standard_normal((3, 384)))
    assert np.array_equal(normalize_vectors(rows), rows)
    assert np.array_equal(normalize_vectors(rows[0]), rows[:1])


@pytest.mark.parametrize("size", [1e-30, 0.5, 2.0, 1e30], ids=str)
def test_other_vectors_are_normalized(size: float):
    # One row that is not of unit length is enough.
    rows = np.array([[1, 0, 0, 0], [0, size, 0, 0]], np.float32)
    assert np.array_equal(normalize_vectors(rows), np.eye(4, dtype=np.float32)[:2])


def test_wrong_dimension_is_refused():
    with pytest.raises(BadVector, match="must have 3 dimensions; got 4"):
        normalize_vectors(np.eye(4, dtype=np.float32)[:2], 3)
