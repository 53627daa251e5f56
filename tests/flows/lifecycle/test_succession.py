"""Later statements supersede earlier ones across sessions and wordings, and compatible ones do not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.cases import Case
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, facts
from tests.unit.lifecycle.labelled_pairs import TUNING_PAIRS

DAY = timedelta(days=1)
CHANGES = [(earlier, later) for earlier, later, ended in TUNING_PAIRS if ended]
BOTH_STAY = [(earlier, later) for earlier, later, ended in TUNING_PAIRS if not ended]


async def say(memory: AgentMemory, clock: ManualClock, text: str, session: str = "s-1") -> None:
    await memory.scoped(session=session).record_turn(text, "I see.")
    await memory.lifecycle.run_once()
    clock.forward(DAY)


async def test_later_statement_supersedes_one_of_another_session(opener: Opener, clock: ManualClock):
    assert CHANGES
    failures: list[str] = []
    for earlier, later in CHANGES:
        memory = await opener(user="ada")
        with Case(failures, earlier, later):
            await say(memory, clock, earlier, "s-1")
            before = clock.now
            await say(memory, clock, later, "s-2")
            assert earlier not in await contents(memory)
            assert later in await contents(memory)
            [old] = [item for item in await facts(memory) if item.content == earlier]
            assert old.live_at(before - timedelta(hours=1))
            assert not (await memory.lifecycle.run_once()).promoted
    assert not failures, "\n".join(failures)


async def test_later_statement_supersedes_remembered_fact_without_key(opener: Opener, clock: ManualClock):
    assert CHANGES
    failures: list[str] = []
    for earlier, later in CHANGES:
        memory = await opener(user="ada")
        with Case(failures, earlier, later):
            await memory.remember(earlier)
            clock.forward(DAY)
            await say(memory, clock, later)
            assert earlier not in await contents(memory)
            assert later in await contents(memory)
    assert not failures, "\n".join(failures)


async def test_compatible_statement_supersedes_nothing(opener: Opener, clock: ManualClock):
    assert BOTH_STAY
    failures: list[str] = []
    for earlier, later in BOTH_STAY:
        memory = await opener(user="ada")
        with Case(failures, earlier, later):
            await memory.remember(earlier)
            clock.forward(DAY)
            await say(memory, clock, later)
            assert earlier in await contents(memory)
    assert not failures, "\n".join(failures)


async def test_search_returns_new_value_and_as_of_the_old_value(opener: Opener, clock: ManualClock):
    memory = await opener(user="ada")
    await say(memory, clock, "I live in Lisbon.", "s-1")
    then = clock.now
    clock.forward(DAY)
    await say(memory, clock, "No, I moved to Porto.", "s-2")
    hits = await memory.semantic.search("live moved Lisbon Porto", min_relevance=0.0)
    assert [hit.item.content for hit in hits] == ["No, I moved to Porto."]
    hits = await memory.semantic.search("live moved Lisbon Porto", min_relevance=0.0, as_of=then)
    assert [hit.item.content for hit in hits] == ["I live in Lisbon."]


async def test_superseding_one_clause_keeps_the_other_clause(memory: AgentMemory, clock: ManualClock):
    await memory.remember("I'm vegetarian and I live in Lisbon.")
    clock.forward(DAY)
    await say(memory, clock, "I live in Porto now.")
    assert sorted(await contents(memory)) == ["I live in Porto now.", "I'm vegetarian"]
    [whole] = [item for item in await facts(memory) if item.content == "I'm vegetarian and I live in Lisbon."]
    [left] = [item for item in await facts(memory) if item.content == "I'm vegetarian"]
    assert left.derived_from == (whole.id,)
    await say(memory, clock, "I'm not vegetarian anymore.")
    assert sorted(await contents(memory)) == ["I live in Porto now.", "I'm not vegetarian anymore."]


async def test_keyed_pinned_and_web_facts_are_not_superseded(memory: AgentMemory, clock: ManualClock):
    await memory.remember("I live in Lisbon.", key="user.home")
    await memory.remember("I live in Rome.", pinned=True)
    await memory.remember("I live in Bonn.", source="web", trust=0.3)
    clock.forward(DAY)
    await say(memory, clock, "No, I moved to Porto.")
    assert sorted(await contents(memory)) == [
        "I live in Bonn.",
        "I live in Lisbon.",
        "I live in Rome.",
        "No, I moved to Porto.",
    ]


@pytest.mark.parametrize("sessions", ["abc", "cba", "bac"])
async def test_latest_statement_wins_in_any_read_order(memory: AgentMemory, clock: ManualClock, sessions: str):
    said = ("I live in Oslo.", "I live in Bergen.", "I don't live in Bergen anymore.")
    for session, text in zip(sessions, said, strict=True):
        await memory.scoped(session=session).conversation.add_message("user", text)
        clock.forward(DAY)
    await memory.lifecycle.run_once()
    assert await contents(memory) == ["I don't live in Bergen anymore."]


async def test_older_statement_read_later_is_history(memory: AgentMemory, clock: ManualClock):
    here = memory.scoped(session="s")
    await here.episodic.store("I'm vegetarian and I live in Bergen.")
    clock.forward(DAY / 2)
    await here.conversation.add_message("user", "I don't live in Bergen anymore.")  # conversations are read first
    await memory.lifecycle.run_once()
    assert sorted(await contents(memory)) == ["I don't live in Bergen anymore.", "I'm vegetarian"]


async def test_superseded_fact_is_not_deleted_as_duplicate(memory: AgentMemory, clock: ManualClock):
    await memory.remember("I live in Lisbon.", importance=0.9)
    clock.forward(DAY)
    await say(memory, clock, "No, I moved to Porto.")
    for _ in range(3):
        clock.forward(30 * DAY)
        await memory.lifecycle.run_once()
    assert "I live in Lisbon." in [item.content for item in await facts(memory)]


async def test_paraphrase_adds_no_item(memory: AgentMemory, clock: ManualClock):
    await memory.remember("I live in Porto.")
    clock.forward(DAY)
    for text in ("I still live in Porto.", "I moved to Porto.", "I now live in Porto.", "I am living in Porto now."):
        await say(memory, clock, text)
    assert await contents(memory) == ["I live in Porto."]


async def test_plan_and_report_name_the_superseded_fact(memory: AgentMemory, clock: ManualClock):
    lisbon = await memory.remember("I live in Lisbon.")
    clock.forward(DAY)
    await memory.scoped(session="s").record_turn("I live in Porto now.", "ok")
    plan = await memory.lifecycle.plan()
    assert f"ends {lisbon.id}" in plan.promoted[0].reason
    assert await contents(memory) == ["I live in Lisbon."]
    report = await memory.lifecycle.run_once()
    assert [action.reason for action in report.promoted] == [action.reason for action in plan.promoted]


async def test_superseded_fact_is_found_among_300_facts(memory: AgentMemory, clock: ManualClock):
    await memory.remember("I live in Lisbon.")
    for n in range(300):
        await memory.remember(f"The band moved on to hall {n} and played live for the people who live there.")
    clock.forward(DAY)
    await say(memory, clock, "No, I moved to Porto.")
    assert "I live in Lisbon." not in await contents(memory)
