"""Chat models and embeddings of OpenAI and of compatible servers, through OpenAI's SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from recollect.models.chat import ChatMessage, StopReason, ToolSpec
from recollect.models.embedding import RemoteEmbedder, RequestLimits, Vectors
from recollect.models.endpoint import ModelEndpoint, ProviderError
from recollect.models.providers.sdk_client import PartialToolCall, ReplyDraft, SdkChat, SdkClient, build_client

_STOP_REASONS: Mapping[str, StopReason] = {"tool_calls": "tools", "length": "length", "content_filter": "refusal"}

# OpenAI accepts 2,048 texts, 300,000 tokens, and 8,191 tokens in one text.
_EMBEDDING_LIMITS = RequestLimits(texts=2048, tokens=200_000, tokens_per_text=7000)
_EMBEDDING_DIMENSIONS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


def _make_client(endpoint: ModelEndpoint) -> tuple[Any, Any]:
    import openai

    return openai, build_client(openai, openai.AsyncOpenAI, endpoint)


class OpenAIChat(SdkChat):
    """A model of OpenAI, or of a compatible server, as a `ChatModel`."""

    stream_options: ClassVar[Mapping[str, Any]] = {"stream": True, "stream_options": {"include_usage": True}}
    resource = "chat.completions"
    response_type = "types.chat.ChatCompletion"

    def __init__(self, endpoint: ModelEndpoint) -> None:
        super().__init__(endpoint, SdkClient(endpoint, partial(_make_client, endpoint)))

    def build_request(
        self, messages: Sequence[ChatMessage], system: str, tools: Sequence[ToolSpec], may_call: bool
    ) -> dict[str, Any]:
        first = [{"role": "system", "content": system}] if system.strip() else []
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [*first, *(_build_message(message) for message in messages)],
        }
        if tools:
            specs = [
                {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
                for tool in tools
            ]
            request["tools"] = [{"type": "function", "function": spec} for spec in specs]
            if not may_call:
                request["tool_choice"] = "none"
        return request

    def read_response(self, draft: ReplyDraft, response: Any) -> None:
        if not response.choices:
            raise ProviderError("answered without a choice; check the address")
        self.read_event(draft, response)
        draft.stop = draft.stop or "end"

    def read_event(self, draft: ReplyDraft, event: Any) -> None:
        if (usage := event.usage) is not None:  # it comes with the last event, and from some servers not at all
            cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
            uncached = max(0, (usage.prompt_tokens or 0) - cached)
            draft.tokens = {"uncached": uncached, "cached": cached, "written": usage.completion_tokens or 0}
        for choice in event.choices[:1]:
            if choice.finish_reason:
                draft.stop = _STOP_REASONS.get(choice.finish_reason, "end")
            _add_delta(draft, choice.delta if hasattr(choice, "delta") else choice.message)


def _add_delta(draft: ReplyDraft, delta: Any) -> None:
    draft.is_refused = draft.is_refused or bool(delta.refusal)
    unused = len(draft.calls)
    for place, call in enumerate(delta.tool_calls or (), start=unused):
        at = getattr(call, "index", None)  # whole calls have none
        written = draft.calls.setdefault(place if at is None else at, PartialToolCall())
        written.id = written.id or call.id or ""
        if call.function is not None:
            written.name = written.name or call.function.name or ""
            written.arguments += call.function.arguments or ""
    draft.add_text(0, delta.content or delta.refusal or "")


def _build_message(message: ChatMessage) -> dict[str, Any]:
    match message.role:
        case "tool":
            # The protocol has no field for a failed tool.
            content = f"The tool failed: {message.content}" if message.failed else message.content
            return {"role": "tool", "tool_call_id": message.call_id, "content": content}
        case "assistant" if message.tool_calls:
            functions = [{"name": c.name, "arguments": json.dumps(dict(c.arguments))} for c in message.tool_calls]
            calls = [
                {"id": call.id, "type": "function", "function": function}
                for call, function in zip(message.tool_calls, functions, strict=True)
            ]
            return {"role": "assistant", "content": message.content or None, "tool_calls": calls}
        case _:
            return {"role": message.role, "content": message.content}


def build_openai_embedder(endpoint: ModelEndpoint) -> RemoteEmbedder:
    client = SdkClient(endpoint, partial(_make_client, endpoint))
    model = endpoint.model

    async def request(texts: Sequence[str]) -> tuple[Vectors, int]:
        response = await client.request(
            # Not every compatible server knows the base64 encoding.
            lambda sdk: sdk.embeddings.create(model=model, input=list(texts), encoding_format="float")
        )
        rows = sorted(response.data, key=lambda row: row.index)
        if len(rows) != len(texts):
            raise ProviderError(f"answered with {len(rows)} vectors for {len(texts)} texts; check the address")
        tokens = getattr(response.usage, "total_tokens", None)  # some servers report none
        return [row.embedding for row in rows], tokens or 0

    # On another server the name may mean another model.
    dim = 0 if endpoint.base_url else _EMBEDDING_DIMENSIONS.get(model, 0)
    return RemoteEmbedder(endpoint, request, _EMBEDDING_LIMITS, dim=dim, close=client.close)
