"""Where a harness has its store: a file, or a database of a real server, by the words that a child process is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from recollect.clock import Clock, system_clock
from recollect.settings import Settings
from recollect.stores.base import Log, Tasks
from recollect.stores.connect import connect

if TYPE_CHECKING:  # children import this as well, and start no servers
    from tests.servers.postgres import Server
    from tests.servers.redis import RedisServer

LOGS_AND_TASKS = ("conversation", "episodic", "checkpoints")


class LogAndTasks(Log, Tasks, Protocol):
    """What agents work on, whatever keeps it."""


class Ground:
    """One backend, with a new and empty store each time."""

    def __init__(self, name: str, new: Callable[[int], str]) -> None:
        self.name = name
        self._new = new
        self._numbers = count()

    def new(self) -> str:
        """The place of an empty store."""
        return self._new(next(self._numbers))


def on_sqlite(directory: Path) -> Ground:
    return Ground("SQLite", lambda number: str(directory / f"store{number}.db"))


def on_redis(directory: Path, server: RedisServer) -> Ground:
    """Facts and procedures, which Redis does not keep, are in a file beside it."""

    def new(number: int) -> str:
        with server.client() as client:
            client.flushall()
        return json.dumps(
            {"default": str(directory / f"facts{number}.db"), **dict.fromkeys(LOGS_AND_TASKS, server.url)}
        )

    return Ground("Redis", new)


def on_postgres(server: Server, prefix: str) -> Ground:
    return Ground("PostgreSQL", lambda number: server.create(f"{prefix}_{number}"))


def tiers(place: str) -> str | Mapping[str, str]:
    """A place as `AgentMemory.open` takes it."""
    return cast("Mapping[str, str]", json.loads(place)) if place.startswith("{") else place


async def store_at(place: str, clock: Clock = system_clock) -> LogAndTasks:
    """The store of checkpoints at a place, which keeps episodes as well."""
    given = tiers(place)
    url = given if isinstance(given, str) else given["checkpoints"]
    stores = await connect({"default": "memory://", **dict.fromkeys(LOGS_AND_TASKS, url)}, Settings(readers=1), clock)
    return cast(LogAndTasks, stores.tasks())
