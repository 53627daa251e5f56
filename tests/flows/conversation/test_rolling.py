"""Older messages become a summary that rolls: the new one covers the old one, whatever the summariser does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from recollect.stores.connect import Stores
from recollect.testing import ManualClock
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.messages import Message
from recollect.words.tokens import count_tokens
from tests.flows.conversation.talking import ADA, Held, Maker, listing, talk, texts, tokens_of


class TestRolling:
    async def test_past_the_threshold_the_newest_ten_stay_word_for_word(self, make: Maker):
        conversation = make(summarise=listing)
        await talk(conversation, 31)
        shown = await conversation.get_messages_for_llm()
        assert texts(shown)[-10:] == [f"message {n}" for n in range(21, 31)]
        assert len(shown) <= 12
        assert await conversation.summary() == " ".join(str(n) for n in range(21))

    async def test_the_new_summary_covers_the_old_one(self, make: Maker):
        conversation = make(summarise=listing)
        await talk(conversation, 100)
        covered = (await conversation.summary() or "").split()
        live = [text.split()[-1] for text in texts(await conversation.get_messages_for_llm()) if "message" in text]
        assert covered + live[-(100 - len(covered)) :] == [str(n) for n in range(100)]

    async def test_a_model_that_insists_on_turns_gets_them(self, make: Maker):
        for turns in (31, 32):
            conversation = make(replace(ADA, session=f"s{turns}"))
            await talk(conversation, turns)
            roles = [one["role"] for one in await conversation.get_messages_for_llm()]
            assert roles[0] == "user"
            assert all(one != other for one, other in pairwise(roles))

    async def test_the_full_history_stays_searchable(self, conversation: ConversationMemory):
        await conversation.add_message("user", "The cello is in the attic.")
        await talk(conversation, 80)
        assert (await conversation.search("where is the cello"))[0].content == "The cello is in the attic."
        assert len(await conversation.search("message", limit=7)) == 7

    async def test_without_a_summariser_what_matters_is_kept(self, conversation: ConversationMemory):
        await conversation.add_message("user", "Remember that I am allergic to peanuts.")
        await talk(conversation, 400)
        summary = await conversation.summary()
        assert summary is not None
        assert "allergic to peanuts" in summary
        assert count_tokens(summary) <= 1000
        assert conversation.fault is None

    async def test_summaries_of_summaries_stay_bounded(self, make: Maker):
        conversation = make(summarise=lambda messages, before: (before or "") + "word " * 3000)
        await talk(conversation, 120)
        assert count_tokens(await conversation.summary() or "") <= 1000
        assert tokens_of(await conversation.get_messages_for_llm()) <= 10_000

    async def test_instructions_at_the_beginning_are_never_summed_up(self, make: Maker):
        conversation = make(summarise=listing)
        await conversation.add_message("system", "You are a careful accountant.")
        await talk(conversation, 70)
        shown = await conversation.get_messages_for_llm()
        assert shown[0] == {"role": "system", "content": "You are a careful accountant."}
        assert "accountant." not in (await conversation.summary() or "")

    async def test_an_async_summariser_is_awaited(self, make: Maker):
        async def later(messages: list[Message], before: str | None) -> str:
            await asyncio.sleep(0)
            return listing(messages, before)

        conversation = make(summarise=later)
        await talk(conversation, 31)
        assert await conversation.summary() == " ".join(str(n) for n in range(21))

    async def test_a_summariser_that_blocks_does_not_block_others(self, make: Maker):
        held = Held()
        conversation = make(summarise=held)
        await talk(conversation, 30)
        adding = asyncio.create_task(conversation.add_message("user", "one more"))
        assert await asyncio.to_thread(held.asked.wait, 10)
        await conversation.add_message("user", "meanwhile")
        assert not adding.done()
        held.go_on.set()
        await adding
        assert [one.content for one in await conversation.get_last_n(2)] == ["one more", "meanwhile"]

    async def test_a_failing_summariser_loses_nothing(self, make: Maker):
        def broken(messages: list[Message], before: str | None) -> str:
            raise RuntimeError("quota")

        async def hanging(messages: list[Message], before: str | None) -> str:
            await asyncio.sleep(3600)
            return ""

        faults = {}
        for name, summarise in {
            "broken": broken,
            "hanging": hanging,
            "silent": lambda *_: " ",
            "mad": lambda *_: 7,
        }.items():
            # Only who hangs is late: a thread that fails at once may have to wait for a busy machine.
            patience = 0.05 if summarise is hanging else 30
            conversation = make(replace(ADA, session=name), summarise=summarise, summarise_timeout=patience)
            await conversation.add_message("user", "We decided to use Postgres.")
            await talk(conversation, 35)
            assert "Postgres" in (await conversation.summary() or "")
            assert len(await conversation.get_last_n(100)) == 36
            faults[name] = conversation.fault
        assert faults["broken"] == "RuntimeError"
        assert faults["hanging"] == "TimeoutError"
        assert faults["silent"] == faults["mad"] == "the summariser gave no text"

    async def test_what_a_summariser_adds_to_a_cleared_conversation_is_not_believed(
        self, make: Maker, stores: Stores, clock: ManualClock
    ):
        held = Held()
        rolling, other = make(summarise=held), make()
        await talk(other, 30)
        adding = asyncio.create_task(rolling.add_message("user", "message 30"))
        assert await asyncio.to_thread(held.asked.wait, 10)
        await other.clear()
        await other.add_message("user", "Anew.")
        held.go_on.set()
        await adding
        for one in (rolling, other, make()):
            assert await one.summary() is None
            assert texts(await one.get_messages_for_llm()) == ["Anew."]
            assert (await one.export())["summary"] is None

    async def test_of_two_summaries_the_one_that_reaches_further_counts(self, make: Maker):
        held = Held()
        late, quick = make(summarise=held), make(summarise=listing)
        await talk(quick, 30)
        adding = asyncio.create_task(late.add_message("user", "message 30"))
        assert await asyncio.to_thread(held.asked.wait, 10)
        await talk(quick, 30, start=31)
        reached = await quick.summary()
        held.go_on.set()
        await adding
        assert await make().summary() == reached
        assert texts(await make().get_messages_for_llm())[-1] == "message 60"


class TestTrust:
    async def test_a_summary_is_trusted_as_far_as_the_least_that_it_was_made_of(self, make: Maker):
        # Mutant: only what is shown word for word counts. Mutant: only what the newest summary covers.
        conversation = make(summarise=listing)
        assert await conversation.trust() == 1.0
        await conversation.add_message("assistant", "message 0", trust=0.3)
        assert await conversation.trust() == 0.3
        await talk(conversation, 100)
        assert await conversation.trust() == 0.3

    async def test_and_so_it_is_where_it_is_imported(self, make: Maker):
        # Mutant: an export leaves it out. Mutant: one that does not say is believed.
        conversation = make(summarise=listing)
        await conversation.add_message("assistant", "message 0", trust=0.3)
        await talk(conversation, 100)
        told = await conversation.export()
        there = make(replace(ADA, session="there"))
        await there.import_from(told)
        assert await there.trust() == 0.3
        del told["rolled"]["trust"]
        await there.import_from(told)
        assert await there.trust() == 0.5

    async def test_what_nobody_doubts_is_not_doubted_when_it_is_summed_up(self, make: Maker):
        conversation = make(summarise=listing)
        await talk(conversation, 100)
        assert await conversation.trust() == 1.0
