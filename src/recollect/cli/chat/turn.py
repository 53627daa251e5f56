"""One turn of a chat: recall, store the message, answer, store the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from recollect.agent.prompt import build_history, build_system_prompt, exclude_session
from recollect.errors import ModelFailed
from recollect.memory import AgentMemory
from recollect.models.chat import ChatMessage, ChatModel, Reply
from recollect.types import Context, LeftOut

# About 30 recalled lines, one page of a prompt.
_RECALL_BUDGET = 1500

_SYSTEM_PROMPT = """\
You are talking with a user in a terminal. Answer in their language, plainly and briefly, without markup. Use what \
is remembered where it helps, without announcing that you do. If neither it nor the conversation answers a question \
about them, say that you do not know."""


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The answer of a turn and the context it used; without a model there is no text."""

    text: str | None
    context: Context
    error: str | None = None


class ChatConversation:
    """A conversation with a memory and, if one is set, a model."""

    def __init__(self, memory: AgentMemory, model: ChatModel | None) -> None:
        self.memory = memory
        self.model = model
        self.last_context: Context | None = None

    async def run_turn(
        self, message: str, on_recall: Callable[[Context], None], on_text: Callable[[str], None]
    ) -> ChatAnswer:
        """Answer a message. It is stored before the model is asked, so that a crash loses no line."""
        recalled = await self.memory.recall(message, budget=_RECALL_BUDGET)
        self.last_context = context = self._select_used(recalled)
        on_recall(context)
        # Loaded before the message is stored, or it would be in the prompt twice.
        history = await self.memory.conversation.get_messages_for_llm() if self.model is not None else []
        turn_id = (await self.memory.record_turn(message)).id
        if self.model is None:
            return ChatAnswer(None, context)
        pieces: list[str] = []

        def add_piece(piece: str) -> None:
            pieces.append(piece)
            on_text(piece)

        summary, messages = build_history(history)
        memories = exclude_session(recalled, self.memory.scope.session)[0]
        try:
            reply = await self.model.reply(
                [*messages, ChatMessage("user", message)],
                system=build_system_prompt(memories, _SYSTEM_PROMPT, summary),
                on_text=add_piece,
            )
        except (ModelFailed, asyncio.CancelledError) as error:
            partial = "".join(pieces).strip()
            await self._store_answer(turn_id, f"{partial} …" if partial else "")
            if isinstance(error, ModelFailed):
                return ChatAnswer(None, context, str(error))
            raise
        if not pieces:  # the model does not stream
            add_piece(reply.text)
        text = reply.text.strip()
        await self._store_answer(turn_id, text)
        return ChatAnswer(text, context, _describe_stop(reply))

    async def _store_answer(self, turn_id: str, text: str) -> None:
        if text:
            await self.memory.record_turn(assistant=text, id=turn_id)

    def _select_used(self, context: Context) -> Context:
        """Leave out hits that the model sees anyway, or, without a model, the question itself."""
        if self.model is not None:
            hits, reason = exclude_session(context, self.memory.scope.session)[1], "this session, which the model sees"
        else:
            query = _fold_text(context.query)
            hits, reason = [hit for hit in context if _fold_text(hit.item.content) != query], "the question itself"
        left_out = [LeftOut(hit.item, reason) for hit in context if hit not in hits]
        return replace(context, hits=tuple(hits), left_out=(*left_out, *context.left_out))


def _fold_text(text: str) -> str:
    return " ".join(text.lower().split())


def _describe_stop(reply: Reply) -> str | None:
    match reply.stop:
        case "refusal":
            return "the model declined to answer"
        case "length":
            return "the answer was cut: the model ran out of room"
        case _:
            return None if reply.text.strip() else "the model answered nothing"
