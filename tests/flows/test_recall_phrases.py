"""Recall with several phrasings of a question."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.errors import BadQuery
from tests.flows.conftest import Opener, indexed
from tests.flows.conversation_fixtures import Failing


async def record(memory: AgentMemory) -> AgentMemory:
    old = memory.scoped(session="old")
    await old.record_turn("Nia swells up badly from peanuts.", "Understood.")
    for number in range(30):
        await old.record_turn(f"On day {number} we cooked a stew for the house.", f"Stew number {number} sounds fine.")
    return memory.scoped(session="new")


async def test_phrases_find_what_the_question_alone_does_not(opener: Opener):
    memory = await record(await opener(user="ada", session="old"))
    question = "What may I cook for the house?"
    assert "peanuts" not in str(await memory.recall(question, 3))
    context = await memory.recall([question, "Nia swells up from peanuts"], 3)
    assert "peanuts" in str(context)
    assert context.query == question


async def test_fact_is_found_by_a_phrase(opener: Opener):
    memory = await opener(user="ada", session="s-1")
    await memory.remember("The spare key hangs behind the barometer.")
    for number in range(10):
        await memory.remember(f"Guest number {number} wants to enter the house at noon.")
    context = await memory.recall(["How does a guest enter the house?", "spare key behind the barometer"], 2)
    assert "barometer" in str(context)


async def test_episode_is_found_by_a_phrase(opener: Opener):
    memory = await opener(user="ada", session="s-1")
    await memory.episodic.store("The export failed with E1047.", kind="error")
    assert "E1047" not in str(await memory.recall("Why is Contoso waiting?"))
    assert "E1047" in str(await memory.recall(["Why is Contoso waiting?", "the export failed"]))


async def test_phrases_find_messages_by_terms_while_the_embedder_is_down(opener: Opener):
    # Mutant: a phrase is not searched by terms when the embedder fails.
    embedder = Failing()
    memory = await record(await opener(user="ada", session="old", embedder=embedder))
    await indexed(memory)
    embedder.down = True
    context = await memory.recall(["What may I cook for the house?", "Nia swells up badly from peanuts"], 5)
    assert "peanuts" in str(context)


async def test_own_message_found_by_a_phrase_is_in_the_current_session(opener: Opener):
    # Mutant: it is shown as a message of another session.
    memory = await record(await opener(user="ada", session="old"))
    old = memory.scoped(session="old")
    await indexed(old)
    context = await old.recall(["What may I cook for the house?", "Nia swells up badly from peanuts"], 5)
    [line] = [line for line in context.lines if "peanuts" in line.text and line.hit and line.hit.tier == "conversation"]
    assert line.section == "## Current session"


async def test_repeated_phrase_changes_nothing(opener: Opener):
    memory = await record(await opener(user="ada", session="old"))
    question = "What may I cook for the house?"
    assert str(await memory.recall([question, question], 3)) == str(await memory.recall(question, 3))


@pytest.mark.parametrize("queries", [[], [""], ["cello", " "], ["cello", 5], [str(number) for number in range(17)]])
async def test_invalid_list_raises(opener: Opener, queries: list[str]):
    memory = await opener(user="ada", session="s-1")
    with pytest.raises(BadQuery):
        await memory.recall(queries)


async def test_only_shown_facts_count_an_access(opener: Opener):
    # Mutant: every candidate counts as read.
    memory = await opener(user="ada", session="s-1")
    items = [await memory.remember(f"The cello number {number} is in the attic.") for number in range(8)]
    shown = {hit.item.id for hit in await memory.recall("Which cello is in the attic?", 2)}
    assert len(shown) == 2
    counts = {item.id: item.access_count for item in await memory.semantic.page()}
    assert {id for id in (item.id for item in items) if counts[id]} == shown
