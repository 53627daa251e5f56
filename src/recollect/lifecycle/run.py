"""One run of the lifecycle: what it works with, whom it is for, and what it has done so far."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from recollect.clock import Clock
from recollect.inference.base import Embedding
from recollect.inference.llm import LanguageModel
from recollect.lifecycle.erase import Erasures
from recollect.lifecycle.ground import Ground
from recollect.lifecycle.report import Ledger
from recollect.settings import Settings
from recollect.stores.base import Log, Records, Tasks
from recollect.values import Scope, Space

Progress = Callable[[str, int, int], None]
"""Called with the stage, how much of it is done, and how much there is of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every run works with."""

    records: Records
    conversation: Log
    episodic: Log
    tasks: Tasks
    embedding: Embedding
    settings: Settings
    clock: Clock
    llm: LanguageModel | None = None
    index: Callable[[Scope], Awaitable[None]] | None = None
    """Makes what was said in the conversations of a user findable, as far as it is not yet."""
    erasures: Erasures | None = None


@dataclass(slots=True)
class Purse:
    """The tokens that a run may still spend on a language model, whomever it looks after."""

    left: int


@dataclass(slots=True, kw_only=True)
class Run:
    """One run for one user and agent. In a `dry` one nothing is written, and no language model is paid."""

    means: Means
    scope: Scope
    now: datetime
    ledger: Ledger
    ground: Ground
    purse: Purse
    dry: bool = False
    tell: Progress | None = None
    read_up_to: dict[Space, int] = field(default_factory=dict)
    """How far each log has been read: what lies behind may go."""
    compared: int = 0
    dropped: int = 0
    """How many facts were looked at for duplicates, and how many have been dropped since."""

    @property
    def facts(self) -> Space:
        return self.scope.space("semantic")

    def progress(self, stage: str, done: int, total: int) -> None:
        if self.tell is not None:
            self.tell(stage, done, total)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures what a stage takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ledger.seconds[name] = self.ledger.seconds.get(name, 0.0) + time.perf_counter() - start
