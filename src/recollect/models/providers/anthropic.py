"""Claude models through Anthropic's SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from recollect.models.chat import ChatMessage, StopReason, ToolSpec
from recollect.models.endpoint import ModelEndpoint
from recollect.models.providers.sdk_client import PartialToolCall, ReplyDraft, SdkChat, SdkClient, build_client

# The API requires a maximum. This is as much as the SDK would allow without streaming.
_MAX_OUTPUT_TOKENS = 16_384
# Anthropic caches the prompt before a mark for five minutes and charges a tenth for reading it.
_CACHE_CONTROL = {"type": "ephemeral"}
_STOP_REASONS: Mapping[str, StopReason] = {
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_TOKEN_COUNTS = {
    "input_tokens": "uncached",
    "cache_read_input_tokens": "cached",
    "cache_creation_input_tokens": "kept",
    "output_tokens": "written",
}


class AnthropicChat(SdkChat):
    resource = "messages"
    response_type = "types.Message"

    def __init__(self, endpoint: ModelEndpoint) -> None:
        super().__init__(endpoint, SdkClient(endpoint, partial(_make_client, endpoint)))

    def build_request(
        self, messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec], may_call: bool
    ) -> dict[str, Any]:
        turns = _build_turns(messages)
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "max_tokens": _MAX_OUTPUT_TOKENS,
            "messages": turns,
        }
        if system.strip():
            request["system"] = [{"type": "text", "text": system, "cache_control": _CACHE_CONTROL}]
        if tools:
            specs = [
                {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
                for tool in tools
            ]
            specs[-1]["cache_control"] = _CACHE_CONTROL
            request["tools"] = specs
            if not may_call:
                request["tool_choice"] = {"type": "none"}
            # The next request repeats all of this, followed by the results of the tools.
            turns[-1]["content"][-1] |= {"cache_control": _CACHE_CONTROL}
        return request

    def read_response(self, draft: ReplyDraft, response: Any) -> None:
        draft.stop = _STOP_REASONS.get(response.stop_reason, "end")
        _update_tokens(draft, response.usage)
        for at, block in enumerate(response.content or ()):
            if block.type == "text":
                draft.add_text(at, block.text)
            elif block.type == "tool_use":
                draft.calls[at] = PartialToolCall(block.id, block.name, block.input)

    def read_event(self, draft: ReplyDraft, event: Any) -> None:
        match event.type:
            case "message_start":
                _update_tokens(draft, event.message.usage)
            case "content_block_start" if event.content_block.type == "tool_use":
                draft.calls[event.index] = PartialToolCall(event.content_block.id, event.content_block.name)
            case "content_block_delta" if event.delta.type == "text_delta":
                draft.add_text(event.index, event.delta.text)
            case "content_block_delta" if event.delta.type == "input_json_delta" and event.index in draft.calls:
                draft.calls[event.index].arguments += event.delta.partial_json
            case "message_delta":
                if event.delta.stop_reason:
                    draft.stop = _STOP_REASONS.get(event.delta.stop_reason, "end")
                _update_tokens(draft, event.usage)


def _make_client(endpoint: ModelEndpoint) -> tuple[Any, Any]:
    import anthropic

    return anthropic, build_client(anthropic, anthropic.AsyncAnthropic, endpoint)


def _build_turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the dialogue as alternating turns; tool results and the next user message are one user turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _build_blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _build_blocks(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
        return [{**result, "is_error": True} if message.failed else result]
    text = [{"type": "text", "text": message.content}] if message.content.strip() else []  # the API rejects empty text
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in message.tool_calls
    ]
    return [*text, *calls]


def _update_tokens(draft: ReplyDraft, usage: Any) -> None:
    """Update the counts: each event has totals, and omits those that have not changed."""
    counts = {name: getattr(usage, reported, None) for reported, name in _TOKEN_COUNTS.items()}
    draft.tokens |= {name: count for name, count in counts.items() if count is not None}
