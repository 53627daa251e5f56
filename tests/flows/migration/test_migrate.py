"""A store that was moved is the same store: byte for byte in its exports, answer for answer in what it recalls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory, BadInput, Conflict, EmbeddingModelMismatch, StoreUnavailable, Unsupported
from recollect.memory import MigrationReport, migrate_store
from recollect.runtime.failpoints import VARIABLE
from recollect.stores.connect import Place
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.migration.sample import SCOPES, seen

ROOT = Path(__file__).resolve().parents[3]


async def same(clock: ManualClock, tmp_path: Path, *places: Place) -> None:
    first, *others = [await seen(place, clock, tmp_path) for place in places]
    for other in others:
        for before, after in zip(first, other, strict=True):
            assert after == before


async def test_there_and_back_again_everything_is_as_it_was(
    source: Path, clock: ManualClock, tmp_path: Path, database: Callable[[], str]
):
    # Mutants: the last page of items, entries or tasks left out; entries without their `seq`; hidden ones left out;
    # no counter for an empty log.
    there, back = database(), tmp_path / "back.db"
    first = await migrate_store(source, there)
    assert (first.held, first.copied, first.model) == (first.copied, first.held, "hash")
    assert len({one.space.tenant for one in first.moved}) == 2
    assert {one.space.tier for one in first.moved} == {
        *("semantic", "lifecycle", "procedural", "conversation", "episodic", "working", "checkpoints")
    }
    second = await migrate_store(there, back)
    hashes = [{str(one.space): (one.held, one.sha256) for one in report.moved} for report in (first, second)]
    assert hashes[0] == hashes[1]
    again = await migrate_store(source, back)  # nothing is left to do, and nothing is doubled
    assert (again.held, again.copied) == (first.held, 0)
    await same(clock, tmp_path, source, back, there)


async def test_logs_and_tasks_go_to_redis_and_the_rest_stays(
    source: Path, clock: ManualClock, tmp_path: Path, redis_url: str
):
    before = shutil.copy(source, tmp_path / "before.db")
    moved = ("conversation", "episodic", "checkpoints")
    report = await migrate_store(source, dict.fromkeys(moved, redis_url))
    assert {one.space.tier for one in report.moved} == {*moved, "working"}
    await same(clock, tmp_path, before, {"default": str(source), **dict.fromkeys(moved, redis_url)})


async def test_what_is_said_after_the_move_is_promoted_as_it_would_have_been(
    source: Path, clock: ManualClock, tmp_path: Path, redis_url: str
):
    """How far a log was read is known by the places of its entries, also where none of them is left."""
    moved = ("conversation", "episodic", "checkpoints")
    await migrate_store(source, dict.fromkeys(moved, redis_url))
    place = {"default": str(source), **dict.fromkeys(moved, redis_url)}
    scope = {**SCOPES[0], "session": "gone"}
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock, **scope) as memory:  # type: ignore[arg-type]
        await memory.episodic.store("Remember that my sister is called Wilhelmina.", metadata={"role": "user"})
        [entry] = await memory._parts.stores.log("episodic").read(memory.episodic.space())
        assert entry.seq == 8


async def test_one_tenant_alone(source: Path, tmp_path: Path):
    target = tmp_path / "globex.db"
    with pytest.raises(BadInput, match="nothing of a tenant 'golbex'"):  # mutant: a slip that looks like success
        await migrate_store(source, target, tenant="golbex")
    report = await migrate_store(source, target, tenant="globex")
    assert {one.space.tenant for one in report.moved} == {"globex"}
    later = await migrate_store(source, target, tenant="acme")  # beside the other, who is in nobody's way
    assert later.copied == later.held > report.held
    assert (await migrate_store(source, target)).copied == 0


async def test_a_dry_run_counts_and_makes_nothing(source: Path, tmp_path: Path):
    target = tmp_path / "new.db"
    told: list[str] = []
    report = await migrate_store(source, target, dry_run=True, progress=lambda stage, done, total: told.append(stage))
    assert report.dry_run
    assert (report.held > 300, report.copied) == (True, 0)
    assert not target.exists()
    assert set(told) == {"looking"}
    assert (await migrate_store(source, target)).copied == report.held


def killed(source: Path, target: str, point: str, visit: int) -> int:
    return subprocess.run(
        [sys.executable, "-m", "recollect", "migrate", "--from", str(source), "--to", target],
        cwd=source.parent,
        env={**os.environ, VARIABLE: f"migrate.{point}=kill9@{visit}"},
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    ).returncode


async def test_killed_ten_times_in_mid_run_it_goes_on_and_all_is_there(
    source: Path, clock: ManualClock, tmp_path: Path
):
    # Mutants: the last page left out; a target that is taken to be complete where anything is in it.
    target = str(tmp_path / "copy.db")
    for number in range(10):
        # Each run gets one batch further than the one before, and dies before or after the next.
        assert killed(source, target, ("before", "after")[number % 2], 1 + number % 3) == -signal.SIGKILL
    report = await migrate_store(source, target)
    assert 0 < report.copied < report.held
    await same(clock, tmp_path, source, target)


async def moved(source: Path, target: Place) -> MigrationReport:
    return await migrate_store(source, target)


async def test_a_target_that_holds_something_else_is_refused_and_left_as_it_is(source: Path, tmp_path: Path):
    # Mutant: no check before the first write.
    used: list[tuple[dict[str, str], Callable[[AgentMemory], Any]]] = [
        (SCOPES[0], lambda memory: memory.remember("Somebody else's fact.")),
        (SCOPES[0], lambda memory: memory.record_turn("hello", "there")),
        (SCOPES[0], lambda memory: memory.checkpoints.checkpoint("by hand", {"other": 1})),
        ({**SCOPES[0], "user": "eve"}, lambda memory: memory.remember("A stranger's fact.")),
        ({**SCOPES[0], "tenant": "initech"}, lambda memory: memory.remember("Another company's fact.")),
    ]
    for number, (scope, tell) in enumerate(used):
        target = tmp_path / f"used{number}.db"
        async with AgentMemory.open(target, embedder=HashEmbedder(), **scope) as memory:  # type: ignore[arg-type]
            await tell(memory)
        with pytest.raises(Conflict, match="target holds"):
            await moved(source, target)
        async with AgentMemory.open(target, embedder=HashEmbedder(), **scope) as memory:  # type: ignore[arg-type]
            assert ((await memory.stats(everybody=True)).all_items or 0) <= 1


async def test_another_embedding_model_is_refused(source: Path, tmp_path: Path):
    target = tmp_path / "other.db"
    async with AgentMemory.open(target, embedder=HashEmbedder(name="another"), tenant="acme") as memory:
        item = await memory.remember("To bind the store.")
        await memory.forget(item.id)
    with pytest.raises(EmbeddingModelMismatch, match="reembed"):
        await moved(source, target)


async def test_places_that_cannot_be_meant_are_refused(source: Path, tmp_path: Path, redis_url: str):
    with pytest.raises(BadInput, match="another target"):
        await moved(source, f"sqlite:///{source}")
    with pytest.raises(StoreUnavailable, match="no store at"):
        await moved(tmp_path / "none.db", tmp_path / "new.db")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(Unsupported, match="cannot keep semantic, procedural") as refused:
        await moved(source, redis_url)
    assert '"default": "agent.db"' in str(refused.value)
    with pytest.raises(BadInput, match="no tier"):
        await moved(source, {})
