"""Fixtures of the crash tests: the seed, directories in memory, and the result table at the end."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.crash.acknowledgments import Ledger
from tests.crash.result_table import KEY, Row, Table, lines
from tests.crash.store_locations import Backend, on_postgres, on_redis, on_sqlite
from tests.servers.redis import RedisServer

_NUMBERS = count()
SEED = int(os.environ.get("CRASH_SEED", "8"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for status in ("passed", "failed") for report in terminalreporter.stats.get(status, [])]
    rows = [Row(*value) for report in reports for key, value in report.user_properties if key == KEY]
    if rows:
        terminalreporter.section("promises")
        for line in lines(rows, SEED):
            terminalreporter.write_line(line)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator seeded with the seed of the run and the test's name."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture
def table(record_property) -> Table:
    return Table(record_property)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    opened = Ledger()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start one Redis server for the tests that neither stop nor break it."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Return each backend in turn: the promises hold on all of them."""
    match request.param:
        case "redis":
            return on_redis(tmp_path, request.getfixturevalue("redis_server"))
        case "postgres":
            return on_postgres(request.getfixturevalue("postgres"), f"crash{next(_NUMBERS)}")
        case _:
            return on_sqlite(tmp_path)


@pytest.fixture
def memory_dir() -> Iterator[Path]:
    """Create a directory in memory if possible, for stores that are rebuilt thousands of times."""
    yield from _in_memory()


@pytest.fixture(scope="module")
def module_memory_dir() -> Iterator[Path]:
    """Create a directory in memory for all tests of a module."""
    yield from _in_memory()


def _in_memory() -> Iterator[Path]:
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="recollect-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)
