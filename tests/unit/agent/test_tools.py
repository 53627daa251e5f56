"""Tools with their own schema, and the conversion of tool results to text."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from recollect.agent.tools import InvalidArgument, build_tool, format_tool_result
from recollect.models.llm import WorkerThreads

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
def test_undeclared_parameter_is_refused(schema: dict[str, Any]):
    # Mutant: undeclared arguments reach the function, which may have parameters that the model must not set.
    tool = build_tool(Query(**schema))
    with pytest.raises(InvalidArgument, match="there is no parameter 'as_admin'"):
        tool.convert({"as_admin": True})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": Q, "additionalProperties": True},
        {"properties": Q, "additionalProperties": {"type": "boolean"}},
        {"$ref": "#/$defs/query", "$defs": {"query": {"properties": Q}}},
        {"properties": Q, "anyOf": [{"properties": {"as_admin": {}}}]},
    ],
)
def test_undeclared_parameter_is_passed_if_the_schema_allows_it(schema: dict[str, Any]):
    assert build_tool(Query(**schema)).convert({"q": "x", "as_admin": True}) == {"q": "x", "as_admin": True}


@dataclass
class Row:
    name: str


class Written:
    def __str__(self) -> str:
        return "written"


async def test_long_results_are_formatted_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    # Mutant: formatted on the event loop, which blocks it.
    import recollect.agent.tools as tools

    seen: list[str] = []
    text_of = tools.format_tool_result

    def watched(answer: Any) -> str:
        seen.append("loop" if threading.current_thread() is here else "thread")
        return text_of(answer)

    here = threading.current_thread()
    monkeypatch.setattr(tools, "format_tool_result", watched)
    short = ["word", {"a": [1, 2.5, None, True]}, None, b"bytes", [{"b": "text"}] * 100]
    long = ["word " * 5000, [{"b": "text"}] * 3000, {"a": ["word " * 5000]}, Written(), Row("a"), [[[["x" * 30_000]]]]]

    async def give(at: int) -> Any:
        return [*short, *long][at]

    tool = build_tool(give)
    for at in range(len(short) + len(long)):
        assert (await tool.call({"at": at}, "key", WorkerThreads("tool"))).text
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
def test_long_result_is_formatted_like_a_short_one(answer: Any):
    # Mutant: a missing comma between the chunks.
    assert format_tool_result(answer) == json.dumps(answer, ensure_ascii=False)


def test_long_result_that_is_not_json_is_formatted_as_python():
    rows = [{"at": date(2026, 1, 1)}] * 3000
    assert format_tool_result(rows) == str(rows)
    assert format_tool_result({"rows": rows}) == str({"rows": rows})
    assert format_tool_result([float("nan")] * 3000) == str([float("nan")] * 3000)
    assert format_tool_result([{"type": "text", "text": "line"}] * 3000) == "\n".join(["line"] * 3000)
    itself: list[Any] = ["word " * 9000]
    itself.append(itself)
    assert format_tool_result(itself).endswith("[...]]]")
