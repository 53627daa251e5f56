"""Run at every interval: a failing run is tried again, stopping waits for what is under way, and two do no harm."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory, BadInput, EmbedderFailed
from recollect.testing import ManualClock
from tests.embedders import HashEmbedder
from tests.flows.conftest import Opener
from tests.flows.lifecycle.talk import contents, everything, facts


class Moody(HashEmbedder):
    """Fails until it is told not to, and can be held up."""

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
        while not await condition():  # noqa: ASYNC110 - what is waited for is in the store, which has no events
            await asyncio.sleep(0.005)


async def test_it_runs_at_once_and_then_at_every_interval(memory: AgentMemory, clock: ManualClock):
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


async def test_a_failing_run_is_logged_without_content_and_tried_again(
    opener: Opener, caplog: pytest.LogCaptureFixture
):
    embedder = Moody()
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


async def test_what_a_failing_run_did_not_learn_is_not_lost(opener: Opener, clock: ManualClock):
    embedder = Moody()
    memory = await opener(user="ada", session="s", embedder=embedder)
    await memory.episodic.store("Remember that the key is under the pot.")
    clock.forward(timedelta(days=2))
    with pytest.raises(EmbedderFailed):
        await memory.lifecycle.run_once()
    embedder.broken = False
    report = await memory.lifecycle.run_once()
    assert (len(report.promoted), len(report.expired)) == (1, 1)


async def test_stopping_waits_for_the_run_that_is_under_way(opener: Opener):
    embedder = Moody()
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


async def test_closing_the_memory_stops_every_one_of_its_scopes(opener: Opener):
    memory = await opener(user="ada")
    running = [memory.lifecycle, memory.scoped(user="bob").lifecycle]
    for lifecycle in running:
        lifecycle.start(0.01)
    daemons = [lifecycle._daemon for lifecycle in running]
    await memory.close()
    assert all(daemon is not None and daemon.done() and daemon.exception() is None for daemon in daemons)


async def test_it_ends_by_itself_when_its_store_was_closed(opener: Opener):
    memory = await opener(user="ada")
    memory.lifecycle.start(0.01)
    await memory._parts.stores.close()
    daemon = memory.lifecycle._daemon
    assert daemon is not None
    async with asyncio.timeout(60):
        await asyncio.wait([daemon])
    assert daemon.exception() is None


async def test_it_is_started_once_with_a_sensible_interval(memory: AgentMemory):
    for bad in (0, -1, float("nan"), float("inf"), "soon", None, True, timedelta()):
        with pytest.raises(BadInput, match="interval"):
            memory.lifecycle.start(bad)  # type: ignore[arg-type]
    memory.lifecycle.start(timedelta(hours=1))
    with pytest.raises(BadInput, match="stop"):
        memory.lifecycle.start(1)
    await memory.lifecycle.stop()
    memory.lifecycle.start(3600)
    await memory.lifecycle.stop()


async def test_many_at_once_do_what_one_would(opener: Opener, clock: ManualClock, place: str):
    memory = await opener(user="ada")
    others = [memory] + [await opener(user="ada") for _ in range(3)] if place != "memory://" else [memory] * 4
    for n in range(40):
        await memory.scoped(session=f"s-{n % 4}").record_turn(f"Remember that shelf {n} holds box {n}.", "ok")
        await memory.remember(f"Cup {n % 20} is full{'.' if n < 20 else '!'}", importance=0.9)
    clock.forward(timedelta(days=40))
    reports = await asyncio.gather(*(one.lifecycle.run_once() for one in others))
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


async def test_two_processes_do_what_one_would(tmp_path: Path):
    path, clock = str(tmp_path / "agent.db"), ManualClock(datetime(2026, 1, 15, tzinfo=UTC))
    async with AgentMemory.open(path, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
        for n in range(200):
            await memory.scoped(session=f"s-{n % 5}").record_turn(f"Remember that shelf {n} holds box {n}.", "ok")
            await memory.remember(f"Cup {n} is full of tea.", importance=0.9)
    code = [sys.executable, "-c", RUN, path]
    both = [_started(code) for _ in range(2)]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    told = [tuple(map(int, one.communicate()[0].split())) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    async with AgentMemory.open(path, user="ada", embedder=HashEmbedder(), clock=clock) as memory:
        assert len(await facts(memory)) == 400
        assert await memory.check() == []
    assert sum(one[0] for one in told) == 200
    assert sum(one[2] for one in told) == 200


def _started(code: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _knows(memory: AgentMemory) -> bool:
    return bool(await facts(memory))


async def _true(value: bool) -> bool:
    return value
