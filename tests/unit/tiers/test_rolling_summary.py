"""Current summary of a conversation, read from the end of its log or from the whole log."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.writes import Entry
from recollect.tiers.conversation import SUMMARY_KIND, find_current_summary

_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_MAX_TOKENS = 100


def _message(seq: int) -> Entry:
    return Entry(id=f"m{seq}", kind="user", content=f"message {seq}", at=_TIME, seq=seq)


def _summary(seq: int, covers: int) -> Entry:
    found = {"covers": covers, "most": _MAX_TOKENS, "noted": True, "unanswered": []}
    return Entry(id=f"s{seq}", kind=SUMMARY_KIND, content=f"up to {covers}", at=_TIME, metadata=found, seq=seq)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Draw messages and summaries; some summaries cover cleared entries, or less than an earlier one."""
    places = draw(st.lists(st.integers(1, 3), max_size=24))
    entries, seq = list[Entry](), 0
    for step in places:
        seq += step
        covered = draw(st.none() | st.integers(0, seq))
        entries.append(_message(seq) if covered is None else _summary(seq, covered))
    return entries


@given(logs(), st.integers(1, 24))
def test_end_of_a_log_gives_the_summary_of_the_whole_or_none(log: list[Entry], tail_length: int):
    found = find_current_summary(log[-tail_length:], _MAX_TOKENS, is_complete=tail_length > len(log))

    assert found is None or found == find_current_summary(log, _MAX_TOKENS, is_complete=True)


def test_end_of_a_log_suffices_if_it_reaches_the_covered_entry():
    log = [*map(_message, range(1, 9)), _summary(9, covers=6), _message(10)]

    found = find_current_summary(log[-5:], _MAX_TOKENS, is_complete=False)

    assert found is not None
    assert found[0].covered_seq == 6
    assert [entry.seq for entry in found[1]] == [7, 8, 9, 10]
    assert find_current_summary(log[-4:], _MAX_TOKENS, is_complete=False) is None


def test_summary_of_cleared_entries_is_ignored():
    cleared = [_message(8), _summary(9, covers=6), _message(10)]

    found = find_current_summary(cleared, _MAX_TOKENS, is_complete=True)

    assert found is not None
    assert (found[0].is_absent, found[1]) == (True, cleared)
    found = find_current_summary([_message(6), *cleared], _MAX_TOKENS, is_complete=True)
    assert found is not None
    assert found[0].covered_seq == 6
