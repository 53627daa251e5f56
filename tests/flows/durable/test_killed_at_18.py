"""The demo as a user runs it: a real process killed by a signal."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.clock import system_clock
from recollect.settings import Settings
from recollect.stores.factory import open_stores
from recollect.types import Scope
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

DEMO = Path(__file__).resolve().parents[3] / "examples" / "killed_at_18.py"


@pytest.fixture(params=["a file", "redis", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of the checkpoint store; empty for the default."""
    if request.param == "redis":
        server = RedisServer(tmp_path / "redis").start()
        yield server.url
        server.stop()
    elif request.param == "postgresql":
        postgres: Server = request.getfixturevalue("postgres")
        yield postgres.create("killed_at_18")
        postgres.drop("killed_at_18")
    else:
        yield ""


async def test_killed_at_18_of_25_and_resumed(tmp_path: Path, store: str):
    # Mutant: a completion does not list the step as completed. Mutant: a key that depends on the attempt.
    completed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(DEMO), str(tmp_path)],
        env=os.environ | ({"STORE": store} if store else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    first, second = completed.stdout.split("-- second run")
    assert f"-- ended with -{signal.SIGKILL.value}" in first
    assert [int(number) for number in re.findall(r"step (\d+), attempt 1", first)] == list(range(1, 19))
    assert re.findall(r"step (\d+), attempt (\d)", second)[0] == ("18", "2")
    assert [int(number) for number in re.findall(r"step (\d+), ", second)] == list(range(18, 26))
    assert "completed 25 of 25" in second
    lines = (tmp_path / "effects.txt").read_text("utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 25
    assert [line.split(" ", 1)[1] for line in lines] == [f"effect of step {n}" for n in range(1, 26)]
    # The checkpoint is in this store. Mutant: the example ignores its store.
    stores = await open_stores(
        {"default": "memory://", "checkpoints": store or f"{tmp_path}/agent.db"}, Settings(), system_clock
    )
    task = await stores.tasks().task(Scope().space("checkpoints"), "killed-at-18")
    await stores.close()
    assert task is not None
    assert task.status == "done"
