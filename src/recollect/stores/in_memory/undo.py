"""Changes to dictionaries that can be taken back, so that a refused batch leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """Remembers what every change of one batch replaced."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def set(self, table: dict[K, V], key: K, value: V) -> None:
        self._remember(table, key)
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        self._remember(table, key)
        table.pop(key, None)

    def back(self) -> None:
        """As it was before the first change."""
        while self._steps:
            self._steps.pop()()

    def _remember(self, table: dict[K, V], key: K) -> None:
        if key in table:
            before = table[key]
            self._steps.append(lambda: table.__setitem__(key, before))
        else:
            self._steps.append(lambda: table.pop(key, None))
