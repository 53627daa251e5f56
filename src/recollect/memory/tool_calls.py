"""Tool calls as callers happen to have them: OpenAI's and Anthropic's shapes and plain dicts, read into one value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import BadInput
from recollect.tiers.entries import checked_id
from recollect.values import plain_json

_MOST_CALLS = 1000
_LONGEST_NAME = 256

# Under which name each shape keeps a thing, in the order they are looked for.
_ID = ("id", "call_id", "tool_call_id", "tool_use_id")
_ANSWERS = ("tool_call_id", "tool_use_id")
_ARGUMENTS = ("arguments", "input", "args")
_RESULT = ("result", "output", "content")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments` is JSON text; `result` is None while there is none, and `failed` when it tells of trouble.

    Without a name it is the answer to a call that was recorded before.
    """

    id: str
    name: str | None
    arguments: str = "{}"
    result: str | None = None
    failed: bool = False

    def __str__(self) -> str:
        called = f"{self.name}({'' if self.arguments == '{}' else self.arguments})" if self.name else f"[{self.id}]"
        return called if self.result is None else f"{called} → {self.result}"

    def as_message(self) -> dict[str, Any]:
        """The call as chat models are shown it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def tool_calls_of(given: Any, turn: str, longest: int) -> list[ToolCall]:
    """The calls in the order they were made, each with its result if that is in the list too; or `BadInput`.

    A call without an id is named after its turn and its place, so that the same turn told again names it the same.
    """
    if type(given) is tuple and not given:  # as of most turns
        return []
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadInput(f"tool_calls is a list of calls, not {type(given).__name__}; put a single one into a list")
    calls: dict[str, ToolCall] = {}
    for place, one in enumerate(given):
        if place >= _MOST_CALLS:
            raise BadInput(f"a turn has at most {_MOST_CALLS} tool calls; record the rest as another turn")
        call = _read(one, f"call_{turn}_{place}", f"tool_calls[{place}]", longest)
        known = calls.get(call.id)
        if known is None:
            calls[call.id] = call
        elif call.name is None and known.result is None:
            calls[call.id] = replace(known, result=call.result, failed=call.failed)
        else:
            raise BadInput(f"tool_calls[{place}] has the id {call.id!r:.80} of another call; each has its own, or none")
    return list(calls.values())


def result_text(value: Any, path: str = "result") -> str:
    """What a tool gave back, as text: an error by its name and message, blocks by their texts, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list | tuple) and value and all(_is_text(block) for block in value):
        return "\n".join(block["text"] for block in value)
    return json.dumps(plain_json(value, path), ensure_ascii=False)


def _read(given: Any, unnamed: str, path: str, longest: int) -> ToolCall:
    call = given.model_dump() if hasattr(given, "model_dump") else given  # what the providers' own libraries return
    if not isinstance(call, Mapping):
        raise BadInput(
            f"{path} is a dict such as {{'name': …, 'arguments': …, 'result': …}}, not {type(given).__name__}"
        )
    inner = call.get("function")
    named = inner if isinstance(inner, Mapping) else call
    answers = call.get("role") == "tool" or any(name in call for name in _ANSWERS) or _kind(call) in _RESULTS
    answers = answers and not any(key in call for key in _ARGUMENTS)  # some name a call by what it will be answered as
    name = None if answers else _name(named.get("name"), path)
    id = next((call[key] for key in _ID if call.get(key) is not None), None)
    if answers and id is None:
        raise BadInput(f"{path} is a result, and does not say of which call: give its tool_call_id")
    found = next((call[key] for key in _RESULT if call.get(key) is not None), None)
    error = call.get("error")
    if error is not None and found is None:
        found = error
    elif found is None and any(key in call for key in _RESULT):
        found = ""  # it was called and had nothing to say
    return ToolCall(
        id=unnamed if id is None else checked_id(id),
        name=name,
        arguments=_arguments(next((named[key] for key in _ARGUMENTS if named.get(key) is not None), {}), path, longest),
        result=None if found is None and not answers else result_text("" if found is None else found, f"{path}.result"),
        failed=bool(call.get("is_error")) or error is not None or isinstance(found, BaseException),
    )


_RESULTS = ("tool_result", "function_call_output")


def _kind(call: Mapping[str, Any]) -> str:
    kind = call.get("type")
    return kind if isinstance(kind, str) else ""


def _name(name: Any, path: str) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"{path} has no 'name': say which tool was called")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise BadInput(f"the name in {path} has at most {_LONGEST_NAME} characters and no control characters")
    return name


def _arguments(given: Any, path: str, longest: int) -> str:
    """Models write them as JSON text; that is kept as it is, also where it is broken, for it is what was called."""
    text = given if isinstance(given, str) else json.dumps(plain_json(given, f"{path}.arguments"), ensure_ascii=False)
    if len(text) > longest:
        raise BadInput(f"the arguments of {path} have {len(text):,} characters; at most {longest:,} are kept")
    return text or "{}"


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
