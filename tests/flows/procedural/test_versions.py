"""A procedure is kept in versions, of which one is current; older ones stay and can be brought back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recollect.errors import NotFound
from recollect.stores.ops import Delete
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from tests.flows.procedural.reading import DAY, Opener, keys_hit, keys_of, tried


class TestSaving:
    async def test_it_comes_back_as_it_was_saved(self, tier: ProceduralMemory, clock: ManualClock):
        body = "1. Run the tests.\n2. Push.\n\n  (never on a Friday)  \n"
        saved = await tier.save("deploy.staging", body, description="Ship to staging", tags=["ops", "deploy", "ops"])
        found = await tier.get("deploy.staging")
        assert found == saved
        assert (saved.body, saved.description, saved.tags) == (body, "Ship to staging", ("ops", "deploy"))
        assert (saved.version, saved.source, saved.trust, saved.created_at) == (1, "user", 1.0, clock.now)
        assert (saved.current, saved.retired, saved.demoted, saved.success_rate.trials) == (True, False, False, 0)

    async def test_another_body_is_another_version(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push")
        clock.forward(DAY)
        second = await tier.save("deploy", "test, then push")
        assert (second.version, second.created_at) == (2, clock.now)
        assert await tier.get("deploy") == second
        first = await tier.get("deploy", 1)
        assert first is not None
        assert (first.body, first.current, first.standing) == ("push", False, "superseded")
        assert await tier.get("deploy", 3) is None

    async def test_the_same_body_is_the_same_version_with_new_words_about_it(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="old words", tags=["a"])
        await tier.record_outcome("deploy", True)
        changed = await tier.save("deploy", "push", description="new words", tags=["b"])
        assert (changed.version, changed.description, changed.tags) == (1, "new words", ("b",))
        assert changed.success_rate.trials == 1
        assert await tier.get("deploy") == changed
        assert len(await tier.history("deploy")) == 1

    async def test_what_is_left_out_stays(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="Ship it", tags=["ops"])
        second = await tier.save("deploy", "test, then push")
        assert (second.description, second.tags) == ("Ship it", ("ops",))

    async def test_saving_the_same_again_writes_nothing(self, tier: ProceduralMemory):
        first = await tier.save("deploy", "push", description="Ship it")
        items = await tier._store.find(Where(tier.space))
        assert await tier.save("deploy", "push", description="Ship it", source="agent") == first
        assert await tier._store.find(Where(tier.space)) == items

    async def test_a_new_version_has_still_to_prove_itself(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await tried(tier, "deploy", "++++-")
        await tier.save("deploy", "test, then push")
        assert (await tier.success_rate("deploy")).trials == 0
        first = await tier.get("deploy", 1)
        assert first is not None
        assert first.success_rate.trials == 5

    async def test_of_many_bodies_saved_at_once_each_becomes_one_version(self, open_tier: Opener):
        tiers = [await open_tier(agent="builder") for _ in range(2)]
        saved = await asyncio.gather(*(tiers[number % 2].save("deploy", f"way {number}") for number in range(12)))
        assert sorted(one.version for one in saved) == list(range(1, 13))
        history = await tiers[0].history("deploy")
        assert [one.version for one in history] == list(range(12, 0, -1))
        assert [one.version for one in history if one.current] == [12]

    async def test_a_first_version_saved_by_somebody_else_meanwhile_is_ended(self, open_tier: Opener, monkeypatch):
        mine, theirs = [await open_tier(agent="builder") for _ in range(2)]
        look = mine._next_number

        async def late(key: str) -> int:
            if await theirs.get(key) is None:
                await theirs.save(key, "their way")
            return await look(key)

        monkeypatch.setattr(mine, "_next_number", late)
        saved = await mine.save("deploy", "my way")
        assert saved.version == 2
        assert [(one.version, one.current) for one in await mine.history("deploy")] == [(2, True), (1, False)]

    async def test_a_clock_that_runs_backwards_does_not_bring_old_versions_back(
        self, tier: ProceduralMemory, clock: ManualClock
    ):
        await tier.save("deploy", "push the old pipeline")
        clock.back(DAY)
        second = await tier.save("deploy", "push the new pipeline")
        assert await tier.get("deploy") == second
        assert [one.version for one in await tier.history("deploy")] == [2, 1]
        for _ in range(2):
            assert [hit.item.id for hit in await tier.search("push pipeline", min_relevance=0.0)] == [second.id]
            clock.forward(2 * DAY)

    async def test_a_reader_whose_clock_is_late_finds_no_old_version(self, open_tier: Opener, clock: ManualClock):
        tier = await open_tier(agent="builder")
        late = await open_tier(agent="builder", clock=ManualClock(clock.now))
        clock.forward(DAY)
        await tier.save("deploy", "push the old pipeline")
        clock.forward(DAY)
        second = await tier.save("deploy", "push the new pipeline")
        assert [hit.item.id for hit in await late.search("push pipeline", min_relevance=0.0)] == [second.id]

    async def test_versions_left_of_a_forgotten_one_do_not_block_the_key(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        second = await tier.save("deploy", "test, then push")
        await tier._store.write(Delete(tier.space, second.id))
        assert await tier.get("deploy") is None
        assert (await tier.save("deploy", "ask, then push")).version == 2

    async def test_procedures_belong_to_an_agent_and_not_to_a_user(self, open_tier: Opener):
        mine = await open_tier(agent="builder", user="ada")
        await mine.save("deploy", "push")
        assert await (await open_tier(agent="builder", user="bob")).keys() == ["deploy"]
        for other in (await open_tier(agent="writer"), await open_tier(agent="builder", tenant="acme")):
            assert await other.get("deploy") is None
            assert await other.keys() == []
            assert await other.search("deploy push", min_relevance=0.0) == []
            with pytest.raises(NotFound):
                await other.record_outcome("deploy", True)

    async def test_they_are_there_after_a_restart(self, open_tier: Opener, place: str):
        if place == "memory://":
            return
        await (await open_tier(agent="builder")).save("deploy", "push", tags=["ops"])
        again = await open_tier(agent="builder")
        await again.record_outcome("deploy", False, note="refused", seconds=1.5)
        found = await (await open_tier(agent="builder")).get("deploy")
        assert found is not None
        assert (found.tags, found.outcomes.mean_seconds, found.outcomes.notes[0].text) == (("ops",), 1.5, "refused")


class TestRetireAndRollback:
    async def test_a_retired_one_is_history(self, tier: ProceduralMemory):
        saved = await tier.save("deploy", "push the pipeline")
        assert await tier.retire("deploy") is True
        assert await tier.retire("deploy") is False
        assert await tier.retire("unknown") is False
        assert await tier.search("push pipeline", min_relevance=0.0) == []
        found = await tier.get("deploy")
        assert found == replace(saved, standing="retired")
        assert found is not None
        assert found.retired
        assert await tier.all() == []
        assert keys_of(await tier.all(retired=True)) == ["deploy"]

    async def test_saving_brings_it_back(self, tier: ProceduralMemory):
        await tier.save("deploy", "push the pipeline")
        await tier.record_outcome("deploy", True)
        await tier.retire("deploy")
        again = await tier.save("deploy", "push the pipeline")
        assert (again.version, again.retired, again.success_rate.trials) == (1, False, 1)
        assert keys_hit(await tier.search("push pipeline")) == ["deploy"]
        await tier.retire("deploy")
        assert (await tier.save("deploy", "push another pipeline")).version == 2
        assert [one.standing for one in await tier.history("deploy")] == ["current", "superseded"]

    async def test_a_rollback_is_a_new_version_that_says_whose_it_is(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push the old pipeline", description="the old way", tags=["old"])
        await tried(tier, "deploy", "+++")
        clock.forward(DAY)
        await tier.save("deploy", "push the new pipeline", description="the new way", tags=["new"])
        await tried(tier, "deploy", "--")
        clock.forward(DAY)
        back = await tier.rollback("deploy", 1)
        assert (back.version, back.restored_from, back.body) == (3, 1, "push the old pipeline")
        assert (back.description, back.tags, back.created_at) == ("the old way", ("old",), clock.now)
        assert await tier.get("deploy") == back
        assert [(one.version, one.restored_from, one.current) for one in await tier.history("deploy")] == [
            (3, 1, True),
            (2, None, False),
            (1, None, False),
        ]
        assert [hit.item.id for hit in await tier.search("push pipeline", min_relevance=0.0)] == [back.id]

    async def test_it_goes_on_with_the_outcomes_of_that_version(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await tried(tier, "deploy", "+++")
        await tier.save("deploy", "pull")
        await tried(tier, "deploy", "--")
        await tier.rollback("deploy", 1)
        await tried(tier, "deploy", "-")
        rate = await tier.success_rate("deploy")
        assert (rate.rate, rate.trials) == (0.75, 4)
        first = await tier.get("deploy", 1)
        assert first is not None
        assert first.success_rate.trials == 3

    async def test_to_what_is_current_nothing_changes(self, tier: ProceduralMemory):
        saved = await tier.save("deploy", "push")
        assert await tier.rollback("deploy", 1) == saved
        assert len(await tier.history("deploy")) == 1

    async def test_a_retired_one_comes_back_by_rollback(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await tier.retire("deploy")
        back = await tier.rollback("deploy", 1)
        assert (back.version, back.restored_from, back.current) == (2, 1, True)
        assert await tier.keys() == ["deploy"]

    async def test_what_is_not_there_cannot_be_rolled_back_to(self, tier: ProceduralMemory):
        with pytest.raises(NotFound, match="no procedure 'deploy'"):
            await tier.rollback("deploy", 1)
        await tier.save("deploy", "push")
        with pytest.raises(NotFound, match="no version 2; there are 1"):
            await tier.rollback("deploy", 2)
