"""Recall for differently phrased questions: repeated ones, and ones about "the user"."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from tests.flows.conftest import Opener, indexed


@pytest.mark.parametrize(
    "question", ["Where does the user live?", "Where do I live?", "Which city does the user live in?"]
)
async def test_question_about_the_user_returns_the_users_own_statements(opener: Opener, minilm, question: str):
    monday = await opener(user="carla", session="monday", embedder=minilm)
    await monday.record_turn("I live in Lisbon.", "Good to know.")
    await monday.lifecycle.run_once()
    context = await monday.scoped(session="friday").recall(question)
    assert "Lisbon" in str(context)


async def test_fact_phrased_about_the_user_is_found(real: AgentMemory):
    await real.remember("The user prefers tea over coffee.")
    assert "tea" in str(await real.recall("What does the user like to drink, tea or coffee?"))


async def test_earlier_occurrences_of_the_question_are_not_returned(opener: Opener, minilm):
    first = await opener(user="carla", session="first", embedder=minilm)
    await first.record_turn("I live in Lisbon.", "Noted.")
    for day in range(7):
        asking = first.scoped(session=f"day {day}")
        await asking.record_turn("Where do I live?", "I do not know.")
    for question in ("Where do I live?", "where do i live"):
        context = await first.scoped(session="today").recall(question)
        assert "I live in Lisbon." in str(context)
        assert "Where do I live?" not in str(context)


@pytest.mark.parametrize("asked_in", ["then", "today"])
async def test_old_turn_is_found_by_its_terms(opener: Opener, minilm, asked_in: str):
    then = await opener(user="carla", session="then", embedder=minilm)
    await then.record_turn("Yesterday a puppy from the shelter came home with us.", "Lovely!")
    for n in range(40):
        await then.record_turn(f"Please look at ticket {n} of the printer queue.", f"Ticket {n} is closed.")
    await indexed(then)
    context = await then.scoped(session=asked_in).recall("When did the puppy come home from the shelter?")
    assert "puppy from the shelter" in str(context)
    assert not await then.scoped(session=asked_in).recall("Who painted the Mona Lisa?")
