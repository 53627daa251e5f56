"""Versions of procedures: one is current, and older ones are kept and can be restored."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recollect.errors import NotFound
from recollect.stores.filters import Where
from recollect.stores.writes import Delete
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory, Procedure
from tests.flows.procedural.reading import DAY, Opener, keys_hit, keys_of, record_outcomes


class TestSaving:
    async def test_saved_procedure_is_returned_unchanged(self, tier: ProceduralMemory, clock: ManualClock):
        body = "1. Run the tests.\n2. Push.\n\n  (never on a Friday)  \n"
        saved = await tier.save("deploy.staging", body, description="Ship to staging", tags=["ops", "deploy", "ops"])
        found = await tier.get("deploy.staging")
        assert found == saved
        assert (saved.body, saved.description, saved.tags) == (body, "Ship to staging", ("ops", "deploy"))
        assert (saved.version, saved.source, saved.trust, saved.created_at) == (1, "user", 1.0, clock.now)
        assert (saved.current, saved.retired, saved.demoted, saved.success_rate.trials) == (True, False, False, 0)

    async def test_new_body_creates_a_new_version(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push")
        clock.forward(DAY)
        second = await tier.save("deploy", "test, then push")
        assert (second.version, second.created_at) == (2, clock.now)
        assert await tier.get("deploy") == second
        first = await tier.get("deploy", 1)
        assert first is not None
        assert (first.body, first.current, first.standing) == ("push", False, "superseded")
        assert await tier.get("deploy", 3) is None

    async def test_same_body_updates_description_of_same_version(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="old words", tags=["a"])
        await tier.record_outcome("deploy", True)
        changed = await tier.save("deploy", "push", description="new words", tags=["b"])
        assert (changed.version, changed.description, changed.tags) == (1, "new words", ("b",))
        assert changed.success_rate.trials == 1
        assert await tier.get("deploy") == changed
        assert len(await tier.history("deploy")) == 1

    async def test_omitted_description_and_tags_are_kept(self, tier: ProceduralMemory):
        await tier.save("deploy", "push", description="Ship it", tags=["ops"])
        second = await tier.save("deploy", "test, then push")
        assert (second.description, second.tags) == ("Ship it", ("ops",))

    async def test_saving_unchanged_procedure_writes_nothing(self, tier: ProceduralMemory):
        first = await tier.save("deploy", "push", description="Ship it")
        items = await tier._store.find(Where(tier._space))
        assert await tier.save("deploy", "push", description="Ship it", source="agent") == first
        assert await tier._store.find(Where(tier._space)) == items

    async def test_new_version_starts_without_outcomes(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await record_outcomes(tier, "deploy", "++++-")
        await tier.save("deploy", "test, then push")
        assert (await tier.success_rate("deploy")).trials == 0
        first = await tier.get("deploy", 1)
        assert first is not None
        assert first.success_rate.trials == 5

    async def test_concurrent_saves_create_one_version_each(self, open_tier: Opener):
        tiers = [await open_tier(agent="builder") for _ in range(2)]
        saved = await asyncio.gather(*(tiers[number % 2].save("deploy", f"way {number}") for number in range(12)))
        assert sorted(procedure.version for procedure in saved) == list(range(1, 13))
        history = await tiers[0].history("deploy")
        assert [procedure.version for procedure in history] == list(range(12, 0, -1))
        assert [procedure.version for procedure in history if procedure.current] == [12]

    async def test_concurrent_first_version_is_superseded(self, open_tier: Opener, monkeypatch):
        mine, theirs = [await open_tier(agent="builder") for _ in range(2)]
        read_history = mine.history

        async def read_late(key: str) -> list[Procedure]:
            if await theirs.get(key) is None:
                await theirs.save(key, "their way")
            return await read_history(key)

        monkeypatch.setattr(mine, "history", read_late)
        saved = await mine.save("deploy", "my way")
        assert saved.version == 2
        assert [(procedure.version, procedure.current) for procedure in await mine.history("deploy")] == [
            (2, True),
            (1, False),
        ]

    async def test_backwards_clock_does_not_restore_old_versions(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push the old pipeline")
        clock.back(DAY)
        second = await tier.save("deploy", "push the new pipeline")
        assert await tier.get("deploy") == second
        assert [procedure.version for procedure in await tier.history("deploy")] == [2, 1]
        for _ in range(2):
            assert [hit.item.id for hit in await tier.search("push pipeline", min_relevance=0.0)] == [second.id]
            clock.forward(2 * DAY)

    async def test_reader_with_late_clock_finds_only_current_version(self, open_tier: Opener, clock: ManualClock):
        tier = await open_tier(agent="builder")
        late = await open_tier(agent="builder", clock=ManualClock(clock.now))
        clock.forward(DAY)
        await tier.save("deploy", "push the old pipeline")
        clock.forward(DAY)
        second = await tier.save("deploy", "push the new pipeline")
        assert [hit.item.id for hit in await late.search("push pipeline", min_relevance=0.0)] == [second.id]

    async def test_key_is_usable_after_its_current_version_is_deleted(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        second = await tier.save("deploy", "test, then push")
        await tier._store.write(Delete(tier._space, second.id))
        assert await tier.get("deploy") is None
        assert (await tier.save("deploy", "ask, then push")).version == 2

    async def test_procedures_are_scoped_by_agent_and_tenant(self, open_tier: Opener):
        mine = await open_tier(agent="builder", user="ada")
        await mine.save("deploy", "push")
        assert await (await open_tier(agent="builder", user="bob")).keys() == ["deploy"]
        for other in (await open_tier(agent="writer"), await open_tier(agent="builder", tenant="acme")):
            assert await other.get("deploy") is None
            assert await other.keys() == []
            assert await other.search("deploy push", min_relevance=0.0) == []
            with pytest.raises(NotFound):
                await other.record_outcome("deploy", True)

    async def test_procedures_persist_after_reopening(self, open_tier: Opener, place: str):
        if place == "memory://":
            return
        await (await open_tier(agent="builder")).save("deploy", "push", tags=["ops"])
        again = await open_tier(agent="builder")
        await again.record_outcome("deploy", False, note="refused", seconds=1.5)
        found = await (await open_tier(agent="builder")).get("deploy")
        assert found is not None
        assert (found.tags, found.outcomes.mean_seconds, found.outcomes.notes[0].text) == (("ops",), 1.5, "refused")


class TestRetireAndRollback:
    async def test_retired_procedure_is_only_in_history(self, tier: ProceduralMemory):
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

    async def test_saving_restores_retired_procedure(self, tier: ProceduralMemory):
        await tier.save("deploy", "push the pipeline")
        await tier.record_outcome("deploy", True)
        await tier.retire("deploy")
        again = await tier.save("deploy", "push the pipeline")
        assert (again.version, again.retired, again.success_rate.trials) == (1, False, 1)
        assert keys_hit(await tier.search("push pipeline")) == ["deploy"]
        await tier.retire("deploy")
        assert (await tier.save("deploy", "push another pipeline")).version == 2
        assert [procedure.standing for procedure in await tier.history("deploy")] == ["current", "superseded"]

    async def test_rollback_creates_version_with_restored_from(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push the old pipeline", description="the old way", tags=["old"])
        await record_outcomes(tier, "deploy", "+++")
        clock.forward(DAY)
        await tier.save("deploy", "push the new pipeline", description="the new way", tags=["new"])
        await record_outcomes(tier, "deploy", "--")
        clock.forward(DAY)
        back = await tier.rollback("deploy", 1)
        assert (back.version, back.restored_from, back.body) == (3, 1, "push the old pipeline")
        assert (back.description, back.tags, back.created_at) == ("the old way", ("old",), clock.now)
        assert await tier.get("deploy") == back
        assert [
            (procedure.version, procedure.restored_from, procedure.current)
            for procedure in await tier.history("deploy")
        ] == [
            (3, 1, True),
            (2, None, False),
            (1, None, False),
        ]
        assert [hit.item.id for hit in await tier.search("push pipeline", min_relevance=0.0)] == [back.id]

    async def test_rollback_continues_outcomes_of_the_restored_version(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await record_outcomes(tier, "deploy", "+++")
        await tier.save("deploy", "pull")
        await record_outcomes(tier, "deploy", "--")
        await tier.rollback("deploy", 1)
        await record_outcomes(tier, "deploy", "-")
        rate = await tier.success_rate("deploy")
        assert (rate.rate, rate.trials) == (0.75, 4)
        first = await tier.get("deploy", 1)
        assert first is not None
        assert first.success_rate.trials == 3

    async def test_rollback_to_current_version_changes_nothing(self, tier: ProceduralMemory):
        saved = await tier.save("deploy", "push")
        assert await tier.rollback("deploy", 1) == saved
        assert len(await tier.history("deploy")) == 1

    async def test_rollback_restores_retired_procedure(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await tier.retire("deploy")
        back = await tier.rollback("deploy", 1)
        assert (back.version, back.restored_from, back.current) == (2, 1, True)
        assert await tier.keys() == ["deploy"]

    async def test_rollback_to_missing_version_raises_not_found(self, tier: ProceduralMemory):
        with pytest.raises(NotFound, match="no procedure 'deploy'"):
            await tier.rollback("deploy", 1)
        await tier.save("deploy", "push")
        with pytest.raises(NotFound, match="no version 2; its versions are 1"):
            await tier.rollback("deploy", 2)
