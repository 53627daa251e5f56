"""Healthy memories for the doctor, created once and copied, and a correctly configured Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.health.examined_memory import ExaminedMemory, create_healthy_file
from tests.servers.redis import RedisServer

_SET = {"appendfsync": "always", "maxmemory": "536870912"}


@pytest.fixture(scope="session")
def healthy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(create_healthy_file(tmp_path_factory.mktemp("healthy")))


@pytest.fixture(scope="session")
def crowded_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crowded")


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis-of-doctor")).start()
    yield server
    server.stop()


@pytest.fixture
def configured_redis(shared_redis: RedisServer) -> RedisServer:
    with shared_redis.client() as client:
        client.flushall()
        for name, value in _SET.items():
            client.config_set(name, value)
    return shared_redis


@pytest_asyncio.fixture
async def examined(
    tmp_path: Path, healthy_file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ExaminedMemory]:
    monkeypatch.chdir(tmp_path)
    examined = ExaminedMemory(tmp_path).copy_from(healthy_file)
    examined.path.chmod(0o600)
    yield examined
    await examined.close()
