"""A filled store, created once, and empty servers as migration targets."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from recollect.testing import ManualClock
from tests.flows.migration.sample import fill
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

_numbers = count()


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ManualClock]:
    clock = ManualClock()
    path = tmp_path_factory.mktemp("filled") / "agent.db"
    asyncio.run(fill(path, clock))
    return path, clock


@pytest.fixture
def clock(filled: tuple[Path, ManualClock]) -> ManualClock:
    return filled[1]


@pytest.fixture
def source(filled: tuple[Path, ManualClock], tmp_path: Path) -> Path:
    """Return a copy of the filled store for one test, because searches change access counts."""
    return Path(shutil.copy(filled[0], tmp_path / "agent.db"))


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def database(postgres: Server) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def another() -> str:
        made.append(f"migration_{next(_numbers)}")
        return postgres.create(made[-1])

    yield another
    for name in made:
        postgres.drop(name)
