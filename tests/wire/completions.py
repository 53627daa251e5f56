"""OpenAI chat completions: an answer as one JSON object, or as the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.wire.script import Call, Fail, Request, Say

_STOPS = {"end": "stop", "length": "length", "refusal": "stop", "filter": "content_filter"}


def failure(fail: Fail) -> dict[str, Any]:
    return {"error": {"type": fail.kind, "code": fail.kind, "message": fail.message, "param": fail.param}}


def whole(say: Say, request: Request) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None, "refusal": None}
    if say.stop == "refusal":
        message |= {"content": None, "refusal": say.text}
    if say.calls:
        message["tool_calls"] = [_call(call, at) for at, call in enumerate(say.calls)]
    choice = {"index": 0, "message": message, "finish_reason": _stop(say), "logprobs": None}
    usage = {"usage": _usage(say)} if say.counts else {}
    return {**_object("chat.completion", request), "choices": [choice], **usage}


def streamed(say: Say, request: Request) -> Iterator[tuple[str, bool]]:
    """Yield the chunks, each with whether it is a piece of the text."""
    yield _chunk(request, {"role": "assistant", "content": ""}), False
    field = "refusal" if say.stop == "refusal" else "content"
    for piece in say.pieces:
        yield _chunk(request, {field: piece}), True
    for at, call in enumerate(say.calls):
        whole_call = _call(call, at)
        written = whole_call["function"]["arguments"]
        if call.id is None:  # a non-conforming server: no index, and the whole call in one chunk
            yield _chunk(request, {"tool_calls": [whole_call]}), False
            continue
        named = {**whole_call, "function": {"name": call.name, "arguments": ""}}
        yield _chunk(request, {"tool_calls": [{"index": at, **named}]}), False
        half = len(written) // 2
        for part in (written[:half], written[half:]):
            yield _chunk(request, {"tool_calls": [{"index": at, "function": {"arguments": part}}]}), False
    if say.ends_early:
        return
    yield _chunk(request, {}, _stop(say)), False
    if say.counts and (request.body.get("stream_options") or {}).get("include_usage"):
        yield _data({**_object("chat.completion.chunk", request), "choices": [], "usage": _usage(say)}), False
    yield "data: [DONE]\n\n", False


def _object(kind: str, request: Request) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": request.body["model"]}


def _call(call: Call, at: int) -> dict[str, Any]:
    written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    call_id = "" if call.id is None else call.id or f"call_{at}"
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": written}}


def _stop(say: Say) -> str:
    return "tool_calls" if say.calls and say.stop == "end" else _STOPS[say.stop]


def _usage(say: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": say.read,
        "completion_tokens": say.written,
        "total_tokens": say.read + say.written,
        "prompt_tokens_details": {"cached_tokens": say.cached},
    }


def _chunk(request: Request, delta: dict[str, Any], stop: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": stop}
    return _data({**_object("chat.completion.chunk", request), "choices": [choice]})


def _data(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"
