"""Random conversations: limits hold, no message is lost, and the prefix is stable until a summary rolls."""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message
from tests.budgets import limit_examples
from tests.flows.conversation.dialogue import ADA, conversation_on, is_paired, tokens_of

Said = tuple[Any, Any, dict[str, Any]]
Turn = list[Said]

PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.org/cello.png"}}


def build_call(ids: list[str], given: str, *, in_blocks: bool) -> Said:
    if not in_blocks:
        return "assistant", "", {"tool_calls": [{"id": id, "name": "f"} for id in ids]}
    calls = [{"type": "tool_use", "id": id, "name": "f", "input": {"text": given}} for id in ids]
    return "assistant", [{"type": "text", "text": "Let me see."}, *calls], {}


def build_results(ids: list[str], text: str, *, in_blocks: bool) -> list[Said]:
    if not in_blocks:
        return [("tool", text, {"tool_call_id": id}) for id in ids]
    return [("user", [{"type": "tool_result", "tool_use_id": id, "content": text} for id in ids], {})] if ids else []


@st.composite
def histories(draw: st.DrawFn, most_turns: int = 10, most_words: int = 300, name: str = "") -> list[Turn]:
    """Generate turns with questions, tool calls, prompt or late results and answers, as text or blocks."""
    text = st.integers(1, most_words).map(lambda n: "word " * n)
    late: list[tuple[str, bool]] = []
    turns: list[Turn] = []
    if draw(st.booleans()):
        turns.append([("system", draw(text), {})])
    for n in range(draw(st.integers(1, most_turns))):
        in_blocks = draw(st.booleans())
        question = draw(text)
        pictured = in_blocks and draw(st.booleans())
        turn: Turn = [("user", [{"type": "text", "text": question}, PICTURE] if pictured else question, {})]
        calls = [f"{name}{n}.{m}" for m in range(draw(st.integers(0, 3)))]
        if calls:
            turn.append(build_call(calls, draw(text), in_blocks=in_blocks))
            missing = {id for id in calls if draw(st.integers(0, 9)) == 0}
            late += [(id, in_blocks) for id in calls if id in missing]
            turn += build_results([id for id in calls if id not in missing], draw(text), in_blocks=in_blocks)
        turn.append(("assistant", draw(text), {}))
        come = draw(st.booleans())
        if late and come:
            id, shape = late.pop(0)
            turn += build_results([id], draw(text), in_blocks=shape)
        turns.append(turn)
    return turns


def is_summary_message(message: dict[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, str) and content.startswith(("[Context from earlier", "Understood. I will"))


class Witness:
    """Summarizer that checks that every message is summarized once and in order."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, messages: list[Message], before: str | None) -> str:
        assert before == (f"up to {self.seen[-1]}" if self.seen else None)
        self.seen += [message.metadata["n"] for message in messages]
        return f"up to {self.seen[-1]}"


@limit_examples(0.5)
@given(
    turns=histories(),
    limits=st.fixed_dictionaries(
        {
            "max_messages": st.integers(8, 50),
            "max_tokens": st.integers(300, 4000),
            "summarize_threshold": st.integers(1, 30),
        }
    ),
)
async def test_any_history_keeps_the_limits_and_the_shown_prefix(turns: list[Turn], limits: dict[str, Any]):
    """Limits hold, results follow their calls, no message is lost, and only a roll changes the prefix."""
    clock, witness = ManualClock(), Witness()
    stores = await open_stores("memory://", Settings(), clock)
    store = stores.log("conversation")
    conversation = conversation_on(store, clock, ADA, summarizer=witness, **limits)
    before: list[dict[str, Any]] = []
    rolled: list[Any] = []
    added = 0
    for turn in turns:
        for role, content, metadata in turn:
            await conversation.add_message(role, content, n=added, **metadata)
            added += 1
            assert conversation._summary_error is None
        shown = await conversation.get_messages_for_llm()
        assert conversation._summary_error is None
        assert tokens_of(shown) <= limits["max_tokens"]
        assert len(shown) <= limits["max_messages"]
        assert is_paired(shown)
        summaries = await store.recent(conversation._space, limit=1, kinds=("summary",))
        if summaries == rolled:
            assert json.dumps(shown[: len(before)]) == json.dumps(before)
        before, rolled = shown, summaries
    # Every message is in the summary, in order, or still shown.
    instructed = before[0]["role"] == "system"
    summary_messages = [message for message in before if is_summary_message(message)]
    assert witness.seen == list(range(instructed, len(witness.seen) + instructed))
    assert len(witness.seen) + len(before) - len(summary_messages) == added
    assert [message.metadata["n"] for message in await conversation.get_last_n(10_000)] == list(range(added))
    await stores.close()


def broken(messages: list[Message], before: str | None) -> str:
    raise RuntimeError("quota")


async def hanging(messages: list[Message], before: str | None) -> str:
    await asyncio.Event().wait()
    return ""


async def rambling(messages: list[Message], before: str | None) -> str:
    await asyncio.sleep(0)  # lets the other writer run
    return (before or "") + " ".join(f"Then number {n} was said." for n in range(200))


async def silent(messages: list[Message], before: str | None) -> str:
    return " "


@limit_examples(0.5)
@given(
    speakers=st.tuples(*(histories(most_turns=2, most_words=80, name=name) for name in "ab")),
    limits=st.fixed_dictionaries(
        {
            "max_messages": st.integers(8, 14),
            "max_tokens": st.integers(300, 500),
            "summarize_threshold": st.integers(1, 8),
        }
    ),
    summarizer=st.sampled_from([None, broken, hanging, rambling, silent]),
)
async def test_concurrent_writers_lose_no_message_with_any_summarizer(
    speakers: tuple[list[Turn], ...], limits: dict[str, Any], summarizer: Any
):
    """Two objects on one log, like two processes: every message that no summary covers is shown."""
    clock = ManualClock()
    stores = await open_stores("memory://", Settings(), clock)
    store = stores.log("conversation")
    both = [conversation_on(store, clock, summarizer=summarizer, summary_timeout=0.001, **limits) for _ in speakers]

    async def speak(conversation: ConversationMemory, turns: list[Turn], name: int) -> None:
        for n, (role, content, metadata) in enumerate(added for turn in turns for added in turn):
            await conversation.add_message(role, content, by=[name, n], **metadata)

    await asyncio.gather(
        *(speak(conversation, turns, n) for n, (conversation, turns) in enumerate(zip(both, speakers, strict=True)))
    )
    for conversation in both:
        shown = await conversation.get_messages_for_llm()
        assert tokens_of(shown) <= limits["max_tokens"]
        assert len(shown) <= limits["max_messages"]
        assert is_paired(shown)
        added = await conversation.get_last_n(10_000)
        for name, turns in enumerate(speakers):
            positions = [message.metadata["by"][1] for message in added if message.metadata["by"][0] == name]
            assert positions == list(range(sum(map(len, turns))))
        covered = (await conversation.export())["rolled"]
        covered_messages = 0 if covered is None else covered["messages"]
        instructions = list(takewhile(lambda message: message["role"] == "system", shown))
        # Leading instructions are shown before the summary that covers their positions in the log.
        uncovered = added[len(instructions) :] if covered_messages == 0 else added[covered_messages:]
        assert len([message for message in shown if not is_summary_message(message)]) == len(instructions) + len(
            uncovered
        )
    await stores.close()
