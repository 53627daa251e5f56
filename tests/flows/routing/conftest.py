"""Servers for tiers that are routed to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

_numbers = count()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Start a Redis server for one test, which may stop it."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """Start a PostgreSQL server for one test, which may stop it."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def database(postgres: Server) -> Iterator[Callable[[], str]]:
    """Return a function that creates empty databases, which are dropped after the test."""
    made: list[str] = []

    def another() -> str:
        made.append(f"routing_{next(_numbers)}")
        return postgres.create(made[-1])

    yield another
    for name in made:
        postgres.drop(name)
