"""Fixtures of the Redis tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a Redis server that the tests of one module may configure, stop and start."""
    started = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield started
    started.kill()
