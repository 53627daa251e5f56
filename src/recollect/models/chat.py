"""Chat messages, tool calls and replies, the same for every provider."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn, Protocol

StopReason = Literal["end", "tools", "length", "refusal"]
"""Why a model stopped: it was done, it calls tools, it ran out of tokens, or it declined."""

TextCallback = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool for a model; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model requests; `malformed` says why its arguments could not be read."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a dialogue; with the role "tool" it is the result of the call `call_id`."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    failed: bool = False
    """True if the tool failed; `content` is the error."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call.

    `read` is the whole input. Of it, `cached` tokens came from the provider's cache, and `kept` tokens were written to
    the cache, which some providers charge for.
    """

    read: int = 0
    written: int = 0
    cached: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a model."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    stop: StopReason = "end"
    usage: Usage = Usage()


class ChatModel(Protocol):
    """A model that chats and may call tools; `name` is the name it was opened by, such as "openai:gpt-5"."""

    @property
    def name(self) -> str: ...

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: TextCallback | None = None,
        may_call: bool = True,
    ) -> Reply:
        """Return the answer, or raise `ModelFailed`; `on_text` receives the text piece by piece.

        Without `may_call` the model sees the tools, because the dialogue mentions them, but must not call any.
        """

    async def close(self) -> None: ...


def accepts_may_call(model: ChatModel) -> bool:
    """Return whether `model.reply` takes `may_call`; models written by users may lack it."""
    try:
        parameters = inspect.signature(model.reply).parameters
    except (TypeError, ValueError):
        return False
    return "may_call" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def parse_tool_call(call_id: str, name: str, arguments: Any) -> ToolCall:
    """Parse the arguments of a call; if they are not a JSON object, the model is told so by `malformed`."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_reject_constant) if arguments.strip() else {}
        except json.JSONDecodeError as error:  # without the document, which may be long
            reason = f"{error.msg} at character {error.pos}"
            return ToolCall(call_id, name, malformed=f"the arguments are not JSON: {reason}")
        except ValueError as error:
            return ToolCall(call_id, name, malformed=f"the arguments are not JSON: {error}")
        except RecursionError:
            return ToolCall(call_id, name, malformed="the arguments are nested too deeply")
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, malformed=f"the arguments are a {type(arguments).__name__}, not a JSON object")
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return ToolCall(call_id, name, malformed="the arguments contain a lone surrogate")
    return ToolCall(call_id, name, arguments)


def mark_truncated_call(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Mark the last call of a reply that ran out of tokens as malformed: it may be incomplete."""
    if not calls or calls[-1].malformed is not None:
        return calls
    return (*calls[:-1], replace(calls[-1], malformed="the reply was cut off before the call was complete"))


def repair_surrogates(text: str) -> str:
    """Join surrogate pairs that arrived in two pieces, and replace lone surrogates."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")
