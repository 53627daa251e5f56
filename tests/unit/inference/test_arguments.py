"""Arguments as models write them, and text that arrives in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.inference.arguments import read_call, whole_text


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
def test_an_object_is_read(written: Any, arguments: dict[str, Any]):
    call = read_call("1", "add", written)
    assert (call.id, call.name, call.arguments, call.malformed) == ("1", "add", arguments, None)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"secret": 1', "not JSON: Expecting"),
        ("secret", "not JSON: Expecting value at character 0"),
        ('{"secret": NaN}', "NaN is no JSON value"),
        ('{"secret": -Infinity}', "-Infinity is no JSON value"),
        ('["secret"]', "a list, not a JSON object"),
        ("null", "a NoneType"),
        (["secret"], "a list"),
        (None, "a NoneType"),
        ('{"secret": "\\ud800"}', "half a character"),
        ('{"\\ud800": 1}', "half a character"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_none_is_marked_and_not_repeated(written: Any, said: str):
    call = read_call("1", "add", written)
    assert call.arguments == {}
    assert call.malformed is not None
    assert said in call.malformed
    assert "secret" not in call.malformed


@pytest.mark.parametrize(
    ("text", "whole"), [("plain", "plain"), ("\ud83c\udf88", "🎈"), ("half \ud83c", "half \ufffd"), ("", "")]
)
def test_text_is_made_of_whole_characters(text: str, whole: str):
    assert whole_text(text) == whole
