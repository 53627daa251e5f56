"""The agent's mind comes back with its place, and what a step remembers is there exactly when the step is done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recollect import AgentMemory, BadInput, Conflict
from tests.flows.runtime.working import Killed


async def test_working_memory_comes_back_with_the_checkpoint(opener, place: str, agent, trail):
    # Mutant: a snapshot that is not restored.
    memory = await opener(user="ada")

    async def think(state, ctx):
        assert ctx.working is memory.working
        ctx.working.set_task("Write the report")
        ctx.working.add_thought("metric units")
        await ctx.memory.working.add("Step 1: looked it up")

    async def forgetful(state, ctx):
        ctx.working.add_thought("lost with the crash")
        raise Killed

    with pytest.raises(Killed):
        await agent(memory=memory).run("t", [think, forgetful])
    fresh = memory.scoped() if place == "memory://" else await opener(user="ada")
    assert fresh.working.scratchpad == []

    async def remembers(state, ctx):
        assert ctx.working.task == "Write the report"
        assert ctx.working.scratchpad == ["metric units"]
        assert ctx.working.items == ["Step 1: looked it up"]
        return "yes"

    remembers.__name__ = "forgetful"
    state = await agent(memory=fresh).run("t", [think, remembers])
    assert state["results"]["step_1_forgetful"] == "yes"
    assert fresh.working.task == "Write the report"


async def test_runs_at_the_same_time_have_minds_of_their_own(memory: AgentMemory, agent):
    # Mutant: every run borrowing the memory's own working memory.
    both = asyncio.Barrier(2)

    async def think(state, ctx):
        ctx.working.add_thought(ctx.task_id)
        await both.wait()
        return ctx.working.scratchpad

    states = await asyncio.gather(agent().run("a", [think]), agent().run("b", [think]))
    assert [state["results"]["step_0_think"] for state in states] == [["a"], ["b"]]
    assert memory.working.scratchpad in (["a"], ["b"])


async def test_what_cannot_be_kept_in_mind_fails_the_step(agent, trail):
    async def odd(state, ctx):
        ctx.working.variables["when"] = object()

    with pytest.raises(BadInput, match="variables"):
        await agent().run("t", [odd])


async def test_what_a_step_remembers_is_committed_with_its_completion(memory: AgentMemory, agent):
    # Mutant: `Waiting.write` that writes at once. Mutant: a completion without the collected writes.
    async def learn(state, ctx):
        kept = await ctx.memory.remember("Ada prefers metric units.", key="user.units")
        await ctx.memory.record_turn("Which units?", "Metric.")
        await ctx.memory.procedural.save("report.units", "Use metric units.")
        await ctx.memory.episodic.store("It was decided.", kind="decision")
        assert await memory.semantic.get(kept.id) is None  # not before the step is done
        assert await memory.episodic.get_recent() == []
        return kept.id

    async def check(state):
        assert await memory.semantic.get(state["results"]["step_0_learn"]) is not None
        assert len(await memory.conversation.get_last_n(5)) == 2
        assert await memory.procedural.get("report.units") is not None
        assert len(await memory.episodic.get_recent()) == 3

    await agent().run("t", [learn, check])


async def test_a_step_killed_before_its_completion_has_remembered_nothing(memory: AgentMemory, agent, trail):
    async def learn(state, ctx):
        await ctx.memory.remember(f"Attempt {ctx.attempt} was the one that counted.")
        await ctx.memory.record_turn("hello", "there")
        if ctx.attempt == 1:
            raise OSError
        if ctx.attempt == 2:
            raise Killed

    with pytest.raises(Killed):
        await agent().run("t", [learn])
    assert (await memory.stats()).items == 0
    assert await memory.conversation.get_last_n(5) == []
    await agent().run("t", [learn])
    [found] = await memory.semantic.search("attempt counted", min_relevance=0)
    assert found.item.content == "Attempt 3 was the one that counted."
    assert len(await memory.conversation.get_last_n(5)) == 2


async def test_a_fenced_out_step_has_remembered_nothing(memory: AgentMemory, agent, clock):
    from tests.flows.runtime.test_leases import steal

    async def learn(state, ctx):
        await ctx.memory.remember("A zombie said this.")
        await steal(memory, clock)

    with pytest.raises(Conflict):
        await agent().run("t", [learn])
    assert (await memory.stats()).items == 0


async def test_one_step_may_remember_several_values_of_a_key(memory: AgentMemory, agent):
    # Mutant: a `Waiting.find` that knows nothing of what waits.
    await memory.remember("Ada lives in Paris.", key="user.city")

    async def learn(state, ctx):
        await ctx.memory.remember("Ada lives in Lisbon.", key="user.city")
        await ctx.memory.remember("Ada lives in Porto.", key="user.city")
        for _ in range(3):
            await ctx.memory.procedural.save("p", "Do it.")
            await ctx.memory.procedural.record_outcome("p", True)

    await agent(max_attempts=1).run("t", [learn])
    assert len(await memory.semantic.history("user.city")) == 3
    current = [item for item in await memory.semantic.history("user.city") if item.superseded_by is None]
    assert len(current) == 1
    assert (await memory.procedural.success_rate("p")).trials == 3


async def test_one_step_may_change_and_forget_what_it_remembered(memory: AgentMemory, agent):
    # Mutant: `Waiting.get` that knows nothing of what waits.
    await memory.remember("Ada has a cat.")

    async def learn(state, ctx):
        kept = await ctx.memory.remember("Ada likes the sea.", importance=0.2)
        assert await ctx.memory.semantic.update_importance(kept.id, 0.9)
        found = await ctx.memory.semantic.get(kept.id)
        assert (found.importance, found.version) == (0.9, 2)
        cat = await ctx.memory.remember("Ada has a cat.")
        assert await ctx.memory.forget(cat.id)
        assert await ctx.memory.semantic.get(cat.id) is None
        dog = await ctx.memory.remember("Ada has a dog.")
        assert await ctx.memory.forget(dog.id)
        return [kept.id, cat.id, dog.id]

    ids = (await agent(max_attempts=1).run("t", [learn]))["results"]["step_0_learn"]
    kept, cat, dog = [await memory.semantic.get(id) for id in ids]
    assert kept is not None
    assert kept.importance == 0.9
    assert cat is dog is None


async def test_a_fact_that_others_changed_meanwhile_has_the_step_tried_again(memory: AgentMemory, agent):
    await memory.remember("Ada lives in Paris.", key="user.city")
    ran: list[int] = []

    async def learn(state, ctx):
        ran.append(ctx.attempt)
        await ctx.memory.remember("Ada lives in Lisbon.", key="user.city")
        if ctx.attempt == 1:
            await memory.remember("Ada lives in Rome.", key="user.city")

    await agent().run("t", [learn])
    assert ran == [1, 2]
    current = [item for item in await memory.semantic.history("user.city") if item.superseded_by is None]
    assert [item.content for item in current] == ["Ada lives in Lisbon."]


async def test_with_tiers_elsewhere_an_attempt_that_fails_leaves_nothing_there_either(
    tmp_path: Path, opener, agent, trail
):
    # Mutant: a store of another tier that is written to at once.
    places = {"default": str(tmp_path / "all.db"), "semantic": str(tmp_path / "facts.db")}
    memory = await opener(store=places)

    async def learn(state, ctx):
        await ctx.memory.remember("Ada prefers metric units.")
        if ctx.attempt == 1:
            raise Killed

    with pytest.raises(Killed):
        await agent(memory=memory).run("t", [learn])
    assert (await memory.stats()).items == 0
    await agent(memory=memory).run("t", [learn])
    assert (await memory.stats()).items == 1
