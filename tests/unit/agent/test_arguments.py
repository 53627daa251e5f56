"""Conversion of a model's arguments to a tool's types, and the messages for arguments that do not fit."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from recollect.agent.tools import InvalidArgument, build_from_signature


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


def convert(value: Any, kind: Any) -> Any:
    def function(x: Any) -> None: ...

    function.__annotations__ = {"x": kind}
    return build_from_signature(function, "function").convert({"x": value})["x"]


@pytest.mark.parametrize(
    ("value", "kind", "converted"),
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
def test_convert_fitting_value_returns_its_type(value: Any, kind: Any, converted: Any):
    answer = convert(value, kind)
    assert answer == converted
    assert type(answer) is type(converted)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("many", int, 'x: .*valid integer.*; got "many"'),
        (5.5, int, "x: .*valid integer.*; got 5.5"),
        ("nan", int, "x: .*valid integer"),
        (None, str, "x: .*valid string; got null"),
        (True, str, "x: .*valid string; got true"),
        ({"a": 1}, str, 'x: .*valid string; got {"a": 1}'),
        ("maybe", bool, "x: .*valid boolean"),
        ("red", Literal["on", "off"], "x: .*'on' or 'off'; got \"red\""),
        (3, Size, "x: .*1 or 2; got 3"),
        ("a", list[int], 'x: .*valid list; got "a"'),
        ([1, "b"], list[int], r"x\[1\]: .*valid integer"),
        ([1], tuple[int, str], r"the parameter 'x\[1\]' is missing"),
        ([1], dict[str, int], "x: .*valid dictionary"),
        ({"a": "b"}, dict[str, int], "x.a: .*valid integer"),
        ({"y": 1}, Point, "the parameter 'x.x' is missing"),
        ({"x": 1, "z": 1}, Point, "there is no parameter 'x.z'"),
        ({"name": "a", "z": 1}, Named, "there is no parameter 'x.z'"),
        (1, None, "x: "),
    ],
)
def test_convert_unfitting_value_names_the_argument(value: Any, kind: Any, message: str):
    with pytest.raises(InvalidArgument, match=message):
        convert(value, kind)


def test_convert_leaves_missing_arguments_to_the_defaults():
    def function(a: int, b: int = 2) -> None: ...

    signature = build_from_signature(function, "function")
    assert signature.convert({"a": "1"}) == {"a": 1}
    with pytest.raises(InvalidArgument, match="'a' is missing"):
        signature.convert({})
    with pytest.raises(InvalidArgument, match="no parameter 'c'; the parameters are a, b"):
        signature.convert({"a": 1, "c": 1})


def test_convert_takes_any_parameter_name():
    def function(json: int, _private: str, model_config: int = 3, self: bool = False) -> None: ...

    signature = build_from_signature(function, "function")
    assert list(signature.spec.parameters["properties"]) == ["json", "_private", "model_config", "self"]
    assert signature.convert({"json": 1, "_private": "a"}) == {"json": 1, "_private": "a"}


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
def test_convert_any_json_fits_or_raises_invalid_argument(value: Any, kind: Any):
    # Mutant: unhashable set items, or a number too large for a float, raise another exception.
    with contextlib.suppress(InvalidArgument):
        convert(value, kind)
