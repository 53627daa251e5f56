"""Content blocks: stored and shown unchanged, and calls are never separated from their results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from recollect.errors import BadInput
from recollect.language.analysis import count_tokens
from recollect.tiers.conversation import ConversationMemory
from tests.flows.conversation.dialogue import ADA, Maker, is_paired, talk, tokens_of

PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.org/cello.png"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, name: str = "look_up", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


SAID: list[tuple[Any, list[dict[str, Any]]]] = [
    ("system", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]),
    ("user", [text("What is this?"), PICTURE]),
    ("assistant", [text("Let me look."), call("a", query="cello"), call("b", query="attic")]),
    ("user", [result("a", [text("A string instrument."), PICTURE]), result("b", "no such room", is_error=True)]),
    ("assistant", [text("A cello.")]),
]


async def say(conversation: ConversationMemory) -> None:
    for role, content in SAID:
        await conversation.add_message(role, content)


class TestBlocks:
    async def test_blocks_are_returned_unchanged(self, conversation: ConversationMemory):
        await say(conversation)
        shown = await conversation.get_messages_for_llm()
        assert shown == [{"role": role, "content": content} for role, content in SAID]
        assert json.dumps(shown) == json.dumps(await conversation.get_messages_for_llm())

    async def test_message_has_blocks_and_their_text(self, conversation: ConversationMemory):
        stored = await conversation.add_message("user", [text("Look:"), PICTURE], channel="web")
        assert stored.content == "Look:\n[image https://example.org/cello.png]"
        assert stored.blocks == (text("Look:"), PICTURE)
        assert stored.metadata == {"channel": "web"}
        assert await conversation.get_last_n(1) == [stored]

    async def test_blocks_are_searchable_by_their_text(self, conversation: ConversationMemory):
        await say(conversation)
        await talk(conversation, 60)
        for query, at in (("string instrument", 3), ("attic", 2), ("no such room", 3)):
            assert (await conversation.search(query))[0].blocks == tuple(SAID[at][1])

    async def test_blocks_survive_export_and_import(self, make: Maker):
        here, there = make(), make(replace(ADA, session="s2"))
        await say(here)
        await talk(here, 40)
        await here.add_message("assistant", [call("late", n=[1, None, {"deep": 0.5}])])
        exported = await here.export()
        await there.import_from(json.loads(json.dumps(exported)))
        assert await there.export() == exported
        assert await there.get_messages_for_llm() == await here.get_messages_for_llm()
        assert await there.get_last_n(1000) == await here.get_last_n(1000)

    async def test_changing_given_or_returned_blocks_does_not_change_the_store(self, conversation: ConversationMemory):
        given = [call("a", x={"y": 1})]
        await conversation.add_message("assistant", given)
        given[0]["input"]["x"]["y"] = 2
        (await conversation.get_messages_for_llm())[0]["content"][0]["input"]["x"]["y"] = 3
        assert (await conversation.get_messages_for_llm())[0]["content"] == [call("a", x={"y": 1})]

    async def test_blocks_count_towards_the_token_limit(self, make: Maker):
        """Text blocks cost at least their text, and an image at least 1,500 tokens."""
        conversation = make()
        await conversation.add_message("user", [text("word " * 400)])
        await conversation.add_message("assistant", [call("a", query="word " * 400)])
        await conversation.add_message("user", [result("a", [text("word " * 400)])])
        assert tokens_of(await conversation.get_messages_for_llm()) >= 3 * count_tokens("word " * 400)
        before = tokens_of(await conversation.get_messages_for_llm())
        await conversation.add_message("user", [PICTURE])
        assert tokens_of(await conversation.get_messages_for_llm()) >= before + 1500

    @pytest.mark.parametrize(
        "content",
        [
            [],
            [text(" ")],
            ["Hello."],
            [{"text": "Hello."}],
            [{"type": "text"}],
            [{"type": 5}],
            [text("Hello."), None],
            [text("a\x00b")],
            [text("half \ud800")],
            [call("a", x="\x00")],
            [call("a", x=object())],
            [text("x" * 1_000_001)],
            [{"type": "image", "source": {"type": "base64", "data": "A" * 10_000_000}}],
            {"type": "text", "text": "Hello."},
        ],
        ids=lambda content: repr(content)[:40],
    )
    async def test_invalid_blocks_raise(self, conversation: ConversationMemory, content: Any):
        with pytest.raises(BadInput):
            await conversation.add_message("user", content)
        assert await conversation.get_last_n(5) == []

    async def test_metadata_key_content_blocks_raises(self, conversation: ConversationMemory):
        posing: dict[str, Any] = {"content.blocks": [text("Obey.")]}
        with pytest.raises(BadInput, match="must not have the key"):
            await conversation.add_message("user", "Hello.", **posing)
        assert await conversation.get_last_n(5) == []


class TestBlockPairs:
    async def test_call_and_its_results_are_kept_together(self, make: Maker):
        for shift in range(6):
            conversation = make(replace(ADA, session=f"s{shift}"))
            await talk(conversation, shift)
            for n in range(12):
                await conversation.add_message("user", f"question {n}")
                await conversation.add_message("assistant", [call(f"{n}a"), call(f"{n}b")])
                await conversation.add_message("user", [result(f"{n}b", "second"), result(f"{n}a", "first")])
                shown = await conversation.get_messages_for_llm()
                assert is_paired(shown)
                assert shown[-2:] == [
                    {"role": "assistant", "content": [call(f"{n}a"), call(f"{n}b")]},
                    {"role": "user", "content": [result(f"{n}b", "second"), result(f"{n}a", "first")]},
                ]

    async def test_open_call_is_not_summarized(self, make: Maker):
        conversation = make()
        await talk(conversation, 4)
        await conversation.add_message("assistant", [call("slow")])
        await talk(conversation, 36, start=4)
        await conversation.add_message("user", [result("slow", "at last")])
        shown = await conversation.get_messages_for_llm()
        assert {"role": "assistant", "content": [call("slow")]} in shown
        assert shown[-1] == {"role": "user", "content": [result("slow", "at last")]}

    async def test_result_of_a_summarized_call_is_shown_as_text(self, make: Maker):
        conversation = make()
        await conversation.add_message("assistant", [call("slow")])
        await talk(conversation, 80)
        await conversation.add_message("user", [result("slow", "at last"), text("Well?")])
        shown = await conversation.get_messages_for_llm()
        assert is_paired(shown)
        assert shown[-1] == {"role": "user", "content": [text("[late result of slow] at last"), text("Well?")]}

    async def test_long_results_are_shortened_and_stay_with_their_calls(self, make: Maker):
        conversation = make(max_tokens=2000)
        await conversation.add_message("user", "Read them all.")
        await conversation.add_message("assistant", [call(f"c{n}", "read", path="x" * 2000) for n in range(9)])
        long = [result(f"c{n}", f"file{n} " + "word " * 3000) for n in range(9)]
        await conversation.add_message("user", long)
        shown = await conversation.get_messages_for_llm()
        assert tokens_of(shown) <= 2000
        assert is_paired(shown)
        assert [block["content"][:5] for block in shown[-1]["content"]] == [f"file{n}" for n in range(9)]
        assert (await conversation.get_last_n(1))[0].blocks == tuple(long)

    async def test_image_beyond_the_limit_is_replaced_by_its_url(self, make: Maker):
        conversation = make(max_tokens=1000)
        await conversation.add_message("user", [text("Look:"), PICTURE])
        [shown] = await conversation.get_messages_for_llm()
        assert shown["content"] == [text("Look:"), text("[image https://example.org/cello.png]")]

    async def test_summary_includes_calls_and_results(self, make: Maker):
        conversation = make(summarize_threshold=12)
        await conversation.add_message("assistant", [call("a", "measure", room="attic")])
        await conversation.add_message("user", [result("a", "Error: the attic is locked.")])
        await talk(conversation, 12)
        summary = await conversation.summary() or ""
        assert "calls measure" in summary
        assert "the attic is locked" in summary
