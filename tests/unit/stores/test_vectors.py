"""Vectors on their way into a store: of unit length, whatever their length was."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.errors import BadVector
from recollect.stores.vectors import normalised


def test_what_is_of_unit_length_is_kept_to_the_bit():
    rows = normalised(np.random.default_rng(1).standard_normal((3, 384)))
    assert np.array_equal(normalised(rows), rows)
    assert np.array_equal(normalised(rows[0]), rows[:1])


@pytest.mark.parametrize("size", [1e-30, 0.5, 2.0, 1e30], ids=str)
def test_what_is_shorter_or_longer_is_made_so(size: float):
    """One of many that is not of unit length is enough."""
    rows = np.array([[1, 0, 0, 0], [0, size, 0, 0]], np.float32)
    assert np.array_equal(normalised(rows), np.eye(4, dtype=np.float32)[:2])


def test_of_another_dimension_it_is_refused_though_its_length_is_one():
    with pytest.raises(BadVector, match="has 4 dimensions where 3 are expected"):
        normalised(np.eye(4, dtype=np.float32)[:2], 3)
