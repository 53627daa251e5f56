"""Locations of the stores under test, as strings for child processes: a file, or a database of a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from recollect.clock import Clock, system_clock
from recollect.settings import Settings
from recollect.stores.base import Log, Tasks
from recollect.stores.factory import open_stores

if TYPE_CHECKING:  # child processes import this module and start no servers
    from tests.servers.postgres import Server
    from tests.servers.redis import RedisServer

LOGS_AND_TASKS = ("conversation", "episodic", "checkpoints")


class LogAndTasks(Log, Tasks, Protocol):
    """A store of logs and tasks on any backend."""


class Backend:
    """A backend that creates empty stores."""

    def __init__(self, name: str, new: Callable[[int], str]) -> None:
        self.name = name
        self._new = new
        self._numbers = count()

    def new(self) -> str:
        """Create an empty store and return its location."""
        return self._new(next(self._numbers))


def on_sqlite(directory: Path) -> Backend:
    return Backend("SQLite", lambda number: str(directory / f"store{number}.db"))


def on_redis(directory: Path, server: RedisServer) -> Backend:
    """Return a Redis backend; facts and procedures, which Redis does not store, are in a SQLite file."""

    def new(number: int) -> str:
        with server.client() as client:
            client.flushall()
        return json.dumps(
            {"default": str(directory / f"facts{number}.db"), **dict.fromkeys(LOGS_AND_TASKS, server.url)}
        )

    return Backend("Redis", new)


def on_postgres(server: Server, prefix: str) -> Backend:
    return Backend("PostgreSQL", lambda number: server.create(f"{prefix}_{number}"))


def tiers(place: str) -> str | Mapping[str, str]:
    """Return a location in the form that `AgentMemory.open` takes."""
    return cast("Mapping[str, str]", json.loads(place)) if place.startswith("{") else place


async def store_at(place: str, clock: Clock = system_clock) -> LogAndTasks:
    """Open the store of checkpoints and episodes at a location."""
    location = tiers(place)
    url = location if isinstance(location, str) else location["checkpoints"]
    stores = await open_stores(
        {"default": "memory://", **dict.fromkeys(LOGS_AND_TASKS, url)}, Settings(readers=1), clock
    )
    return cast(LogAndTasks, stores.tasks())
