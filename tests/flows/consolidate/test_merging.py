"""Merging of facts with the same meaning, and facts that must not be merged."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from recollect.tiers.consolidation import ConsolidationReport
from tests.embedders import HashEmbedder
from tests.flows.consolidate.variants import DAY, TEA, load_item, remember_variants, search_contents


class TestMerging:
    async def test_merge_keeps_one_item_and_supersedes_the_others(self, memory: AgentMemory, clock: ManualClock):
        items = await remember_variants(memory, clock)
        report = await memory.semantic.consolidate()
        [merge] = report.merged
        first, *others = (item.id for item in items)
        assert (merge.survivor, set(merge.merged)) == (first, set(others))
        assert merge.reason == "2 more items say the same in the same words"
        assert (report.examined, report.skipped) == (3, ())
        survivor = await load_item(memory, first)
        assert (survivor.content, set(survivor.derived_from), survivor.valid_to) == (TEA[0], set(others), None)
        for id in others:
            copy = await load_item(memory, id)
            assert (copy.superseded_by, copy.valid_to) == (first, clock.now)

    @pytest.mark.parametrize("mode", ["hybrid", "dense", "text"])
    async def test_search_finds_only_the_survivor_and_as_of_finds_all(
        self, memory: AgentMemory, clock: ManualClock, mode: str
    ):
        for text in TEA:
            await memory.remember(text)
        clock.forward(DAY)
        before = clock.now
        clock.forward(DAY)
        await memory.semantic.consolidate()
        assert len(await search_contents(memory, "Ada tea", mode=mode)) == 1
        assert await search_contents(memory, "Ada tea", mode=mode, as_of=before) == sorted(TEA)
        context = await memory.recall("Ada tea", min_relevance=0.0, tiers=["semantic"])
        assert len(context) == 1

    async def test_spelling_variants_merge_with_the_real_model(self, real: AgentMemory):
        await real.remember("The user's favourite colour is blue.")
        await real.remember("The user's favorite color is blue.")
        await real.remember("The user's favorite color is green.")
        [merge] = (await real.semantic.consolidate()).merged
        assert merge.reason.startswith("1 more item says the same but for spelling and light words (cosine 0.9")
        assert len(await search_contents(real, "favorite color")) == 2

    async def test_different_words_with_a_low_cosine_are_not_merged(self, opener):
        class Apart(HashEmbedder):
            def embed_batch(self, texts):
                return [[1.0, 0.0] if "film" in text else [0.6, 0.8] for text in texts]

        memory = await opener(user="ada", embedder=Apart(dim=2))
        for text in ("A film covers the lens.", "A movie covers the lens.", "a movie covers the lens!"):
            await memory.remember(text)
        [merge] = (await memory.semantic.consolidate()).merged
        assert merge.reason == "1 more item says the same in the same words"
        assert len(await search_contents(memory, "covers lens")) == 2

    async def test_long_texts_merge_only_with_the_same_words(self, real: AgentMemory):
        page = " ".join(f"Step {number} needs some colour." for number in range(100))
        await real.remember(page)
        await real.remember(page.replace("colour", "color"))
        assert (await real.semantic.consolidate()).merged == ()
        await real.remember(page.lower())
        assert len((await real.semantic.consolidate()).merged) == 1

    async def test_second_consolidate_merges_nothing(self, memory: AgentMemory):
        for text in TEA:
            await memory.remember(text)
        await memory.semantic.consolidate()
        again = await memory.semantic.consolidate()
        assert (again.merged, again.examined) == ((), 1)

    async def test_dry_run_reports_the_same_merges_and_writes_nothing(self, memory: AgentMemory):
        items = [await memory.remember(text) for text in TEA]
        planned = await memory.semantic.consolidate(dry_run=True)
        assert [await load_item(memory, item.id) for item in items] == items
        assert await memory.semantic.consolidate() == planned

    async def test_progress_is_reported_to_the_end(self, memory: AgentMemory):
        await memory.semantic.add_many({"content": f"fact number {number}"} for number in range(1500))
        reports: list[tuple[int, int | None]] = []
        await memory.semantic.consolidate(progress=lambda progress: reports.append((progress.done, progress.total)))
        assert reports == [(1000, 1500), (1500, 1500)]

    async def test_consolidate_empty_memory_returns_an_empty_report(self, memory: AgentMemory):
        assert await memory.semantic.consolidate() == ConsolidationReport((), 0)


class TestNotMerged:
    async def test_keyed_facts_and_turns_are_not_merged(self, memory: AgentMemory):
        await memory.remember(TEA[0], key="drink")
        await memory.remember(TEA[1], key="beverage")
        for text in TEA:
            await memory.remember(text, session="s1", speaker="Ada")
        await memory.remember(TEA[2])
        report = await memory.semantic.consolidate()
        assert (report.merged, report.examined) == ((), 1)

    async def test_facts_with_different_validity_are_not_merged(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember(TEA[0])
        await memory.remember(TEA[1], valid_to=clock.now + 9 * DAY)
        await memory.remember(TEA[2], valid_from=clock.now + DAY)
        ended = await memory.remember(TEA[0] + "!", valid_to=clock.now + DAY)
        clock.forward(DAY / 2)
        assert (await memory.semantic.consolidate()).merged == ()
        assert (await load_item(memory, ended.id)).superseded_by is None

    async def test_facts_of_other_agents_users_and_tenants_are_not_merged(self, memory: AgentMemory):
        others = [memory.scoped(agent="b"), memory.scoped(user="bob"), memory.scoped(tenant="t")]
        for text, owner in zip((*TEA, "Ada drinks tea!"), (memory, *others), strict=True):
            await owner.remember(text)
        assert (await memory.semantic.consolidate()).merged == ()
        for owner in others[1:]:
            assert len(await search_contents(owner, "Ada tea")) == 1

    async def test_facts_that_depend_on_speaker_or_time_are_not_merged(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("I drink tea.")
        await memory.remember("i drink tea", source="assistant")
        await memory.remember("The launch is in May.")
        await memory.remember("The demo is tomorrow.")
        clock.forward(40 * DAY)
        await memory.remember("the launch is in May")
        await memory.remember("the demo is tomorrow")
        assert (await memory.semantic.consolidate()).merged == ()
        await memory.remember("The demo is tomorrow!")
        assert len((await memory.semantic.consolidate()).merged) == 1

    async def test_similar_facts_with_different_meaning_are_not_merged(self, real: AgentMemory):
        texts = ["John beat Mary.", "Mary beat John.", "Bob lives in room 12.", "Bob lives in room 13.",
                 "The shop is open on Monday.", "The shop is closed on Monday.", "The shop is open on Tuesday.",
                 "Ada lives in Oslo.", "Ada lived in Oslo.", "Ada likes tea.", "Ada dislikes tea."]  # fmt: skip
        for text in texts:
            await real.remember(text)
        report = await real.semantic.consolidate()
        assert (report.merged, report.examined) == ((), len(texts))
