"""Tool results without their calls are never shown to a model as results."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from tests.flows.conversation.dialogue import conversation_on, tokens_of

IDS = ("a", "b", "c")
calls = st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True)
entries: st.SearchStrategy[tuple[str, list[str]]] = st.one_of(
    st.tuples(st.just("user"), st.just([])),
    st.tuples(st.just("assistant"), st.just([])),
    st.tuples(st.sampled_from(["openai call", "blocks call", "openai result", "blocks result"]), calls),
)


async def say(conversation: ConversationMemory, kind: str, ids: list[str]) -> None:
    match kind:
        case "openai call":
            await conversation.add_message("assistant", None, tool_calls=[{"id": id, "name": "f"} for id in ids])
        case "blocks call":
            used = [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]
            await conversation.add_message("assistant", used)
        case "openai result":
            for id in ids:
                await conversation.add_message("tool", f"result of {id}", tool_call_id=id)
        case "blocks result":
            results = [{"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"} for id in ids]
            await conversation.add_message("user", results)
        case role:
            await conversation.add_message(role, "some words")  # type: ignore[arg-type]


def every_result_answers_an_open_call(shown: list[dict[str, Any]]) -> bool:
    """Return true if each call is answered at most once, after it was made, as providers require."""
    waiting: set[str] = set()
    for message in shown:
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        answered += [message["tool_call_id"]] if "tool_call_id" in message else []
        if not waiting.issuperset(answered) or (message["role"] == "tool" and not answered):
            return False
        waiting.difference_update(answered)
        waiting |= {block["id"] for block in blocks if block["type"] == "tool_use"}
        waiting |= {call["id"] for call in message.get("tool_calls", ())}
    return True


@given(st.lists(entries, max_size=25), st.sampled_from([4, 8, 30]))
async def test_result_is_shown_only_after_its_call(history: list[tuple[str, list[str]]], threshold: int):
    clock = ManualClock()
    stores = await open_stores("memory://", Settings(), clock)
    store = stores.log("conversation")
    conversation = conversation_on(
        store, clock, max_messages=12, max_tokens=600, summarize_threshold=threshold, summarizer=lambda *_: "summed up"
    )
    before: list[dict[str, Any]] = []
    rolled: list[Any] = []
    for kind, ids in history:
        await say(conversation, kind, ids)
        shown = await conversation.get_messages_for_llm()
        assert every_result_answers_an_open_call(shown)
        assert tokens_of(shown) <= 600
        summaries = await store.recent(conversation._space, limit=1, kinds=("summary",))
        if summaries == rolled:
            assert json.dumps(shown[: len(before)]) == json.dumps(before)
        before, rolled = shown, summaries
    await stores.close()


async def test_orphaned_result_is_shown_as_a_note(conversation: ConversationMemory):
    await conversation.add_message("tool", "three kinds of tea", tool_call_id="gone")
    await conversation.add_message("tool", "nobody asked")
    await conversation.add_message("user", "And?")
    assert await conversation.get_messages_for_llm() == [
        {"role": "user", "content": "[late result of gone] three kinds of tea"},
        {"role": "user", "content": "[late result of a tool] nobody asked"},
        {"role": "user", "content": "And?"},
    ]
