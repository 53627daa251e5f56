"""Memory in steps: working memory is restored with the checkpoint, and writes are committed with the step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, Conflict
from tests.flows.durable.working import Killed


async def test_working_memory_is_restored_with_the_checkpoint(opener, place: str, agent, trail):
    # Mutant: the snapshot is not restored.
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


async def test_concurrent_runs_have_separate_working_memories(memory: AgentMemory, agent):
    # Mutant: every run uses the working memory of the memory object.
    both = asyncio.Barrier(2)

    async def think(state, ctx):
        ctx.working.add_thought(ctx.task_id)
        await both.wait()
        return ctx.working.scratchpad

    states = await asyncio.gather(agent().run("a", [think]), agent().run("b", [think]))
    assert [state["results"]["step_0_think"] for state in states] == [["a"], ["b"]]
    assert memory.working.scratchpad in (["a"], ["b"])


async def test_unserializable_working_memory_fails_the_step(agent, trail):
    async def odd(state, ctx):
        ctx.working.variables["when"] = object()

    with pytest.raises(BadInput, match="variables"):
        await agent().run("t", [odd])


async def test_memories_of_a_step_are_committed_with_its_completion(memory: AgentMemory, agent):
    # Mutant: `BufferedStore.write` writes at once. Mutant: a completion lacks the collected writes.
    async def learn(state, ctx):
        stored = await ctx.memory.remember("Ada prefers metric units.", key="user.units")
        await ctx.memory.record_turn("Which units?", "Metric.")
        await ctx.memory.procedural.save("report.units", "Use metric units.")
        await ctx.memory.episodic.store("It was decided.", kind="decision")
        assert await memory.semantic.get(stored.id) is None  # not before the step is done
        assert await memory.episodic.get_recent() == []
        return stored.id

    async def check(state):
        assert await memory.semantic.get(state["results"]["step_0_learn"]) is not None
        assert len(await memory.conversation.get_last_n(5)) == 2
        assert await memory.procedural.get("report.units") is not None
        assert len(await memory.episodic.get_recent()) == 3

    await agent().run("t", [learn, check])


async def test_step_killed_before_its_completion_remembers_nothing(memory: AgentMemory, agent, trail):
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


async def test_fenced_out_step_remembers_nothing(memory: AgentMemory, agent, clock):
    from tests.flows.durable.test_leases import steal

    async def learn(state, ctx):
        await ctx.memory.remember("A zombie said this.")
        await steal(memory, clock)

    with pytest.raises(Conflict):
        await agent().run("t", [learn])
    assert (await memory.stats()).items == 0


async def test_step_may_remember_several_values_of_a_key(memory: AgentMemory, agent):
    # Mutant: `BufferedStore.find` ignores collected writes.
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


async def test_step_may_change_and_forget_its_own_memories(memory: AgentMemory, agent):
    # Mutant: `BufferedStore.get` ignores collected writes.
    await memory.remember("Ada has a cat.")

    async def learn(state, ctx):
        stored = await ctx.memory.remember("Ada likes the sea.", importance=0.2)
        assert await ctx.memory.semantic.update_importance(stored.id, 0.9)
        found = await ctx.memory.semantic.get(stored.id)
        assert (found.importance, found.version) == (0.9, 2)
        cat = await ctx.memory.remember("Ada has a cat.")
        assert await ctx.memory.forget(cat.id)
        assert await ctx.memory.semantic.get(cat.id) is None
        dog = await ctx.memory.remember("Ada has a dog.")
        assert await ctx.memory.forget(dog.id)
        return [stored.id, cat.id, dog.id]

    ids = (await agent(max_attempts=1).run("t", [learn]))["results"]["step_0_learn"]
    stored, cat, dog = [await memory.semantic.get(id) for id in ids]
    assert stored is not None
    assert stored.importance == 0.9
    assert cat is dog is None


async def test_fact_changed_concurrently_retries_the_step(memory: AgentMemory, agent):
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


async def test_failed_attempt_writes_nothing_to_a_separate_store(tmp_path: Path, opener, agent, trail):
    # Mutant: the separate store of a tier is written at once.
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
