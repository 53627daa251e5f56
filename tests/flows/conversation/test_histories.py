"""Whatever is said: the limits hold, nothing is lost, and what was shown stays until a summary rolls."""

from __future__ import annotations

import asyncio
import json
from itertools import takewhile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message
from tests.flows.conversation.talking import ADA, conversation_on, paired, tokens_of

Said = tuple[Any, Any, dict[str, Any]]
Turn = list[Said]

PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.org/cello.png"}}


def asked(ids: list[str], given: str, *, in_blocks: bool) -> Said:
    if not in_blocks:
        return "assistant", "", {"tool_calls": [{"id": id, "name": "f"} for id in ids]}
    calls = [{"type": "tool_use", "id": id, "name": "f", "input": {"text": given}} for id in ids]
    return "assistant", [{"type": "text", "text": "Let me see."}, *calls], {}


def answered(ids: list[str], text: str, *, in_blocks: bool) -> list[Said]:
    if not in_blocks:
        return [("tool", text, {"tool_call_id": id}) for id in ids]
    return [("user", [{"type": "tool_result", "tool_use_id": id, "content": text} for id in ids], {})] if ids else []


@st.composite
def histories(draw: st.DrawFn, most_turns: int = 10, most_words: int = 300, name: str = "") -> list[Turn]:
    """Turns: a question, calls with their results at once or late, an answer; short and long, plain and in blocks."""
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
            turn.append(asked(calls, draw(text), in_blocks=in_blocks))
            missing = {id for id in calls if draw(st.integers(0, 9)) == 0}
            late += [(id, in_blocks) for id in calls if id in missing]
            turn += answered([id for id in calls if id not in missing], draw(text), in_blocks=in_blocks)
        turn.append(("assistant", draw(text), {}))
        come = draw(st.booleans())
        if late and come:
            id, shape = late.pop(0)
            turn += answered([id], draw(text), in_blocks=shape)
        turns.append(turn)
    return turns


def is_of_the_summary(one: dict[str, Any]) -> bool:
    content = one["content"]
    return isinstance(content, str) and content.startswith(("[Context from earlier", "Understood. I will"))


class Witness:
    """A summariser that sees to it that every message is summed up once, in its turn, on top of all before."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, messages: list[Message], before: str | None) -> str:
        assert before == (f"up to {self.seen[-1]}" if self.seen else None)
        self.seen += [message.metadata["n"] for message in messages]
        return f"up to {self.seen[-1]}"


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
@settings(max_examples=500)
async def test_whatever_is_said_the_limits_hold_and_what_was_shown_stays(turns: list[Turn], limits: dict[str, Any]):
    """Within the limits, no result without its call, nothing lost, and a prefix that only a roll changes."""
    clock, witness = ManualClock(), Witness()
    stores = await connect("memory://", Settings(), clock)
    store = stores.log("conversation")
    conversation = conversation_on(store, clock, ADA, summarise=witness, **limits)
    before: list[dict[str, Any]] = []
    rolled: list[Any] = []
    said = 0
    for turn in turns:
        for role, content, metadata in turn:
            await conversation.add_message(role, content, n=said, **metadata)
            said += 1
            assert conversation.fault is None
        shown = await conversation.get_messages_for_llm()
        assert conversation.fault is None
        assert tokens_of(shown) <= limits["max_tokens"]
        assert len(shown) <= limits["max_messages"]
        assert paired(shown)
        summaries = await store.recent(conversation.space, limit=1, kinds=("summary",))
        if summaries == rolled:
            assert json.dumps(shown[: len(before)]) == json.dumps(before)
        before, rolled = shown, summaries
    # Every message is in the summary, in its turn, or still shown.
    instructed = before[0]["role"] == "system"
    told = [one for one in before if is_of_the_summary(one)]
    assert witness.seen == list(range(instructed, len(witness.seen) + instructed))
    assert len(witness.seen) + len(before) - len(told) == said
    assert [message.metadata["n"] for message in await conversation.get_last_n(10_000)] == list(range(said))
    await stores.close()


def broken(messages: list[Message], before: str | None) -> str:
    raise RuntimeError("quota")


async def hanging(messages: list[Message], before: str | None) -> str:
    await asyncio.Event().wait()
    return ""


async def rambling(messages: list[Message], before: str | None) -> str:
    await asyncio.sleep(0)  # so that others may speak meanwhile
    return (before or "") + " ".join(f"Then number {n} was said." for n in range(200))


async def silent(messages: list[Message], before: str | None) -> str:
    return " "


@given(
    speakers=st.tuples(*(histories(most_turns=2, most_words=80, name=name) for name in "ab")),
    limits=st.fixed_dictionaries(
        {
            "max_messages": st.integers(8, 14),
            "max_tokens": st.integers(300, 500),
            "summarize_threshold": st.integers(1, 8),
        }
    ),
    summarise=st.sampled_from([None, broken, hanging, rambling, silent]),
)
@settings(max_examples=500)
async def test_whoever_speaks_at_once_and_whatever_the_summariser_does_nothing_is_lost(
    speakers: tuple[list[Turn], ...], limits: dict[str, Any], summarise: Any
):
    """Two objects on one log, as two processes would have them: what no summary covers is shown, all of it."""
    clock = ManualClock()
    stores = await connect("memory://", Settings(), clock)
    store = stores.log("conversation")
    both = [conversation_on(store, clock, summarise=summarise, summarise_timeout=0.001, **limits) for _ in speakers]

    async def speak(conversation: ConversationMemory, turns: list[Turn], name: int) -> None:
        for n, (role, content, metadata) in enumerate(said for turn in turns for said in turn):
            await conversation.add_message(role, content, by=[name, n], **metadata)

    await asyncio.gather(*(speak(one, turns, n) for n, (one, turns) in enumerate(zip(both, speakers, strict=True))))
    for conversation in both:
        shown = await conversation.get_messages_for_llm()
        assert tokens_of(shown) <= limits["max_tokens"]
        assert len(shown) <= limits["max_messages"]
        assert paired(shown)
        said = await conversation.get_last_n(10_000)
        for name, turns in enumerate(speakers):
            heard = [one.metadata["by"][1] for one in said if one.metadata["by"][0] == name]
            assert heard == list(range(sum(map(len, turns))))
        covered = (await conversation.export())["rolled"]
        covered_messages = 0 if covered is None else covered["messages"]
        instructions = list(takewhile(lambda one: one["role"] == "system", shown))
        # Instructions stand before the summary that covers the place they have in the log.
        kept = said[len(instructions) :] if covered_messages == 0 else said[covered_messages:]
        assert len([one for one in shown if not is_of_the_summary(one)]) == len(instructions) + len(kept)
    await stores.close()
