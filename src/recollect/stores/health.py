"""Health of a store: statistics, integrity and repair, without the content of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from recollect.types import EMPTY_MAPPING

DurabilityLevel = Literal["power loss", "a crash of its processes", "nothing"]
"""Worst failure that acknowledged durable writes survive."""

RepairTarget = Literal["ballast", "log", "words"]
"""Parts that can be repaired without loss: the disk reserve, the write-ahead log, the full-text index."""


ProgressCallback = Callable[[str], None]
"""Function called with the name of the next stage of a check, possibly in another thread."""


def ignore_progress(stage: str) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class DurabilityRisk:
    """Setting that risks acknowledged writes, and the command that corrects it."""

    problem: str
    fix: str
    is_severe: bool = True


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Use of a limited resource; `limit` is 0 if there is none."""

    resource: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Statistics of a store that are cheap to read. None stands for values that the backend does not have."""

    engine: str
    versions: Mapping[str, str] = field(default_factory=lambda: EMPTY_MAPPING)
    durability: DurabilityLevel
    durability_risks: tuple[DurabilityRisk, ...] = ()
    schema: tuple[int, int] | None = None
    """Schema version of the store, and the newest version that this release supports."""
    now: datetime | None = None
    """Time of the server clock."""
    oldest: datetime | None = None
    newest: datetime | None = None
    """First and last timestamp of the stored data."""
    files: tuple[Path, ...] = ()
    """Files with content on this machine."""
    bytes: int = 0
    items: int = 0
    recent_items: int = 0
    """Items created in the last seven days."""
    superseded: int = 0
    largest_space: int | None = None
    """Bytes of the vectors of the largest space."""
    has_reserve: bool | None = None
    log_bytes: int | None = None
    unused_ratio: float | None = None
    """Fraction of pages or rows that are unused."""
    blocked_by: str | None = None
    """Connection that blocks all others; empty if there is none."""
    encrypted: bool | None = None
    last_backup_at: datetime | None = None
    uses_backup_method: bool = False
    """True if `backup` is the way to copy the store, and not a tool of its server."""
    resource_usage: tuple[ResourceUsage, ...] = ()
    vector_indexes: tuple[int, int] | None = None
    """Number of spaces large enough for a vector index, and of those without a valid one."""
    bypasses_row_security: bool | None = None
    """True if row-level security does not apply to the database role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityReport:
    """Result of a full scan. None stands for an index that the backend does not have."""

    faults: tuple[str, ...] = ()
    """Problems of the data itself, one sentence each."""
    missing_vectors: int | None = None
    orphaned_vectors: int | None = None
    missing_terms: int | None = None
    orphaned_terms: int | None = None

    @property
    def problems(self) -> list[str]:
        """Problems as sentences. An item without a vector is not one: stores accept it."""
        problems = list(self.faults)
        if self.orphaned_vectors:
            problems.append(f"{self.orphaned_vectors} vectors belong to no item")
        if self.missing_terms:
            problems.append(f"the full-text index lacks the terms of {self.missing_terms} items")
        if self.orphaned_terms:
            problems.append(f"the full-text index has terms of {self.orphaned_terms} deleted items")
        return problems
