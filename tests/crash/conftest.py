"""What the tests of crashes share: a seed, a place that is quick to write, and the table at the end."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.crash.ledger import Ledger
from tests.crash.places import Ground, on_postgres, on_redis, on_sqlite
from tests.crash.table import KEY, Row, Table, lines
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
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Randomness that the seed of the run and the test's name decide."""
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
    """For those who do not harm it."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Where agents work: what is promised of them holds on every backend."""
    match request.param:
        case "redis":
            return on_redis(tmp_path, request.getfixturevalue("redis_server"))
        case "postgres":
            return on_postgres(request.getfixturevalue("postgres"), f"crash{next(_NUMBERS)}")
        case _:
            return on_sqlite(tmp_path)


@pytest.fixture
def quick() -> Iterator[Path]:
    """A directory in memory where there is one: stores that are rebuilt by the thousand need no disk."""
    yield from _in_memory()


@pytest.fixture(scope="module")
def quick_module() -> Iterator[Path]:
    """The same for all tests of a module."""
    yield from _in_memory()


def _in_memory() -> Iterator[Path]:
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="recollect-", dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)
