"""Whatever a store holds, wherever it is moved to and however often that is interrupted: the copy holds the same."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.memory import migrate_store
from recollect.memory.migration import entries, items, part, tasks
from recollect.runtime.failpoints import FailPointReached, armed
from recollect.settings import Settings
from recollect.stores.connect import Place, connect
from recollect.testing import ManualClock
from recollect.testing.samples import START
from tests.contract.moving import Line, Places, contents, counters, fill, holdings, pairs, touch
from tests.contract.telling import live, lives, tell
from tests.servers.postgres import Server
from tests.servers.redis import RedisCluster, RedisServer

PLAIN = Settings()
LATER = START.replace(year=2030)


@pytest.fixture(scope="module")
def quick() -> Iterator[Path]:
    """A directory in memory where there is one: what is moved and thrown away needs no disk."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="recollect-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def places(
    quick: Path,
    postgres: Server,
    redis_server: RedisServer,
    redis_cluster: RedisCluster,
) -> Places:
    databases = [postgres.create(f"moving{side}") for side in range(2)]
    for url in databases:
        asyncio.run(_opened_and_closed(url))
    return Places(quick, databases, redis_server, redis_cluster, itertools.count())


async def _opened_and_closed(url: str) -> None:
    await (await connect(url, PLAIN, ManualClock())).close()


class Interrupted(Exception):
    """What the tests interrupt with."""


# How many are moved together: so that a little is several batches, and an interruption may fall between any two.
pages = st.sampled_from([1, 2, 1, 3])
# Before or after a batch of that number, or when so much of a stage was told to be done.
stops = st.one_of(
    st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 25)),
    st.tuples(
        st.sampled_from(["copying", "copying", "looking", "comparing"]), st.sampled_from([0.9, 0.5, 0.7, 0.1, 1])
    ),
)
Stop = tuple[str, float]


@settings(max_examples=max(10, settings().max_examples // 10))
@given(pair=pairs, told=contents, page=pages, stopped=st.lists(stops, max_size=2))
def test_a_copy_holds_what_the_store_does(
    places: Places, pair: tuple[str, str], told: list[Line], page: int, stopped: list[Stop]
) -> None:
    source, target = (places.empty(kind, side) for side, kind in enumerate(pair))
    with small_pages(page):
        asyncio.run(_moved(source, target, told, stopped))


async def _moved(source: Place, target: Place, told: list[Line], stopped: list[Stop]) -> None:
    clock = ManualClock(START)
    stores = await connect(source, PLAIN, clock)
    await fill(stores, clock, told)
    for stop in stopped:
        await stores.close()
        await interrupted(source, target, stop)
        # Who asks meanwhile is counted, and that is no reason to begin anew.
        stores = await connect(source, PLAIN, clock)
        await touch(stores)
    await stores.close()
    first = await migrate_store(source, target, settings=PLAIN)
    again = await migrate_store(source, target, settings=PLAIN)
    assert (again.held, again.copied) == (first.held, 0)
    sides: list[Any] = []
    for place in (source, target):
        stores = await connect(place, PLAIN, ManualClock(LATER))
        sides.append((await holdings(stores), await counters(stores)))
        assert [await one.check() for one in stores.every] == [[]] * len(stores.every)
        await stores.close()
    assert sides[1][0] == sides[0][0]
    # Items of a log's name may count on in the same column, so a copy may be ahead, and nobody is behind.
    for space, last in sides[0][1].items():
        assert sides[1][1][space] >= last, space


@settings(max_examples=max(4, settings().max_examples // 40))
@given(pair=pairs, life=lives, page=pages, stopped=st.lists(stops, max_size=1))
def test_a_copy_tells_what_the_memory_does(
    places: Places, pair: tuple[str, str], life: list[Any], page: int, stopped: list[Stop]
) -> None:
    source, target = (places.empty(kind, side) for side, kind in enumerate(pair))
    with small_pages(page):
        asyncio.run(_told(places, source, target, life, stopped))


async def _told(places: Places, source: Place, target: Place, life: list[Any], stopped: list[Stop]) -> None:
    clock = ManualClock(START)
    await live(source, clock, life)
    for stop in stopped:
        await interrupted(source, target, stop)
    await migrate_store(source, target, settings=PLAIN)
    assert (await migrate_store(source, target, settings=PLAIN)).copied == 0
    assert await tell(target, clock, places.directory) == await tell(source, clock, places.directory)


async def interrupted(source: Place, target: Place, stop: Stop) -> None:
    where, when = stop

    def progress(stage: str, done: int, total: int) -> None:
        assert done <= total
        if stage == where and done >= when * total:
            raise Interrupted(stage)

    reach = armed(f"migrate.{where}=raise@{when}" if where in ("before", "after") else "")
    with pytest.MonkeyPatch.context() as patched:
        for module in (entries, items, tasks):
            patched.setattr(module, "reach", reach)
        with suppress(FailPointReached, Interrupted):
            await migrate_store(source, target, settings=PLAIN, progress=progress)


@contextmanager
def small_pages(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module in (part, entries, items, tasks):
            patched.setattr(module, "MOST_TOGETHER", size)
        yield
