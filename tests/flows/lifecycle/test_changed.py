"""Recall after a fact has changed: a question finds the new statement, and the old one is left out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.models.minilm import MiniLM
from recollect.testing import ManualClock
from recollect.types import Context
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import facts

DAY = timedelta(days=1)

CHANGES = [
    # earlier statement, later statement, question, text that must not be recalled as current
    ("I live in Lisbon.", "No, I moved to Porto.", "Where do I live?", "Lisbon"),
    ("I live in Lisbon.", "Actually we have relocated to Porto last week", "Where do I live?", "live in Lisbon"),
    ("I live in Lisbon.", "I'm not in Lisbon any more, I live in Porto now", "Where do I live?", "I live in Lisbon"),
    ("I'm based in Lisbon.", "We moved to Porto last month.", "Which city do I live in?", "Lisbon"),
    ("I live in Portugal.", "I have relocated to Spain.", "Which country do I live in?", "Portugal"),
    ("I work at Siemens.", "I started working at Bosch last month.", "Where do I work?", "Siemens"),
    ("I work at Siemens.", "I switched jobs, I work at Bosch now.", "Where do I work?", "Siemens"),
    ("I work at Siemens.", "I got a new job at Bosch.", "Who do I work for?", "Siemens"),
    ("I work at Siemens.", "I quit my job at Siemens.", "Where do I work?", "work at Siemens"),
    ("My job title is data engineer.", "My job title is now staff engineer.", "What is my job title?", "data engineer"),
    ("I like coffee.", "I don't drink coffee any more.", "Do I like coffee?", "like coffee"),
    ("I like coffee.", "I don't drink coffee any more.", "Do I drink coffee?", "like coffee"),
    ("I drink coffee.", "I stopped drinking coffee.", "Do I drink coffee?", "I drink coffee"),
    ("I like cilantro.", "I can't stand cilantro.", "Do I like cilantro?", "like cilantro"),
    (
        "I prefer tea over coffee.",
        "I prefer coffee over tea these days.",
        "What do I prefer, tea or coffee?",
        "tea over",
    ),
    ("My name is Ana.", "No, my name is Anna.", "What is my name?", "Ana."),
    ("My name is Katherine.", "Please call me Kate.", "What is my name?", "Katherine"),
    ("I am vegetarian.", "I'm a vegan now.", "What is my diet, am I vegetarian or vegan?", "I am vegetarian"),
    ("My email is ada@old.example.", "My new email is ada@new.example.", "What is my email?", "ada@old"),
    ("My wife's birthday is 3 May.", "No, my wife's birthday is 4 May.", "When is my wife's birthday?", "3 May"),
    ("My favourite colour is teal.", "My favorite colour is red.", "What is my favourite colour?", "teal"),
    ("I am allergic to peanuts.", "I am not allergic to peanuts.", "Am I allergic to peanuts?", "am allergic"),
]

BOTH_HOLD = [
    "My sister moved to Porto.",
    "My sister has relocated to Porto last week.",
    "I might move to Porto.",
    "I'm thinking about moving to Porto.",
    "If I moved to Porto, I would rent a flat.",
    "I'm in Porto for a week.",
    "I'm not in the office any more, I work from Porto this week.",
    "Did you know that we moved to Postgres?",
    "We moved to Postgres.",
]


async def say(memory: AgentMemory, clock: ManualClock, session: str, text: str, answer: str = "I see.") -> None:
    await memory.scoped(session=session).record_turn(text, answer)
    await memory.lifecycle.run_once()
    clock.forward(3 * DAY)


async def ask(memory: AgentMemory, question: str, **options: object) -> Context:
    return await memory.scoped(session="new").recall(question, **options)  # type: ignore[arg-type]


class TestQuestionAfterChange:
    @pytest.mark.parametrize(("earlier", "later", "question", "outdated"), CHANGES)
    async def test_question_is_answered_by_current_statement(
        self, real: AgentMemory, clock: ManualClock, earlier: str, later: str, question: str, outdated: str
    ):
        await say(real, clock, "s-1", earlier)
        await say(real, clock, "s-2", later)
        context = await ask(real, question)
        assert later in context.text
        assert outdated not in context.text.replace(later, "")
        assert context.hits[0].relevance >= 0.5

    @pytest.mark.parametrize(("earlier", "later", "question", "outdated"), CHANGES[:3])
    async def test_semantic_search_returns_current_fact_first(
        self, real: AgentMemory, clock: ManualClock, earlier: str, later: str, question: str, outdated: str
    ):
        await say(real, clock, "s-1", "The cello is out of tune.")
        await say(real, clock, "s-2", later)
        [hit, *_] = await real.semantic.search(question)
        assert hit.item.content == later
        assert hit.why.cosine is not None
        assert hit.why.cosine > 0.4

    async def test_question_as_of_past_is_answered_by_old_statement(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        then = clock.now
        clock.forward(DAY)
        await say(real, clock, "s-2", "No, I moved to Porto.")
        for tiers in (None, ["conversation"], ["episodic", "semantic"]):
            context = await ask(real, "Where do I live?", as_of=then, tiers=tiers)
            assert "I live in Lisbon." in context.text
            assert "Porto" not in context.text

    async def test_unrelated_question_does_not_return_changed_facts(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon. The cello teacher is called Miriam.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        context = await ask(real, "Who is the cello teacher?")
        assert "The cello teacher is called Miriam." in context.text
        assert "Lisbon" not in context.text
        assert "Porto" not in context.text
        assert not await ask(real, "How do volcanoes erupt?")
        context = await ask(real, "Where do I live?")
        assert [hit.item.content for hit in context.hits] == ["No, I moved to Porto."]

    async def test_question_about_the_past_marks_old_statement_as_ended(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        context = await ask(real, "Where did I live before?")
        assert "- I live in Lisbon. (2026-01-01, no longer so since 2026-01-04)" in context.text

    @pytest.mark.parametrize("question", ["Where were we?", "Let's continue."])
    async def test_question_about_last_session_returns_its_messages(
        self, real: AgentMemory, clock: ManualClock, question: str
    ):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-1", "No, I moved to Porto.")
        context = await ask(real, question)
        assert "- I live in Lisbon. (2026-01-01, no longer so since 2026-01-04)" in context.text
        assert "No, I moved to Porto." in context.text


class TestSupersededStatements:
    @pytest.mark.parametrize("later", BOTH_HOLD)
    async def test_statement_is_recalled_while_nothing_supersedes_it(
        self, real: AgentMemory, clock: ManualClock, later: str
    ):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", later)
        context = await ask(real, "Where do I live?")
        assert "I live in Lisbon." in context.text
        assert not [out for out in context.left_out if "superseded" in out.reason]

    async def test_left_out_statement_names_its_successor(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        context = await ask(real, "Where do I live?")
        [porto] = [hit.item for hit in context.hits]
        superseded = [(out.item.content, out.reason) for out in context.left_out if out.item.id != porto.id]
        assert superseded == [("I live in Lisbon.", f"superseded by item {porto.id} on 2026-01-04")]
        assert f"superseded by item {porto.id}" in context.explain()
        assert porto.id not in {out.item.id for out in context.left_out}

    async def test_superseded_match_returns_its_successor(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada")  # matches by shared terms only
        await say(memory, clock, "s-1", "I like coffee.")
        await say(memory, clock, "s-2", "I don't drink coffee any more.")
        context = await ask(memory, "What do I like?")
        assert [hit.item.content for hit in context.hits] == ["I don't drink coffee any more."]
        assert "in place of what the question is about" in context.explain()

    async def test_superseded_episode_is_left_out(self, real: AgentMemory, clock: ManualClock):
        await real.scoped(session="s-1").episodic.store("I live in Lisbon.")
        await real.lifecycle.run_once()
        clock.forward(timedelta(hours=1))
        await real.scoped(session="s-2").episodic.store("No, I moved to Porto.")
        await real.lifecycle.run_once()
        clock.forward(timedelta(hours=1))
        context = await ask(real, "Where do I live?")
        assert "Lisbon" not in context.text
        assert "No, I moved to Porto." in context.text

    async def test_superseded_assistant_message_is_left_out(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "Where do I live?", "As you told me, you live in Lisbon. Lovely city!")
        await say(real, clock, "s-3", "No, I moved to Porto.")
        context = await ask(real, "Where do I live?")
        assert "live in Lisbon" not in context.text
        assert "No, I moved to Porto." in context.text

    @pytest.mark.parametrize("summed_up", ["before the move", "after it"])
    async def test_superseded_statement_in_summary_is_left_out(
        self, real: AgentMemory, clock: ManualClock, summed_up: str
    ):
        talk = real.scoped(session="long")
        await say(real, clock, "long", "I live in Lisbon.")
        if summed_up == "after it":
            await say(real, clock, "s-2", "No, I moved to Porto.")
        for n in range(40):
            await talk.record_turn(f"String {n} of the cello is out of tune again, as it was {n} days ago.", "Turn it.")
        assert "I live in Lisbon." in (await talk.conversation.summary() or "")
        clock.forward(DAY)
        if summed_up == "before the move":
            await say(real, clock, "s-2", "No, I moved to Porto.")
        context = await talk.recall("Where do I live?")
        assert "Lisbon" not in context.text
        assert "No, I moved to Porto." in context.text

    async def test_paraphrase_of_superseded_statement_is_left_out(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "As you know, I still live in Lisbon.")
        await say(real, clock, "s-3", "No, I moved to Porto.")
        assert "Lisbon" not in (await ask(real, "Where do I live?")).text

    async def test_restored_statement_is_recalled(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        await say(real, clock, "s-3", "I live in Lisbon again.")
        context = await ask(real, "Where do I live?")
        assert "I live in Lisbon again." in context.text
        assert "Porto" not in context.text
        assert "I live in Lisbon." not in [out.item.content for out in context.left_out if "superseded" in out.reason]

    async def test_newer_statement_not_yet_processed_is_recalled(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        await real.scoped(session="s-3").record_turn("I live in Braga now.", "I see.")  # not processed by a run yet
        clock.forward(DAY)
        context = await ask(real, "Where do I live?")
        assert "I live in Braga now." in context.text
        assert "Lisbon" not in context.text

    async def test_less_trusted_statement_does_not_supersede(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await real.scoped(session="s-2").record_turn("No, I moved to Porto.", "I see.", metadata={"trust": 0.6})
        await real.lifecycle.run_once()
        clock.forward(DAY)
        await real.semantic.forget((await real.semantic.search("I live in Lisbon."))[0].item.id)
        assert "I live in Lisbon." in (await ask(real, "Where do I live?")).text

    async def test_superseded_statement_among_many_is_left_out(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I like coffee.")
        await say(real, clock, "s-2", "I don't drink coffee any more.")
        for thing in ("jazz", "rain", "trains", "chess", "mangos", "tulips", "maps", "sailing", "owls"):
            await say(real, clock, "s-3", f"I like {thing}.")
        context = await ask(real, "Do I like coffee?")
        assert "I like coffee." not in context.text
        assert "I don't drink coffee any more." in context.text

    async def test_chain_of_changes_returns_only_the_last_value(self, real: AgentMemory, clock: ManualClock):
        towns = ("Lisbon", "Porto", "Braga", "Faro", "Coimbra")
        for at, town in enumerate(towns):
            await say(real, clock, f"s-{at}", f"I moved to {town}." if at else f"I live in {town}.")
        context = await ask(real, "Where do I live?")
        assert [town for town in towns if town in context.text] == ["Coimbra"]

    async def test_statement_to_another_agent_supersedes(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real.scoped(agent="other"), clock, "s-2", "No, I moved to Porto.")
        context = await ask(real, "Where do I live?")
        assert "superseded by item" in context.explain()
        assert "Lisbon" not in context.text
        assert "No, I moved to Porto." in context.text

    async def test_statement_of_another_user_does_not_supersede(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real.scoped(user="bob"), clock, "s-2", "No, I moved to Porto.")
        assert "I live in Lisbon." in (await ask(real, "Where do I live?")).text

    async def test_superseded_statement_stays_out_when_successor_is_forgotten(
        self, real: AgentMemory, clock: ManualClock
    ):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        [porto] = [hit.item for hit in (await ask(real, "Where do I live?")).hits]
        assert await real.semantic.forget(porto.id)
        context = await ask(real, "Where do I live?")
        assert "Lisbon" not in context.text
        assert "superseded on 2026-01-04" in context.explain()

    async def test_successor_is_not_returned_from_unrequested_tier(self, real: AgentMemory, clock: ManualClock):
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "No, I moved to Porto.")
        context = await ask(real, "Where do I live?", tiers=["conversation", "episodic"])
        assert "Lisbon" not in context.text
        assert {hit.tier for hit in context.hits} <= {"conversation", "episodic"}


class TestPlainWording:
    """The first-person paraphrase that is stored in the metadata of a fact."""

    @pytest.fixture
    async def moved(self, real: AgentMemory, clock: ManualClock) -> AgentMemory:
        await say(real, clock, "s-1", "I live in Lisbon.")
        await say(real, clock, "s-2", "I'm vegetarian and I moved to Porto.")
        return real

    async def test_plain_wording_is_in_metadata_and_not_in_content(self, moved: AgentMemory):
        [hit, *_] = await moved.semantic.search("Where do I live?")
        assert hit.item.content == "I'm vegetarian and I moved to Porto."
        assert hit.item.metadata["plainly"] == "I live in Porto"

    async def test_plain_wording_is_dropped_when_its_clause_ends(self, moved: AgentMemory, clock: ManualClock):
        await say(moved, clock, "s-3", "I moved to Braga.")
        [left] = [
            hit.item for hit in await moved.semantic.search("Am I vegetarian?") if "vegetarian" in hit.item.content
        ]
        assert left.content == "I'm vegetarian"
        assert "plainly" not in left.metadata

    async def test_plain_wording_survives_reembedding(self, opener: Opener, clock: ManualClock, minilm: MiniLM):
        memory = await opener(user="ada")
        await say(memory, clock, "s-1", "No, I moved to Porto.")
        await memory.reembed(minilm)
        [hit] = await memory.semantic.search("Where do I live?", mode="dense")
        assert hit.why.cosine is not None
        assert hit.why.cosine > 0.4

    async def test_plain_wording_survives_consolidation(self, moved: AgentMemory):
        await moved.remember("Metric units are preferred.")
        await moved.remember("Metric units are preferred!")
        assert (await moved.semantic.consolidate()).merged
        assert "I moved to Porto" in (await ask(moved, "Where do I live?")).text

    async def test_plain_wording_survives_export_to_another_user(
        self, real: AgentMemory, opener: Opener, clock: ManualClock, minilm: MiniLM, tmp_path: Path
    ):
        await real.remember("I live in Lisbon.")
        clock.forward(DAY)
        await say(real, clock, "s-1", "As you know, I still live in Lisbon.")
        await say(real, clock, "s-2", "I'm vegetarian and I moved to Porto.")
        await real.scoped(session="s-2").conversation.clear()
        await real.export(tmp_path / "ada.jsonl")
        bob = await opener(store="memory://", user="bob", embedder=minilm)
        await bob.import_from(tmp_path / "ada.jsonl")
        context = await ask(bob, "Where do I live?")
        assert "I moved to Porto" in context.text
        assert "Lisbon" not in context.text
        [lisbon] = [out.reason for out in context.left_out if "Lisbon" in out.item.content]
        assert "superseded by item" in lisbon
        [old] = [item for item in await facts(bob) if "Lisbon" in item.content]
        assert old.metadata["ended_by"] == old.superseded_by
