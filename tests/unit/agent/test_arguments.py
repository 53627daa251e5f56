"""A model's arguments: made into what the types ask for where nothing is lost, refused in words where it would be."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.agent.arguments import Unfit, fitted, fitted_all
from recollect.agent.schema import Parameter


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str
    at: NotRequired[Point]


@pytest.mark.parametrize(
    ("value", "kind", "made"),
    [
        ("a", str, "a"),
        (5, str, "5"),
        (5, int, 5),
        ("5", int, 5),
        (5.0, int, 5),
        ("5.0", int, 5),
        ("99999999999999999999", int, 99999999999999999999),
        (5, float, 5.0),
        ("1e3", float, 1000.0),
        (True, bool, True),
        ("false", bool, False),
        (None, None, None),
        (None, str | None, None),
        ("a", str | None, "a"),
        ("7", int | str, "7"),
        (["1", 2], list[int], [1, 2]),
        ("[1, 2]", list[int], [1, 2]),
        ([1, 2, 2], set[int], {1, 2}),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ({"a": "1"}, dict[str, int], {"a": 1}),
        ('{"a": 1}', dict, {"a": 1}),
        ("on", Literal["on", "off"], "on"),
        ("2", Literal[1, 2], 2),
        (2, Size, Size.LARGE),
        ("2", Size, Size.LARGE),
        ({"x": "1"}, Point, Point(1)),
        ({"name": "a", "at": {"x": 1, "y": 2}}, Named, {"name": "a", "at": Point(1, 2)}),
        (3, Annotated[float, "a number"], 3.0),
        ({"any": "thing"}, Any, {"any": "thing"}),
    ],
)
def test_what_was_meant_is_made(value: Any, kind: Any, made: Any):
    answer = fitted(value, kind, "x")
    assert answer == made
    assert type(answer) is type(made)


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("many", int, 'x is a whole number, not "many"'),
        (5.5, int, "x is a whole number, not 5.5"),
        (True, int, "x is a whole number, not true"),
        ("nan", int, "x is a whole number"),
        (None, str, "x is a text, not null"),
        ({"a": 1}, str, 'x is a text, not {"a": 1}'),
        (1, bool, "x is true or false, not 1"),
        ("maybe", bool, "x is true or false"),
        ("red", Literal["on", "off"], 'x is one of "on", "off", not "red"'),
        (3, Size, "x is one of 1, 2, not 3"),
        (True, Size, "x is one of 1, 2, not true"),
        ("a", list[int], 'x is not the text "a"'),
        ([1, "b"], list[int], r"x\[1\] is a whole number"),
        ([1], tuple[int, str], "x is a list of 2, not of 1"),
        ([1], dict[str, int], "x is an object"),
        ({"a": "b"}, dict[str, int], "x.a is a whole number"),
        ({"y": 1}, Point, "in x: the parameter 'x' is missing"),
        ({"x": 1, "z": 1}, Point, "in x: there is no parameter 'z'"),
        (1, None, "x is null"),
    ],
)
def test_what_cannot_be_meant_is_refused(value: Any, kind: Any, says: str):
    with pytest.raises(Unfit, match=says):
        fitted(value, kind, "x")


def test_what_was_left_out_is_left_to_the_defaults():
    parameters = [Parameter("a", int), Parameter("b", int, 2)]
    assert fitted_all({"a": "1"}, parameters) == {"a": 1}
    with pytest.raises(Unfit, match="'a' is missing"):
        fitted_all({}, parameters)
    with pytest.raises(Unfit, match="no parameter 'c'; the parameters are a, b"):
        fitted_all({"a": 1, "c": 1}, parameters)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_KINDS = st.sampled_from(
    [
        *(str, int, float, bool, None, list[int], dict[str, float], set[str], tuple[int, str], Literal["a", 1]),
        *(Size, Point, Named, int | None, list[Point], dict[str, Size | None], Any),
    ]
)


@given(_JSON, _KINDS)
def test_whatever_a_model_writes_is_made_or_refused(value: Any, kind: Any):
    # Mutant: a set of what cannot be in one, or a number too large for a float, raises something else.
    with contextlib.suppress(Unfit):
        fitted(value, kind, "x")
