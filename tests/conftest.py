"""Settings of hypothesis, memory limits, markers, and the servers that all tests share."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

    from tests.servers.postgres import Server
    from tests.servers.redis import RedisServer

# Shared machines pause for longer than hypothesis expects; a slow example is not a wrong one.
settings.register_profile(
    "recollect",
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)
settings.register_profile("dev", settings.get_profile("recollect"), max_examples=20)
settings.register_profile("ci", settings.get_profile("recollect"), max_examples=100, derandomize=True, print_blob=True)
settings.register_profile(
    "soak", settings.get_profile("recollect"), max_examples=2000, derandomize=False, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# A shell that starts pytest in the background ignores SIGINT. Child processes would inherit that, and some tests
# interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A test that leaks memory fails by itself, before the kernel kills an arbitrary process.
_MOST_MEMORY = 8 << 30
resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))


# Fixtures, parameters and files of tests that start a server.
_SERVER_FIXTURES = {"postgres", "redis_server", "redis_cluster", "chroma_server", "few"}
_SERVER_STORES = {"postgres", "redis", "redis_cluster", "chroma", "chroma_server"}
_SERVER_FILES = (
    "test_redis",
    "test_postgres",
    "test_chroma",
    "test_servers",
    "test_on_a_server",
    "test_turn_index_on_servers",
)
# Files whose tests take several seconds each: they start processes, or run long histories.
_SLOW_FILES = {
    *(
        "test_returning_users.py",
        "test_killed_at_18.py",
        "test_killed_between.py",
        "test_migrate.py",
        "test_routing.py",
    ),
    *("test_congruence.py", "test_congruence_redis.py", "test_congruence_chroma.py", "test_minilm_install.py"),
    *("test_wire.py", "test_example.py", "test_laundering.py"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server or take long, so that `make quick` can leave them out."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        stores = {value for value in parameters.values() if isinstance(value, str)} & _SERVER_STORES
        fixtures = _SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if stores or item.path.name.startswith(_SERVER_FILES) or (fixtures and "store" not in parameters):
            item.add_marker("servers")
        if item.path.name in _SLOW_FILES:
            item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from tests.sharing import Sharing

    return Sharing(config, log)


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """Let recall wait up to 60 s for the turn index, because no test depends on its timeout."""
    from recollect.retrieval import turn_index

    turn_index._CATCH_UP_TIMEOUT = 60.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Start one PostgreSQL server for all tests of a process."""
    from tests.servers.postgres import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start one Redis server for all tests of a process; each test empties it first."""
    from tests.servers.redis import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()
