"""Decay of importance: half-life, floor, and accesses."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.lifecycle.retention import (
    IMPORTANCE_FLOOR,
    decay_importance,
    extend_half_life,
    find_decay_start,
    is_significant_change,
)
from recollect.types import MemoryItem, Scope

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HALF_LIFE = 180 * DAY
FLOOR = IMPORTANCE_FLOOR
ITEM = MemoryItem(id="i", content="Tea at four.", scope=Scope(), created_at=NOW, importance=0.85)

durations = st.timedeltas(min_value=timedelta(), max_value=4000 * DAY)
fractions = st.floats(0, 1)


def decay_by(item: MemoryItem, duration: timedelta) -> float:
    return decay_importance(item, HALF_LIFE, find_decay_start(item) + duration)


def test_half_of_the_importance_above_the_floor_decays_per_half_life():
    assert decay_by(ITEM, HALF_LIFE) == pytest.approx(0.45)
    assert decay_by(ITEM, 2 * HALF_LIFE) == pytest.approx(0.25)


@given(importance=fractions, duration=durations, accesses=st.integers(0, 10_000))
def test_importance_never_rises_or_falls_below_the_floor(importance: float, duration: timedelta, accesses: int):
    item = replace(ITEM, importance=importance, access_count=accesses)
    assert min(importance, FLOOR) <= decay_by(item, duration) <= importance


@given(importance=fractions, first=durations, second=durations, accesses=st.integers(0, 100))
def test_two_decay_steps_equal_one(importance: float, first: timedelta, second: timedelta, accesses: int):
    item = replace(ITEM, importance=importance, access_count=accesses)
    midway = replace(item, importance=decay_by(item, first), decayed_at=NOW + first)
    assert decay_importance(midway, HALF_LIFE, NOW + first + second) == pytest.approx(decay_by(item, first + second))
    assert decay_importance(midway, HALF_LIFE, NOW + first) == midway.importance


@given(duration=durations)
def test_keyed_and_pinned_items_do_not_decay(duration: timedelta):
    assert decay_by(replace(ITEM, key="user.tea"), duration) == ITEM.importance
    assert decay_by(replace(ITEM, pinned=True), duration) == ITEM.importance


def test_access_extends_the_half_life_and_restarts_decay():
    assert [extend_half_life(HALF_LIFE, n) / HALF_LIFE for n in (0, 1, 3, 7)] == [1, 2, 3, 4]
    used = replace(ITEM, access_count=1, last_accessed=NOW + 100 * DAY)
    assert find_decay_start(used) == NOW + 100 * DAY
    assert decay_importance(used, HALF_LIFE, NOW + 100 * DAY) == 0.85


def test_late_learned_item_decays_from_when_it_was_learned():
    assert find_decay_start(replace(ITEM, created_at=NOW - 900 * DAY, learned_at=NOW)) == NOW


def test_clock_moving_back_changes_nothing():
    assert decay_importance(ITEM, HALF_LIFE, NOW - 10 * DAY) == ITEM.importance


def test_small_change_is_not_significant():
    assert not is_significant_change(ITEM, 0.845)
    assert is_significant_change(ITEM, 0.83)
