"""Fast check for simple metadata, which must not accept anything that a store refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.stores.base import Store
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.overlay import BufferedStore
from recollect.stores.validation import validate_write
from recollect.stores.writes import Append, Entry, Write
from recollect.types import Space
from recollect.validation import check_json, is_simple_mapping, to_plain_json

_LOG = Space("default", "episodic", user="ada", agent="default", session="today")


def _append(metadata: dict[str, Any]) -> Append:
    entry = Entry(id="a", kind="turn", content="Hello.", at=datetime(2026, 1, 1, tzinfo=UTC), metadata=metadata)
    return Append(space=_LOG, entry=entry)


@pytest.mark.parametrize(
    "metadata",
    [{}, {"turn": "1"}, {"who": "Zoë", "seen": True, "by": None}, {"given": {"turn": "1", "role": "user"}}],
)
def test_simple_mapping_is_plain_json(metadata: dict[str, Any]):
    assert is_simple_mapping(metadata, depth=2)
    assert to_plain_json(metadata) == metadata
    assert validate_write(_append(metadata)).entry.metadata == metadata  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "metadata",
    [{"half": "\ud800"}, {"\ud800": "half"}, {"given": {"half": "\ud800"}}, {"given": {"at": object()}}],
)
def test_unstorable_metadata_is_refused_at_every_level(metadata: dict[str, Any]):
    # Mutants: keys are not checked; an inner mapping always counts as simple.
    assert not is_simple_mapping(metadata, depth=2)
    with pytest.raises(BadInput):
        validate_write(_append(metadata))


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
def test_unstorable_text_is_not_simple(text: str):
    # Mutant: every text is simple.
    with pytest.raises(BadInput):
        check_json("metadata", {"text": text})


def test_nested_or_large_mapping_is_not_simple():
    # Mutants: no limit on the number of keys; inner mappings at any depth.
    assert not is_simple_mapping({"given": {}})
    assert not is_simple_mapping({"a": {"b": {"c": "d"}}}, depth=2)
    assert not is_simple_mapping({str(n): "x" for n in range(101)})
    cycle: dict[str, Any] = {}
    cycle["again"] = cycle
    with pytest.raises(BadInput):
        validate_write(_append(cycle))


async def test_in_memory_store_copies_written_metadata():
    # Mutant: only the outer mapping is copied.
    given = {"role": "user"}
    store = InMemoryStore()
    await store.write(_append({"given": given}))
    given["role"] = "system"
    [kept] = await store.recent(_LOG)
    assert kept.metadata == {"given": {"role": "user"}}
    await store.close()


async def test_buffered_store_copies_written_metadata():
    # Mutant: the buffered write is not copied.
    given = {"role": "user"}
    store, collected = InMemoryStore(), list[tuple[Store, list[Write]]]()
    await BufferedStore(store, collected).write(_append({"given": given}))
    given["role"] = "system"
    [(_, [kept])] = collected
    assert isinstance(kept, Append)
    assert kept.entry.metadata == {"given": {"role": "user"}}
    await store.close()
