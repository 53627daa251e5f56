"""Lifecycle runs over many items: seconds by stage, items per second, and resident memory.

One process builds the store and another one runs the lifecycle, so that only the runs are measured. There are three:
40 days later, when everything is due; the same run repeated, when nothing is; and one day after that, like a daemon.

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

from report import create_progress, print_table, save_json
from rich.progress import Progress
from synthetic import KnownVectors, build_collection

from recollect import AgentMemory
from recollect.lifecycle import LifecycleReport
from recollect.types import Progress as RunProgress

_START = datetime(2026, 1, 1, 12, tzinfo=UTC)
_BATCH = 2000
_SESSIONS = 50
_MESSAGES = (
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


class ManualClock:
    """Clock that shows the time that was set."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


async def build(path: Path, items: int, bar: Progress) -> None:
    """Write facts of every importance, 5 % of them twice, and a tenth as many messages and as many episodes."""
    collection, embedder, clock = build_collection("ada", items), KnownVectors(), ManualClock(_START)
    embedder.add(collection.texts, collection.rows)
    task = bar.add_task("building", total=items + 2 * (items // 10))
    async with AgentMemory.open(path, user="ada", embedder=embedder, clock=clock) as memory:
        facts = _build_facts(collection.texts)
        for start in range(0, len(facts), _BATCH):
            await memory.semantic.add_many(facts[start : start + _BATCH])
            bar.advance(task, len(facts[start : start + _BATCH]))
        for at in range(0, items // 10, 100):
            scoped = memory.scoped(session=f"s-{at // 100 % _SESSIONS}")
            texts = [_MESSAGES[n % len(_MESSAGES)].format(n=n) for n in range(at, min(at + 100, items // 10))]
            log = scoped._engine.stores.log("conversation")
            await log.write(*(scoped.conversation._build_append("user", text) for text in texts))
            await log.write(*[await scoped.episodic._build_append(text) for text in texts])
            bar.advance(task, 2 * len(texts))


def _build_facts(texts: list[str]) -> list[dict[str, Any]]:
    """Return 2 % of the facts with a key, then the facts without one, then 5 % of them with small changes."""
    keyed = [{"content": text, "importance": 0.5, "key": f"k{at}"} for at, text in enumerate(texts) if at % 50 == 0]
    plain = [{"content": text, "importance": (at * 37 % 100) / 100} for at, text in enumerate(texts) if at % 50]
    near_duplicates = [{"content": f"{text}!", "importance": 0.6} for at, text in enumerate(texts) if at % 20 == 1]
    return keyed + plain + near_duplicates


async def run(path: Path) -> Figures:
    """Run the lifecycle three times in this process and return the figures of each run."""
    clock = ManualClock(_START + timedelta(days=40))
    with create_progress() as bar:
        async with AgentMemory.open(path, user="ada", embedder=KnownVectors(), clock=clock) as memory:
            await memory.semantic.get("no-such-id")  # opens the store
            due = await _measure(memory, bar, "40 days later")
            repeated = await _measure(memory, bar, "repeated")
            clock.now += timedelta(days=1)
            return {"due": due, "repeated": repeated, "next_day": await _measure(memory, bar, "one day later")}


async def _measure(memory: AgentMemory, bar: Progress, name: str) -> Figures:
    tasks: dict[str, Any] = {}

    def show_progress(progress: RunProgress) -> None:
        if progress.stage not in tasks:
            tasks[progress.stage] = bar.add_task(f"{name}: {progress.stage}", total=progress.total)
        bar.update(tasks[progress.stage], completed=progress.done, total=progress.total)

    before = _read_resident_bytes()
    with PeakMemory() as peak:
        started = time.perf_counter()
        report: LifecycleReport = await memory.lifecycle.run_once(show_progress)
        seconds = time.perf_counter() - started
    return {
        "seconds": round(seconds, 3),
        "examined": report.examined,
        "per_second": round(report.examined / seconds),
        "actions": report.counts,
        "stages": {stage: round(spent, 3) for stage, spent in report.seconds.items()},
        "before_mib": round(before / 2**20, 1),
        "peak_mib": round(peak.bytes / 2**20, 1),
        "after_mib": round(_read_resident_bytes() / 2**20, 1),
    }


class PeakMemory:
    """Highest resident memory of this process, read 100 times per second."""

    def __enter__(self) -> PeakMemory:
        self.bytes = _read_resident_bytes()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.01):
            self.bytes = max(self.bytes, _read_resident_bytes())


def _read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        print(json.dumps(asyncio.run(run(arguments.run))))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "agent.db"
        with create_progress() as bar:
            asyncio.run(build(path, arguments.items, bar))
        completed = subprocess.run(
            [sys.executable, __file__, "--run", str(path)], check=True, stdout=subprocess.PIPE, text=True
        )
    figures = {"items": arguments.items, **json.loads(completed.stdout.splitlines()[-1])}
    print_table(
        f"run_once over {arguments.items:,} facts, and a tenth as many messages and episodes",
        [
            "run",
            "seconds",
            "items per second",
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
                f"{figure['seconds']:.2f}",
                f"{figure['per_second']:,}",
                *(f"{figure['stages'].get(stage, 0):.2f}" for stage in ("promote", "expire", "merge", "sweep")),
                f"{figure['before_mib']:.0f} MiB",
                f"{figure['peak_mib']:.0f} MiB",
                ", ".join(f"{count:,} {kind}" for kind, count in figure["actions"].items() if count) or "none",
            ]
            for name, figure in ((name, figures[name]) for name in ("due", "repeated", "next_day"))
        ],
    )
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
