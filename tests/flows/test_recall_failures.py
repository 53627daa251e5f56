"""Recall in another session: old turns, references to the session, confidential turns and echoes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from recollect.types import Context
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener
from tests.unit.retrieval.questions import GENERAL_QUESTIONS

WEDDING = "My sister Joana is getting married on 12 June in Porto."
LATER = (timedelta(hours=24.1), timedelta(days=3), timedelta(days=40))


async def chat(memory: AgentMemory, clock: ManualClock, *turns: tuple[str, str]) -> None:
    for user, assistant in turns:
        clock.forward(timedelta(minutes=1))
        await memory.record_turn(user, assistant)


def get_section(context: Context, section: str = "Recent context") -> str:
    return "\n".join(context.sections.get(section, ()))


@pytest.fixture
async def wedding(opener: Opener, clock: ManualClock) -> AgentMemory:
    """Record an old session and one about a wedding, and return a memory of a third session."""
    memory = await opener(user="ada", session="first")
    await chat(memory, clock, ("The cello is out of tune.", "Turn the pegs."))
    talk = memory.scoped(session="wedding")
    await chat(talk, clock, (WEDDING, "How lovely for her."), ("The flights are not booked yet.", "Understood."))
    return memory.scoped(session="new")


class TestLaterSession:
    @pytest.mark.parametrize("later", LATER, ids=str)
    async def test_recall_where_were_we_returns_the_last_session(
        self, wedding: AgentMemory, clock: ManualClock, later: timedelta
    ):
        clock.forward(later)
        context = await wedding.recall("Where were we?")
        assert get_section(context).splitlines() == [
            f"- {WEDDING} (2026-01-01)",
            "- assistant: How lovely for her. (2026-01-01)",
            "- The flights are not booked yet. (2026-01-01)",
        ]
        assert {hit.tier for hit in context.hits} == {"conversation"}
        assert max(hit.relevance for hit in context.hits) <= 0.75
        assert all("only because it is recent" in str(hit.why) for hit in context.hits)

    async def test_recall_with_min_relevance_zero_returns_unrelated_turns_too(self, wedding: AgentMemory):
        context = str(await wedding.recall("volcanoes", 20, min_relevance=0.0))
        for text in ("The cello is out of tune.", "Turn the pegs.", WEDDING, "How lovely for her."):
            assert text in context

    @pytest.mark.parametrize("later", LATER, ids=str)
    async def test_turns_of_an_old_session_are_found_by_their_terms(
        self, wedding: AgentMemory, clock: ManualClock, later: timedelta
    ):
        clock.forward(later)
        context = await wedding.recall("When is my sister Joana getting married?")
        assert f"- {WEDDING} (2026-01-01)" in get_section(context)
        assert context.hits[0].relevance > 0.8
        assert not await wedding.recall("How do volcanoes erupt?")

    async def test_old_turns_are_found_while_this_session_has_another_topic(
        self, wedding: AgentMemory, clock: ManualClock
    ):
        clock.forward(timedelta(days=3))
        await chat(wedding, clock, ("The invoice export hangs.", "I restart it."))
        assert WEDDING in get_section(await wedding.recall("When is my sister Joana getting married?"))
        assert WEDDING not in str(await wedding.recall("Where were we?"))
        assert "invoice export" in str(await wedding.recall("Where were we?"))

    async def test_greeting_and_the_question_itself_do_not_start_a_session(
        self, wedding: AgentMemory, clock: ManualClock
    ):
        clock.forward(timedelta(days=3))
        await chat(wedding, clock, ("Hi!", "Hello! How can I help you today?"))
        await wedding.conversation.add_message("user", "Where were we?")
        context = await wedding.recall("Where were we?")
        assert WEDDING in get_section(context)
        assert "Where were we?" not in str(context)

    async def test_turn_kept_as_episode_and_message_is_shown_once(self, wedding: AgentMemory):
        for question in ("Where were we?", "When is my sister Joana getting married?"):
            context = await wedding.recall(question)
            assert str(context).count(WEDDING) == 1
            assert "already shown in Recent context" in {omitted.reason for omitted in context.left_out}

    async def test_turns_of_other_scopes_and_instructions_are_hidden(self, wedding: AgentMemory, clock: ManualClock):
        await wedding.scoped(session="wedding").conversation.add_message("system", "Joana is married in verse.")
        clock.forward(timedelta(days=3))
        assert "verse" not in str(await wedding.recall("When is my sister Joana getting married?"))
        for other in (wedding.scoped(user="bob"), wedding.scoped(agent="other"), wedding.scoped(tenant="else")):
            assert not await other.recall("When is my sister Joana getting married?")

    async def test_recall_as_of_excludes_later_turns(self, wedding: AgentMemory, clock: ManualClock):
        then = clock()
        clock.forward(timedelta(days=3))
        await chat(wedding.scoped(session="wedding"), clock, ("Joana is getting married in July now.", "Noted."))
        context = await wedding.recall("When is my sister Joana getting married?", as_of=then)
        assert WEDDING in get_section(context)
        assert "July" not in str(context)

    async def test_turns_are_found_by_meaning_from_a_new_session(self, opener: Opener, clock: ManualClock, minilm):
        memory = await opener(user="ada", session="wedding", embedder=minilm)
        await chat(memory, clock, (WEDDING, "How lovely for her."), ("The flights are not booked yet.", "Understood."))
        clock.forward(timedelta(days=40))
        context = await memory.scoped(session="new").recall("What date is the wedding of Joana?")
        assert WEDDING in get_section(context)


class TestSessionReferences:
    @pytest.fixture
    async def cluster(self, opener: Opener, clock: ManualClock, minilm) -> AgentMemory:
        memory = await opener(user="ada", session="s-1", embedder=minilm)
        await chat(
            memory,
            clock,
            ("My Kubernetes pods keep crashing with OOMKilled.", "The memory limit is 256 MiB; raise it."),
            ("I raised it to 512 MiB.", "Then restart the deployment."),
            ("Restarted, and the ingress answers 502 now.", "Understood."),
        )
        return memory

    async def test_question_about_the_world_returns_nothing_of_the_session(self, cluster: AgentMemory):
        for question in GENERAL_QUESTIONS:
            context = await cluster.recall(question)
            assert not context, f"{question} was answered with {context}"

    async def test_acknowledgements_are_not_quoted(self, cluster: AgentMemory):
        for question in ("and then?", "Where were we?", "go on"):
            context = await cluster.recall(question)
            assert len(context.hits) == 5
            assert "Understood." not in str(context)

    async def test_question_about_the_users_name_returns_the_introduction(self, cluster: AgentMemory):
        bob = cluster.scoped(user="bob", session="s-2")
        await bob.record_turn("Hi, I'm Bob.", "Hello Bob!")
        assert "I'm Bob" in str(await bob.recall("What's my name?"))


class TestConfidentialTurns:
    SECRET = "my salary is 90k at Contoso"

    @pytest.mark.parametrize(
        "turns",
        [
            [(f"Off the record, {SECRET}.", f"Understood, {SECRET}.")],
            [(f"Don't remember this: {SECRET}.", "Understood.")],
            [(f"By the way, {SECRET}.", f"Noted, {SECRET}."), ("Forget I said that.", "Done.")],
            [(f"By the way, {SECRET}.", "Noted."), ("Please don't save this.", "Of course.")],
            [(f"By the way, {SECRET}.", "Noted."), ("Tea?", "Yes."), ("Forget everything I told you.", "Done.")],
        ],
        ids=["off the record", "do not remember", "withdrawn", "request only", "everything"],
    )
    async def test_confidential_turn_is_quoted_in_its_own_session_only(
        self, memory: AgentMemory, clock: ManualClock, turns: list[tuple[str, str]]
    ):
        here, there = memory.scoped(session="a"), memory.scoped(session="b")
        await chat(here, clock, ("The office of Contoso is in Bonn.", "I see."), *turns)
        for later in (timedelta(minutes=1), timedelta(days=2)):
            clock.forward(later)
            for question in ("What is my salary at Contoso?", "Where were we?"):
                assert "90k" not in str(await there.recall(question, 20, min_relevance=0.0))
            assert "90k" in str(await here.recall("What is my salary at Contoso?", 20, min_relevance=0.3))

    async def test_turns_around_a_confidential_turn_are_quoted(self, memory: AgentMemory, clock: ManualClock):
        here, there = memory.scoped(session="a"), memory.scoped(session="b")
        await chat(
            here,
            clock,
            ("The office of Contoso is in Bonn.", "I see."),
            (f"Off the record, {self.SECRET}.", "Understood."),
            ("The parking lot of Contoso is in Cologne.", "I see."),
        )
        clock.forward(timedelta(days=2))
        context = str(await there.recall("Where is the office and the parking lot of Contoso?", min_relevance=0.2))
        assert "Bonn" in context
        assert "Cologne" in context
        assert "90k" not in context

    async def test_forget_that_withdraws_only_the_last_exchange(self, memory: AgentMemory, clock: ManualClock):
        here, there = memory.scoped(session="a"), memory.scoped(session="b")
        await chat(
            here,
            clock,
            ("The office of Contoso is in Bonn.", "I see."),
            ("The parking lot of Contoso is in Cologne.", "I see."),
            ("Forget that.", "Done."),
        )
        context = str(await there.recall("Where is the office and the parking lot of Contoso?", min_relevance=0.2))
        assert "Bonn" in context
        assert "Cologne" not in context


class TestEchoes:
    async def test_recited_memories_are_not_quoted_again(self, memory: AgentMemory, clock: ManualClock):
        here = memory.scoped(session="loop")
        await here.remember("Ada prefers metric units in every report.")
        question = "Which units does Ada prefer in every report?"
        for frame in ("Based on memory", "Oracle speaks"):
            for _ in range(8):
                context = await here.recall(question)
                assert str(context).count(f"{frame}: {frame}") == 0
                assert str(context).count("Ada prefers metric units") <= 2
                await chat(here, clock, (question, f"{frame}: {context.hits[-1].item.content}"))
        facts = [hit for hit in (await here.recall(question)).hits if hit.tier == "semantic"]
        assert [hit.item.content for hit in facts] == ["Ada prefers metric units in every report."]

    async def test_echoes_do_not_displace_other_turns(self, memory: AgentMemory, clock: ManualClock):
        here = memory.scoped(session="loop")
        await chat(here, clock, ("The cello of my grandmother is in the attic.", "Is that so?"))
        await chat(here, clock, ("The bow of the cello of my grandmother is at the luthier.", "Which one?"))
        for _ in range(3):
            await chat(here, clock, ("Tell me.", "You said: The cello of my grandmother is in the attic."))
        context = str(await here.recall("Is the cello of my grandmother in the attic?", 3, min_relevance=0.2))
        assert "luthier" in context
        assert context.count("in the attic") == 1


class TestCompoundQuestions:
    async def test_both_parts_of_a_compound_question_are_answered(self, opener: Opener, minilm):
        memory = await opener(user="ada", embedder=minilm)
        await memory.remember("Ada prefers metric units.")
        await memory.remember("I live in Lisbon.")
        for n in (2, 5):
            context = await memory.recall("Where do I live and which units does Ada prefer?", n)
            assert {hit.item.content for hit in context.hits} == {"Ada prefers metric units.", "I live in Lisbon."}

    async def test_simple_question_is_embedded_once(self, opener: Opener):
        embedder = HashEmbedder()
        memory = await opener(user="ada", embedder=embedder)
        await memory.remember("Ada prefers metric units.")
        await memory.recall("Which units does Ada prefer?")
        embedder.seen.clear()
        await memory.recall("Which units do Ada and Bob prefer in reports?")
        assert embedder.seen == ["Which units do Ada and Bob prefer in reports?"]
