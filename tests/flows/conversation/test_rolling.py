"""Rolling summaries: the new summary covers the old one, for any behavior of the summarizer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from recollect.language.analysis import count_tokens
from recollect.stores.factory import TierStores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message
from tests.flows.conversation.dialogue import ADA, Maker, PausedSummarizer, listing, talk, texts, tokens_of


class TestRolling:
    async def test_ten_newest_messages_stay_word_for_word_beyond_the_threshold(self, make: Maker):
        conversation = make(summarizer=listing)
        await talk(conversation, 31)
        shown = await conversation.get_messages_for_llm()
        assert texts(shown)[-10:] == [f"message {n}" for n in range(21, 31)]
        assert len(shown) <= 12
        assert await conversation.summary() == " ".join(str(n) for n in range(21))

    async def test_new_summary_covers_the_old_one(self, make: Maker):
        conversation = make(summarizer=listing)
        await talk(conversation, 100)
        covered = (await conversation.summary() or "").split()
        live = [text.split()[-1] for text in texts(await conversation.get_messages_for_llm()) if "message" in text]
        assert covered + live[-(100 - len(covered)) :] == [str(n) for n in range(100)]

    async def test_shown_roles_alternate(self, make: Maker):
        for turns in (31, 32):
            conversation = make(replace(ADA, session=f"s{turns}"))
            await talk(conversation, turns)
            roles = [message["role"] for message in await conversation.get_messages_for_llm()]
            assert roles[0] == "user"
            assert all(role != following for role, following in pairwise(roles))

    async def test_full_history_stays_searchable(self, conversation: ConversationMemory):
        await conversation.add_message("user", "The cello is in the attic.")
        await talk(conversation, 80)
        assert (await conversation.search("where is the cello"))[0].content == "The cello is in the attic."
        assert len(await conversation.search("message", limit=7)) == 7

    async def test_default_summary_keeps_important_messages(self, conversation: ConversationMemory):
        await conversation.add_message("user", "Remember that I am allergic to peanuts.")
        await talk(conversation, 400)
        summary = await conversation.summary()
        assert summary is not None
        assert "allergic to peanuts" in summary
        assert count_tokens(summary) <= 1000
        assert conversation._summary_error is None

    async def test_repeated_summaries_stay_bounded(self, make: Maker):
        conversation = make(summarizer=lambda messages, before: (before or "") + "word " * 3000)
        await talk(conversation, 120)
        assert count_tokens(await conversation.summary() or "") <= 1000
        assert tokens_of(await conversation.get_messages_for_llm()) <= 10_000

    async def test_leading_instructions_are_never_summarized(self, make: Maker):
        conversation = make(summarizer=listing)
        await conversation.add_message("system", "You are a careful accountant.")
        await talk(conversation, 70)
        shown = await conversation.get_messages_for_llm()
        assert shown[0] == {"role": "system", "content": "You are a careful accountant."}
        assert "accountant." not in (await conversation.summary() or "")

    async def test_async_summarizer_is_awaited(self, make: Maker):
        async def later(messages: list[Message], before: str | None) -> str:
            await asyncio.sleep(0)
            return listing(messages, before)

        conversation = make(summarizer=later)
        await talk(conversation, 31)
        assert await conversation.summary() == " ".join(str(n) for n in range(21))

    async def test_blocking_summarizer_does_not_block_other_writers(self, make: Maker):
        paused = PausedSummarizer()
        conversation = make(summarizer=paused)
        await talk(conversation, 30)
        adding = asyncio.create_task(conversation.add_message("user", "one more"))
        assert await asyncio.to_thread(paused.asked.wait, 10)
        await conversation.add_message("user", "meanwhile")
        assert not adding.done()
        paused.go_on.set()
        await adding
        assert [message.content for message in await conversation.get_last_n(2)] == ["one more", "meanwhile"]

    async def test_failing_summarizer_loses_no_message(self, make: Maker):
        def broken(messages: list[Message], before: str | None) -> str:
            raise RuntimeError("quota")

        async def hanging(messages: list[Message], before: str | None) -> str:
            await asyncio.sleep(3600)
            return ""

        faults = {}
        for name, summarizer in {
            "broken": broken,
            "hanging": hanging,
            "silent": lambda *_: " ",
            "mad": lambda *_: 7,
        }.items():
            # A short timeout is used only for the hanging one: a thread may start late on a busy machine.
            patience = 0.05 if summarizer is hanging else 30
            conversation = make(replace(ADA, session=name), summarizer=summarizer, summary_timeout=patience)
            await conversation.add_message("user", "We decided to use Postgres.")
            await talk(conversation, 35)
            assert "Postgres" in (await conversation.summary() or "")
            assert len(await conversation.get_last_n(100)) == 36
            faults[name] = conversation._summary_error
        assert faults["broken"] == "RuntimeError"
        assert faults["hanging"] == "TimeoutError"
        assert faults["silent"] == faults["mad"] == "the summarizer gave no text"

    async def test_summary_finished_after_clear_is_ignored(self, make: Maker, stores: TierStores, clock: ManualClock):
        paused = PausedSummarizer()
        rolling, other = make(summarizer=paused), make()
        await talk(other, 30)
        adding = asyncio.create_task(rolling.add_message("user", "message 30"))
        assert await asyncio.to_thread(paused.asked.wait, 10)
        await other.clear()
        await other.add_message("user", "Anew.")
        paused.go_on.set()
        await adding
        for conversation in (rolling, other, make()):
            assert await conversation.summary() is None
            assert texts(await conversation.get_messages_for_llm()) == ["Anew."]
            assert (await conversation.export())["summary"] is None

    async def test_of_two_concurrent_summaries_the_longer_one_wins(self, make: Maker):
        paused = PausedSummarizer()
        late, quick = make(summarizer=paused), make(summarizer=listing)
        await talk(quick, 30)
        adding = asyncio.create_task(late.add_message("user", "message 30"))
        assert await asyncio.to_thread(paused.asked.wait, 10)
        await talk(quick, 30, start=31)
        reached = await quick.summary()
        paused.go_on.set()
        await adding
        assert await make().summary() == reached
        assert texts(await make().get_messages_for_llm())[-1] == "message 60"


class TestTrust:
    async def test_summary_has_the_lowest_trust_of_its_messages(self, make: Maker):
        # Mutant: only the shown messages count. Mutant: only the messages of the newest summary count.
        conversation = make(summarizer=listing)
        assert await conversation._compute_trust() == 1.0
        await conversation.add_message("assistant", "message 0", trust=0.3)
        assert await conversation._compute_trust() == 0.3
        await talk(conversation, 100)
        assert await conversation._compute_trust() == 0.3

    async def test_imported_summary_keeps_its_trust_or_gets_a_default(self, make: Maker):
        # Mutant: the export has no trust. Mutant: a summary without trust is fully trusted.
        conversation = make(summarizer=listing)
        await conversation.add_message("assistant", "message 0", trust=0.3)
        await talk(conversation, 100)
        exported = await conversation.export()
        there = make(replace(ADA, session="there"))
        await there.import_from(exported)
        assert await there._compute_trust() == 0.3
        del exported["rolled"]["trust"]
        await there.import_from(exported)
        assert await there._compute_trust() == 0.5

    async def test_summary_of_trusted_messages_is_trusted(self, make: Maker):
        conversation = make(summarizer=listing)
        await talk(conversation, 100)
        assert await conversation._compute_trust() == 1.0
