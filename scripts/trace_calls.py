"""Depth of the four main calls: modules and functions that each one crosses on a warm SQLite file.

python scripts/trace_calls.py [--modules]    print a row for each call; with --modules, also their names
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import recollect
from recollect import AgentMemory, ResumableAgent

PACKAGE = str(Path(inspect.getfile(recollect)).parent)


class CallCounter:
    """Functions of the package that are entered while it is active, in every thread."""

    def __init__(self) -> None:
        self.calls = 0
        self.functions: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self.calls += 1
            self.functions.add(code)

    @property
    def modules(self) -> set[str]:
        return {str(Path(code.co_filename).relative_to(PACKAGE)) for code in self.functions}


class Profile:
    """Profile of every thread: passes events to the counter that is active."""

    def __init__(self) -> None:
        self.counter: CallCounter | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.counter is not None:
            self.counter(frame, event, argument)

    async def count(self, call: Callable[[], Awaitable[object]]) -> CallCounter:
        self.counter = counter = CallCounter()
        await call()
        self.counter = None
        return counter


async def first(state: dict[str, Any]) -> int:
    return 1


async def second(state: dict[str, Any]) -> int:
    return 2


def embed(texts: list[str]) -> list[list[float]]:
    """Return vectors by letters: the model's own modules are not counted."""
    return [[1.0 + text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


async def trace(path: Path) -> dict[str, CallCounter]:
    # A thread takes its profile when it starts, so it is set before the store starts its threads.
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    async with AgentMemory.open(path, user="ada", session="s", embedder=embed) as memory:
        await memory.remember("Ada prefers metric units.")
        await memory.remember("The cello is in the attic.")
        await memory.record_turn("My sister lives in Lisbon.", "Noted.")
        await memory.recall("Where is the cello?")
        found = {
            "remember": await profile.count(lambda: memory.remember("Bread is baked on Tuesdays.")),
            "recall": await profile.count(lambda: memory.recall("Which units does Ada prefer?")),
        }
        agent = ResumableAgent(memory)
        await agent.run("warm", [first, second])
        found["run of two steps"] = await profile.count(lambda: agent.run("t", [first, second]))
        found["erase"] = await profile.count(lambda: memory.erase(user="ada"))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(trace(Path(directory) / "trace.db"))
    print(f"{'call':<18}{'modules':>9}{'functions':>11}{'calls':>8}")
    for name, counter in found.items():
        print(f"{name:<18}{len(counter.modules):>9}{len(counter.functions):>11}{counter.calls:>8}")
        if "--modules" in sys.argv[1:]:
            print("  " + " ".join(sorted(counter.modules)))


if __name__ == "__main__":
    main()
