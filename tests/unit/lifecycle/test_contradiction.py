"""Contradicting items: a later statement of the user ends an earlier one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect.tiers.contradiction import resolve_contradictions
from recollect.types import MemoryItem, Scope, Turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def item(content: str, days: int = 0, **given: Any) -> MemoryItem:
    return MemoryItem(id=f"{content}/{days}", content=content, scope=Scope(), created_at=NOW + days * DAY, **given)


LISBON, PORTO = item("I live in Lisbon."), item("I live in Porto.", 2)


def test_earlier_item_is_ended_and_names_its_successor():
    found = resolve_contradictions(PORTO, [LISBON])
    assert found.item == PORTO
    [ended] = found.ended_items
    assert (ended.valid_to, ended.superseded_by, ended.metadata["ended_by"]) == (PORTO.created_at, PORTO.id, PORTO.id)


def test_earlier_item_added_later_is_ended_itself():
    found = resolve_contradictions(LISBON, [PORTO])
    assert not found.ended_items
    assert (found.item.valid_to, found.item.superseded_by) == (PORTO.created_at, PORTO.id)


def test_item_between_two_ends_one_and_is_ended_by_the_other():
    oslo = item("I live in Oslo.", 1)
    found = resolve_contradictions(oslo, [PORTO, LISBON, item("I live in Rome.", 9)])
    assert [ended.content for ended in found.ended_items] == ["I live in Lisbon."]
    assert (found.item.valid_to, found.item.superseded_by) == (PORTO.created_at, PORTO.id)


@pytest.mark.parametrize(
    "given",
    [
        {"key": "home"},
        {"pinned": True},
        {"trust": 0.3},
        {"source": "web"},
        {"source": "tool:search"},
        {"turn": Turn("s", 1.0)},
        {"valid_to": NOW + DAY},
    ],
    ids=str,
)
def test_items_not_stated_by_the_user_are_not_ended(given: dict[str, Any]):
    assert not resolve_contradictions(PORTO, [replace(LISBON, **given)]).ended_items


def test_less_trusted_item_ends_nothing():
    assert not resolve_contradictions(replace(PORTO, trust=0.6), [LISBON]).ended_items
    assert resolve_contradictions(LISBON, [replace(PORTO, trust=0.6)]).item.valid_to is None


def test_validity_start_decides_which_item_is_later():
    tomorrow = replace(LISBON, valid_from=NOW + 5 * DAY)
    assert resolve_contradictions(PORTO, [tomorrow]).item.superseded_by == LISBON.id


def test_other_claims_of_an_ended_item_are_kept():
    both = item("I'm vegetarian and I live in Lisbon.", importance=0.9)
    [left] = resolve_contradictions(PORTO, [both]).remaining_items
    assert (left.content, left.valid_from, left.derived_from) == ("I'm vegetarian", PORTO.created_at, (both.id,))
    assert (left.importance, left.valid_to, left.superseded_by, left.version) == (0.9, None, None, 1)
