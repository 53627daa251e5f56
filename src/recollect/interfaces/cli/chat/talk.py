"""A turn of a chat: what is recalled for it, who answers, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recollect.agent.prompt import from_elsewhere, system_prompt
from recollect.errors import ModelFailed
from recollect.inference.chat import ChatMessage, ChatModel, Reply
from recollect.memory import AgentMemory
from recollect.values import Context, Hit

# What recalled lines may take of a model's attention: some thirty of them, and no more than a page.
_BUDGET = 1500

_MANNER = """\
You are talking with somebody in a terminal. Answer in their language, plainly and briefly, without markup. Use what \
is remembered where it helps, without announcing that you do. Where neither it nor the conversation answers a \
question about them, say that you do not know."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a turn; without a model there is no text, and what was recalled is the answer."""

    text: str | None
    context: Context
    trouble: str | None = None


class Talk:
    """A conversation with a memory behind it."""

    def __init__(self, memory: AgentMemory, model: ChatModel | None) -> None:
        self.memory = memory
        self.model = model
        self.last: Context | None = None

    async def turn(self, said: str, on_recall: Callable[[Context], None], on_text: Callable[[str], None]) -> Answer:
        """Recall, answer, keep. What was said is kept whatever becomes of the answer."""
        context = await self.memory.recall(said, budget=_BUDGET)
        self.last = context
        on_recall(context)
        if self.model is None:
            await self.memory.record_turn(said)
            return Answer(None, context)
        heard: list[str] = []

        def hear(piece: str) -> None:
            heard.append(piece)
            on_text(piece)

        try:
            reply = await self._reply(self.model, said, context, hear)
        except ModelFailed as error:
            await self.memory.record_turn(said, _kept(heard))
            return Answer(None, context, str(error))
        except asyncio.CancelledError:
            await self.memory.record_turn(said, _kept(heard))
            raise
        if not heard:  # a model that does not stream
            hear(reply.text)
        await self.memory.record_turn(said, reply.text if reply.text.strip() else None)
        return Answer(reply.text, context, _trouble(reply))

    async def _reply(self, model: ChatModel, said: str, context: Context, hear: Callable[[str], None]) -> Reply:
        shown = await self.memory.conversation.get_messages_for_llm()
        summed_up = [str(one["content"]) for one in shown if one["role"] == "system"]
        block, _ = from_elsewhere(context, self.memory.scope.session)
        messages = [message for one in shown if (message := _message(one)) is not None]
        return await model.reply(
            [*messages, ChatMessage("user", said)], system=system_prompt(block, _MANNER, *summed_up), on_text=hear
        )

    def used(self, context: Context) -> list[Hit]:
        """What was recalled for the answer: a model sees this session anyway, and the question is no answer."""
        if self.model is not None:
            return from_elsewhere(context, self.memory.scope.session)[1]
        asked = " ".join(context.query.lower().split())
        return [hit for hit in context if " ".join(hit.item.content.lower().split()) != asked]


def _message(shown: dict[str, Any]) -> ChatMessage | None:
    """A message of the conversation as a model gets it; what tools said is of no use without the tools."""
    content = shown["content"]
    if shown["role"] not in ("user", "assistant") or not isinstance(content, str) or not content.strip():
        return None
    return ChatMessage(shown["role"], content)


def _kept(heard: list[str]) -> str | None:
    text = "".join(heard).strip()
    return f"{text} …" if text else None


def _trouble(reply: Reply) -> str | None:
    match reply.stop:
        case "refusal":
            return "the model declined to answer"
        case "length":
            return "the answer was cut: the model ran out of room"
        case _:
            return None if reply.text.strip() else "the model answered nothing"
