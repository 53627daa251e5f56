"""Importance fades by half in a half-life, towards a floor, in one step as in many."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.lifecycle.decay import faded, fading_since, is_worth_writing, slowed
from recollect.values import MemoryItem, Scope

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HALF_LIFE = 180 * DAY
FLOOR = 0.05
ITEM = MemoryItem(id="i", content="Tea at four.", scope=Scope(), created_at=NOW, importance=0.85)

spans = st.timedeltas(min_value=timedelta(), max_value=4000 * DAY)
fractions = st.floats(0, 1)


def after(item: MemoryItem, span: timedelta) -> float:
    return faded(item, HALF_LIFE, FLOOR, fading_since(item) + span)


def test_half_of_what_is_above_the_floor_is_gone_after_a_half_life():
    assert after(ITEM, HALF_LIFE) == pytest.approx(0.45)
    assert after(ITEM, 2 * HALF_LIFE) == pytest.approx(0.25)


@given(importance=fractions, span=spans, accesses=st.integers(0, 10_000))
def test_nothing_rises_and_nothing_falls_below_the_floor(importance: float, span: timedelta, accesses: int):
    item = replace(ITEM, importance=importance, access_count=accesses)
    assert min(importance, FLOOR) <= after(item, span) <= importance


@given(importance=fractions, first=spans, second=spans, accesses=st.integers(0, 100))
def test_two_steps_are_one(importance: float, first: timedelta, second: timedelta, accesses: int):
    item = replace(ITEM, importance=importance, access_count=accesses)
    midway = replace(item, importance=after(item, first), decayed_at=NOW + first)
    assert faded(midway, HALF_LIFE, FLOOR, NOW + first + second) == pytest.approx(after(item, first + second))
    assert faded(midway, HALF_LIFE, FLOOR, NOW + first) == midway.importance


@given(span=spans)
def test_the_keyed_and_the_pinned_do_not_fade(span: timedelta):
    assert after(replace(ITEM, key="user.tea"), span) == ITEM.importance
    assert after(replace(ITEM, pinned=True), span) == ITEM.importance


def test_use_slows_it_down_and_starts_it_anew():
    assert [slowed(HALF_LIFE, n) / HALF_LIFE for n in (0, 1, 3, 7)] == [1, 2, 3, 4]
    used = replace(ITEM, access_count=1, last_accessed=NOW + 100 * DAY)
    assert fading_since(used) == NOW + 100 * DAY
    assert faded(used, HALF_LIFE, FLOOR, NOW + 100 * DAY) == 0.85


def test_what_was_told_late_fades_from_when_it_was_told():
    assert fading_since(replace(ITEM, created_at=NOW - 900 * DAY, learned_at=NOW)) == NOW


def test_a_clock_that_runs_back_changes_nothing():
    assert faded(ITEM, HALF_LIFE, FLOOR, NOW - 10 * DAY) == ITEM.importance


def test_a_small_change_waits():
    assert not is_worth_writing(ITEM, 0.845)
    assert is_worth_writing(ITEM, 0.83)
