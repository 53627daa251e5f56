"""A memory whose models live elsewhere: what it asks of them and when, what that costs, and how it goes on without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recollect import AgentMemory, BadSettings, EmbedderFailed, EmbeddingModelMismatch, Settings
from recollect.errors import SpendLimitReached
from recollect.inference.chat import ChatMessage
from recollect.inference.connect import connect_chat
from recollect.memory import reembed_store
from recollect.sync import AgentMemory as SyncMemory
from tests.embedders import HashEmbedder
from tests.wire.script import Fail, Say
from tests.wire.server import Wire


def small(wire: Wire) -> str:
    return f"openai:small@{wire.openai}"


async def filled(memory: AgentMemory) -> None:
    """Enough of a task for working memory to need a summary."""
    for n in range(25):
        await memory.working.add(f"Step {n}: the ledger service answers on port {7000 + n}. " + "It was checked. " * 40)


class TestEmbedder:
    async def test_facts_are_found_by_it(self, wire: Wire, tmp_path: Path):
        for provider in ("openai", "voyage"):
            place = f"{provider}:small@{getattr(wire, provider)}"
            async with AgentMemory.open(tmp_path / f"{provider}.db", embedder=place) as memory:
                await memory.remember("The cello is in the attic.")
                [hit] = await memory.semantic.search("cello", 1, min_relevance=0.0, mode="dense")
                assert hit.item.content == "The cello is in the attic."
                assert (await memory.stats()).model == f"{provider}:small"

    async def test_a_store_that_knows_the_model_is_opened_without_a_call(self, wire: Wire, tmp_path: Path):
        store = tmp_path / "agent.db"
        async with AgentMemory.open(store, embedder=small(wire)) as memory:
            await memory.remember("The cello is in the attic.")
        wire.requests.clear()
        async with AgentMemory.open(store, embedder=small(wire)) as memory:
            assert wire.requests == []
            assert [hit.item.content for hit in await memory.semantic.search("cello", mode="text")]
            assert wire.requests == []
            await memory.remember("Bread is baked on Tuesdays.")
        assert len(wire.requests) == 1

    async def test_an_empty_store_asks_for_the_size_once(self, wire: Wire, tmp_path: Path):
        async with AgentMemory.open(tmp_path / "agent.db", embedder=small(wire)) as memory:
            await memory.remember("The cello is in the attic.")
        assert len(wire.requests) == 2

    async def test_another_model_is_refused_as_ever(self, wire: Wire, tmp_path: Path):
        store = tmp_path / "agent.db"
        async with AgentMemory.open(store, embedder=HashEmbedder()) as memory:
            await memory.remember("The cello is in the attic.")
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await AgentMemory.open(store, embedder=small(wire))
        assert await reembed_store(store, small(wire)) == 1
        async with AgentMemory.open(store, embedder=small(wire)) as memory:
            assert (await memory.stats()).model == "openai:small"

    async def test_it_can_be_changed_while_the_memory_is_open(self, wire: Wire, tmp_path: Path):
        settings = Settings(retries=0)
        async with AgentMemory.open(tmp_path / "agent.db", embedder=small(wire), settings=settings) as memory:
            await memory.remember("The cello is in the attic.")
            await memory.reembed(f"voyage:other@{wire.voyage}")
            assert [one.model for one in (await memory.stats()).spent] == ["openai:small", "voyage:other"]
            await memory.remember("Bread is baked on Tuesdays.")
            with pytest.raises(EmbedderFailed):
                await memory.reembed("openai:small@http://127.0.0.1:9/v1")

    async def test_one_that_is_out_of_reach_at_the_beginning_is_told(self, tmp_path: Path):
        with pytest.raises(EmbedderFailed, match="could not be reached"):
            await AgentMemory.open(
                tmp_path / "agent.db", embedder="openai:x@http://127.0.0.1:9/v1", settings=Settings(retries=0)
            )


class TestCost:
    async def test_stats_show_what_was_spent_by_all_scopes_together(self, wire: Wire, tmp_path: Path):
        wire.script(Say("Summary one.", read=1000, written=100), *[Say("Summary.", read=10, written=1)] * 50)
        async with AgentMemory.open(tmp_path / "a.db", embedder=small(wire), llm=f"openai:big@{wire.openai}") as memory:
            [asked_for_its_size] = (await memory.stats()).spent
            assert asked_for_its_size.embedded == 5
            await memory.remember("one two three")
            await memory.scoped(user="bob").remember("four five")
            await filled(memory)
            embedder, model = (await memory.stats()).spent
            assert (embedder.model, embedder.embedded, embedder.usd) == ("openai:small", 5 + 3 + 2, 0.0)
            assert model.model == "openai:big"
            assert model.read >= 1000
            assert model.calls == len([one for one in wire.requests if one.path.endswith("completions")])
        async with AgentMemory.open(tmp_path / "a.db", embedder=small(wire)) as again:
            assert (await again.stats()).spent == ()

    async def test_at_the_limit_the_memory_works_on_without_the_model(self, wire: Wire, tmp_path: Path):
        wire.script(Say("A summary by the model.", read=900, written=200))
        settings = Settings(llm=f"openai:big@{wire.openai}", llm_budget_tokens=1000)
        async with AgentMemory.open(tmp_path / "a.db", embedder=HashEmbedder(), settings=settings) as memory:
            await filled(memory)
            assert any("A summary by the model." in text for text in memory.working.summaries)
            await filled(memory)
            assert len(memory.working.summaries) >= 1
            assert any("llm_budget_tokens=1,000 being spent" in warning for warning in memory.working.warnings)
            assert any("summarised offline" in warning for warning in memory.working.warnings)
            agent = connect_chat(f"openai:big@{wire.openai}", settings, ledger=memory._parts.ledger)
            with pytest.raises(SpendLimitReached, match="raise the limit"):
                await agent.reply([ChatMessage("user", "hello")])
            await agent.close()
        assert (len(wire.requests), wire.unexpected) == (1, 0)

    async def test_a_limit_in_dollars_without_a_price_is_refused_when_opening(self, tmp_path: Path):
        settings = Settings(openai_api_key="k", llm="openai:some-new-model", llm_budget_usd=5.0)
        with pytest.raises(BadSettings, match="llm_budget_tokens"):
            await AgentMemory.open(tmp_path / "a.db", embedder=HashEmbedder(), settings=settings)
        assert not (tmp_path / "a.db").exists()


class TestLanguageModel:
    async def test_one_that_fails_is_done_without(self, wire: Wire, tmp_path: Path):
        wire.script(*[Fail(400, "invalid_request_error")] * 20)
        async with AgentMemory.open(
            tmp_path / "a.db", embedder=HashEmbedder(), llm=f"anthropic:claude-haiku-4-5@{wire.anthropic}"
        ) as memory:
            await filled(memory)
            assert memory.working.summaries
            assert any("refused the request (400 invalid_request_error)" in text for text in memory.working.warnings)

    def test_code_that_does_not_await_has_it_too(self, wire: Wire, tmp_path: Path):
        wire.script(*[Say("Short.")] * 20)
        with SyncMemory.open(tmp_path / "a.db", embedder=small(wire), llm=f"openai:big@{wire.openai}") as memory:
            memory.remember("The cello is in the attic.")
            assert str(memory.recall("cello"))
            assert [one.model for one in memory.stats().spent] == ["openai:small"]

    async def test_many_at_once(self, wire: Wire, tmp_path: Path):
        async with AgentMemory.open(tmp_path / "a.db", embedder=small(wire)) as memory:
            await asyncio.gather(*(memory.remember(f"fact {n} about topic{n}") for n in range(30)))
            assert (await memory.stats()).items == 30
