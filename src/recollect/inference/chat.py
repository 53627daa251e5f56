"""A dialogue with a language model: the values that go to it and come back, the same for every provider."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

Stop = Literal["end", "tools", "length", "refusal"]
"""Why a model stopped: it was done, it wants tools, it ran out of room, or it declined."""

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called. `malformed` says what is wrong with arguments that could not be read."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of the dialogue; with the role "tool" it is the result of the call `call_id`."""

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    failed: bool = False
    """Of a result: whether the tool failed, and `content` says how."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call has cost, in tokens; `cached` of those that were read came from the provider's cache.

    `kept` of them were written to that cache, which some providers charge for.
    """

    read: int = 0
    written: int = 0
    cached: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    stop: Stop = "end"
    usage: Usage = Usage()


class ChatModel(Protocol):
    """A model that talks and may ask for tools. `name` is the string it was asked for by, as in "openai:gpt-5"."""

    @property
    def name(self) -> str: ...

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: OnText | None = None,
        may_call: bool = True,
    ) -> Reply:
        """Its answer, or `ModelFailed`; with `on_text`, the text is also handed over piece by piece as it comes.

        Without `may_call` the tools are shown, because the dialogue tells of them, and none is to be called.
        """

    async def close(self) -> None: ...


def knows_may_call(model: ChatModel) -> bool:
    """Whether a model can be told to call nothing; one that somebody wrote without that keyword is a model too."""
    try:
        parameters = inspect.signature(model.reply).parameters
    except (TypeError, ValueError):
        return False
    return "may_call" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def cut_off(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls of a reply that ran out of room. The last one was being written: nobody knows what it was to say."""
    if not calls or calls[-1].malformed is not None:
        return calls
    return (*calls[:-1], replace(calls[-1], malformed="the reply was cut off before the call was whole"))
