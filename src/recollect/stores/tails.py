"""The end of a log as it is glanced over: all of its texts, and an entry made only when somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from recollect.stores.admission import count_of
from recollect.stores.ops import Entry
from recollect.values import Space


@dataclass(frozen=True, slots=True)
class Reach:
    """How far is read: so many entries of a log itself, and `of_each` of the newest `others` of its owner."""

    own: int
    others: int
    of_each: int

    def checked(self) -> Reach:
        return Reach(count_of(self.own), count_of(self.others), count_of(self.of_each))


class Tail(Sequence[Entry]):
    """The newest entries of one log, newest last.

    Most of what a question glances over is passed over for its words alone, and to make an entry of it costs more
    than to read it.
    """

    __slots__ = ("_made", "_make", "kinds", "space", "texts")

    def __init__(self, space: Space, texts: Iterable[str], kinds: Iterable[str], make: Callable[[int], Entry]) -> None:
        self.space = space
        self.texts = tuple(texts)
        self.kinds = tuple(kinds)
        self._make = make
        self._made: dict[int, Entry] = {}

    @classmethod
    def of(cls, space: Space, entries: Sequence[Entry]) -> Tail:
        """A tail of entries that are there already."""
        return cls(space, [one.content for one in entries], [one.kind for one in entries], entries.__getitem__)

    def only(self, places: Iterable[int]) -> Tail:
        """The tail without what stands at other places."""
        kept = list(places)
        if len(kept) == len(self):
            return self
        texts, kinds = [self.texts[at] for at in kept], [self.kinds[at] for at in kept]
        return Tail(self.space, texts, kinds, lambda at: self[kept[at]])

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        made = self._made.get(at)
        if made is None:
            made = self._made[at] = self._make(at)
        return made
