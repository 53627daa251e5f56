"""A ward for the doctor: one healthy memory, ways to hurt it, and the doctor's round."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import apsw

from recollect import AgentMemory, Settings
from recollect.clock import Clock, system_clock
from recollect.doctor import DoctorReport
from recollect.memory import Around, examine_store
from recollect.memory.examining import examine_memory
from recollect.stores.connect import Stores, connect
from recollect.values import Scope
from tests.embedders import HashEmbedder

ADA = Scope(user="ada")
CHEAP = "anthropic:claude-haiku-4-5"
# Nobody gave a key for them, and the doctor says so.
OF_EVERY_FILE = frozenset({"access.encryption"})
NOT_LOOKED = "not looked at"
GIB = 1 << 30


class Ward:
    """One patient, and what is around it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "agent.db"
        self.place: str | Mapping[str, str] = str(self.path)
        self.clock: Clock = system_clock
        self.embedder = HashEmbedder()
        self.settings: Settings | None = Settings(llm=CHEAP)
        self.room: Callable[[Path], int] = lambda path: 100 * GIB
        self.memory: AgentMemory | None = None
        self.tolerated: frozenset[str] = OF_EVERY_FILE

    def takes(self, healthy: Path) -> Ward:
        shutil.copy(healthy, self.path)
        return self

    async def opened(self) -> AgentMemory:
        """Keep it open while the doctor looks."""
        self.memory = await AgentMemory.open(
            self.place, user="ada", embedder=self.embedder, settings=Settings(llm=""), clock=self.clock, llm=_no_answer
        )
        return self.memory

    async def stores(self) -> Stores:
        """The stores alone, for what a memory would not do."""
        return await connect(self.place, Settings(), self.clock)

    def raw(self, *statements: str, values: tuple[object, ...] = ()) -> None:
        """Past everything of ours, as an accident would."""
        connection = apsw.Connection(str(self.path))
        try:
            for statement in statements:
                connection.execute(statement, values)
        finally:
            connection.close()

    def later(self, **by: float) -> None:
        def moved() -> datetime:
            return system_clock() + timedelta(**by)

        self.clock = moved

    async def examined(self, *, fix: bool = False) -> DoctorReport:
        if self.memory is not None:
            return await examine_memory(self.memory._parts, fix=fix, progress=None, room=self.room)
        around = Around(embedder=self.embedder, settings=self.settings, clock=self.clock, room=self.room)
        return await examine_store(self.place, fix=fix, around=around)

    async def ill(self) -> dict[str, str]:
        """What is not well, besides what is always so, and what could not be looked at for it."""
        report = await self.examined()
        return {
            one.id: one.status
            for one in report.findings
            if one.status != "pass" and one.id not in self.tolerated and NOT_LOOKED not in one.detail
        }

    async def close(self) -> None:
        if self.memory is not None:
            await self.memory.close()


async def made_healthy(directory: Path) -> Path:
    """A small memory with something of everything in it, looked after and copied."""
    path = directory / "healthy.db"
    memory = await AgentMemory.open(path, user="ada", embedder=HashEmbedder(), settings=Settings())
    await live(memory)
    await memory.backup(directory / "copy.db")
    await memory.close()
    os.chmod(path, 0o600)
    return path


async def live(memory: AgentMemory) -> None:
    """What an ordinary day leaves behind."""
    await memory.remember("Ada lives in a flat in Lisbon.")
    await memory.remember("metric", key="user.units")
    await memory.remember("imperial", key="user.units")
    await memory.record_turn("Where is the office?", "It is in Lisbon, near the river.")
    await memory.procedural.save("deploy", "Push to the pipeline, then watch it.")
    await memory.checkpoints.checkpoint("report", {"completed": [], "results": {}})
    await memory.lifecycle.run_once(everybody=True)


async def crowded(directory: Path, items: int = 1000) -> Path:
    """One with enough in it that its growth says something; made once."""
    path = directory / "crowded.db"
    if path.exists():
        return path
    memory = await AgentMemory.open(path, user="ada", embedder=HashEmbedder(), settings=Settings())
    await memory.semantic.add_many({"content": f"Note {n} says that part {n * 7} is there."} for n in range(items))
    await memory.lifecycle.run_once()
    await memory.backup(directory / "copy-of-crowded.db")
    await memory.close()
    os.chmod(path, 0o600)
    return path


def _no_answer(prompt: str) -> str:
    return "nothing"
