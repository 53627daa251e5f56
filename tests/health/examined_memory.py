"""A memory for the doctor to examine: a healthy one, ways to damage it, and the examination."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import apsw

from recollect import AgentMemory, Settings
from recollect.clock import Clock, system_clock
from recollect.health.examine import examine_memory, examine_store
from recollect.health.report import DoctorReport
from recollect.stores.factory import TierStores, open_stores
from recollect.types import Scope
from tests.embedders import HashEmbedder

ADA = Scope(user="ada")
CHEAP = "anthropic:claude-haiku-4-5"
# No test file is encrypted, which the doctor reports.
OF_EVERY_FILE = frozenset({"access.encryption"})
NOT_CHECKED = "not checked"
GIB = 1 << 30


class ExaminedMemory:
    """One memory to examine, with its directory, clock, embedder and settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "agent.db"
        self.place: str | Mapping[str, str] = str(self.path)
        self.clock: Clock = system_clock
        self.embedder = HashEmbedder()
        self.settings: Settings | None = Settings(llm=CHEAP)
        self.free_space: Callable[[Path], int] = lambda path: 100 * GIB
        self.memory: AgentMemory | None = None
        self.tolerated: frozenset[str] = OF_EVERY_FILE

    def copy_from(self, healthy: Path) -> ExaminedMemory:
        shutil.copy(healthy, self.path)
        return self

    async def open_memory(self) -> AgentMemory:
        """Open the memory and keep it open during the examination."""
        self.memory = await AgentMemory.open(
            self.place, user="ada", embedder=self.embedder, settings=Settings(llm=""), clock=self.clock, llm=_no_answer
        )
        return self.memory

    async def open_stores_only(self) -> TierStores:
        """Open the stores without a memory."""
        return await open_stores(self.place, Settings(), self.clock)

    def execute_sql(self, *statements: str, values: tuple[object, ...] = ()) -> None:
        """Execute SQL directly on the file, as another program could."""
        connection = apsw.Connection(str(self.path))
        try:
            for statement in statements:
                connection.execute(statement, values)
        finally:
            connection.close()

    def advance_clock(self, **by: float) -> None:
        def read_clock() -> datetime:
            return system_clock() + timedelta(**by)

        self.clock = read_clock

    async def examine(self, *, fix: bool = False) -> DoctorReport:
        if self.memory is not None:
            return await examine_memory(self.memory._engine, fix=fix, progress=None, free_space=self.free_space)
        return await examine_store(
            self.place,
            fix=fix,
            embedder=self.embedder,
            settings=self.settings,
            clock=self.clock,
            free_space=self.free_space,
        )

    async def find_problems(self) -> dict[str, str]:
        """Return the status of each failed check, except tolerated ones and those not checked."""
        report = await self.examine()
        return {
            finding.id: finding.status
            for finding in report.findings
            if finding.status != "pass" and finding.id not in self.tolerated and NOT_CHECKED not in finding.detail
        }

    async def close(self) -> None:
        if self.memory is not None:
            await self.memory.close()


async def create_healthy_file(directory: Path) -> Path:
    """Create a small file with data in every tier, after a lifecycle run and a backup."""
    path = directory / "healthy.db"
    memory = await AgentMemory.open(path, user="ada", embedder=HashEmbedder(), settings=Settings())
    await fill_memory(memory)
    await memory.backup(directory / "copy.db")
    await memory.close()
    os.chmod(path, 0o600)
    return path


async def fill_memory(memory: AgentMemory) -> None:
    """Store something in every tier and run the lifecycle."""
    await memory.remember("Ada lives in a flat in Lisbon.")
    await memory.remember("metric", key="user.units")
    await memory.remember("imperial", key="user.units")
    await memory.record_turn("Where is the office?", "It is in Lisbon, near the river.")
    await memory.procedural.save("deploy", "Push to the pipeline, then watch it.")
    await memory.checkpoints.checkpoint("report", {"completed": [], "results": {}})
    await memory.lifecycle.run_once(all_users=True)


async def create_crowded_file(directory: Path, items: int = 1000) -> Path:
    """Create a file with `items` facts, once per directory."""
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
