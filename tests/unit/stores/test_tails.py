"""The end of a log: a sequence of entries that are made one by one, when they are looked at."""

from __future__ import annotations

import pytest

from recollect.stores.ops import Entry
from recollect.stores.tails import Tail
from recollect.testing.samples import LOG, START


def entry(number: int) -> Entry:
    return Entry(id=f"e{number}", kind="ab"[number % 2], content=f"text {number}", at=START, seq=number + 1)


class Making:
    """A tail of five entries, and which of them were made."""

    def __init__(self) -> None:
        self.made: list[int] = []
        numbers = range(5)
        self.tail = Tail(LOG, [entry(n).content for n in numbers], [entry(n).kind for n in numbers], self._make)

    def _make(self, at: int) -> Entry:
        self.made.append(at)
        return entry(at)


def test_an_entry_is_made_when_it_is_looked_at_and_once():
    making = Making()
    assert (len(making.tail), making.tail.texts[3], making.tail.kinds[3]) == (5, "text 3", "b")
    assert making.made == []
    assert making.tail[3] is making.tail[-2]
    assert making.made == [3]


def test_it_is_a_sequence_like_another():
    tail = Making().tail
    plain = [entry(number) for number in range(5)]
    assert list(tail) == plain == list(Tail.of(LOG, plain))
    assert list(reversed(tail)) == plain[::-1]
    assert [tail[1:3], tail[-2:], tail[:0]] == [plain[1:3], plain[-2:], []]
    assert tail.index(plain[4]) == 4
    for at in (5, -6):
        with pytest.raises(IndexError):
            tail[at]


def test_a_part_of_it_makes_no_more_than_is_looked_at():
    making = Making()
    part = making.tail.only(at for at in range(5) if at % 2)
    assert (part.space, part.texts, part.kinds) == (LOG, ("text 1", "text 3"), ("b", "b"))
    assert part[1] == entry(3)
    assert part.only([1])[0] is part[1]
    assert making.made == [3]
    assert making.tail.only(range(5)) is making.tail
