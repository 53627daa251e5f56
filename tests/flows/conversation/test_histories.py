"""Whatever is said: the limits hold, nothing is lost, and what was shown stays until a summary rolls."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.settings import Settings
from recollect.stores.connect import connect
from recollect.testing import ManualClock
from recollect.tiers.messages import Message
from tests.flows.conversation.talking import ADA, conversation_on, paired, tokens_of


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[str, str, dict[str, Any]]]]:
    """Turns: a question, calls with their results at once or late, an answer; short and long."""
    text = st.integers(1, 300).map(lambda n: "word " * n)
    late: list[str] = []
    turns: list[list[tuple[str, str, dict[str, Any]]]] = []
    if draw(st.booleans()):
        turns.append([("system", draw(text), {})])
    for n in range(draw(st.integers(1, 14))):
        turn: list[tuple[str, str, dict[str, Any]]] = [("user", draw(text), {})]
        calls = [f"{n}.{m}" for m in range(draw(st.integers(0, 3)))]
        if calls:
            turn.append(("assistant", "", {"tool_calls": [{"id": id, "name": "f"} for id in calls]}))
            for id in calls:
                if draw(st.integers(0, 9)):
                    turn.append(("tool", draw(text), {"tool_call_id": id}))
                else:
                    late.append(id)
        turn.append(("assistant", draw(text), {}))
        come = draw(st.booleans())
        if late and come:
            turn.append(("tool", draw(text), {"tool_call_id": late.pop(0)}))
        turns.append(turn)
    return turns


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
async def test_whatever_is_said_the_limits_hold_and_what_was_shown_stays(
    turns: list[list[tuple[str, str, dict[str, Any]]]], limits: dict[str, Any]
):
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
            await conversation.add_message(role, content, n=said, **metadata)  # type: ignore[arg-type]
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
    told = [one for one in before if one["content"].startswith(("[Context from earlier", "Understood. I will"))]
    assert witness.seen == list(range(instructed, len(witness.seen) + instructed))
    assert len(witness.seen) + len(before) - len(told) == said
    assert [message.metadata["n"] for message in await conversation.get_last_n(10_000)] == list(range(said))
    await stores.close()
