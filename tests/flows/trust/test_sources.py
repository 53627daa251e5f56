"""Sources: one provides at most half of the hits, and can be deleted with everything derived from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from recollect.stores.writes import Put
from recollect.testing import ManualClock

BLOG = "https://blog.example"


async def sources(memory: AgentMemory, n: int = 6, mode: str = "hybrid") -> list[str]:
    return [hit.item.source for hit in await memory.semantic.search("tea green", n, min_relevance=0.0, mode=mode)]  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["hybrid", "dense", "text"])
async def test_source_provides_at_most_half_of_the_hits(memory: AgentMemory, mode: str):
    """Mutant: `limit_sources` returns the first n hits."""
    await memory.semantic.add_many(
        [{"content": f"green tea {n}", "source": f"{BLOG}/{n}"} for n in range(20)]
        + [{"content": f"tea {n} of mine that is not so green"} for n in range(4)]
    )
    found = await sources(memory, mode=mode)
    assert sum(source.startswith(BLOG) for source in found) <= 3
    assert found.count("user") >= 3


async def test_flooding_source_does_not_displace_other_sources(memory: AgentMemory):
    """The 200 items exceed the candidates of a search. Mutant: `find_crowding_sources` returns nothing."""
    await memory.semantic.add_many([{"content": f"green tea {n}", "source": BLOG} for n in range(200)])
    await memory.remember("Of the tea in the kitchen I like the green one from the small shop best of all.")
    found = await sources(memory)
    assert found.count(BLOG) == 3
    assert "user" in found


async def test_only_source_provides_every_hit(memory: AgentMemory):
    await memory.semantic.add_many([{"content": f"green tea {n}", "source": BLOG} for n in range(20)])
    assert await sources(memory) == [BLOG] * 6


async def test_user_facts_may_provide_every_hit(memory: AgentMemory):
    await memory.semantic.add_many([{"content": f"green tea {n}"} for n in range(20)])
    await memory.remember("tea", source=BLOG)
    assert (await sources(memory)).count("user") == 6


async def test_forget_source_deletes_derived_items(memory: AgentMemory):
    page = await memory.remember("Tea is blue.", source=f"{BLOG}/1")
    await memory.remember("Tea is red.", source=f"{BLOG}/2")
    mine = await memory.remember("Tea is green.")
    derived = await memory.remember("So there are blue leaves.", source="agent")
    derived_again = await memory.remember("So there are blue gardens.", source="agent")
    store = memory._engine.stores.records("semantic")
    for item, parent in ((derived, page), (derived_again, derived)):
        [kept] = await store.get(memory.semantic._space, item.id)
        await store.write(Put(item=replace(kept, derived_from=(parent.id,))))
    forgotten = await memory.forget_source(f"{BLOG}/1")
    assert set(forgotten.items) == {page.id, derived.id, derived_again.id}
    assert {item.content for item in await memory.semantic.page()} == {"Tea is red.", "Tea is green."}
    assert (await memory.forget_source("blog.example")).items  # the whole host
    assert [item.id for item in await memory.semantic.page()] == [mine.id]
    assert not await memory.forget_source("blog.example")


async def test_forget_source_restores_superseded_value(memory: AgentMemory, clock: ManualClock):
    """Mutant: `unlink_item` restores nothing."""
    await memory.remember("Tea is served at four.", key="tea", source="tool")
    for text, source in (("Tea is served at five.", "tool"), ("Tea is served never.", BLOG)):
        clock.forward(timedelta(minutes=1))
        await memory.remember(text, key="tea", source=source, trust=0.6)
    forgotten = await memory.forget_source(BLOG)
    assert len(forgotten.restored) == 1
    assert [hit.item.content for hit in await memory.semantic.search("tea served", min_relevance=0.0)] == [
        "Tea is served at five."
    ]


async def test_forget_source_keeps_merged_fact_of_the_user(memory: AgentMemory):
    """A fact that another source repeats is not derived from it. Mutant: `_is_derived` does not exempt merged items."""
    mine = await memory.remember("Ada drinks green tea.", importance=0.9)
    await memory.remember("ada drinks green tea", source=BLOG)
    assert (await memory.semantic.consolidate()).merged
    await memory.forget_source(BLOG)
    [left] = await memory.semantic.page(past=True)
    assert (left.id, left.derived_from) == (mine.id, ())


async def test_forget_source_deletes_log_entries(memory: AgentMemory):
    here = memory.scoped(session="s")
    call = {"name": "browse", "arguments": {}, "result": "Tea is blue."}
    await here.record_turn("Look up tea.", "It says that it is blue.", tool_calls=[call])
    await here.episodic.store("Tea is purple.", metadata={"source": BLOG})
    assert len((await here.forget_source("browse")).entries) == 2  # the message and the episode
    assert len((await here.forget_source(BLOG)).entries) == 1
    assert [episode.content for episode in await here.episodic.get_recent()] == [
        "Look up tea.",
        "It says that it is blue.",
    ]


async def test_forget_source_deletes_old_indexed_turns(memory: AgentMemory):
    """Mutant: the index items of deleted messages stay."""
    here = memory.scoped(session="s")
    call = {"name": "browse", "arguments": {}, "result": "Tea is blue in the mountains of Assam."}
    await here.record_turn("Look up tea.", "I have.", tool_calls=[call])
    for n in range(60):
        await here.record_turn(f"And now number {n}.", "Done.")
    there = memory.scoped(session="another")
    ask = "mountains of Assam tea blue"
    assert "Assam" in str(await there.recall(ask, tiers=["conversation"], min_relevance=0.0))
    assert await here.forget_source("browse")
    assert "in the mountains" not in str(await there.recall(ask, tiers=["conversation"], min_relevance=0.0))


async def test_forget_source_restores_previous_procedure_version(memory: AgentMemory):
    await memory.procedural.save("tea", "Boil water.")
    await memory.procedural.save("tea", "Boil wine.", source="handbook.pdf", trust=0.9)
    forgotten = await memory.forget_source("handbook.pdf")
    assert len(forgotten.procedures) == 1
    tea = await memory.procedural.get("tea")
    assert tea is not None
    assert (tea.body, tea.current) == ("Boil water.", True)
    assert [hit.item.key for hit in await memory.procedural.search("boil water", min_relevance=0.0)] == ["tea"]


async def test_forget_source_keeps_items_of_other_users(memory: AgentMemory):
    await memory.scoped(user="bob").remember("Tea is blue.", source=BLOG)
    assert not await memory.forget_source(BLOG)
    with pytest.raises(BadInput, match="source"):
        await memory.forget_source(" ")
