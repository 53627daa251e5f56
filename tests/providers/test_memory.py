"""A memory with remote models: its requests and their cost, and its behavior without the models."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recollect import AgentMemory, Settings
from recollect.errors import BadSettings, EmbedderFailed, EmbeddingModelMismatch, SpendLimitReached
from recollect.models.chat import ChatMessage
from recollect.models.factory import open_chat
from recollect.portability.reembed import reembed_store
from recollect.sync import AgentMemory as SyncMemory
from tests.embedders import HashEmbedder
from tests.wire.script import Fail, Say
from tests.wire.server import Wire


def embedder_name(wire: Wire) -> str:
    return f"openai:small@{wire.openai}"


async def fill_working_memory(memory: AgentMemory) -> None:
    """Fill working memory until it needs a summary."""
    for n in range(25):
        await memory.working.add(f"Step {n}: the ledger service answers on port {7000 + n}. " + "It was checked. " * 40)


class TestEmbedder:
    async def test_facts_are_found_with_remote_embeddings(self, wire: Wire, tmp_path: Path):
        for provider in ("openai", "voyage"):
            place = f"{provider}:small@{getattr(wire, provider)}"
            async with AgentMemory.open(tmp_path / f"{provider}.db", embedder=place) as memory:
                await memory.remember("The cello is in the attic.")
                [hit] = await memory.semantic.search("cello", 1, min_relevance=0.0, mode="dense")
                assert hit.item.content == "The cello is in the attic."
                assert (await memory.stats()).model == f"{provider}:small"

    async def test_opening_a_store_with_known_model_sends_no_request(self, wire: Wire, tmp_path: Path):
        store = tmp_path / "agent.db"
        async with AgentMemory.open(store, embedder=embedder_name(wire)) as memory:
            await memory.remember("The cello is in the attic.")
        wire.requests.clear()
        async with AgentMemory.open(store, embedder=embedder_name(wire)) as memory:
            assert wire.requests == []
            assert [hit.item.content for hit in await memory.semantic.search("cello", mode="text")]
            assert wire.requests == []
            await memory.remember("Bread is baked on Tuesdays.")
        assert len(wire.requests) == 1

    async def test_empty_store_requests_dimension_once(self, wire: Wire, tmp_path: Path):
        async with AgentMemory.open(tmp_path / "agent.db", embedder=embedder_name(wire)) as memory:
            await memory.remember("The cello is in the attic.")
        assert len(wire.requests) == 2

    async def test_other_model_raises_mismatch_until_reembedded(self, wire: Wire, tmp_path: Path):
        store = tmp_path / "agent.db"
        async with AgentMemory.open(store, embedder=HashEmbedder()) as memory:
            await memory.remember("The cello is in the attic.")
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await AgentMemory.open(store, embedder=embedder_name(wire))
        assert await reembed_store(store, embedder_name(wire)) == 1
        async with AgentMemory.open(store, embedder=embedder_name(wire)) as memory:
            assert (await memory.stats()).model == "openai:small"

    async def test_open_memory_can_be_reembedded(self, wire: Wire, tmp_path: Path):
        settings = Settings(retries=0)
        async with AgentMemory.open(tmp_path / "agent.db", embedder=embedder_name(wire), settings=settings) as memory:
            await memory.remember("The cello is in the attic.")
            await memory.reembed(f"voyage:other@{wire.voyage}")
            assert [usage.model for usage in (await memory.stats()).spent] == ["openai:small", "voyage:other"]
            await memory.remember("Bread is baked on Tuesdays.")
            with pytest.raises(EmbedderFailed):
                await memory.reembed("openai:small@http://127.0.0.1:9/v1")

    async def test_unreachable_embedder_raises_when_opening(self, tmp_path: Path):
        with pytest.raises(EmbedderFailed, match="could not be reached"):
            await AgentMemory.open(
                tmp_path / "agent.db", embedder="openai:x@http://127.0.0.1:9/v1", settings=Settings(retries=0)
            )


class TestCost:
    async def test_stats_show_usage_of_all_scopes(self, wire: Wire, tmp_path: Path):
        wire.script(Say("Summary one.", read=1000, written=100), *[Say("Summary.", read=10, written=1)] * 50)
        async with AgentMemory.open(
            tmp_path / "a.db", embedder=embedder_name(wire), llm=f"openai:big@{wire.openai}"
        ) as memory:
            [dimension_request] = (await memory.stats()).spent
            assert dimension_request.embedded == 5
            await memory.remember("one two three")
            await memory.scoped(user="bob").remember("four five")
            await fill_working_memory(memory)
            embedder, model = (await memory.stats()).spent
            assert (embedder.model, embedder.embedded, embedder.usd) == ("openai:small", 5 + 3 + 2, 0.0)
            assert model.model == "openai:big"
            assert model.read >= 1000
            assert model.calls == len([request for request in wire.requests if request.path.endswith("completions")])
        async with AgentMemory.open(tmp_path / "a.db", embedder=embedder_name(wire)) as again:
            assert (await again.stats()).spent == ()

    async def test_memory_works_without_model_at_the_spend_limit(self, wire: Wire, tmp_path: Path):
        wire.script(Say("A summary by the model.", read=900, written=200))
        settings = Settings(llm=f"openai:big@{wire.openai}", llm_budget_tokens=1000)
        async with AgentMemory.open(tmp_path / "a.db", embedder=HashEmbedder(), settings=settings) as memory:
            await fill_working_memory(memory)
            assert any("A summary by the model." in text for text in memory.working.summaries)
            await fill_working_memory(memory)
            assert len(memory.working.summaries) >= 1
            assert any("llm_budget_tokens=1,000 is spent" in warning for warning in memory.working.warnings)
            assert any("summarized offline" in warning for warning in memory.working.warnings)
            agent = open_chat(f"openai:big@{wire.openai}", settings, ledger=memory._engine.usage)
            with pytest.raises(SpendLimitReached, match="raise the limit"):
                await agent.reply([ChatMessage("user", "hello")])
            await agent.close()
        assert (len(wire.requests), wire.unexpected) == (1, 0)

    async def test_usd_limit_without_price_is_rejected_when_opening(self, tmp_path: Path):
        settings = Settings(openai_api_key="k", llm="openai:some-new-model", llm_budget_usd=5.0)
        with pytest.raises(BadSettings, match="llm_budget_tokens"):
            await AgentMemory.open(tmp_path / "a.db", embedder=HashEmbedder(), settings=settings)
        assert not (tmp_path / "a.db").exists()


class TestLanguageModel:
    async def test_failing_model_falls_back_to_offline_summary(self, wire: Wire, tmp_path: Path):
        wire.script(*[Fail(400, "invalid_request_error")] * 20)
        async with AgentMemory.open(
            tmp_path / "a.db", embedder=HashEmbedder(), llm=f"anthropic:claude-haiku-4-5@{wire.anthropic}"
        ) as memory:
            await fill_working_memory(memory)
            assert memory.working.summaries
            assert any("refused the request (400 invalid_request_error)" in text for text in memory.working.warnings)

    def test_sync_memory_uses_remote_models(self, wire: Wire, tmp_path: Path):
        wire.script(*[Say("Short.")] * 20)
        with SyncMemory.open(
            tmp_path / "a.db", embedder=embedder_name(wire), llm=f"openai:big@{wire.openai}"
        ) as memory:
            memory.remember("The cello is in the attic.")
            assert str(memory.recall("cello"))
            assert [usage.model for usage in memory.stats().spent] == ["openai:small"]

    async def test_concurrent_remembers_are_all_stored(self, wire: Wire, tmp_path: Path):
        async with AgentMemory.open(tmp_path / "a.db", embedder=embedder_name(wire)) as memory:
            await asyncio.gather(*(memory.remember(f"fact {n} about topic{n}") for n in range(30)))
            assert (await memory.stats()).items == 30
