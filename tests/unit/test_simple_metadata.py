"""Metadata that every store keeps as it is, known at a glance: nothing may pass for it that would be refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.memory.waiting import Waiting
from recollect.stores.admission import admitted
from recollect.stores.base import Store
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.ops import Append, Entry, Write
from recollect.tiers.checks import checked_plain
from recollect.values import Space, is_simple, plain_json

_LOG = Space("default", "episodic", user="ada", agent="default", session="today")


def _append(metadata: dict[str, Any]) -> Append:
    entry = Entry(id="a", kind="turn", content="Hello.", at=datetime(2026, 1, 1, tzinfo=UTC), metadata=metadata)
    return Append(space=_LOG, entry=entry)


@pytest.mark.parametrize(
    "metadata",
    [{}, {"turn": "1"}, {"who": "Zoë", "seen": True, "by": None}, {"given": {"turn": "1", "role": "user"}}],
)
def test_what_is_simple_is_plain_json_already(metadata: dict[str, Any]):
    assert is_simple(metadata, deep=2)
    assert plain_json(metadata) == metadata
    assert admitted(_append(metadata)).entry.metadata == metadata  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "metadata",
    [{"half": "\ud800"}, {"\ud800": "half"}, {"given": {"half": "\ud800"}}, {"given": {"at": object()}}],
)
def test_what_no_store_keeps_is_refused_at_every_level(metadata: dict[str, Any]):
    # Mutants: names are not looked at; an inner mapping is taken for simple whatever it holds.
    assert not is_simple(metadata, deep=2)
    with pytest.raises(BadInput):
        admitted(_append(metadata))


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_a_text_that_not_every_store_keeps_is_not_simple(text: str):
    # Mutant: a text is simple whatever it holds.
    with pytest.raises(BadInput):
        checked_plain("metadata", {"text": text})


def test_what_is_nested_or_large_is_looked_through_with_care():
    # Mutants: no bound on how many there are; inner mappings at any depth.
    assert not is_simple({"given": {}})
    assert not is_simple({"a": {"b": {"c": "d"}}}, deep=2)
    assert not is_simple({str(n): "x" for n in range(101)})
    circle: dict[str, Any] = {}
    circle["again"] = circle
    with pytest.raises(BadInput):
        admitted(_append(circle))


async def test_what_a_store_in_memory_holds_is_not_changed_by_whoever_wrote_it():
    # Mutant: the outer mapping alone is copied.
    given = {"role": "user"}
    store = InMemoryStore()
    await store.write(_append({"given": given}))
    given["role"] = "system"
    [kept] = await store.recent(_LOG)
    assert kept.metadata == {"given": {"role": "user"}}
    await store.close()


async def test_what_waits_is_not_changed_by_whoever_wrote_it():
    # Mutant: it waits as it was given.
    given = {"role": "user"}
    store, collected = InMemoryStore(), list[tuple[Store, list[Write]]]()
    await Waiting(store, collected).write(_append({"given": given}))
    given["role"] = "system"
    [(_, [kept])] = collected
    assert isinstance(kept, Append)
    assert kept.entry.metadata == {"given": {"role": "user"}}
    await store.close()
