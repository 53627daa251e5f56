"""Healthy memories for the doctor, made once and copied, and a Redis that has all that one should have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.doctor.ward import Ward, made_healthy
from tests.servers.redis import RedisServer

_SET = {"appendfsync": "always", "maxmemory": "536870912"}


@pytest.fixture(scope="session")
def healthy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(made_healthy(tmp_path_factory.mktemp("healthy")))


@pytest.fixture(scope="session")
def crowded_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crowded")


@pytest.fixture(scope="session")
def one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis-of-doctor")).start()
    yield server
    server.stop()


@pytest.fixture
def roomy_redis(one_redis: RedisServer) -> RedisServer:
    with one_redis.client() as client:
        client.flushall()
        for name, value in _SET.items():
            client.config_set(name, value)
    return one_redis


@pytest_asyncio.fixture
async def ward(tmp_path: Path, healthy_file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ward]:
    monkeypatch.chdir(tmp_path)
    ward = Ward(tmp_path).takes(healthy_file)
    ward.path.chmod(0o600)
    yield ward
    await ward.close()
