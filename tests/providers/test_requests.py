"""Requests to each provider: messages in its format, tools, and prompt cache markers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from recollect.models.chat import ChatMessage, ChatModel, ToolCall, ToolSpec, Usage
from recollect.models.factory import open_chat
from recollect.models.usage import UsageLedger
from recollect.settings import Settings
from tests.providers.conftest import Connect
from tests.wire.script import Call, Say
from tests.wire.server import Wire

ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
NOW = ToolSpec("now", "Tell the time.", {"type": "object", "properties": {}})
MARK = {"type": "ephemeral"}
DIALOGUE = [
    ChatMessage("user", "Add them, and tell the time."),
    ChatMessage("assistant", "Gladly.", (ToolCall("one", "add", {"a": 1}), ToolCall("two", "now"))),
    ChatMessage("tool", "1", call_id="one"),
    ChatMessage("tool", "the clock has stopped", call_id="two", failed=True),
    ChatMessage("user", "Never mind the time."),
]


@pytest_asyncio.fixture
async def claude(wire: Wire) -> AsyncIterator[ChatModel]:
    model = open_chat(f"anthropic:claude-haiku-4-5@{wire.anthropic}", Settings())
    yield model
    await model.close()


@pytest_asyncio.fixture
async def gpt(wire: Wire) -> AsyncIterator[ChatModel]:
    model = open_chat(f"openai:gpt-5-mini@{wire.openai}", Settings())
    yield model
    await model.close()


class TestAnthropic:
    async def test_tool_results_and_next_user_message_are_one_turn(self, claude: ChatModel, wire: Wire):
        wire.script(Say("Fine."))
        await claude.reply(DIALOGUE)
        assert wire.requests[0].body["messages"] == [
            {"role": "user", "content": [{"type": "text", "text": "Add them, and tell the time."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Gladly."},
                    {"type": "tool_use", "id": "one", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "two", "name": "now", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "one", "content": "1"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "two",
                        "content": "the clock has stopped",
                        "is_error": True,
                    },
                    {"type": "text", "text": "Never mind the time."},
                ],
            },
        ]

    async def test_empty_text_is_omitted(self, claude: ChatModel, wire: Wire):
        wire.script(Say("Fine."))
        messages = [ChatMessage("user", "x"), ChatMessage("assistant", " "), ChatMessage("user", "y")]
        await claude.reply(messages)
        [turn] = wire.requests[0].body["messages"]
        assert [block["text"] for block in turn["content"]] == ["x", "y"]

    async def test_stable_prefix_is_marked_for_the_cache(self, claude: ChatModel, wire: Wire):
        wire.script(Say("Fine."))
        await claude.reply(DIALOGUE, system="You are careful.", tools=[ADD, NOW])
        body = wire.requests[0].body
        assert body["system"] == [{"type": "text", "text": "You are careful.", "cache_control": MARK}]
        assert [tool.get("cache_control") for tool in body["tools"]] == [None, MARK]
        assert body["tools"][0] == {
            "name": "add",
            "description": "Add two numbers.",
            "input_schema": dict(ADD.parameters),
        }
        marked = [block for turn in body["messages"] for block in turn["content"] if "cache_control" in block]
        assert marked == [{"type": "text", "text": "Never mind the time.", "cache_control": MARK}]

    async def test_tools_are_sent_when_calls_are_disabled(self, claude: ChatModel, wire: Wire):
        # Mutants: `tool_choice` is never sent; it is sent without tools, which the API rejects.
        wire.script(Say("Fine."), Say("Fine."), Say("Fine."))
        await claude.reply(DIALOGUE, tools=[ADD])
        await claude.reply(DIALOGUE, tools=[ADD], may_call=False)
        await claude.reply(DIALOGUE, may_call=False)
        bodies = [request.body for request in wire.requests]
        assert [body.get("tool_choice") for body in bodies] == [None, {"type": "none"}, None]
        assert bodies[1]["tools"] == bodies[0]["tools"]

    async def test_single_question_is_not_cached(self, claude: ChatModel, wire: Wire):
        """Writing to the cache costs 25 % more, and a single question is never sent again."""
        wire.script(Say("Fine."))
        await claude.reply([ChatMessage("user", "Summarise this.")])
        assert "cache_control" not in str(wire.requests[0].body)

    async def test_cache_reads_and_writes_count_as_input(self, claude: ChatModel, wire: Wire):
        wire.script(Say("Fine.", read=1000, written=50, cached=600, cache_written=300))
        reply = await claude.reply(DIALOGUE)
        assert reply.usage == Usage(read=1000, written=50, cached=600, kept=300)


class TestOpenAI:
    async def test_dialogue_is_sent_in_openai_format(self, gpt: ChatModel, wire: Wire):
        wire.script(Say("Fine."))
        await gpt.reply(DIALOGUE, system="You are careful.", tools=[ADD])
        body = wire.requests[0].body
        assert body["messages"] == [
            {"role": "system", "content": "You are careful."},
            {"role": "user", "content": "Add them, and tell the time."},
            {
                "role": "assistant",
                "content": "Gladly.",
                "tool_calls": [
                    {"id": "one", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                    {"id": "two", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "one", "content": "1"},
            {"role": "tool", "tool_call_id": "two", "content": "The tool failed: the clock has stopped"},
            {"role": "user", "content": "Never mind the time."},
        ]
        function = {"name": "add", "description": "Add two numbers.", "parameters": dict(ADD.parameters)}
        assert body["tools"] == [{"type": "function", "function": function}]

    async def test_tools_are_sent_when_calls_are_disabled(self, gpt: ChatModel, wire: Wire):
        wire.script(Say("Fine."), Say("Fine."), Say("Fine."))
        await gpt.reply(DIALOGUE, tools=[ADD])
        await gpt.reply(DIALOGUE, tools=[ADD], may_call=False)
        await gpt.reply(DIALOGUE, may_call=False)
        bodies = [request.body for request in wire.requests]
        assert [body.get("tool_choice") for body in bodies] == [None, "none", None]
        assert bodies[1]["tools"] == bodies[0]["tools"]

    @pytest.mark.parametrize("streams", [False, True])
    async def test_missing_usage_is_estimated(self, wire: Wire, streams: bool):
        """Without an estimate, a token limit would never be reached."""
        wire.script(Say("One two three four.", counts=False))
        ledger = UsageLedger()
        model = open_chat(f"openai:small@{wire.openai}", Settings(), ledger=ledger)
        await model.reply([ChatMessage("user", "word " * 100)], on_text=print if streams else None)
        await model.close()
        [spent] = ledger.by_model
        assert spent.read >= 100
        assert spent.written >= 4

    @pytest.mark.parametrize("streams", [False, True])
    async def test_tool_calls_without_id_get_unique_ids(self, gpt: ChatModel, wire: Wire, streams: bool):
        nameless = Say("", (Call("now", {}, None), Call("now", {}, None)))
        wire.script(nameless, nameless)
        listen = print if streams else None
        first = await gpt.reply(DIALOGUE[:1], tools=[NOW], on_text=listen)
        second = await gpt.reply(DIALOGUE, tools=[NOW], on_text=listen)
        ids = [call.id for reply in (first, second) for call in reply.tool_calls]
        assert len(set(ids)) == 4
        assert all(ids)


async def test_equal_requests_are_byte_identical(connect: Connect, wire: Wire):
    """A prompt cache matches unchanged prefixes only."""
    wire.script(Say("Fine."), Say("Fine."))
    model = connect()
    for _ in range(2):
        await model.reply(DIALOGUE, system="You are careful.", tools=[ADD, NOW])
    assert str(wire.requests[0].body) == str(wire.requests[1].body)
