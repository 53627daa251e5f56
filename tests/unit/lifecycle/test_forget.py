"""What may go is low, unused and old; keyed, pinned and lately used items never do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect.lifecycle.forget import Rules, why_expired, why_forgotten
from recollect.settings import TIERS, Settings
from recollect.values import MemoryItem, Scope

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
RULES = Rules.of(Settings())
OLD = MemoryItem(id="i", content="Tea.", scope=Scope(), created_at=NOW - 31 * DAY, importance=0.2)


def test_low_unused_and_old_goes_with_its_reason():
    assert why_forgotten(OLD, RULES, NOW) == "importance 0.20, never used, not touched for 31 days"
    used = replace(OLD, access_count=1, last_accessed=NOW - 31 * DAY)
    assert why_forgotten(used, RULES, NOW) == "importance 0.20, used once, not touched for 31 days"


@pytest.mark.parametrize(
    "change",
    [
        {"importance": 0.3},
        {"access_count": 2},
        {"key": "user.tea"},
        {"pinned": True},
        {"created_at": NOW - 29 * DAY},
        {"learned_at": NOW - DAY},
        {"access_count": 1, "last_accessed": NOW - 29 * DAY},
        {"superseded_by": "j", "key": "user.tea", "valid_to": NOW - 40 * DAY},
    ],
)
def test_one_reason_to_stay_is_enough(change: dict[str, Any]):
    assert why_forgotten(replace(OLD, **change), RULES, NOW) is None


def test_a_merged_copy_goes_after_the_same_time_however_important():
    copy = replace(OLD, importance=0.9, access_count=7, superseded_by="j", valid_to=NOW - 31 * DAY)
    assert why_forgotten(copy, RULES, NOW) == "merged into j, 31 days ago"
    assert why_forgotten(replace(copy, valid_to=NOW - DAY), RULES, NOW) is None
    assert why_forgotten(replace(copy, pinned=True), RULES, NOW) is None
    assert why_forgotten(replace(copy, metadata={"ended_by": "j"}), RULES, NOW) is None
    assert why_forgotten(replace(copy, metadata={"ended_by": "k"}), RULES, NOW) is not None  # revived, then merged


def test_a_lifetime_is_off_unless_it_is_set():
    ancient = replace(OLD, created_at=NOW - 4000 * DAY)
    assert why_expired(ancient, RULES, NOW) is None
    tiers = tuple(replace(tier, ttl_seconds=86_400) if tier.name == "semantic" else tier for tier in TIERS)
    short = Rules.of(Settings(tiers=tiers))
    assert why_expired(ancient, short, NOW) == "older than the 1 day that facts are kept"
    assert why_expired(replace(ancient, pinned=True), short, NOW) is None
    assert why_expired(replace(ancient, created_at=NOW - DAY - timedelta(minutes=59)), short, NOW) is None


def test_what_expires_goes_a_grace_later():
    brief = replace(OLD, expires_at=NOW - timedelta(minutes=59))
    assert why_expired(brief, RULES, NOW) is None
    assert why_expired(brief, RULES, NOW + timedelta(minutes=1)) is not None
