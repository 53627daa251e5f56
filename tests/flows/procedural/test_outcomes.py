"""Outcomes are never lost, and procedures are ordered by their success."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from recollect.errors import NotFound
from recollect.testing import ManualClock
from recollect.tiers.procedural import ProceduralMemory
from tests.flows.procedural.reading import DAY, Opener, keys_hit, keys_of, record_outcomes

ROOT = Path(__file__).parents[3]


class TestOutcomes:
    async def test_success_rate_has_confidence_bounds(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await record_outcomes(tier, "deploy", "++++++++--")
        rate = await tier.success_rate("deploy")
        assert (rate.rate, rate.trials) == (0.8, 10)
        assert rate.lower == pytest.approx(0.4902, abs=1e-4)
        assert rate.upper == pytest.approx(0.9433, abs=1e-4)

    async def test_concurrent_outcomes_are_all_counted(self, open_tier: Opener):
        # The two tiers share only the store.
        first, other = await open_tier(agent="builder"), await open_tier(agent="builder")
        await first.save("deploy", "push")
        await asyncio.gather(
            *((first, other)[at % 2].record_outcome("deploy", at % 5 != 0, seconds=1.0) for at in range(50))
        )
        found = await other.get("deploy")
        assert found is not None
        assert (found.outcomes.trials, found.outcomes.successes, found.outcomes.timed) == (50, 40, 50)

    async def test_outcomes_of_several_processes_are_all_counted(self, open_tier: Opener, place: str):
        if place == "memory://":
            return
        tier = await open_tier(agent="builder")
        await tier.save("deploy", "push")
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _WORKER, place, str(successes)),
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
                stderr=asyncio.subprocess.PIPE,
            )
            for successes in (25, 15, 0)
        ]
        await asyncio.gather(*(tier.record_outcome("deploy", True) for _ in range(25)))
        assert [(await worker.communicate())[1] for worker in workers] == [b""] * 3
        assert [worker.returncode for worker in workers] == [0] * 3
        rate = await tier.success_rate("deploy")
        assert (rate.trials, round(rate.rate * rate.trials)) == (100, 65)

    async def test_outcomes_during_version_changes_are_all_counted(self, tier: ProceduralMemory):
        await tier.save("deploy", "way 0")
        await asyncio.gather(
            *(tier.record_outcome("deploy", True) for _ in range(20)),
            *(tier.save("deploy", f"way {number}") for number in range(1, 6)),
        )
        assert sum(version.outcomes.trials for version in await tier.history("deploy")) == 20

    async def test_notes_are_kept_with_their_times(self, tier: ProceduralMemory, clock: ManualClock):
        await tier.save("deploy", "push")
        for number in range(25):
            clock.forward(DAY)
            await tier.record_outcome("deploy", number % 2 == 0, note=f"run {number}")
        found = await tier.get("deploy")
        assert found is not None
        assert [note.text for note in found.outcomes.notes] == [f"run {number}" for number in range(5, 25)]
        assert (found.outcomes.notes[-1].at, found.outcomes.last_at) == (clock.now, clock.now)

    async def test_outcome_of_unknown_procedure_raises_not_found(self, tier: ProceduralMemory):
        with pytest.raises(NotFound, match="'deploy'"):
            await tier.record_outcome("deploy", True)
        with pytest.raises(NotFound, match="'deploy'"):
            await tier.success_rate("deploy")

    async def test_outcome_of_retired_procedure_is_counted(self, tier: ProceduralMemory):
        await tier.save("deploy", "push")
        await tier.retire("deploy")
        assert (await tier.record_outcome("deploy", False)).retired
        assert (await tier.success_rate("deploy")).trials == 1
        assert await tier.keys() == []

    async def test_procedure_with_outcomes_stays_searchable(self, tier: ProceduralMemory):
        await tier.save("deploy", "push the pipeline")
        await record_outcomes(tier, "deploy", "+-+")
        assert keys_hit(await tier.search("push pipeline")) == ["deploy"]


class TestBest:
    async def test_best_orders_by_lower_bound_of_success(self, tier: ProceduralMemory):
        for key, results in {
            "a.lucky": "+",
            "b.proven": "+++++++++-",
            "c.bad": "-----",
            "d.new": "",
            "e.fair": "+++--",
        }.items():
            await tier.save(key, f"do {key}")
            await record_outcomes(tier, key, results)
        assert keys_of(await tier.best(n=9)) == ["b.proven", "e.fair", "a.lucky", "d.new", "c.bad"]
        assert keys_of(await tier.best()) == ["b.proven", "e.fair", "a.lucky"]
        assert await tier.best(n=0) == []

    async def test_best_filters_by_tag_and_prefix(self, tier: ProceduralMemory):
        await tier.save("deploy.web", "push", tags=["ops"])
        await tier.save("deploy.app", "push", tags=["ops", "mobile"])
        await tier.save("write.report", "write", tags=["text"])
        assert keys_of(await tier.best(tag="ops")) == ["deploy.app", "deploy.web"]
        assert keys_of(await tier.best(prefix="write.")) == ["write.report"]
        assert keys_of(await tier.best("mobile", "deploy.")) == ["deploy.app"]
        assert await tier.best(tag="op") == []

    async def test_demoted_procedures_come_last_until_they_recover(self, tier: ProceduralMemory):
        await tier.save("a.fallen", "the old way")
        await tier.save("b.poor", "the odd way")
        await record_outcomes(tier, "b.poor", "-")
        await record_outcomes(tier, "a.fallen", "+" * 20 + "-" * 7)
        fallen = await tier.get("a.fallen")
        assert fallen is not None
        assert fallen.demoted
        assert keys_of(await tier.best()) == ["b.poor", "a.fallen"]
        await record_outcomes(tier, "a.fallen", "+" * 10)
        assert keys_of(await tier.best()) == ["a.fallen", "b.poor"]

    async def test_best_omits_retired_procedures(self, tier: ProceduralMemory):
        await tier.save("a", "one")
        await tier.save("b", "two")
        assert await tier.retire("a")
        assert keys_of(await tier.best()) == ["b"]

    async def test_keys_are_listed_across_pages(self, tier: ProceduralMemory, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("recollect.stores.overlay._PAGE_SIZE", 3)
        for number in range(10):
            await tier.save(f"k{number}", f"way {number}", tags=["all"])
        assert await tier.keys() == [f"k{number}" for number in range(10)]
        assert await tier.keys("k3") == ["k3"]


_WORKER = """
import asyncio, sys

from recollect.clock import system_clock
from recollect.models.factory import open_embedder
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.tiers.procedural import ProceduralMemory
from recollect.types import Scope
from tests.embedders import HashEmbedder

async def nothing(question):
    return []

async def main(place, successes):
    settings = Settings()
    stores = await open_stores(place, settings, system_clock)
    embedding = await open_embedder(HashEmbedder(), settings)
    tier = ProceduralMemory(
        stores.records("procedural"), embedding, nothing,
        scope=Scope(agent="builder"), settings=settings, clock=system_clock,
    )
    await asyncio.gather(*(tier.record_outcome("deploy", at < successes) for at in range(25)))
    embedding.close()
    await stores.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
