"""What was found out about texts that are looked at again and again, without keeping the texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class Known(Hashable, Protocol):
    """A text, or several as a tuple."""

    def __len__(self) -> int: ...


K = TypeVar("K", bound=Known)
T = TypeVar("T")


class Learned(Generic[K, T]):
    """The answers of a pure function, within a limit.

    It knows what it was asked about by its hash alone: what is cleared or erased must not live on here.
    """

    def __init__(self, look: Callable[[K], T], most: int) -> None:
        self._look = look
        self._most = most
        self._known: dict[tuple[int, int], T] = {}

    def of(self, asked: K) -> T:
        key = (hash(asked), len(asked))
        found = self._known.get(key)
        if found is None:
            found = self._look(asked)
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = found
        return found

    def new(self, several: Iterable[K]) -> list[K]:
        """Those of several that it would have to look at."""
        return [one for one in several if (hash(one), len(one)) not in self._known]
