"""What the tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that the tests of one module may set, stop and start as they like."""
    started = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield started
    started.kill()
