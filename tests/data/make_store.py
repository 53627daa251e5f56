"""Writer of the stores in `store-0.1`: run it with release 0.1.0 (commit 12383c4) to write them again.

python tests/data/make_store.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from recollect import AgentMemory, ResumableAgent, Settings

KEY = "0123456789abcdef" * 4
START = datetime(2026, 11, 1, 9, tzinfo=UTC)


class SteppingClock:
    """A clock that moves a second with each reading."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


async def quote(state):
    return 42


async def charge(state):
    return f"charged {state['results']['step_0_quote']}"


async def write_store(path: Path, settings: Settings) -> None:
    """Write facts, a keyed fact with a history, turns, episodes, a procedure, two tasks and an erasure."""
    memory = await AgentMemory.open(
        path, tenant="acme", user="ada", agent="clerk", session="monday", settings=settings, clock=SteppingClock()
    )
    async with memory:
        await memory.remember("Ada prefers metric units.", key="user.units", importance=0.8)
        await memory.remember("Ada prefers imperial units now.", key="user.units", importance=0.8)
        await memory.remember("The cello is in the music room.", metadata={"year": 2024})
        await memory.record_turn("I moved to Lisbon in spring.", "Noted: Lisbon.")
        await memory.record_turn("Remind me to call the plumber.", "I will.")
        await memory.procedural.save("deploy", "Push a tag.", description="How to deploy")
        await memory.procedural.save("deploy", "Push a signed tag.", description="How to deploy")
        await memory.procedural.record_outcome("deploy", True)
        await memory.checkpoints.checkpoint("bare", {"cursor": 7}, ttl=None)  # in 0.1.0: never expires
        await ResumableAgent(memory).run("invoice-42", [quote, charge])
        await memory.scoped(user="bob").remember("Bob keeps bees behind the old railway station.")
        receipt = await memory.erase(user="bob")
        assert receipt.status == "complete", receipt


async def main() -> None:
    directory = Path(sys.argv[1])
    for name, settings in (("plain", Settings()), ("encrypted", Settings(encryption_key=KEY))):
        await write_store(directory / f"{name}.db", settings)


if __name__ == "__main__":
    asyncio.run(main())
