"""What a model wrote, read carefully: the arguments of its tool calls, and text that may be cut in mid-character."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from recollect.inference.chat import ToolCall


def read_call(call_id: str, name: str, written: Any) -> ToolCall:
    """A tool call as it arrived. Arguments that are no JSON object are told to the model, which can do better."""
    if isinstance(written, str):
        try:
            written = json.loads(written, parse_constant=_refused) if written.strip() else {}
        except ValueError as error:
            return ToolCall(call_id, name, malformed=f"the arguments are not JSON: {_without_content(error)}")
        except RecursionError:
            return ToolCall(call_id, name, malformed="the arguments are nested too deeply")
    if not isinstance(written, dict):
        return ToolCall(call_id, name, malformed=f"the arguments are a {type(written).__name__}, not a JSON object")
    if not _is_whole(written):
        return ToolCall(call_id, name, malformed="the arguments hold half a character (a lone surrogate)")
    return ToolCall(call_id, name, written)


def whole_text(text: str) -> str:
    """The text with pairs joined that came in two pieces, and a mark for a half that stayed alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _without_content(error: ValueError) -> str:
    return f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)


def _is_whole(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
