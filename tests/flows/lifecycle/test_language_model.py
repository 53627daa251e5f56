"""Fact extraction with a language model: optional, verified by quotes, and bounded in cost."""

from __future__ import annotations

import json
import re
from typing import Any

from recollect.settings import Settings
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, facts

STANDUP = "Lena said hi; anyway the standup is at 9:30 from Monday on, for the whole team."
FACT = "The standup of the whole team is at 9:30 from Monday on."


class Model:
    """A model that returns one fact for every message about the standup."""

    def __init__(self, quote: str = "the standup is at 9:30 from Monday on") -> None:
        self.prompts: list[str] = []
        self.quote = quote

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        numbers = [int(number) for number in re.findall(r"^\[(\d+)\].*standup", prompt, re.M)]
        return json.dumps([{"message": number, "quote": self.quote, "fact": FACT} for number in numbers])


def fails(prompt: str) -> Any:
    raise RuntimeError("no credit")


async def test_extracted_fact_has_quote_and_reduced_trust(opener: Opener):
    model = Model()
    memory = await opener(user="ada", session="s", llm=model)
    await memory.record_turn(STANDUP, "ok")
    report = await memory.lifecycle.run_once()
    [fact] = await facts(memory)
    assert [action.id for action in report.promoted] == [fact.id]
    assert (fact.content, fact.trust, fact.metadata["rule"]) == (FACT, 0.8, "extracted")
    assert fact.metadata["quote"] in STANDUP
    calls = len(model.prompts)
    assert not await memory.lifecycle.run_once()
    assert len(model.prompts) == calls  # processed messages are not sent again


async def test_fact_without_matching_quote_is_dropped(opener: Opener):
    memory = await opener(user="ada", session="s", llm=Model(quote="the standup is at noon"))
    await memory.record_turn(STANDUP, "ok")
    assert not (await memory.lifecycle.run_once()).promoted


async def test_fact_found_by_rules_is_not_extracted_again(opener: Opener):
    memory = await opener(user="ada", session="s", llm=Model(quote="our standup is at 9:30"))
    await memory.record_turn("Remember that our standup is at 9:30.", "ok")
    await memory.lifecycle.run_once()
    assert await contents(memory) == ["Remember that our standup is at 9:30."]


async def test_failing_model_falls_back_to_rules_and_is_noted(opener: Opener):
    memory = await opener(user="ada", session="s", llm=fails)
    await memory.record_turn("I prefer tea.", "ok")
    report = await memory.lifecycle.run_once()
    assert await contents(memory) == ["I prefer tea."]
    assert len(report.notes) == 1
    assert "read by rules only" in report.notes[0]
    assert "tea" not in report.notes[0]


async def test_run_stays_within_its_token_budget(opener: Opener):
    model = Model()
    memory = await opener(user="ada", llm=model, settings=Settings(lifecycle_llm_tokens=6000))
    for n in range(6):
        await memory.scoped(session=f"s-{n}").conversation.add_message("user", "We talked at length. " * 80)
    await memory.scoped(session="s-9").conversation.add_message("user", "I prefer tea.")
    report = await memory.lifecycle.run_once()
    assert 1 <= len(model.prompts) <= 4
    assert any("token budget of this run is spent" in note for note in report.notes)
    assert await contents(memory) == ["I prefer tea."]


async def test_run_over_all_users_shares_one_token_budget(opener: Opener):
    model = Model()
    memory = await opener(user="ada", session="s", llm=model, settings=Settings(lifecycle_llm_tokens=4000))
    for user in ("ada", "bob", "cy", "di"):
        await memory.scoped(user=user).conversation.add_message("user", "We talked at length. " * 60)
    report = await memory.lifecycle.run_once(all_users=True)
    assert len(model.prompts) == 2
    assert any("token budget of this run is spent" in note for note in report.notes)


async def test_zero_token_budget_calls_no_model(opener: Opener):
    model = Model()
    memory = await opener(user="ada", session="s", llm=model, settings=Settings(lifecycle_llm_tokens=0))
    await memory.record_turn(STANDUP, "ok")
    await memory.lifecycle.run_once()
    assert model.prompts == []


async def test_plan_calls_no_model(opener: Opener):
    model = Model()
    memory = await opener(user="ada", session="s", llm=model)
    await memory.record_turn(STANDUP, "ok")
    plan = await memory.lifecycle.plan()
    assert model.prompts == []
    assert any("a plan calls no language model" in note for note in plan.notes)


async def test_prompt_omits_assistant_messages_and_opt_outs(opener: Opener):
    model = Model()
    memory = await opener(user="ada", session="s", llm=model)
    await memory.record_turn("Hello there, dear machine.", "The assistant's words.")
    await memory.record_turn("Don't remember this: I live in Bonn.", "ok")
    await memory.lifecycle.run_once()
    shown = "".join(prompt.split("<messages>")[1] for prompt in model.prompts)
    assert "dear machine" in shown
    assert "assistant's words" not in shown
    assert "Bonn" not in shown
