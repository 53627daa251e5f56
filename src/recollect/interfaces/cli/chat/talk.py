"""A turn of a chat: what is recalled for it, who answers, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recollect.agent.prompt import from_elsewhere, system_prompt
from recollect.errors import ModelFailed
from recollect.inference.chat import ChatMessage, ChatModel, Reply
from recollect.memory import AgentMemory
from recollect.values import Context, Hit, LeftOut

# What recalled lines may take of a model's attention: some thirty of them, and no more than a page.
_BUDGET = 1500

_MANNER = """\
You are talking with somebody in a terminal. Answer in their language, plainly and briefly, without markup. Use what \
is remembered where it helps, without announcing that you do. Where neither it nor the conversation answers a \
question about them, say that you do not know."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a turn; without a model there is no text, and what was recalled is the answer.

    The context is what was used of it: what was not is among what was left out.
    """

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
        """Recall, keep what was said, answer, keep the answer. A process that dies while it answers loses no line."""
        found = await self.memory.recall(said, budget=_BUDGET)
        self.last = context = self._used(found)
        on_recall(context)
        # Before it is kept: what is shown of the conversation would have it twice.
        shown = await self.memory.conversation.get_messages_for_llm() if self.model is not None else []
        turn = (await self.memory.record_turn(said)).id
        if self.model is None:
            return Answer(None, context)
        heard: list[str] = []

        def hear(piece: str) -> None:
            heard.append(piece)
            on_text(piece)

        try:
            reply = await self.model.reply(_messages(shown, said), system=self._system(found, shown), on_text=hear)
        except ModelFailed as error:
            await self._keep_answer(turn, _kept(heard))
            return Answer(None, context, str(error))
        except asyncio.CancelledError:
            await self._keep_answer(turn, _kept(heard))
            raise
        if not heard:  # a model that does not stream
            hear(reply.text)
        text = reply.text.strip()
        await self._keep_answer(turn, text)
        return Answer(text, context, _trouble(reply))

    async def _keep_answer(self, turn: str, text: str) -> None:
        if text:
            await self.memory.record_turn(assistant=text, id=turn)

    def _system(self, found: Context, shown: list[dict[str, Any]]) -> str:
        summed_up = [str(one["content"]) for one in shown if one["role"] == "system"]
        return system_prompt(from_elsewhere(found, self.memory.scope.session)[0], _MANNER, *summed_up)

    def _used(self, context: Context) -> Context:
        """What was recalled for the answer: a model sees this session anyway, and the question is no answer."""
        kept: list[Hit]
        if self.model is not None:
            kept, why = from_elsewhere(context, self.memory.scope.session)[1], "this session, which the model sees"
        else:
            asked = _folded(context.query)
            kept, why = [hit for hit in context if _folded(hit.item.content) != asked], "the question itself"
        others = [LeftOut(hit.item, why) for hit in context if hit not in kept]
        return replace(context, hits=tuple(kept), left_out=(*others, *context.left_out))


def _messages(shown: list[dict[str, Any]], said: str) -> list[ChatMessage]:
    return [*(message for one in shown if (message := _message(one)) is not None), ChatMessage("user", said)]


def _message(shown: dict[str, Any]) -> ChatMessage | None:
    """A message of the conversation as a model gets it; what tools said is of no use without the tools."""
    content = shown["content"]
    if shown["role"] not in ("user", "assistant") or not isinstance(content, str) or not content.strip():
        return None
    return ChatMessage(shown["role"], content)


def _folded(text: str) -> str:
    return " ".join(text.lower().split())


def _kept(heard: list[str]) -> str:
    """An answer as far as it came."""
    text = "".join(heard).strip()
    return f"{text} …" if text else ""


def _trouble(reply: Reply) -> str | None:
    match reply.stop:
        case "refusal":
            return "the model declined to answer"
        case "length":
            return "the answer was cut: the model ran out of room"
        case _:
            return None if reply.text.strip() else "the model answered nothing"
