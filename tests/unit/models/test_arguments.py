"""Parsing of tool arguments, and repair of split surrogates."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.models.chat import parse_tool_call, repair_surrogates


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1, "b": [null, true, "é 🎈"]}', {"a": 1, "b": [None, True, "é 🎈"]}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("  \n", {}),
        ("{}", {}),
        ('{"balloon": "\\ud83c\\udf88"}', {"balloon": "🎈"}),
    ],
)
def test_json_object_is_parsed(written: Any, arguments: dict[str, Any]):
    call = parse_tool_call("1", "add", written)
    assert (call.id, call.name, call.arguments, call.malformed) == ("1", "add", arguments, None)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('{"secret": 1', "not JSON: Expecting"),
        ("secret", "not JSON: Expecting value at character 0"),
        ('{"secret": NaN}', "NaN is no JSON value"),
        ('{"secret": -Infinity}', "-Infinity is no JSON value"),
        ('["secret"]', "a list, not a JSON object"),
        ("null", "a NoneType"),
        (["secret"], "a list"),
        (None, "a NoneType"),
        ('{"secret": "\\ud800"}', "lone surrogate"),
        ('{"\\ud800": 1}', "lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_arguments_are_marked_without_their_content(written: Any, message: str):
    call = parse_tool_call("1", "add", written)
    assert call.arguments == {}
    assert call.malformed is not None
    assert message in call.malformed
    assert "secret" not in call.malformed


@pytest.mark.parametrize(
    ("text", "whole"), [("plain", "plain"), ("\ud83c\udf88", "🎈"), ("half \ud83c", "half \ufffd"), ("", "")]
)
def test_split_surrogates_are_repaired(text: str, whole: str):
    assert repair_surrogates(text) == whole
