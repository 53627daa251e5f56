"""Memories over several stores: files, and the servers that tiers are routed to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

_numbers = count()

Places = dict[str, str]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """A server that is empty."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def database(postgres: Server) -> Iterator[Callable[[], str]]:
    """Makes databases that are empty, and drops them afterwards."""
    made: list[str] = []

    def another() -> str:
        made.append(f"routing_{next(_numbers)}")
        return postgres.create(made[-1])

    yield another
    for name in made:
        postgres.drop(name)


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Where the tiers live, by the name of the arrangement."""
    if request.param.startswith("files"):
        one, other = str(tmp_path / "one.db"), str(tmp_path / "other.db")
    else:
        one, other = request.getfixturevalue("database")(), request.getfixturevalue("redis_url")
    match request.param:
        case "files" | "servers":
            return {"default": one, "conversation": other, "episodic": other, "checkpoints": other}
        case "files, the other way" | "servers, the other way":
            return {"default": one, "conversation": one, "episodic": other}
        case other:
            raise AssertionError(other)
