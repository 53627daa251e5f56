"""Migration of random stores between all backends, with interruptions: the copy equals its source."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.durable.failpoints import FailPointReached, arm_failpoints
from recollect.portability import migration
from recollect.portability.migration import migrate_store
from recollect.settings import Settings
from recollect.stores.factory import StoreLocation, open_stores
from recollect.testing import ManualClock
from recollect.testing.factories import START
from recollect.types import Progress
from tests.budgets import limit_examples
from tests.contract.memory_histories import action_lists, read_answers, run_actions
from tests.contract.migration_strategies import (
    Line,
    MigrationLocations,
    backend_pairs,
    contents,
    fill,
    read_contents,
    read_counters,
    touch,
)
from tests.servers.postgres import Server
from tests.servers.redis import RedisCluster, RedisServer

PLAIN = Settings()
LATER = START.replace(year=2030)


@pytest.fixture(scope="module")
def fast_directory() -> Iterator[Path]:
    """Create a directory, in memory if possible: the files are temporary."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="recollect-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def locations(
    fast_directory: Path,
    postgres: Server,
    redis_server: RedisServer,
    redis_cluster: RedisCluster,
) -> MigrationLocations:
    databases = [postgres.create(f"moving{side}") for side in range(2)]
    for url in databases:
        asyncio.run(_open_and_close(url))
    return MigrationLocations(fast_directory, databases, redis_server, redis_cluster, itertools.count())


async def _open_and_close(url: str) -> None:
    await (await open_stores(url, PLAIN, ManualClock())).close()


class Interrupted(Exception):
    """Exception with which the tests interrupt a migration."""


# Batch sizes: small, so that an interruption can fall between any two batches.
pages = st.sampled_from([1, 2, 1, 3])
# Before or after the batch with this number, or at this share of a stage.
stops = st.one_of(
    st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 25)),
    st.tuples(
        st.sampled_from(["copying", "copying", "looking", "comparing"]), st.sampled_from([0.9, 0.5, 0.7, 0.1, 1])
    ),
)
Stop = tuple[str, float]


@limit_examples(0.1)
@given(pair=backend_pairs, history=contents, page=pages, stopped=st.lists(stops, max_size=2))
def test_copy_of_a_store_equals_its_source(
    locations: MigrationLocations, pair: tuple[str, str], history: list[Line], page: int, stopped: list[Stop]
) -> None:
    source, target = (locations.empty(kind, side) for side, kind in enumerate(pair))
    with small_pages(page):
        asyncio.run(_migrate_and_compare(source, target, history, stopped))


async def _migrate_and_compare(
    source: StoreLocation, target: StoreLocation, history: list[Line], stopped: list[Stop]
) -> None:
    clock = ManualClock(START)
    stores = await open_stores(source, PLAIN, clock)
    await fill(stores, clock, history)
    for stop in stopped:
        await stores.close()
        await migrate_interrupted(source, target, stop)
        # Access counts change between attempts, and do not restart the migration.
        stores = await open_stores(source, PLAIN, clock)
        await touch(stores)
    await stores.close()
    first = await migrate_store(source, target, settings=PLAIN)
    again = await migrate_store(source, target, settings=PLAIN)
    assert (again.held, again.copied) == (first.held, 0)
    sides: list[Any] = []
    for location in (source, target):
        stores = await open_stores(location, PLAIN, ManualClock(LATER))
        sides.append((await read_contents(stores), await read_counters(stores)))
        assert [await store.check() for store in stores.all_stores] == [[]] * len(stores.all_stores)
        await stores.close()
    assert sides[1][0] == sides[0][0]
    # Items and entries of a space share a counter, so the copy may be ahead, but never behind.
    for space, last in sides[0][1].items():
        assert sides[1][1][space] >= last, space


@limit_examples(0.025)
@given(pair=backend_pairs, actions=action_lists, page=pages, stopped=st.lists(stops, max_size=1))
def test_copy_of_a_memory_answers_like_its_source(
    locations: MigrationLocations, pair: tuple[str, str], actions: list[Any], page: int, stopped: list[Stop]
) -> None:
    source, target = (locations.empty(kind, side) for side, kind in enumerate(pair))
    with small_pages(page):
        asyncio.run(_migrate_and_recall(locations, source, target, actions, stopped))


async def _migrate_and_recall(
    locations: MigrationLocations, source: StoreLocation, target: StoreLocation, actions: list[Any], stopped: list[Stop]
) -> None:
    clock = ManualClock(START)
    await run_actions(source, clock, actions)
    for stop in stopped:
        await migrate_interrupted(source, target, stop)
    await migrate_store(source, target, settings=PLAIN)
    assert (await migrate_store(source, target, settings=PLAIN)).copied == 0
    # Chroma computes BM25 with the mean length of the candidates, so that its scores and ranks differ.
    is_exact = "chroma" not in f"{source} {target}"
    answers = [await read_answers(place, clock, locations.directory, is_exact=is_exact) for place in (target, source)]
    assert answers[0] == answers[1]


async def migrate_interrupted(source: StoreLocation, target: StoreLocation, stop: Stop) -> None:
    where, when = stop

    def progress(progress: Progress) -> None:
        assert progress.total is not None
        assert progress.done <= progress.total
        if progress.stage == where and progress.done >= when * progress.total:
            raise Interrupted(progress.stage)

    reach = arm_failpoints(f"migrate.{where}=raise@{when}" if where in ("before", "after") else "")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migration, "reach_failpoint", reach)
        with suppress(FailPointReached, Interrupted):
            await migrate_store(source, target, settings=PLAIN, progress=progress)


@contextmanager
def small_pages(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migration, "MAX_BATCH_SIZE", size)
        yield
