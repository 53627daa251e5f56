"""Recall results that an agent repeats are never promoted to facts again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.flows.lifecycle.talk import contents, facts

ROUNDS = 20

SEED = (
    "I prefer metric units in reports.",
    "My name is Ada.",
    "I live in Lisbon.",
    "We decided to use PostgreSQL for billing.",
    "The staging server runs on port 8080.",
)


@pytest.mark.parametrize("echo", ["whole", "lines", "facts"])
async def test_recited_recall_results_are_not_promoted(memory: AgentMemory, clock: ManualClock, echo: str):
    for text in SEED:
        await memory.remember(text)
    before = len(await facts(memory))
    for round in range(ROUNDS):
        here = memory.scoped(session=f"s-{round % 3}")
        context = await here.recall("Which units, which database, which port, and where do I live?", 5, min_relevance=0)
        assert context
        recited = {
            "whole": str(context),
            "lines": "\n".join(str(context).splitlines()[1:]),
            "facts": " ".join(hit.item.content for hit in context if hit.tier == "semantic"),
        }[echo]
        await here.record_turn(
            "Which units should the report use?" + (f"\n\n{recited}" if echo != "facts" else ""),
            f"As I recall: {recited}",
            tool_calls=[{"name": "memory", "arguments": {"query": "units"}, "result": recited}],
        )
        clock.forward(timedelta(hours=7))
        report = await memory.lifecycle.run_once()
        assert not report.promoted
    assert len(await facts(memory)) == before


async def test_repeated_known_fact_adds_no_item(memory: AgentMemory, clock: ManualClock):
    for text in SEED:
        await memory.remember(text)
    for round in range(ROUNDS):
        await memory.scoped(session=f"s-{round}").record_turn(" ".join(SEED), "I know.")
        clock.forward(timedelta(hours=7))
        await memory.lifecycle.run_once()
    assert sorted(await contents(memory)) == sorted(SEED)


async def test_text_marked_as_recalled_is_not_promoted(memory: AgentMemory):
    here = memory.scoped(session="s")
    await here.conversation.add_message("user", "I prefer tea.", recalled=True)
    await here.record_turn("I prefer coffee.", "ok", metadata={"recalled": True})
    await here.episodic.store("I prefer milk.", metadata={"recalled": True})
    assert not (await here.lifecycle.run_once()).promoted


async def test_text_after_a_recalled_block_is_promoted(memory: AgentMemory):
    await memory.remember("I live in Lisbon.")
    here = memory.scoped(session="s")
    context = await here.recall("Where do I live?", min_relevance=0)
    await here.record_turn(f"{context}\n\nI prefer short answers.", "ok")
    await here.lifecycle.run_once()
    assert sorted(await contents(memory)) == ["I live in Lisbon.", "I prefer short answers."]
