"""Tail of a log: a sequence whose entries are built lazily."""

from __future__ import annotations

import pytest

from recollect.stores.base import LogTail
from recollect.stores.writes import Entry
from recollect.testing.factories import LOG, START


def entry(number: int) -> Entry:
    return Entry(id=f"e{number}", kind="ab"[number % 2], content=f"text {number}", at=START, seq=number + 1)


class TailFactory:
    """Tail of five entries, with the positions that were built."""

    def __init__(self) -> None:
        self.built: list[int] = []
        numbers = range(5)
        self.tail = LogTail(LOG, [entry(n).content for n in numbers], [entry(n).kind for n in numbers], self._build)

    def _build(self, at: int) -> Entry:
        self.built.append(at)
        return entry(at)


def test_entry_is_built_once_on_first_access():
    factory = TailFactory()
    assert (len(factory.tail), factory.tail.texts[3], factory.tail.kinds[3]) == (5, "text 3", "b")
    assert factory.built == []
    assert factory.tail[3] is factory.tail[-2]
    assert factory.built == [3]


def test_tail_behaves_like_a_sequence():
    tail = TailFactory().tail
    plain = [entry(number) for number in range(5)]
    assert list(tail) == plain == list(LogTail.from_entries(LOG, plain))
    assert list(reversed(tail)) == plain[::-1]
    assert [tail[1:3], tail[-2:], tail[:0]] == [plain[1:3], plain[-2:], []]
    assert tail.index(plain[4]) == 4
    for at in (5, -6):
        with pytest.raises(IndexError):
            tail[at]


def test_select_builds_only_the_entries_accessed():
    factory = TailFactory()
    selected = factory.tail.select(at for at in range(5) if at % 2)
    assert (selected.space, selected.texts, selected.kinds) == (LOG, ("text 1", "text 3"), ("b", "b"))
    assert selected[1] == entry(3)
    assert selected.select([1])[0] is selected[1]
    assert factory.built == [3]
    assert factory.tail.select(range(5)) is factory.tail
