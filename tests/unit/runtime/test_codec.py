"""States as text and back: whatever is accepted comes back the same, and nothing else is accepted."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput, SchemaTooNew, StoreCorrupt
from recollect.runtime.codec import SCHEMA, decode, encode

LARGEST = 10_000_000
TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=15,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
        | st.frozensets(st.integers())
    ),
    max_leaves=15,
)


@given(st.dictionaries(TEXT, PLAIN), st.none() | st.dictionaries(TEXT, PLAIN))
def test_what_is_accepted_comes_back_the_same(state: dict[str, Any], working: dict[str, Any] | None):
    document = decode(SCHEMA, encode(state, working, largest=LARGEST))
    assert document.state == state
    assert document.working == working


def as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    return [as_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@given(st.dictionaries(st.text() | st.integers(), ANYTHING))
def test_everything_else_is_refused_by_name_and_never_changed(state: Any):
    # Mutant: keys that are not checked (1 becomes "1").
    try:
        text = encode(state, largest=LARGEST)
    except BadInput as error:
        refused = str(error)
    else:
        assert decode(SCHEMA, text).state == as_plain(state)
        return
    assert refused.startswith("state")


@given(st.text())
def test_a_text_is_a_checkpoint_or_damaged(text: str):
    try:
        decode(SCHEMA, text)
    except StoreCorrupt:
        return
    assert isinstance(json.loads(text)["state"], dict)


@pytest.mark.parametrize(
    "text",
    [
        '{"state": {"__class__": "os.system", "args": ["true"]}}',
        '{"state": {"py/object": "subprocess.Popen"}}',
        '{"state": {"lc": 1, "type": "constructor", "id": ["os", "system"]}}',
        '{"state": {"!!python/object/apply:os.system": ["true"]}}',
    ],
)
def test_nothing_is_revived(text: str):
    assert decode(SCHEMA, text).state == json.loads(text)["state"]


def test_a_newer_format_is_refused():
    with pytest.raises(SchemaTooNew):
        decode(SCHEMA + 1, '{"state": {}}')


def test_a_text_nested_beyond_any_stack_is_damage():
    with pytest.raises(StoreCorrupt):
        decode(SCHEMA, '{"state": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_numbers_that_are_enums_come_back_as_numbers():
    class Colour(IntEnum):
        RED = 1

    assert decode(SCHEMA, encode({"c": Colour.RED}, largest=LARGEST)).state == {"c": 1}


def test_the_same_list_twice_is_no_cycle():
    shared = [1]
    assert decode(SCHEMA, encode({"a": shared, "b": [shared, shared]}, largest=LARGEST)).state["b"] == [[1], [1]]
