"""The lifecycle over many items: seconds by stage, items a second, and the memory it takes.

The store is built in one process and looked after in another, so that what is measured is the run alone. Three runs:
a month late, when everything is due; at once again, when nothing is; and a day later, as a daemon would.

python lifecycle.py [--items 100000] [--json PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from report import progress, save, show
from rich.progress import Progress
from synthetic import KnownVectors, collection

from recollect import AgentMemory
from recollect.lifecycle import LifecycleReport

_BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
_TOGETHER = 2000
_SESSIONS = 50
_SAID = (
    "Can you run the tests again?",
    "The build is still red, I am looking at the logs.",
    "Remember that shelf {n} holds box {n}.",
    "Thanks, that was quick!",
    "What did we say about the release?",
    "I prefer tea from garden {n}.",
    "Let me think about that for a while.",
    "The staging server of team {n} runs on port 80{n}.",
)
Figures = dict[str, Any]


class Moved:
    """A clock that stands where it is put."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


async def build(path: Path, items: int, bar: Progress) -> None:
    """A life: facts of every importance, a twentieth of them said twice, and a tenth as many messages and episodes."""
    made, embedder, clock = collection("ada", items), KnownVectors(), Moved(_BEGIN)
    embedder.know(made.texts, made.rows)
    task = bar.add_task("building", total=items + 2 * (items // 10))
    async with AgentMemory.open(path, user="ada", embedder=embedder, clock=clock) as memory:
        facts = _facts(made.texts)
        for start in range(0, len(facts), _TOGETHER):
            await memory.semantic.add_many(facts[start : start + _TOGETHER])
            bar.advance(task, len(facts[start : start + _TOGETHER]))
        for at in range(0, items // 10, 100):
            here = memory.scoped(session=f"s-{at // 100 % _SESSIONS}")
            said = [_SAID[n % len(_SAID)].format(n=n) for n in range(at, min(at + 100, items // 10))]
            log = here._parts.stores.log("conversation")
            await log.write(*(here.conversation.drafted("user", one) for one in said))
            await log.write(*[await here.episodic.drafted(one) for one in said])
            bar.advance(task, 2 * len(said))


def _facts(texts: list[str]) -> list[dict[str, Any]]:
    """Two of a hundred under a key, those first."""
    keyed = [{"content": text, "importance": 0.5, "key": f"k{at}"} for at, text in enumerate(texts) if at % 50 == 0]
    plain = [{"content": text, "importance": (at * 37 % 100) / 100} for at, text in enumerate(texts) if at % 50]
    twice = [{"content": f"{text}!", "importance": 0.6} for at, text in enumerate(texts) if at % 20 == 1]
    return keyed + plain + twice


async def run(path: Path) -> Figures:
    """Three runs in this process, each with its figures."""
    clock = Moved(_BEGIN + timedelta(days=40))
    with progress() as bar:
        async with AgentMemory.open(path, user="ada", embedder=KnownVectors(), clock=clock) as memory:
            await memory.semantic.get("nobody")
            late = await _measured(memory, bar, "a month late")
            again = await _measured(memory, bar, "again")
            clock.now += timedelta(days=1)
            return {"late": late, "again": again, "next_day": await _measured(memory, bar, "a day later")}


async def _measured(memory: AgentMemory, bar: Progress, name: str) -> Figures:
    tasks: dict[str, Any] = {}

    def tell(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(f"{name}: {stage}", total=total)
        bar.update(tasks[stage], completed=done, total=total)

    before = _resident()
    with Peak() as peak:
        began = time.perf_counter()
        report: LifecycleReport = await memory.lifecycle.run_once(tell)
        seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 3),
        "examined": report.examined,
        "per_second": round(report.examined / seconds),
        "actions": report.counts,
        "stages": {stage: round(spent, 3) for stage, spent in report.seconds.items()},
        "before_mib": round(before / 2**20, 1),
        "peak_mib": round(peak.bytes / 2**20, 1),
        "after_mib": round(_resident() / 2**20, 1),
    }


class Peak:
    """The most memory that this process held, looked at a hundred times a second."""

    def __enter__(self) -> Peak:
        self.bytes = _resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.bytes = max(self.bytes, _resident())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run is not None:
        print(json.dumps(asyncio.run(run(given.run))))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "agent.db"
        with progress() as bar:
            asyncio.run(build(path, given.items, bar))
        told = subprocess.run(
            [sys.executable, __file__, "--run", str(path)], check=True, stdout=subprocess.PIPE, text=True
        )
    figures = {"items": given.items, **json.loads(told.stdout.splitlines()[-1])}
    show(
        f"run_once over {given.items:,} facts, {given.items // 10:,} messages and as many episodes",
        [
            "run",
            "seconds",
            "looked at a second",
            "promote",
            "expire",
            "merge",
            "sweep",
            "RSS before",
            "peak",
            "actions",
        ],
        [
            [
                name,
                f"{one['seconds']:.2f}",
                f"{one['per_second']:,}",
                *(f"{one['stages'].get(stage, 0):.2f}" for stage in ("promote", "expire", "merge", "sweep")),
                f"{one['before_mib']:.0f} MiB",
                f"{one['peak_mib']:.0f} MiB",
                ", ".join(f"{count:,} {kind}" for kind, count in one["actions"].items() if count) or "none",
            ]
            for name, one in ((name, figures[name]) for name in ("late", "again", "next_day"))
        ],
    )
    save(figures, given.json)


if __name__ == "__main__":
    main()
