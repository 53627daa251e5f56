"""Limits of the shown messages, and tool calls that stay with their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.language.analysis import count_tokens
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message
from tests.flows.conversation.dialogue import ADA, Maker, is_paired, listing, talk, texts, tokens_of


class TestLimits:
    async def test_max_messages_limits_the_shown_messages(self, make: Maker):
        conversation = make(max_messages=8)
        for n in range(40):
            await conversation.add_message("assistant" if n % 2 else "user", f"message {n}")
            shown = await conversation.get_messages_for_llm()
            assert len(shown) <= 8
            assert shown[-1]["content"] == f"message {n}"

    async def test_max_tokens_limits_the_shown_messages_and_summarizes_the_rest(self, make: Maker):
        conversation = make(max_tokens=500, summarizer=listing)
        for n in range(30):
            await conversation.add_message("user", "word " * 100 + f"end{n}")
            shown = await conversation.get_messages_for_llm()
            assert tokens_of(shown) <= 500
            assert shown[-1]["content"].endswith(f"end{n}")
        assert "end0" in (await conversation.summary() or "")

    async def test_oversized_message_is_shown_shortened_and_stored_whole(self, make: Maker):
        conversation = make(max_tokens=1000)
        text = "start " + "word " * 100_000 + "finish"
        await conversation.add_message("user", text)
        [shown] = await conversation.get_messages_for_llm()
        assert tokens_of([shown]) <= 1000
        assert shown["content"].startswith("start")
        assert shown["content"].endswith("finish")
        assert [message.content for message in await conversation.get_last_n(1)] == [text]

    async def test_many_long_results_are_shortened_and_stay_with_their_calls(self, make: Maker):
        conversation = make(max_tokens=2000)
        await conversation.add_message("user", "Read them all.")
        await conversation.add_message("assistant", "", tool_calls=[{"id": f"c{n}", "name": "read"} for n in range(9)])
        for n in range(9):
            await conversation.add_message("tool", f"file{n} " + "word " * 3000, tool_call_id=f"c{n}")
        shown = await conversation.get_messages_for_llm()
        assert tokens_of(shown) <= 2000
        assert [message["content"][:5] for message in shown if message["role"] == "tool"] == [
            f"file{n}" for n in range(9)
        ]
        assert is_paired(shown)

    async def test_summary_does_not_roll_at_every_turn(self, make: Maker):
        """Each roll costs a model call and invalidates the provider's prompt cache."""
        rolls: list[int] = []

        def noting(messages: list[Message], before: str | None) -> str:
            rolls.append(len(messages))
            return "so far"

        conversation = make(max_tokens=2000, summarizer=noting)
        for _ in range(200):
            await conversation.add_message("user", "word " * 120)
        assert 0 < len(rolls) <= 40

    async def test_large_import_is_summarized_in_portions(self, make: Maker):
        portions = []

        def noting(messages: list[Message], before: str | None) -> str:
            portions.append(sum(count_tokens(message.content) for message in messages))
            return "so far"

        conversation = make(summarizer=noting, max_tokens=1000)
        await conversation.import_from({"messages": [{"role": "user", "content": f"message {n}"} for n in range(3000)]})
        assert len(portions) > 10
        assert max(portions) <= 1000
        assert tokens_of(await conversation.get_messages_for_llm()) <= 1000

    @pytest.mark.parametrize(
        "options", [{"max_messages": 3}, {"max_tokens": 0}, {"summarize_threshold": 0}, {"max_tokens": True}]
    )
    async def test_invalid_limit_raises(self, make: Maker, options: dict[str, Any]):
        with pytest.raises(BadInput, match=next(iter(options))):
            make(**options)


class TestToolPairs:
    async def test_call_and_its_results_are_kept_together(self, make: Maker):
        for shift in range(6):
            conversation = make(replace(ADA, session=f"s{shift}"))
            await talk(conversation, shift)
            for n in range(12):
                await conversation.add_message("user", f"question {n}")
                await conversation.add_message("assistant", "", tool_calls=[{"id": f"{n}a"}, {"id": f"{n}b"}])
                await conversation.add_message("tool", "first", tool_call_id=f"{n}a")
                await conversation.add_message("tool", "second", tool_call_id=f"{n}b")
                shown = await conversation.get_messages_for_llm()
                assert is_paired(shown)
                results = [message["tool_call_id"] for message in shown if message["role"] == "tool"]
                calls = [call["id"] for message in shown for call in message.get("tool_calls", ())]
                assert results == calls

    async def test_results_without_id_stay_with_the_preceding_assistant_message(self, make: Maker):
        for shift in range(4):
            conversation = make(replace(ADA, session=f"s{shift}"))
            await talk(conversation, shift)
            for n in range(15):
                await conversation.add_message("assistant", f"calling {n}")
                for _ in range(3):
                    await conversation.add_message("tool", f"result {n}")
            shown = texts(await conversation.get_messages_for_llm())
            results = [text.split()[-1] for text in shown if text.startswith("result")]
            assert all(f"calling {n}" in shown for n in results)

    async def test_open_call_is_not_summarized(self, make: Maker):
        conversation = make()
        await talk(conversation, 4)
        await conversation.add_message("assistant", "", tool_calls=[{"id": "slow"}])
        await talk(conversation, 36, start=4)
        shown = await conversation.get_messages_for_llm()
        assert any(message.get("tool_calls") for message in shown)
        await conversation.add_message("tool", "at last", tool_call_id="slow")
        assert is_paired(await conversation.get_messages_for_llm())

    async def test_result_of_a_summarized_call_is_shown_as_a_note(self, make: Maker):
        conversation = make()
        await conversation.add_message("assistant", "", tool_calls=[{"id": "slow"}])
        await talk(conversation, 80)
        await conversation.add_message("tool", "at last", tool_call_id="slow")
        shown = await conversation.get_messages_for_llm()
        assert is_paired(shown)
        assert len(shown) <= 50
        assert shown[-1]["role"] == "user"
        assert shown[-1]["content"].endswith("at last")

    async def test_oversized_call_is_summarized_and_its_result_noted(self, make: Maker):
        conversation = make(max_tokens=600)
        await conversation.add_message("user", "Write it down.")
        call = {"id": "w", "name": "write", "args": "word " * 5000}
        shown: list[dict[str, Any]] = []
        for role, text, metadata in (
            ("assistant", "", {"tool_calls": [call]}),
            ("assistant", "Writing.", {}),
            ("tool", "written", {"tool_call_id": "w"}),
            ("user", "Thanks.", {}),
        ):
            before = shown
            await conversation.add_message(role, text, **metadata)  # type: ignore[arg-type]
            shown = await conversation.get_messages_for_llm()
            assert tokens_of(shown) <= 600
            assert is_paired(shown)
            assert shown[: len(before)] == before
        assert [message["role"] for message in shown[-3:]] == ["assistant", "user", "user"]
        assert shown[-2]["content"].endswith("written")
        assert "calls write" in (await conversation.summary() or "")

    async def test_changing_returned_messages_does_not_change_the_store(self, conversation: ConversationMemory):
        await conversation.add_message("assistant", "", tool_calls=[{"id": "a", "args": {"x": 1}}])
        (await conversation.get_messages_for_llm())[0]["tool_calls"][0]["args"]["x"] = 2
        assert (await conversation.get_messages_for_llm())[0]["tool_calls"][0]["args"]["x"] == 1
