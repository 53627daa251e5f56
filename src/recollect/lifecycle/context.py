"""The resources, the scope and the progress of one lifecycle run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from recollect.clock import Clock
from recollect.erasure.eraser import Eraser
from recollect.lifecycle.report import LifecycleReportBuilder
from recollect.models.embedding import Embedding
from recollect.models.llm import LanguageModel
from recollect.settings import Settings
from recollect.stores.base import Log, Records, Tasks
from recollect.tiers.lifecycle_notes import LifecycleNotes
from recollect.types import Progress, ProgressCallback, Scope, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleContext:
    """The stores, models and settings that every run uses."""

    records: Records
    conversation: Log
    episodic: Log
    tasks: Tasks
    embedding: Embedding
    settings: Settings
    clock: Clock
    llm: LanguageModel | None = None
    index_turns: Callable[[Scope], Awaitable[None]] | None = None
    """Brings the turn index of a user up to date."""
    eraser: Eraser | None = None


@dataclass(slots=True, kw_only=True)
class LifecycleRun:
    """One run for one user and agent. A dry run writes nothing and calls no language model."""

    context: LifecycleContext
    scope: Scope
    now: datetime
    report: LifecycleReportBuilder
    overlay: Records
    """The items of the run. In a dry run, writes are visible to later reads and discarded at the end."""
    is_dry: bool = False
    on_progress: ProgressCallback | None = None
    log_positions: dict[Space, int] = field(default_factory=dict)
    """The last sequence number read of each log: only entries up to it may be dropped."""
    compared_count: int = 0
    """The number of facts that were compared for duplicates."""
    dropped_count: int = 0
    """The number of facts that were dropped after the comparison."""

    @property
    def fact_space(self) -> Space:
        return self.scope.space("semantic")

    @property
    def notes(self) -> LifecycleNotes:
        return LifecycleNotes(self.overlay, self.scope)

    def report_progress(self, stage: str, done: int, total: int | None) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(stage, done, total))

    @contextmanager
    def measure_stage(self, name: str) -> Iterator[None]:
        """Add the duration of a stage to the report."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.report.seconds[name] = self.report.seconds.get(name, 0.0) + time.perf_counter() - start
