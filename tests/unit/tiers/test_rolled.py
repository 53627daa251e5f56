"""What stands of a conversation: by its end alone it is the same as by the whole of it, or it is not told."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.ops import Entry
from recollect.tiers.rolled import SUMMARY, standing

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_MOST = 100


def _message(seq: int) -> Entry:
    return Entry(id=f"m{seq}", kind="user", content=f"message {seq}", at=_AT, seq=seq)


def _summary(seq: int, covers: int) -> Entry:
    told = {"covers": covers, "most": _MOST, "noted": True, "unanswered": []}
    return Entry(id=f"s{seq}", kind=SUMMARY, content=f"up to {covers}", at=_AT, metadata=told, seq=seq)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Messages and summaries, of which some reach where nothing is any more, or less far than one before them."""
    places = draw(st.lists(st.integers(1, 3), max_size=24))
    entries, seq = list[Entry](), 0
    for step in places:
        seq += step
        reach = draw(st.none() | st.integers(0, seq))
        entries.append(_message(seq) if reach is None else _summary(seq, reach))
    return entries


@given(logs(), st.integers(1, 24))
def test_the_end_of_a_log_tells_what_the_whole_does_or_nothing(log: list[Entry], most: int):
    told = standing(log[-most:], _MOST, whole=most > len(log))

    assert told is None or told == standing(log, _MOST, whole=True)


def test_the_end_tells_when_it_goes_back_to_what_the_summary_covers():
    log = [*map(_message, range(1, 9)), _summary(9, covers=6), _message(10)]

    told = standing(log[-5:], _MOST, whole=False)

    assert told is not None
    assert told[0] is not None
    assert told[0].covers == 6
    assert [entry.seq for entry in told[1]] == [7, 8, 9, 10]
    assert standing(log[-4:], _MOST, whole=False) is None


def test_a_summary_of_what_was_cleared_does_not_count():
    cleared = [_message(8), _summary(9, covers=6), _message(10)]

    told = standing(cleared, _MOST, whole=True)

    assert told == (None, cleared)
    assert standing([_message(6), *cleared], _MOST, whole=True) != (None, [_message(6), *cleared])
