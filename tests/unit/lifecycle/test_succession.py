"""Who ends whom: the later word of the user, and nothing that is less trusted, keyed, pinned or somebody else's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect.lifecycle.succession import succession
from recollect.values import MemoryItem, Scope, Turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def item(content: str, days: int = 0, **given: Any) -> MemoryItem:
    return MemoryItem(id=f"{content}/{days}", content=content, scope=Scope(), created_at=NOW + days * DAY, **given)


LISBON, PORTO = item("I live in Lisbon."), item("I live in Porto.", 2)


def test_the_earlier_one_is_ended_and_names_its_heir():
    found = succession(PORTO, [LISBON])
    assert found.item == PORTO
    [ended] = found.ended
    assert (ended.valid_to, ended.superseded_by, ended.metadata["ended_by"]) == (PORTO.created_at, PORTO.id, PORTO.id)


def test_read_the_other_way_round_it_is_the_same():
    found = succession(LISBON, [PORTO])
    assert not found.ended
    assert (found.item.valid_to, found.item.superseded_by) == (PORTO.created_at, PORTO.id)


def test_between_two_it_ends_one_and_is_ended_by_the_other():
    oslo = item("I live in Oslo.", 1)
    found = succession(oslo, [PORTO, LISBON, item("I live in Rome.", 9)])
    assert [one.content for one in found.ended] == ["I live in Lisbon."]
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
def test_what_is_not_the_users_to_end_is_left_alone(given: dict[str, Any]):
    assert not succession(PORTO, [replace(LISBON, **given)]).ended


def test_who_is_trusted_less_ends_nothing():
    assert not succession(replace(PORTO, trust=0.6), [LISBON]).ended
    assert succession(LISBON, [replace(PORTO, trust=0.6)]).item.valid_to is None


def test_what_is_true_only_from_later_on_is_later():
    tomorrow = replace(LISBON, valid_from=NOW + 5 * DAY)
    assert succession(PORTO, [tomorrow]).item.superseded_by == LISBON.id


def test_what_else_was_said_goes_on_from_then():
    both = item("I'm vegetarian and I live in Lisbon.", importance=0.9)
    [left] = succession(PORTO, [both]).left
    assert (left.content, left.valid_from, left.derived_from) == ("I'm vegetarian", PORTO.created_at, (both.id,))
    assert (left.importance, left.valid_to, left.superseded_by, left.version) == (0.9, None, None, 1)
