"""State codec: accepted states round-trip, and others are refused."""

from __future__ import annotations

import hashlib
import json
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.durable.state_codec import SCHEMA, StateEncoder, decode_document
from recollect.errors import BadInput, SchemaTooNew, StoreCorrupt
from tests.budgets import limit_examples

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


@limit_examples(0.5)
@given(st.dictionaries(TEXT, PLAIN), st.none() | st.dictionaries(TEXT, PLAIN))
def test_accepted_state_round_trips(state: dict[str, Any], working: dict[str, Any] | None):
    document = decode_document(SCHEMA, StateEncoder(LARGEST).encode(state, working).text)
    assert document.state == state
    assert document.working == working


def as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    return [as_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@given(st.dictionaries(st.text() | st.integers(), ANYTHING))
def test_rejected_state_raises_and_accepted_state_is_unchanged(state: Any):
    # Mutant: keys are not checked (1 becomes "1").
    try:
        text = StateEncoder(LARGEST).encode(state).text
    except BadInput as error:
        refused = str(error)
    else:
        assert decode_document(SCHEMA, text).state == as_plain(state)
        return
    assert refused.startswith("state")


@given(st.text())
def test_decode_of_any_text_succeeds_or_raises_store_corrupt(text: str):
    try:
        decode_document(SCHEMA, text)
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
def test_decode_does_not_instantiate_objects(text: str):
    assert decode_document(SCHEMA, text).state == json.loads(text)["state"]


def test_newer_format_is_refused():
    with pytest.raises(SchemaTooNew):
        decode_document(SCHEMA + 1, '{"state": {}}')


def test_deeply_nested_text_raises_store_corrupt():
    with pytest.raises(StoreCorrupt):
        decode_document(SCHEMA, '{"state": ' + "[" * 100_000 + "]" * 100_000 + "}")


def test_int_enum_is_stored_as_a_number():
    class Colour(IntEnum):
        RED = 1

    assert decode_document(SCHEMA, StateEncoder(LARGEST).encode({"c": Colour.RED}).text).state == {"c": 1}


def test_shared_list_is_not_a_cycle():
    shared = [1]
    assert decode_document(SCHEMA, StateEncoder(LARGEST).encode({"a": shared, "b": [shared, shared]}).text).state[
        "b"
    ] == [[1], [1]]


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"bad": {1, 2}}, "state.bad is a set"),
        ({"results": {"a": "y", "b": {1: 2}}}, "state.results.b has the key 1"),
        ({"text": "x\ud800"}, "state.text has a lone surrogate"),
        ({"results": {"a": ["y\udfff"]}}, "state.results.a[0] has a lone surrogate"),
        ({7: "y"}, "state has the key 7"),
        ([], "the state of a task must be a dict; got list"),
        ({"text": "x" * 11_000_000}, "max_state is 10,000,000"),
    ],
)
def test_unstorable_value_raises_with_path(state: Any, path: str):
    with pytest.raises(BadInput) as refused:
        StateEncoder(LARGEST).encode(state)
    assert path in str(refused.value)


def test_each_decoded_state_is_a_new_copy():
    encoded = StateEncoder(LARGEST).encode({"pair": (1, 2), "list": [1]})
    first = encoded.decode()
    first["list"].append(7)
    assert encoded.decode() == {"pair": [1, 2], "list": [1]}
    assert encoded.sha256 == hashlib.sha256(encoded.text.encode()).hexdigest()


def test_deep_state_is_refused_and_wide_state_is_not():
    # Mutant: brackets are not counted; Python parses deeper JSON than other parsers.
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    with pytest.raises(BadInput, match="deep"):
        StateEncoder(LARGEST).encode({"deep": deep})
    many = {"many": [[n] for n in range(1000)]}
    assert StateEncoder(LARGEST).encode(many).decode() == many


LONG_TEXTS = st.sampled_from(["x" * 3000, "é" * 3000, 'a "quoted" {line}\n' * 300, "short", ""])
LONG_STATES = st.dictionaries(
    TEXT | st.just("results"), LONG_TEXTS | PLAIN | st.dictionaries(TEXT, LONG_TEXTS), max_size=5
)


@given(st.lists(LONG_STATES, min_size=1, max_size=4))
def test_long_texts_of_successive_states_are_encoded_like_others(states: list[dict[str, Any]]):
    # Mutant: the hash continues after other bytes than those of this state.
    encoder = StateEncoder(LARGEST)
    for state in states:
        encoded = encoder.encode(state)
        assert encoded.text == json.dumps({"state": state}, ensure_ascii=False, separators=(",", ":"))
        assert encoded.sha256 == hashlib.sha256(encoded.text.encode()).hexdigest()
        assert [*encoded.decode().items()] == [*encoded.decode().items()] == [*state.items()]


@pytest.mark.parametrize("state", [{"a": "\ud800"}, {"a": ["\ud800"]}, {"\ud800": 1}, {"a": 'x"\ud800"'}])
def test_lone_surrogate_beside_a_long_text_is_refused(state: dict[str, Any]):
    # Mutant: the mask of a long text is not told from the same text in the state.
    for long in ({"long": "x" * 3000, **state}, {**state, "long": "x" * 3000}):
        with pytest.raises(BadInput, match="lone surrogate"):
            StateEncoder(LARGEST).encode(long)
