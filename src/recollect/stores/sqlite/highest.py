"""The highest of many numbers, found without sorting them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROWS = 16


def nth_highest(numbers: NDArray[np.floating], n: int) -> float:
    """The lowest of the `n` highest; there have to be that many."""
    numbers = _in_the_running(numbers, n)
    return float(np.partition(numbers, len(numbers) - n)[len(numbers) - n])


def _in_the_running(numbers: NDArray[np.floating], n: int) -> NDArray[np.floating]:
    """Those that may be among the `n` highest: few, and found much faster than numbers are put in order.

    Laid out in rows, each column has a highest number. What the n-th best of these is, n columns reach.
    """
    width = len(numbers) // _ROWS
    if width <= 2 * n:
        return numbers
    peaks = numbers[: _ROWS * width].reshape(_ROWS, width).max(axis=0)
    return np.asarray(numbers[numbers >= np.partition(peaks, width - n)[width - n]])
