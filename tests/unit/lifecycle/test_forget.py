"""Retention rules: unimportant, unused and old items are forgotten; keyed, pinned and recent ones are kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect.lifecycle.retention import explain_expiry, explain_forgetting
from recollect.settings import TIERS, Settings
from recollect.types import MemoryItem, Scope

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
RULES = Settings()
OLD = MemoryItem(id="i", content="Tea.", scope=Scope(), created_at=NOW - 31 * DAY, importance=0.2)


def test_unimportant_unused_old_item_is_forgotten_with_a_reason():
    assert explain_forgetting(OLD, RULES, NOW) == "importance 0.20, never used, not touched for 31 days"
    used = replace(OLD, access_count=1, last_accessed=NOW - 31 * DAY)
    assert explain_forgetting(used, RULES, NOW) == "importance 0.20, used once, not touched for 31 days"


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
def test_one_reason_to_keep_is_enough(change: dict[str, Any]):
    assert explain_forgetting(replace(OLD, **change), RULES, NOW) is None


def test_merged_duplicate_is_forgotten_regardless_of_importance():
    copy = replace(OLD, importance=0.9, access_count=7, superseded_by="j", valid_to=NOW - 31 * DAY)
    assert explain_forgetting(copy, RULES, NOW) == "merged into j, 31 days ago"
    assert explain_forgetting(replace(copy, valid_to=NOW - DAY), RULES, NOW) is None
    assert explain_forgetting(replace(copy, pinned=True), RULES, NOW) is None
    assert explain_forgetting(replace(copy, metadata={"ended_by": "j"}), RULES, NOW) is None
    assert explain_forgetting(replace(copy, metadata={"ended_by": "k"}), RULES, NOW) is not None  # revived, then merged


def test_maximum_age_is_off_by_default():
    ancient = replace(OLD, created_at=NOW - 4000 * DAY)
    assert explain_expiry(ancient, RULES, NOW) is None
    tiers = tuple(replace(tier, ttl_seconds=86_400) if tier.name == "semantic" else tier for tier in TIERS)
    short = Settings(tiers=tiers)
    assert explain_expiry(ancient, short, NOW) == "older than the maximum age of 1 day"
    assert explain_expiry(replace(ancient, pinned=True), short, NOW) is None
    assert explain_expiry(replace(ancient, created_at=NOW - DAY - timedelta(minutes=59)), short, NOW) is None


def test_expired_item_is_deleted_after_a_grace_period():
    brief = replace(OLD, expires_at=NOW - timedelta(minutes=59))
    assert explain_expiry(brief, RULES, NOW) is None
    assert explain_expiry(brief, RULES, NOW + timedelta(minutes=1)) is not None
