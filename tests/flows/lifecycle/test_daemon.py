"""Periodic lifecycle runs: failures are retried, stopping waits for the current run, and concurrent runs are safe."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, EmbedderFailed
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, everything, facts


class FailingEmbedder(HashEmbedder):
    """An embedder that fails while `broken` is set, and waits for `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def embed_batch(self, texts):  # type: ignore[override]
        self.asked.set()
        await self.go_on.wait()
        if self.broken:
            raise RuntimeError("secret words: " + texts[0])
        return HashEmbedder.embed_batch(self, texts)


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the store has no events to wait for
            await asyncio.sleep(0.005)


async def test_background_task_runs_immediately_and_at_every_interval(memory: AgentMemory, clock: ManualClock):
    here = memory.scoped(session="s")
    await here.record_turn("I prefer tea.", "ok")
    here.lifecycle.start(0.01)

    async def knows(count: int) -> bool:
        return len(await facts(here)) == count

    await until(lambda: knows(1))
    clock.forward(timedelta(hours=1))
    await here.record_turn("I prefer hot milk.", "ok")
    await until(lambda: knows(2))
    await here.lifecycle.stop()
    await here.lifecycle.stop()
    clock.forward(timedelta(hours=1))
    await here.record_turn("I prefer cold water.", "ok")
    await asyncio.sleep(0.05)
    assert await knows(2)


async def test_failing_run_is_logged_without_content_and_retried(opener: Opener, caplog: pytest.LogCaptureFixture):
    embedder = FailingEmbedder()
    memory = await opener(user="ada", session="s", embedder=embedder)
    await memory.record_turn("I prefer tea.", "ok")
    with caplog.at_level(logging.WARNING, "recollect.lifecycle"):
        memory.lifecycle.start(0.01)
        await until(lambda: _true(len(caplog.records) >= 2))
        embedder.broken = False
        await until(lambda: _knows(memory))
        await memory.lifecycle.stop()
    assert "EmbedderFailed" in caplog.text
    assert "tea" not in caplog.text


async def test_failing_run_loses_no_episode(opener: Opener, clock: ManualClock):
    embedder = FailingEmbedder()
    memory = await opener(user="ada", session="s", embedder=embedder)
    await memory.episodic.store("Remember that the key is under the pot.")
    clock.forward(timedelta(days=2))
    with pytest.raises(EmbedderFailed):
        await memory.lifecycle.run_once()
    embedder.broken = False
    report = await memory.lifecycle.run_once()
    assert (len(report.promoted), len(report.expired)) == (1, 1)


async def test_stop_waits_for_the_current_run(opener: Opener):
    embedder = FailingEmbedder()
    embedder.broken = False
    embedder.go_on.clear()
    memory = await opener(user="ada", session="s", embedder=embedder)
    await memory.record_turn("I prefer tea.", "ok")
    memory.lifecycle.start(3600)
    await embedder.asked.wait()
    stopping = asyncio.create_task(memory.lifecycle.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    embedder.go_on.set()
    await stopping
    assert await contents(memory) == ["I prefer tea."]


async def test_close_stops_background_tasks_of_every_scope(opener: Opener):
    memory = await opener(user="ada")
    running = [memory.lifecycle, memory.scoped(user="bob").lifecycle]
    for lifecycle in running:
        lifecycle.start(0.01)
    daemons = [lifecycle._background_task for lifecycle in running]
    await memory.close()
    assert all(daemon is not None and daemon.done() and daemon.exception() is None for daemon in daemons)


async def test_background_task_ends_when_store_is_closed(opener: Opener):
    memory = await opener(user="ada")
    memory.lifecycle.start(0.01)
    await memory._engine.stores.close()
    daemon = memory.lifecycle._background_task
    assert daemon is not None
    async with asyncio.timeout(60):
        await asyncio.wait([daemon])
    assert daemon.exception() is None


async def test_start_rejects_bad_interval_and_second_start(memory: AgentMemory):
    for bad in (0, -1, float("nan"), float("inf"), "soon", None, True, timedelta()):
        with pytest.raises(BadInput, match="interval"):
            memory.lifecycle.start(bad)  # type: ignore[arg-type]
    memory.lifecycle.start(timedelta(hours=1))
    with pytest.raises(BadInput, match="stop"):
        memory.lifecycle.start(1)
    await memory.lifecycle.stop()
    memory.lifecycle.start(3600)
    await memory.lifecycle.stop()


async def test_concurrent_runs_do_the_work_once(opener: Opener, clock: ManualClock, place: str):
    memory = await opener(user="ada")
    others = [memory] + [await opener(user="ada") for _ in range(3)] if place != "memory://" else [memory] * 4
    for n in range(40):
        await memory.scoped(session=f"s-{n % 4}").record_turn(f"Remember that shelf {n} holds box {n}.", "ok")
        await memory.remember(f"Cup {n % 20} is full{'.' if n < 20 else '!'}", importance=0.9)
    clock.forward(timedelta(days=40))
    reports = await asyncio.gather(*(memory.lifecycle.run_once() for memory in others))
    promoted = [action.id for report in reports for action in report.promoted]
    assert len(promoted) == len(set(promoted)) == 40
    decayed = [action.id for report in reports for action in report.decayed]
    assert len(decayed) == len(set(decayed))
    once = await everything(memory)
    assert len(await contents(memory)) == 60
    assert not await memory.lifecycle.run_once()
    assert await everything(memory) == once


RUN = """
import asyncio, sys
from datetime import UTC, datetime
from recollect import AgentMemory
from tests.embedders import HashEmbedder

async def main(path):
    now = datetime(2026, 3, 1, tzinfo=UTC)
    async with AgentMemory.open(path, user="ada", embedder=HashEmbedder(), clock=lambda: now) as memory:
        print("ready", flush=True)
        sys.stdin.readline()
        report = await memory.lifecycle.run_once()
        print(len(report.promoted), len(report.expired), len(report.decayed), flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_two_processes_do_the_work_once(tmp_path: Path):
    path, clock = str(tmp_path / "agent.db"), ManualClock(datetime(2026, 1, 15, tzinfo=UTC))
    async with AgentMemory.open(path, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
        for n in range(200):
            await memory.scoped(session=f"s-{n % 5}").record_turn(f"Remember that shelf {n} holds box {n}.", "ok")
            await memory.remember(f"Cup {n} is full of tea.", importance=0.9)
    code = [sys.executable, "-c", RUN, path]
    processes = [_started(code) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [tuple(map(int, process.communicate()[0].split())) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    async with AgentMemory.open(path, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
        assert len(await facts(memory)) == 400
        assert await memory.check() == []
    assert sum(count[0] for count in counts) == 200
    assert sum(count[2] for count in counts) == 200


def _started(code: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _knows(memory: AgentMemory) -> bool:
    return bool(await facts(memory))


async def _true(value: bool) -> bool:
    return value
