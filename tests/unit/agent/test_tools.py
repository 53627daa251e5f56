"""Tools with a schema of their own take what it declares; what tools return becomes a text off the loop."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from recollect.agent.arguments import Unfit
from recollect.agent.tools import text_of, tool_of
from recollect.inference.threads import Threads

Q = {"q": {"type": "string"}}


class Query:
    def __init__(self, **schema: Any) -> None:
        self.schema = schema

    def to_api_schema(self) -> dict[str, Any]:
        return {"name": "query", "input_schema": {"type": "object", **self.schema}}

    def run(self, q: str = "", as_admin: bool = False, **more: Any) -> str:
        return f"{q} {as_admin}"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": Q},
        {"properties": Q, "additionalProperties": False},
        {"properties": Q, "anyOf": [{"required": ["q"]}], "additionalProperties": False},
        {},
        {"properties": None},
    ],
)
def test_a_parameter_that_is_not_declared_is_refused(schema: dict[str, Any]):
    # Mutant: whatever the model makes up reaches the function, which may have parameters that are not for it.
    tool = tool_of(Query(**schema))
    with pytest.raises(Unfit, match="there is no parameter 'as_admin'"):
        tool.fit({"as_admin": True})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": Q, "additionalProperties": True},
        {"properties": Q, "additionalProperties": {"type": "boolean"}},
        {"$ref": "#/$defs/query", "$defs": {"query": {"properties": Q}}},
        {"properties": Q, "anyOf": [{"properties": {"as_admin": {}}}]},
    ],
)
def test_unless_the_schema_takes_more_than_it_names(schema: dict[str, Any]):
    assert tool_of(Query(**schema)).fit({"q": "x", "as_admin": True}) == {"q": "x", "as_admin": True}


@dataclass
class Row:
    name: str


class Written:
    def __str__(self) -> str:
        return "written"


async def test_what_may_be_long_is_made_a_text_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    # Mutant: on the loop, which then stands still.
    import recollect.agent.tools as tools

    seen: list[str] = []
    text_of = tools.text_of

    def watched(answer: Any) -> str:
        seen.append("loop" if threading.current_thread() is here else "thread")
        return text_of(answer)

    here = threading.current_thread()
    monkeypatch.setattr(tools, "text_of", watched)
    short = ["word", {"a": [1, 2.5, None, True]}, None, b"bytes", [{"b": "text"}] * 100]
    long = ["word " * 5000, [{"b": "text"}] * 3000, {"a": ["word " * 5000]}, Written(), Row("a"), [[[["x" * 30_000]]]]]

    async def give(at: int) -> Any:
        return [*short, *long][at]

    tool = tool_of(give)
    for at in range(len(short) + len(long)):
        assert (await tool.call({"at": at}, "key", Threads("tool"))).text
    assert seen == ["loop"] * len(short) + ["thread"] * len(long)


@pytest.mark.parametrize(
    "answer",
    [
        [{"a": at, "b": "text ü"} for at in range(5000)],
        {"rows": [{"a": at} for at in range(5000)], "more": {1: None, "2": [True, 1.5]}, "none": []},
        ([[["word " * 9000]]], "short", {}),
        [[]] * 3000,
    ],
)
def test_a_long_answer_reads_like_a_short_one(answer: Any):
    # Mutant: a comma too few between the pieces.
    assert text_of(answer) == json.dumps(answer, ensure_ascii=False)


def test_what_is_long_and_no_json_is_shown_as_python_would():
    rows = [{"at": date(2026, 1, 1)}] * 3000
    assert text_of(rows) == str(rows)
    assert text_of({"rows": rows}) == str({"rows": rows})
    assert text_of([float("nan")] * 3000) == str([float("nan")] * 3000)
    assert text_of([{"type": "text", "text": "line"}] * 3000) == "\n".join(["line"] * 3000)
    itself: list[Any] = ["word " * 9000]
    itself.append(itself)
    assert text_of(itself).endswith("[...]]]")
