"""Forgetting a message, an episode or a version of a procedure by the id that recall shows."""

from __future__ import annotations

from recollect import AgentMemory
from tests.flows.conftest import Opener, indexed

ALLERGY = "I am allergic to cashews."
QUESTION = "Which allergy to cashews is there?"


async def find_id(memory: AgentMemory, text: str) -> str:
    return next(hit.item.id for hit in (await memory.recall(QUESTION, 5)).hits if hit.item.content == text)


async def test_forgotten_message_is_in_no_tier(opener: Opener):
    # Mutants: the episode of the turn stays; its item in the turn index stays.
    memory = await opener(user="ada", session="monday")
    await memory.record_turn(ALLERGY, "I will remember the cashews.")
    later = memory.scoped(session="friday")
    await indexed(later)
    assert await later.forget(await find_id(later, ALLERGY))
    for session in ("monday", "friday"):
        assert ALLERGY not in str(await memory.scoped(session=session).recall(QUESTION, 5))
    assert [message.content for message in await memory.conversation.get_last_n(5)] == ["I will remember the cashews."]
    assert ALLERGY not in [episode.content for episode in await memory.episodic.get_recent()]


async def test_facts_of_a_forgotten_message_are_deleted(opener: Opener):
    # Mutant: promoted statements stay.
    memory = await opener(user="ada", session="monday")
    record = await memory.record_turn("I prefer metric units in every report.", "Noted.")
    await memory.lifecycle.run_once()
    assert len(await memory.semantic.page()) == 1
    assert await memory.forget(record.messages[0].id)
    assert not await memory.semantic.page()


async def test_forgotten_episode_leaves_the_others(opener: Opener):
    memory = await opener(user="ada", session="monday")
    first = await memory.episodic.store("The export failed with E1047.", kind="error")
    await memory.episodic.store("The import went well.", kind="outcome")
    assert await memory.forget(first.id)
    assert [episode.content for episode in await memory.episodic.get_recent()] == ["The import went well."]
    assert not await memory.forget(first.id)


async def test_forgotten_version_of_a_procedure_leaves_the_one_before(opener: Opener):
    memory = await opener(user="ada", session="monday")
    await memory.procedural.save("export", "Split by month.")
    await memory.procedural.save("export", "Split by week.")
    [hit] = [hit for hit in (await memory.recall("How do I export? Split by week.")).hits if hit.tier == "procedural"]
    assert await memory.forget(hit.item.id)
    procedure = await memory.procedural.get("export")
    assert procedure is not None
    assert procedure.body == "Split by month."


async def test_message_of_another_user_is_not_forgotten(opener: Opener):
    memory = await opener(user="ada", session="monday")
    record = await memory.record_turn(ALLERGY)
    assert not await memory.scoped(user="bob").forget(record.messages[0].id)
    assert [message.content for message in await memory.conversation.get_last_n(5)] == [ALLERGY]
