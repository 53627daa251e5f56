"""All tiers of one memory: in one store, isolated by scope, and persistent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadSettings
from recollect.sync import AgentMemory as Memory
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener


async def test_five_tiers_persist_in_one_file(tmp_path: Path):
    place: Any = tmp_path / "agent.db"
    async with AgentMemory.open(place, user="ada", session="s1", embedder=HashEmbedder()) as memory:
        memory.working.set_task("Write the report")
        await memory.conversation.add_message("user", "Use metric units, please.")
        await memory.episodic.store("The export failed with E1047.", kind="error")
        await memory.semantic.add("Ada prefers metric units.")
        await memory.procedural.save("deploy", "Push a tag and wait for the pipeline.", tags=["release"])
        await memory.procedural.record_outcome("deploy", True)
    async with AgentMemory.open(place, user="ada", session="s1", embedder=HashEmbedder()) as memory:
        assert memory.working.task == ""  # working memory is in-process and starts empty
        assert [message.content for message in await memory.conversation.get_last_n(5)] == ["Use metric units, please."]
        assert [episode.kind for episode in await memory.episodic.get_recent()] == ["error"]
        assert (await memory.procedural.success_rate("deploy")).trials == 1
        assert (await memory.recall("which units does Ada prefer?")).hits
        hits = await memory.procedural.search("deploy with a tag and the pipeline")
        assert [hit.tier for hit in hits] == ["procedural"]


async def test_tiers_are_isolated_by_scope(opener: Opener):
    memory = await opener(user="ada", session="s1")
    await memory.conversation.add_message("user", "hello")
    await memory.episodic.store("something happened")
    await memory.procedural.save("deploy", "Push a tag.")
    other = memory.scoped(user="bob", session="s2")
    assert await other.conversation.get_last_n(5) == []
    assert await other.episodic.get_recent() == []
    assert await other.procedural.get("deploy") is not None  # procedures belong to the agent, not to the user
    assert await memory.scoped(agent="another").procedural.get("deploy") is None
    assert other.working is not memory.working


async def test_language_model_summarizes_a_long_conversation(opener: Opener):
    prompts: list[str] = []

    def model(prompt: str) -> str:
        prompts.append(prompt)
        return "They spoke of tea."

    memory = await opener(user="ada", session="s", llm=model)
    for n in range(40):
        await memory.conversation.add_message("user", f"message {n} about tea")
    assert prompts
    assert await memory.conversation.summary() == "They spoke of tea."
    with pytest.raises(BadSettings, match="no language model"):
        await opener(user="ada", llm="gpt")


def test_blocking_memory_reaches_every_tier(tmp_path: Path):
    with Memory.open(tmp_path / "agent.db", user="ada", session="s", embedder=HashEmbedder()) as memory:
        memory.working.set_task("Write the report")
        memory.working.add({"role": "user", "content": "hello"})
        memory.conversation.add_message("user", "hello")
        memory.episodic.store("something happened")
        memory.procedural.save("deploy", "Push a tag.")
        assert memory.working.current_tokens > 0
        assert "Write the report" in memory.working.get_context_string()
        assert [episode.content for episode in memory.episodic.get_recent()] == ["something happened"]
        assert [procedure.key for procedure in memory.procedural.best()] == ["deploy"]
        assert memory.conversation.get_messages_for_llm() == [{"role": "user", "content": "hello"}]


async def test_close_on_a_view_keeps_its_owner_open(memory: AgentMemory):
    async with memory.scoped(user="bob") as view:
        await view.remember("Bob likes tea.")
    await view.close()
    assert (await memory.stats()).bytes >= 0
    assert [hit.item.content for hit in await memory.scoped(user="bob").semantic.search("tea")] == ["Bob likes tea."]


async def test_remember_with_unknown_option_raises_type_error(memory: AgentMemory):
    with pytest.raises(TypeError, match="importnace"):
        await memory.remember("Ada likes tea.", importnace=0.5)  # type: ignore[call-arg]
