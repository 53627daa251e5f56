"""Drafts: the same text as a state encoded anew, whatever was left as it was since the last."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadInput
from recollect.runtime.codec import SCHEMA, decode, encode
from recollect.runtime.draft import Draft, Drafts

LARGEST = 10_000_000
MARK = "\0a long text\0"
# Few texts, so that they come again; long ones are those that are not written twice.
TEXTS = ("", "short", MARK, f'x"{MARK}"', "é" * 3000, "a" * 2048, "b" * 5000, '"\\\n\u2028' * 1000, MARK * 1000)
NAMES = st.sampled_from(("text", "results", "completed", "ü", MARK, "z"))
VALUES = st.recursive(
    st.sampled_from(TEXTS) | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=4
)
STATES = st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES))


def fits(draft: Draft, state: dict[str, Any], working: dict[str, Any] | None) -> None:
    assert draft.text == encode(state, working, largest=LARGEST)
    assert draft.sha256 == hashlib.sha256(draft.text.encode()).hexdigest()


@given(st.lists(st.tuples(STATES, st.none() | STATES), min_size=1, max_size=5))
def test_a_draft_is_the_state_encoded_whatever_came_before(rounds: list[tuple[dict[str, Any], dict[str, Any] | None]]):
    # Mutant: a mark of the state's own taken for ours.
    drafts = Drafts(LARGEST)
    for state, working in rounds:
        draft = drafts.draft(state, working)
        fits(draft, state, working)
        copies = [draft.copy(), draft.copy(), decode(SCHEMA, draft.text).state]
        assert all(list(copy.items()) == list(state.items()) for copy in copies)


def test_a_checksum_goes_on_only_from_the_same_beginning():
    # Mutants: a beginning that is not compared; later sums that are used after another beginning.
    drafts = Drafts(LARGEST)
    one, two = "x" * 5000, "y" * 5000
    for state in (
        {"one": one, "two": two, "n": 1},
        {"one": one, "two": two, "n": 2},
        {"first": 1, "one": one, "two": two},
        {"two": two, "one": one},
        {"one": one, "two": two + "y", "three": one},
    ):
        fits(drafts.draft(state), state, None)


def test_each_copy_is_its_own():
    # Mutant: the copy that is left over from checking handed out twice.
    draft = Drafts(LARGEST).draft({"text": "x" * 5000, "list": [1], "results": {"a": "y" * 5000, "b": [2]}})
    first, second = draft.copy(), draft.copy()
    first["list"].append(7)
    first["results"]["b"].append(7)
    first["results"]["a"] = first["text"] = "gone"
    third = draft.copy()
    assert second == third == decode(SCHEMA, draft.text).state


def test_a_long_text_is_written_once():
    # Mutant: fragments that are never kept.
    drafts = Drafts(LARGEST)
    text = "x" * 100_000
    drafts.draft({"text": text, "results": {}})
    written = drafts.written(text)
    fits(drafts.draft({"text": text, "results": {"one": 1}}), {"text": text, "results": {"one": 1}}, None)
    assert drafts.written(text) is written
    drafts.draft({"results": {}})
    assert drafts.written(text) is not written  # what has left the state is not held


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"text": "x" * 5000, "bad": {1, 2}}, "state.bad is a set"),
        ({"text": "x" * 5000, "results": {"a": "y" * 5000, "b": {1: 2}}}, "state.results.b has the key 1"),
        ({"text": "x" * 5000 + "\ud800"}, "state.text has half a character"),
        ({"results": {"a": "y" * 5000 + "\udfff"}}, "state.results.a has half a character"),
        ({"text": "x" * 5000, 7: "y" * 5000}, "state has the key 7"),
        ([], "a task's state is a dict, not list"),
        ({"text": "x" * 11_000_000}, "max_state is 10,000,000"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_path(state: Any, where: str):
    with pytest.raises(BadInput) as refused:
        Drafts(LARGEST).draft(state)
    assert where in str(refused.value)


def test_tuples_are_lists_in_every_copy():
    draft = Drafts(LARGEST).draft({"pair": (1, 2), "text": "x" * 5000})
    assert draft.copy()["pair"] == draft.copy()["pair"] == [1, 2]


def test_what_is_nested_too_deep_is_refused_and_what_is_only_much_is_not():
    # Mutant: no count of the brackets; JSON itself goes deeper than others read it.
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    with pytest.raises(BadInput, match="deep"):
        Drafts(LARGEST).draft({"deep": deep})
    many = {"many": [[n] for n in range(1000)]}
    assert Drafts(LARGEST).draft(many).copy() == many
