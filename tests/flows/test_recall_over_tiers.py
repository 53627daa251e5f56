"""Recall over all tiers: sections, relevance, budget, duplicates, and tiers that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery, StoreError
from recollect.language.analysis import count_tokens
from recollect.language.recalled_text import is_recalled
from recollect.stores.writes import Append
from recollect.testing import ManualClock
from recollect.types import Context
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener, indexed

OFF_TOPIC = (
    "How do volcanoes erupt?",
    "What is the capital of Mongolia?",
    "Who painted the Mona Lisa?",
    "How is cheese made?",
    "When did the Roman Empire fall?",
)


async def store_working_day(memory: AgentMemory, clock: ManualClock) -> None:
    """Store a working day: facts, a procedure with outcomes, turns and a decision."""
    await memory.semantic.add_many(
        {"content": fact}
        for fact in (
            "Ada prefers metric units in every report.",
            "The invoice export times out above 10,000 rows.",
            "Mina, Ada's daughter, started school in Lisbon.",
        )
    )
    await memory.procedural.save("export.invoices", "Split the invoice export by month.", tags=["export"])
    for success in (True, True, False):
        await memory.procedural.record_outcome("export.invoices", success)
    for user, assistant in (
        ("The invoice export for Contoso fails.", "I will look at the logs."),
        ("It says something about a timeout.", "The export failed with E1047 after 30 seconds."),
        ("The client is angry, they waited two days.", "I drafted an apology."),
    ):
        clock.forward(timedelta(minutes=1))
        await memory.record_turn(user, assistant)
    clock.forward(timedelta(minutes=1))
    await memory.episodic.store("Retry with batches of 1,000 rows.", kind="decision")
    clock.forward(timedelta(minutes=1))


async def add_long_conversation(memory: AgentMemory, first_text: str) -> None:
    """Add so many messages that a summary replaces the first ones."""
    for text in (first_text, *(f"Plain remark number {number} about the weather in March." for number in range(46))):
        await memory.conversation.add_message("user", text)


def contents(context: Context, tier: str) -> list[str]:
    """Return the texts of a tier in the order of the block."""
    if tier == "working":
        return [hit.item.content for hit in context.hits if hit.tier == tier]
    return [line.hit.item.content for line in context.lines if line.hit is not None and line.hit.tier == tier]


@pytest.fixture
async def day(opener: Opener, clock: ManualClock) -> AgentMemory:
    memory = await opener(user="ada", session="s-3")
    await store_working_day(memory, clock)
    return memory


@pytest.fixture
async def real_day(opener: Opener, clock: ManualClock, minilm) -> AgentMemory:
    memory = await opener(user="ada", session="s-3", embedder=minilm)
    await store_working_day(memory, clock)
    return memory


class TestSections:
    async def test_context_has_a_section_per_tier_in_order(self, day: AgentMemory):
        day.working.set_task("Get the invoice export of Contoso through")
        context = await day.recall("invoice export")
        assert [line for line in str(context).splitlines() if line.startswith("#")] == [
            "## Current session",
            "## Recent context",
            "## Relevant knowledge",
            "## Known procedures",
        ]
        assert context.sections["Current session"] == ("Task: Get the invoice export of Contoso through",)
        assert "- The invoice export for Contoso fails. (2026-01-01)" in context.sections["Recent context"]
        assert "- The invoice export times out above 10,000 rows. (2026-01-01)" in str(context)
        assert "worked 2 of 3 times)" in context.sections["Known procedures"][0]
        assert {hit.tier for hit in context.hits} == {"working", "episodic", "semantic", "procedural"}

    async def test_episodes_are_listed_newest_last(self, day: AgentMemory):
        assert contents(await day.recall("Where were we?"), "episodic") == [
            "It says something about a timeout.",
            "The export failed with E1047 after 30 seconds.",
            "The client is angry, they waited two days.",
            "I drafted an apology.",
            "Retry with batches of 1,000 rows.",
        ]

    async def test_hits_carry_the_items_of_their_tiers(self, day: AgentMemory):
        context = await day.recall("Where were we?", tiers=["episodic"])
        newest = context.hits[0]
        stored = (await day.episodic.get_recent(1))[0]
        assert (newest.item.id, newest.item.tier, newest.tier) == (stored.id, "episodic", "episodic")
        assert (newest.item.created_at, newest.item.importance) == (stored.at, stored.importance)
        assert newest.item.turn is not None
        assert newest.item.turn.session == "s-3"
        assert "newest of its session" in str(newest.why)
        assert "newest of its session" in context.explain()

    async def test_recall_finds_the_summary_and_older_messages(self, memory: AgentMemory):
        talk = memory.scoped(session="long").conversation
        await add_long_conversation(memory.scoped(session="long"), "The cello of my grandmother is in the attic.")
        context = await memory.scoped(session="long").recall("cello grandmother attic")
        assert "cello of my grandmother is in the attic" in " ".join(context.sections["Current session"])
        assert await talk.summary()
        leaning = await memory.scoped(session="long").recall("Where were we?")
        assert "- earlier in this session: " in str(leaning)

    async def test_stale_summary_of_a_cleared_conversation_is_ignored(self, memory: AgentMemory):
        """A summarizer may finish after the clear. Mutant: its summary is used."""
        here = memory.scoped(session="long")
        await add_long_conversation(here, "The cello of my grandmother is in the attic.")
        log = memory._engine.stores.log("conversation")
        [late] = await log.recent(here.conversation._space, limit=1, kinds=("summary",))
        await here.conversation.clear()
        await here.conversation.add_message("user", "Anew, about the weather.")
        await log.append(Append(space=here.conversation._space, entry=replace(late, content="We spoke of the cello.")))
        assert contents(await here.recall("Where were we?"), "conversation") == ["Anew, about the weather."]
        assert "cello" not in str(await here.recall("What did we say of the cello?"))

    async def test_recall_as_of_uses_the_summary_of_that_time(self, memory: AgentMemory, clock: ManualClock):
        """Mutant: the current summary of the conversation is used."""
        here = memory.scoped(session="long")
        await add_long_conversation(here, "The cello of my grandmother is in the attic.")
        then = clock()
        clock.forward(timedelta(days=1))
        await add_long_conversation(here, "The harp of my aunt is in the cellar.")
        assert "harp" in str(await here.recall("Where were we with the harp?"))
        recalled = str(await here.recall("Where were we with the cello and the harp?", as_of=then))
        assert "- earlier in this session: " in recalled
        assert ("cello" in recalled, "harp" in recalled) == (True, False)

    async def test_instructions_are_not_recalled(self, memory: AgentMemory):
        await memory.conversation.add_message("system", "Speak of the cello in verse.")
        assert not await memory.recall("cello verse")

    async def test_recall_returns_nothing_of_other_scopes(self, day: AgentMemory):
        day.working.set_task("Get it through")
        for other in (day.scoped(user="bob"), day.scoped(tenant="else")):
            assert not await other.recall("Where were we with the invoice export?", tiers=["episodic", "conversation"])
            assert not contents(await other.recall("invoice export"), "semantic")
            assert not contents(await other.recall("invoice export"), "working")


class TestRelevance:
    async def test_recall_unrelated_question_returns_nothing(self, real_day: AgentMemory):
        for question in OFF_TOPIC:
            context = await real_day.recall(question)
            assert not context, f"{question} was answered with {context}"
            assert (str(context), context.tokens, context.hits) == ("", 0, ())

    async def test_episodes_are_found_by_their_terms(self, real_day: AgentMemory):
        context = await real_day.recall("E1047 export")
        assert "The export failed with E1047 after 30 seconds." in contents(context, "episodic")
        assert "e1047" in str(context.explain())

    async def test_episodes_are_found_by_meaning(self, real_day: AgentMemory):
        context = await real_day.recall("Did the customer complain?")
        assert contents(context, "episodic") == ["The client is angry, they waited two days."]

    async def test_session_reference_returns_recent_episodes(self, real_day: AgentMemory):
        for question in ("Where were we?", "What have we tried so far?", "continue"):
            recalled = contents(await real_day.recall(question), "episodic")
            assert recalled[-1] == "Retry with batches of 1,000 rows."
            assert len(recalled) == 5

    async def test_current_task_is_always_shown(self, real_day: AgentMemory):
        real_day.working.set_task("Get the export through")
        context = await real_day.recall(OFF_TOPIC[0])
        assert str(context) == "## Current session\nTask: Get the export through"
        assert [hit.tier for hit in context.hits] == ["working"]

    async def test_episodes_of_other_sessions_are_found_by_their_terms(self, day: AgentMemory):
        context = await day.scoped(session="s-4").recall("E1047 export")
        assert context.sections["Recent context"] == (
            "- assistant: The export failed with E1047 after 30 seconds. (2026-01-01)",
        )
        assert contents(context, "episodic") == ["The export failed with E1047 after 30 seconds."]
        assert [hit.item.turn.session for hit in context.hits if hit.item.turn is not None] == ["s-3"]

    async def test_last_time_refers_to_the_previous_session_until_this_one_has_content(
        self, day: AgentMemory, clock: ManualClock
    ):
        fresh = day.scoped(session="s-4")
        assert contents(await fresh.recall("Where were we last time?"), "episodic")[-1] == (
            "Retry with batches of 1,000 rows."
        )
        await fresh.episodic.store("A new day began.")
        assert contents(await fresh.recall("Where were we last time?"), "episodic") == ["A new day began."]

    async def test_higher_min_relevance_returns_fewer_hits(self, day: AgentMemory):
        every = await day.recall("invoice export", min_relevance=0.0)
        some = await day.recall("invoice export", min_relevance=0.85)
        assert 0 < len(some) < len(every)
        assert all(hit.relevance >= 0.85 for hit in some)

    async def test_second_recall_embeds_only_the_question(self, opener: Opener, clock: ManualClock):
        embedder = HashEmbedder()
        memory = await opener(user="ada", session="s-3", embedder=embedder)
        await store_working_day(memory, clock)
        for number in range(40):
            await memory.record_turn(f"Remark number {number} about the weather in the mountains of Norway.")
        assert await memory.conversation.summary()
        await memory.recall("Where were we with the invoice export?")
        embedder.seen.clear()
        await memory.recall("Where were we with the weather of Norway?")
        assert embedder.seen == ["Where were we with the weather of Norway?"]


class TestBounds:
    async def test_n_limits_hits(self, day: AgentMemory):
        for limit in (1, 2, 7):
            context = await day.recall("Which client waits for the invoice export?", limit, min_relevance=0.0)
            assert len([hit for hit in context.hits if hit.tier not in ("working", "procedural")]) == limit
        best = await day.recall("E1047 export", 1, tiers=["episodic"], min_relevance=0.0)
        assert contents(best, "episodic") == ["The export failed with E1047 after 30 seconds."]
        assert not await day.recall("Where were we?", 0)

    async def test_recall_queries_only_requested_tiers(self, day: AgentMemory):
        day.working.set_task("Get the invoice export through")
        for tier in ("working", "episodic", "conversation", "semantic", "procedural"):
            context = await day.recall("invoice export", tiers=[tier])
            assert {hit.tier for hit in context.hits} == {tier}
        assert not await day.recall("invoice export", tiers=[])

    @pytest.mark.parametrize("budget", [*range(1, 60, 7), 80, 120, 200, 10_000])
    async def test_recall_keeps_within_the_token_budget(self, day: AgentMemory, budget: int):
        day.working.set_task("Get the invoice export of Contoso through")
        context = await day.recall("Where were we with the invoice export?", budget=budget)
        assert context.tokens == count_tokens(str(context))
        assert context.tokens <= budget
        full = await day.recall("Where were we with the invoice export?")
        assert len(context.hits) + len(context.left_out) == len(full.hits) + len(full.left_out)
        if budget >= 22:
            assert context.hits[0].tier == "working"

    @pytest.mark.parametrize("budget", [0, -1, True, 1.5, "9"])
    async def test_invalid_budget_raises_bad_input(self, memory: AgentMemory, budget: object):
        with pytest.raises(BadInput, match="budget must be"):
            await memory.recall("cello", budget=budget)  # type: ignore[arg-type]

    async def test_recall_bad_input_raises_for_every_tier(self, memory: AgentMemory):
        for options in ({"min_relevance": 2}, {"where": "x"}, {"as_of": "now"}):
            with pytest.raises(BadInput):
                await memory.recall("cello", tiers=["episodic"], **options)
        with pytest.raises(BadQuery):
            await memory.recall("cello", -1, tiers=["working"])
        with pytest.raises(BadInput, match="episodic"):
            await memory.recall("cello", tiers=["episodes"])  # type: ignore[list-item]

    async def test_where_filter_applies_to_every_tier(self, memory: AgentMemory):
        await memory.remember("cello in the attic", metadata={"room": "attic"})
        await memory.episodic.store("cello was tuned", metadata={"room": "attic"})
        await memory.episodic.store("cello was sold", metadata={"room": "shop"})
        await memory.procedural.save("cello.tune", "Turn the pegs of the cello.")
        context = await memory.recall("cello", where={"room": "attic"}, min_relevance=0.0)
        assert {hit.item.content for hit in context.hits} == {"cello in the attic", "cello was tuned"}


class TestDuplicates:
    async def test_turn_in_two_tiers_is_shown_once(self, day: AgentMemory):
        context = await day.recall("Why does the invoice export for Contoso fail?")
        assert str(context).count("The invoice export for Contoso fails.") == 1
        out = [entry for entry in context.left_out if entry.item.tier == "conversation"]
        assert "already shown in Recent context" in {entry.reason for entry in out}

    async def test_fact_hides_the_episode_with_the_same_content(self, day: AgentMemory):
        await day.remember("THE INVOICE EXPORT for Contoso fails")
        context = await day.recall("Why does the invoice export for Contoso fail?")
        assert str(context).casefold().count("the invoice export for contoso fails") == 1
        assert "THE INVOICE EXPORT for Contoso fails" in contents(context, "semantic")

    async def test_lesson_of_a_task_hides_its_episodes(self, memory: AgentMemory):
        await memory.start_task("Tune the cello")
        await memory.record_step("The pegs slip.", "chalk the cello pegs", "the cello holds its tune")
        await memory.end_task(True, "The cello is in tune.")
        context = await memory.recall("How was the cello tuned?", min_relevance=0.2)
        assert contents(context, "semantic")
        assert contents(context, "episodic") == []
        assert {"already shown in Relevant knowledge"} == {
            entry.reason for entry in context.left_out if entry.item.tier == "episodic"
        }

    async def test_current_task_is_not_repeated_as_an_episode(self, memory: AgentMemory):
        await memory.start_task("Tune the cello")
        context = await memory.recall("What are we doing with the cello?")
        assert str(context).count("Tune the cello") == 1

    async def test_recalled_text_in_a_turn_is_not_recalled_again(self, day: AgentMemory):
        block = str(await day.recall("Why does the invoice export fail?"))
        assert is_recalled(block)
        await day.record_turn(f"{block}\n\nPlease answer about the invoice export.", "Yes.")
        await day.conversation.add_message("user", block)
        context = await day.recall("Where were we with the invoice export?", 20)
        assert "- Please answer about the invoice export. (" in str(context)
        assert str(context).count("The invoice export for Contoso fails.") == 1
        assert all("## " not in line for lines in context.sections.values() for line in lines)


class TestAsOf:
    async def test_recall_as_of_returns_only_what_was_stored_then(self, memory: AgentMemory, clock: ManualClock):
        here = memory.scoped(session="s-1")
        await here.procedural.save("cello.tune", "Turn the cello pegs by ear.")
        await here.record_turn("The cello is out of tune.")
        await here.remember("The cello is in the attic.", key="cello.place")
        clock.forward(timedelta(hours=1))
        then = clock()
        clock.forward(timedelta(hours=1))
        await here.procedural.save("cello.tune", "Use the cello tuner.")
        await here.record_turn("The cello was sold.")
        await here.remember("The cello is in the shop.", key="cello.place")
        here.working.set_task("Find another cello")
        context = await here.recall("What happened to our cello?", as_of=then, min_relevance=0.3)
        assert contents(context, "episodic") == ["The cello is out of tune."]
        assert contents(context, "semantic") == ["The cello is in the attic."]
        assert ["by ear" in entry for entry in contents(context, "procedural")] == [True]
        assert contents(context, "working") == []
        assert "sold" not in str(context)
        now = str(await here.recall("What happened to our cello?", min_relevance=0.3))
        assert all(word in now for word in ("sold", "shop", "tuner", "Find another cello"))


class TestUnavailableTier:
    @pytest.fixture
    async def two_files(self, opener: Opener, tmp_path: Path, clock: ManualClock) -> AgentMemory:
        """Open a memory on two files, of which nothing has been read yet."""
        places = {"default": str(tmp_path / "agent.db"), "episodic": str(tmp_path / "episodes.db")}
        memory = await opener(store=places, user="ada", session="s-3")
        await store_working_day(memory, clock)
        await memory.close()
        return await opener(store=places, user="ada", session="s-3")

    async def test_damaged_store_is_skipped_with_a_warning(self, two_files: AgentMemory, tmp_path: Path):
        damage(tmp_path / "episodes.db")
        context = await two_files.recall("invoice export")
        for tier in ("semantic", "procedural", "conversation"):
            assert contents(context, tier), tier
        assert contents(context, "episodic") == []
        assert len(context.warnings) == 1
        assert context.warnings[0].startswith("episodic memory could not be read: ")
        assert context.warnings[0].endswith("; its part is missing")
        assert context.warnings[0] in context.explain()

    async def test_deleted_store_is_skipped_with_a_warning(self, two_files: AgentMemory, tmp_path: Path):
        take_away(tmp_path / "episodes.db")
        context = await two_files.recall("invoice export")
        assert contents(context, "semantic")
        # An open file may still be readable on this platform; otherwise there is a warning.
        recalled = [entry for entry in context.warnings if "episodic memory could not be read" in entry]
        assert contents(context, "episodic") or recalled

    async def test_bad_query_raises_despite_a_damaged_store(self, two_files: AgentMemory, tmp_path: Path):
        damage(tmp_path / "episodes.db")
        with pytest.raises(BadQuery):
            await two_files.recall("invoice", where={"nowhere": 1})

    async def test_recall_raises_if_every_store_is_damaged(self, two_files: AgentMemory, tmp_path: Path):
        damage(tmp_path / "episodes.db")
        damage(tmp_path / "agent.db")
        with pytest.raises(StoreError):
            await two_files.recall("invoice export")
        two_files.working.set_task("Get the export through")
        context = await two_files.recall("invoice export")
        assert contents(context, "working")
        assert len(context.warnings) == 4

    async def test_recall_uses_terms_only_while_the_embedder_is_down(self, opener: Opener, clock: ManualClock):
        embedder = Stopping()
        memory = await opener(user="ada", session="s-3", embedder=embedder)
        await store_working_day(memory, clock)
        await indexed(memory)
        embedder.down = True
        context = await memory.recall("invoice export")
        assert contents(context, "semantic")
        assert contents(context, "episodic")
        assert embedder.asked_in_vain == 1
        assert contents(context, "procedural")
        for tier in ("semantic", "procedural"):
            assert any(f"{tier} memory was searched by terms only" in warning for warning in context.warnings)


class Stopping(HashEmbedder):
    """Embedder that raises while `down` is true, and counts those calls."""

    down = False
    asked_in_vain = 0

    def embed_batch(self, texts):
        if self.down:
            self.asked_in_vain += 1
            raise RuntimeError("no answer")
        return super().embed_batch(texts)


def damage(path: Path) -> None:
    """Overwrite the file and its WAL, as a failing disk would."""
    for file in (path, path.with_name(f"{path.name}-wal")):
        if file.exists():
            file.write_bytes(b"\xaa" * max(file.stat().st_size, 8192))


def take_away(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
