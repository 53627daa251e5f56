"""A migrated store equals its source: the exports are byte-identical and recall returns the same."""

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

from recollect import AgentMemory
from recollect.durable.failpoints import FAILPOINTS_VARIABLE
from recollect.errors import BadInput, Conflict, EmbeddingModelMismatch, StoreUnavailable, Unsupported
from recollect.portability.migration import MigrationReport, migrate_store
from recollect.stores.factory import StoreLocation
from recollect.stores.sqlite import SqliteStore
from recollect.testing import ManualClock
from recollect.testing.factories import TASKS, make_save
from tests.embedders import HashEmbedder
from tests.flows.migration.sample import SCOPES, read_store

ROOT = Path(__file__).resolve().parents[3]


async def check_equal(clock: ManualClock, tmp_path: Path, *places: StoreLocation) -> None:
    first, *others = [await read_store(place, clock, tmp_path) for place in places]
    for other in others:
        for before, after in zip(first, other, strict=True):
            assert after == before


async def test_migration_to_postgres_and_back_preserves_the_store(
    source: Path, clock: ManualClock, tmp_path: Path, database: Callable[[], str]
):
    # Mutants: the last page of items, entries or tasks is omitted; entries lose their `seq`; expired entries are
    # omitted; the counter of an empty log is not copied.
    there, back = database(), tmp_path / "back.db"
    first = await migrate_store(source, there)
    assert (first.held, first.copied, first.model) == (first.copied, first.held, "hash")
    assert len({moved.space.tenant for moved in first.moved}) == 2
    assert {moved.space.tier for moved in first.moved} == {
        *("semantic", "lifecycle", "procedural", "conversation", "episodic", "working", "checkpoints")
    }
    second = await migrate_store(there, back)
    hashes = [{str(moved.space): (moved.held, moved.sha256) for moved in report.moved} for report in (first, second)]
    assert hashes[0] == hashes[1]
    again = await migrate_store(source, back)  # nothing is left to copy
    assert (again.held, again.copied) == (first.held, 0)
    await check_equal(clock, tmp_path, source, back, there)


async def test_migration_copies_every_version_of_a_task(tmp_path: Path):
    # Mutant: the default limit of `checkpoints` applies.
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    before = SqliteStore.open(source)
    await before.write(*(make_save(f"[{n}]", keep=None) for n in range(1001)))
    await before.close()
    await migrate_store(source, target)
    after = SqliteStore.open(target)
    assert len(await after.checkpoints(TASKS, "t", limit=2000)) == 1001
    await after.close()


async def test_migration_of_logs_and_tasks_to_redis_preserves_the_store(
    source: Path, clock: ManualClock, tmp_path: Path, redis_url: str
):
    before = shutil.copy(source, tmp_path / "before.db")
    tiers = ("conversation", "episodic", "checkpoints")
    report = await migrate_store(source, dict.fromkeys(tiers, redis_url))
    assert {moved.space.tier for moved in report.moved} == {*tiers, "working"}
    await check_equal(clock, tmp_path, before, {"default": str(source), **dict.fromkeys(tiers, redis_url)})


async def test_log_sequence_continues_after_migration(source: Path, clock: ManualClock, tmp_path: Path, redis_url: str):
    """The lifecycle's read position is a sequence number, which must continue even if the log is empty."""
    tiers = ("conversation", "episodic", "checkpoints")
    await migrate_store(source, dict.fromkeys(tiers, redis_url))
    place = {"default": str(source), **dict.fromkeys(tiers, redis_url)}
    scope = {**SCOPES[0], "session": "gone"}
    async with AgentMemory.open(place, embedder=HashEmbedder(), clock=clock, **scope) as memory:  # type: ignore[arg-type]
        await memory.episodic.store("Remember that my sister is called Wilhelmina.", metadata={"role": "user"})
        [entry] = await memory._engine.stores.log("episodic").read(memory.episodic._find_space())
        assert entry.seq == 8


async def test_migration_of_one_tenant_copies_only_that_tenant(source: Path, tmp_path: Path):
    target = tmp_path / "globex.db"
    with pytest.raises(BadInput, match="nothing of a tenant 'golbex'"):  # Mutant: an unknown tenant is a success
        await migrate_store(source, target, tenant="golbex")
    report = await migrate_store(source, target, tenant="globex")
    assert {moved.space.tenant for moved in report.moved} == {"globex"}
    later = await migrate_store(source, target, tenant="acme")  # into the same target
    assert later.copied == later.held > report.held
    assert (await migrate_store(source, target)).copied == 0


async def test_dry_run_counts_and_creates_nothing(source: Path, tmp_path: Path):
    target = tmp_path / "new.db"
    stages: list[str] = []
    report = await migrate_store(source, target, dry_run=True, progress=lambda progress: stages.append(progress.stage))
    assert report.dry_run
    assert (report.held > 300, report.copied) == (True, 0)
    assert not target.exists()
    assert set(stages) == {"looking"}
    assert (await migrate_store(source, target)).copied == report.held


def run_and_kill(source: Path, target: str, point: str, visit: int) -> int:
    return subprocess.run(
        [sys.executable, "-m", "recollect", "migrate", "--from", str(source), "--to", target],
        cwd=source.parent,
        env={**os.environ, FAILPOINTS_VARIABLE: f"migrate.{point}=kill9@{visit}"},
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=False,
    ).returncode


async def test_migration_killed_ten_times_resumes_and_completes(source: Path, clock: ManualClock, tmp_path: Path):
    # Mutants: the last page is omitted; a target with any data is treated as complete.
    target = str(tmp_path / "copy.db")
    for number in range(10):
        # Each run copies at least one more batch than the last, and is killed before or after the next one.
        assert run_and_kill(source, target, ("before", "after")[number % 2], 1 + number % 3) == -signal.SIGKILL
    report = await migrate_store(source, target)
    assert 0 < report.copied < report.held
    await check_equal(clock, tmp_path, source, target)


async def migrate(source: Path, target: StoreLocation) -> MigrationReport:
    return await migrate_store(source, target)


async def test_target_with_other_data_is_rejected_and_unchanged(source: Path, tmp_path: Path):
    # Mutant: the target is not checked before the first write.
    prepared: list[tuple[dict[str, str], Callable[[AgentMemory], Any]]] = [
        (SCOPES[0], lambda memory: memory.remember("Somebody else's fact.")),
        (SCOPES[0], lambda memory: memory.record_turn("hello", "there")),
        (SCOPES[0], lambda memory: memory.checkpoints.checkpoint("by hand", {"other": 1})),
        ({**SCOPES[0], "user": "eve"}, lambda memory: memory.remember("A stranger's fact.")),
        ({**SCOPES[0], "tenant": "initech"}, lambda memory: memory.remember("Another company's fact.")),
    ]
    for number, (scope, store) in enumerate(prepared):
        target = tmp_path / f"used{number}.db"
        async with AgentMemory.open(target, embedder=HashEmbedder(), **scope) as memory:  # type: ignore[arg-type]
            await store(memory)
        with pytest.raises(Conflict, match="target holds"):
            await migrate(source, target)
        async with AgentMemory.open(target, embedder=HashEmbedder(), **scope) as memory:  # type: ignore[arg-type]
            assert ((await memory.stats(whole_store=True)).all_items or 0) <= 1


async def test_target_with_other_embedding_model_is_rejected(source: Path, tmp_path: Path):
    target = tmp_path / "other.db"
    async with AgentMemory.open(target, embedder=HashEmbedder(name="another"), tenant="acme") as memory:
        item = await memory.remember("To bind the store.")
        await memory.forget(item.id)
    with pytest.raises(EmbeddingModelMismatch, match="reembed"):
        await migrate(source, target)


async def test_invalid_source_or_target_is_rejected(source: Path, tmp_path: Path, redis_url: str):
    with pytest.raises(BadInput, match="another target"):
        await migrate(source, f"sqlite:///{source}")
    with pytest.raises(StoreUnavailable, match="no store at"):
        await migrate(tmp_path / "none.db", tmp_path / "new.db")
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(Unsupported, match="cannot keep semantic, procedural") as caught:
        await migrate(source, redis_url)
    assert '"default": "agent.db"' in str(caught.value)
    with pytest.raises(BadInput, match="no tier"):
        await migrate(source, {})
