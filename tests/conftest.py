"""What every test shares: how hard hypothesis tries, that a rerun in CI tries the same, and the servers."""

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
    "recollect", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("recollect"), derandomize=True, print_blob=True)
settings.register_profile(
    "soak", settings.get_profile("recollect"), max_examples=2000, derandomize=False, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "recollect")


# A shell that starts us in the background has Ctrl-C ignored, and our children would inherit that: some are to be
# interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A test that takes more and more memory fails by itself, before the system ends whatever it finds.
_MOST_MEMORY = 8 << 30
resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from tests.sharing import Sharing

    return Sharing(config, log)


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """A question waits until what was just said is indexed, however slow the machine: that it gives up is no test's."""
    from recollect.memory import turn_index

    turn_index._PATIENCE = 60.0


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server for this process's tests; where there is none they fail."""
    from tests.servers.postgres import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One for all tests of a process; each begins by emptying it."""
    from tests.servers.redis import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()
