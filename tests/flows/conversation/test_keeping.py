"""Storing a conversation: messages, concurrent writers and bad input."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import BadInput, BadQuery
from recollect.settings import Settings
from recollect.stores.factory import TierStores, open_stores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from tests.flows.conversation.dialogue import ADA, Maker, conversation_on, listing, talk, texts


class TestAddMessage:
    async def test_message_is_returned_unchanged(self, conversation: ConversationMemory, clock: ManualClock):
        stored = await conversation.add_message("user", "Hello!", channel={"name": "web", "ids": [1, None]})
        assert (stored.role, stored.content, stored.timestamp) == ("user", "Hello!", clock.now)
        assert stored.metadata == {"channel": {"name": "web", "ids": [1, None]}}
        assert await conversation.get_last_n(5) == [stored]
        assert await conversation.get_messages_for_llm() == [{"role": "user", "content": "Hello!"}]

    async def test_short_conversation_is_shown_word_for_word(self, conversation: ConversationMemory):
        await talk(conversation, 30)
        assert texts(await conversation.get_messages_for_llm()) == [f"message {n}" for n in range(30)]
        assert await conversation.summary() is None

    async def test_get_last_n_returns_newest_last(self, conversation: ConversationMemory):
        await talk(conversation, 40)
        assert [message.content for message in await conversation.get_last_n(3)] == [
            "message 37",
            "message 38",
            "message 39",
        ]
        assert len(await conversation.get_last_n(100)) == 40
        assert await conversation.get_last_n(0) == []

    async def test_same_text_twice_is_two_messages(self, conversation: ConversationMemory):
        await conversation.add_message("user", "ok")
        await conversation.add_message("user", "ok")
        assert len(await conversation.get_last_n(5)) == 2

    async def test_write_same_id_twice_keeps_the_first_message(
        self, conversation: ConversationMemory, stores: TierStores
    ):
        for text in ("once", "twice"):
            await stores.log("conversation").write(conversation._build_append("user", text, id="turn-1"))
        assert [message.content for message in await conversation.get_last_n(5)] == ["once"]

    async def test_add_message_same_id_twice_returns_the_first_message(
        self, conversation: ConversationMemory, clock: ManualClock
    ):
        first = await conversation.add_message("user", "Good morning.", id="m1", channel="web")
        clock.forward(timedelta(minutes=1))
        assert await conversation.add_message("user", "Good evening.", id="m1") == first
        assert await conversation.get_last_n(5) == [first]
        assert (first.id, first.content, dict(first.metadata)) == ("m1", "Good morning.", {"channel": "web"})

    async def test_developer_role_is_stored_as_system(self, conversation: ConversationMemory):
        stored = await conversation.add_message("developer", "Answer in verse.")
        assert stored.role == "system"
        await talk(conversation, 60)
        assert (await conversation.get_messages_for_llm())[0] == {"role": "system", "content": "Answer in verse."}

    async def test_tool_call_without_text_is_accepted(self, make: Maker):
        conversation, copy = make(), make(replace(ADA, session="copy"))
        calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        stored = await conversation.add_message("assistant", None, tool_calls=calls)
        await conversation.add_message("tool", "found", tool_call_id="c1")
        assert stored.content == ""
        shown: list[dict[str, Any]] = [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "found", "tool_call_id": "c1"},
        ]
        assert await conversation.get_messages_for_llm() == shown
        await copy.import_from({"messages": [{**shown[0], "content": None, "metadata": {"tool_calls": calls}}]})
        assert await copy.get_messages_for_llm() == shown[:1]

    async def test_new_object_continues_the_conversation(self, make: Maker):
        await talk(make(), 35)
        shown = await make().get_messages_for_llm()
        assert "message 34" in shown[-1]["content"]
        await talk(make(), 1, start=35)
        assert (await make().get_messages_for_llm())[: len(shown)] == shown

    async def test_clear_removes_messages_search_results_and_summary(self, conversation: ConversationMemory):
        await talk(conversation, 35)
        await conversation.clear()
        assert await conversation.get_messages_for_llm() == []
        assert await conversation.get_last_n(5) == []
        assert await conversation.search("message") == []
        assert await conversation.summary() is None
        await conversation.add_message("user", "Anew.")
        assert texts(await conversation.get_messages_for_llm()) == ["Anew."]

    @pytest.mark.parametrize("part", ["tenant", "user", "agent", "session"])
    async def test_conversation_is_hidden_from_other_scopes(
        self, part: str, conversation: ConversationMemory, make: Maker
    ):
        await talk(conversation, 35)
        other = make(replace(ADA, **{part: "other"}))
        assert await other.get_messages_for_llm() == []
        assert await other.search("message") == []
        await other.clear()
        assert len(await conversation.get_last_n(100)) == 35


class TestConcurrency:
    async def test_concurrent_writers_lose_no_message(self, make: Maker):
        first, second = make(summarizer=listing), make(summarizer=listing)

        async def say(conversation: ConversationMemory, name: str) -> None:
            for n in range(40):
                await conversation.add_message("user", f"message {name}{n}")
                if n % 7 == 0:
                    await conversation.get_messages_for_llm()

        await asyncio.gather(say(first, "a"), say(second, "b"), say(first, "c"))
        wanted = {f"{name}{n}" for name in "abc" for n in range(40)}
        assert {message.content.split()[-1] for message in await first.get_last_n(1000)} == wanted
        shown = texts(await second.get_messages_for_llm())
        covered = (await second.summary() or "").split()
        live = [text.split()[-1] for text in shown if text.startswith("message")]
        assert len(covered) == len(set(covered))
        assert sorted(covered + live) == sorted(wanted)
        assert await first.get_messages_for_llm() == await second.get_messages_for_llm()

    async def test_processes_write_to_the_same_conversation(self, tmp_path: Path):
        program = f"""
import asyncio, sys
from recollect.clock import system_clock
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.tiers.conversation import ConversationMemory
from recollect.types import Scope

async def main(path, name):
    stores = await open_stores(path, Settings(), system_clock)
    conversation = ConversationMemory(
        stores.log("conversation"), scope={ADA!r}, settings=Settings(), clock=system_clock
    )
    for n in range(40):
        await conversation.add_message("user", f"message {{name}}{{n}}")
    await stores.close()

asyncio.run(main(*sys.argv[1:]))
"""
        path = str(tmp_path / "agent.db")
        running = [await asyncio.create_subprocess_exec(sys.executable, "-c", program, path, name) for name in "ab"]
        assert [await process.wait() for process in running] == [0, 0]
        clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        stores = await open_stores(path, Settings(), clock)
        conversation = conversation_on(stores.log("conversation"), clock)
        stored = [message.content for message in await conversation.get_last_n(1000)]
        assert sorted(stored) == sorted(f"message {name}{n}" for name in "ab" for n in range(40))
        assert texts(await conversation.get_messages_for_llm())[-10:] == stored[-10:]
        await stores.close()


class TestBadInput:
    @pytest.mark.parametrize(
        ("role", "content", "metadata"),
        [
            ("robot", "x", {}),
            ("User", "x", {}),
            (None, "x", {}),
            (["user"], "x", {}),
            ("summary", "x", {}),
            ("user", "", {}),
            ("assistant", " \n", {}),
            ("assistant", "", {"tool_calls": []}),
            ("user", None, {}),
            ("assistant", None, {}),
            ("assistant", None, {"tool_calls": []}),
            ("tool", None, {"tool_call_id": "c1"}),
            ("user", None, {"tool_calls": [{"id": "c1"}]}),
            ("Developer", "x", {}),
            ("user", "x", {"id": ""}),
            ("user", "x", {"id": 7}),
            ("user", b"x", {}),
            ("user", "a\x00b", {}),
            ("user", "half \ud800", {}),
            ("tool", "x" * 10_000_000, {}),
            ("user", "x", {"a": object()}),
            ("user", "x", {"a": float("nan")}),
            ("user", "x", {"a": {"b": "\x00"}}),
        ],
    )
    async def test_add_message_bad_input_raises_and_writes_nothing(
        self, conversation: ConversationMemory, role: Any, content: Any, metadata: dict[str, Any]
    ):
        with pytest.raises(BadInput):
            await conversation.add_message(role, content, **metadata)
        assert await conversation.get_last_n(5) == []

    async def test_invalid_limit_or_query_raises(self, conversation: ConversationMemory):
        for n in (-1, True, "2"):
            with pytest.raises(BadQuery):
                await conversation.get_last_n(n)  # type: ignore[arg-type]
            with pytest.raises(BadQuery):
                await conversation.search("x", n)  # type: ignore[arg-type]
        with pytest.raises(BadQuery):
            await conversation.search(" ")
        with pytest.raises(BadInput, match="time zone"):
            conversation._build_append("user", "x", at=datetime(2026, 1, 1))  # noqa: DTZ001 - the point of this case
