"""Checks, the memory that they inspect, and helpers that run a check on every store."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from recollect.clock import Clock, to_utc
from recollect.errors import RecollectError, StoreClosed
from recollect.health.report import STATUS_ORDER, CheckResult, make_pass, make_warning
from recollect.models.embedding import Embedding
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import Settings, mask_password
from recollect.stores.base import Store
from recollect.stores.factory import parse_file_path
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.types import Tier

StoreT = TypeVar("StoreT")

OPEN_FIRST_FIX = "recollect doctor, once store.opens has passed"


def get_free_bytes(path: Path) -> int:
    """Return the free disk space at the path of a file."""
    return shutil.disk_usage(path if path.is_dir() else path.parent).free


@dataclass(slots=True, kw_only=True)
class StoreTarget:
    """A store to check: its URL, its tiers, and either the open store or the error."""

    url: str
    tiers: tuple[Tier, ...]
    store: Store | None = None
    error: RecollectError | None = None
    stats: StoreStats | None = None

    @property
    def name(self) -> str:
        """The URL without its password."""
        return mask_password(self.url)

    @property
    def file(self) -> Path | None:
        return parse_file_path(self.url)

    @property
    def location(self) -> str:
        """The value for the option `--store`."""
        return self.name if self.file is None else str(self.file)

    @property
    def not_checked_reason(self) -> str:
        reason = type(self.error).__name__ if self.error is not None else "the store does not report its health"
        return f"{self.name} was not checked ({reason})"


@dataclass(slots=True, kw_only=True)
class CheckContext:
    """The memory that the checks inspect. Integrity reports are cached until a fix."""

    settings: Settings
    clock: Clock
    targets: Sequence[StoreTarget]
    bad_settings: RecollectError | None = None
    settings_file: Path | None = None
    embedding: Embedding | None = None
    bad_embedding: RecollectError | None = None
    llm: str = ""
    """The name of the language model; empty if there is none."""
    turn_index: TurnIndex | None = None
    free_bytes: Callable[[Path], int] = get_free_bytes
    on_stage: ProgressCallback = ignore_progress
    _integrity_reports: dict[str, IntegrityReport] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return to_utc(self.clock())

    @property
    def unopened(self) -> list[str]:
        """The reasons why stores were not checked."""
        return [target.not_checked_reason for target in self.targets if target.error is not None]

    def get_target(self, tier: Tier) -> StoreTarget:
        return next(target for target in self.targets if tier in target.tiers)

    def list_stores(self, kind: type[StoreT]) -> list[StoreT]:
        """Return the open stores that implement a protocol."""
        return [target.store for target in self.targets if target.error is None and isinstance(target.store, kind)]

    async def refresh_stats(self) -> None:
        """Read the statistics of every store; a store that fails to report counts as not open."""
        for target in self.targets:
            if target.store is not None:
                try:
                    target.stats, target.error = await target.store.read_stats(), None
                except StoreClosed:  # an error of the caller
                    raise
                except RecollectError as error:
                    target.stats, target.error = None, error
        self._integrity_reports.clear()

    async def get_integrity_report(self, target: StoreTarget) -> IntegrityReport:
        """Return the result of a full scan, which runs once per store."""
        assert target.store is not None
        if target.url not in self._integrity_reports:
            self._integrity_reports[target.url] = await target.store.check_integrity(self.on_stage)
        return self._integrity_reports[target.url]


CheckFunction = Callable[[CheckContext], Awaitable[CheckResult]]
FixFunction = Callable[[CheckContext], Awaitable[None]]


_Inspected = CheckResult | Awaitable[CheckResult | None] | None
StoreInspection = Callable[[CheckContext, StoreTarget, StoreStats], _Inspected]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check of the checklist. `fix` must not lose data."""

    id: str
    title: str
    why: str
    run: CheckFunction
    fix: FixFunction | None = None


class Checklist(list[DoctorCheck]):
    """Checks in the order of their definition. `title` says when a check passes; its docstring is the reason for it."""

    def add(self, id: str, title: str, *, fix: FixFunction | None = None) -> Callable[[CheckFunction], CheckFunction]:
        """Return a decorator that adds a check of the whole memory."""

        def register(run: CheckFunction) -> CheckFunction:
            self.append(DoctorCheck(id, title, _format_docstring(run), run, fix))
            return run

        return register

    def add_store_check(
        self,
        id: str,
        title: str,
        otherwise: str,
        *,
        tier: Tier | None = None,
        fix: FixFunction | None = None,
    ) -> Callable[[StoreInspection], StoreInspection]:
        """Return a decorator that adds a check of each store, or of the store of a tier; see `check_each_store`."""

        def register(inspect: StoreInspection) -> StoreInspection:
            async def run(context: CheckContext) -> CheckResult:
                return await check_each_store(context, partial(inspect, context), otherwise, tier=tier)

            self.append(DoctorCheck(id, title, _format_docstring(inspect), run, fix))
            return inspect

        return register


def _format_docstring(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split())


async def check_each_store(
    context: CheckContext,
    inspect: Callable[[StoreTarget, StoreStats], _Inspected],
    otherwise: str,
    *,
    tier: Tier | None = None,
) -> CheckResult:
    """Return the worst result over the stores, of one tier or all; `otherwise` says why the check applies to none."""
    targets = context.targets if tier is None else [context.get_target(tier)]
    results: list[tuple[StoreTarget, CheckResult]] = []
    for target in targets:
        if target.stats is None:
            results.append((target, make_warning(target.not_checked_reason, OPEN_FIRST_FIX)))
            continue
        result = inspect(target, target.stats)
        if isinstance(result, Awaitable):
            result = await result
        if result is not None:
            results.append((target, result))
    if not results:
        return make_pass(f"not applicable: {otherwise}")
    status = max((result.status for _, result in results), key=STATUS_ORDER.index)
    worst = [(target, result) for target, result in results if result.status == status]
    details = [
        result.detail
        if len(targets) == 1 or result.detail.startswith(target.name)
        else f"{target.name}: {result.detail}"
        for target, result in worst
    ]
    fixes = dict.fromkeys(result.fix for _, result in worst if result.fix)
    return CheckResult(status, "; ".join(details), "; ".join(fixes))
