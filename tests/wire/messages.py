"""Anthropic Messages: an answer as one JSON message, or as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.wire.script import Call, Fail, Request, Say

_STOPS = {"end": "end_turn", "length": "max_tokens", "refusal": "refusal", "filter": "refusal"}


def failure(fail: Fail) -> dict[str, Any]:
    return {"type": "error", "error": {"type": fail.kind, "message": fail.message}}


def whole(say: Say, request: Request) -> dict[str, Any]:
    text = [{"type": "text", "text": say.text}] if say.text else []
    calls = [{**_opened(call, at), "input": _input(call)} for at, call in enumerate(say.calls)]
    return {
        **_message(request),
        "content": [*text, *calls],
        "stop_reason": _stop(say),
        "usage": {**_read(say), "output_tokens": say.written},
    }


def streamed(say: Say, request: Request) -> Iterator[tuple[str, bool]]:
    """Yield the events, each with whether it is a piece of the text."""
    start = {**_message(request), "content": [], "usage": {**_read(say), "output_tokens": 1}}
    yield _event({"type": "message_start", "message": start}), False
    yield _event({"type": "ping"}), False
    blocks = 0
    if say.text:
        yield _block_start(0, {"type": "text", "text": ""}), False
        for piece in say.pieces:
            yield _delta(0, {"type": "text_delta", "text": piece}), True
        yield _event({"type": "content_block_stop", "index": 0}), False
        blocks = 1
    for at, call in enumerate(say.calls):
        yield _block_start(blocks + at, {**_opened(call, at), "input": {}}), False
        written = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
        half = len(written) // 2
        for part in (written[:half], written[half:]):
            yield _delta(blocks + at, {"type": "input_json_delta", "partial_json": part}), False
        yield _event({"type": "content_block_stop", "index": blocks + at}), False
    if say.ends_early:
        return
    end = {"type": "message_delta", "delta": {"stop_reason": _stop(say)}, "usage": {"output_tokens": say.written}}
    yield _event(end), False
    yield _event({"type": "message_stop"}), False


def _message(request: Request) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _opened(call: Call, at: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id or f"toolu_{at}", "name": call.name}


def _input(call: Call) -> Any:
    """Return the input of a call: a message cannot hold invalid JSON, so that invalid arguments stay text."""
    if not isinstance(call.arguments, str):
        return dict(call.arguments)
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _stop(say: Say) -> str:
    return "tool_use" if say.calls and say.stop == "end" else _STOPS[say.stop]


def _read(say: Say) -> dict[str, int]:
    return {
        "input_tokens": say.read - say.cached - say.cache_written,
        "cache_read_input_tokens": say.cached,
        "cache_creation_input_tokens": say.cache_written,
    }


def _block_start(index: int, block: dict[str, Any]) -> str:
    return _event({"type": "content_block_start", "index": index, "content_block": block})


def _delta(index: int, delta: dict[str, Any]) -> str:
    return _event({"type": "content_block_delta", "index": index, "delta": delta})


def _event(data: dict[str, Any]) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"
