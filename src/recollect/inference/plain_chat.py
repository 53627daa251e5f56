"""A callable `prompt -> text` as a model that one can have a dialogue with, though not one that calls tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from recollect.errors import ModelFailed
from recollect.inference.chat import ChatMessage, ChatModel, OnText, Reply, ToolSpec
from recollect.inference.llm import LanguageModel


class PlainChat:
    """It is asked with the whole dialogue as one prompt; tools it is never told of, since it could not call them."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: OnText | None = None,
        may_call: bool = True,
    ) -> Reply:
        text = await self._model.ask(as_prompt(messages, system))
        if on_text is not None:
            on_text(text)
        return Reply(text)

    async def close(self) -> None:
        await self._model.close()


def asking(chat: ChatModel) -> Callable[[str], Awaitable[str]]:
    """The other way round: a model that one can have a dialogue with, as a callable that answers a prompt."""

    async def ask(prompt: str) -> str:
        reply = await chat.reply([ChatMessage("user", prompt)])
        if reply.stop == "refusal":
            raise ModelFailed(f"the language model {chat.name!r} declined to answer")
        return reply.text

    return ask


def as_prompt(messages: Sequence[ChatMessage], system: str = "") -> str:
    """A dialogue as one text. A single message is its own prompt: nothing has to say whose turn it is."""
    opening = [system.strip()] if system.strip() else []
    if len(messages) == 1 and messages[0].role == "user":
        return "\n\n".join([*opening, messages[0].content])
    return "\n\n".join([*opening, *(_as_text(message) for message in messages), "assistant:"])


def _as_text(message: ChatMessage) -> str:
    asked = [f"[asked for {call.name} {dict(call.arguments)!r}]" for call in message.tool_calls]
    content = [message.content] if message.content else []
    # Lines after the first are indented, whatever ends them: nobody can speak as somebody else.
    return f"{message.role}: " + "\n  ".join("\n".join([*content, *asked]).splitlines())
