"""The doctor: the checklist, and the functions that run it on an open memory and on a store that may not open."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recollect.clock import Clock, system_clock
from recollect.engine import Engine
from recollect.errors import BadSettings, RecollectError, StoreUnavailable
from recollect.health import checks_access, checks_maintenance, checks_stores
from recollect.health.context import CheckContext, DoctorCheck, StoreTarget, get_free_bytes
from recollect.health.report import CheckResult, DoctorFinding, DoctorReport, make_failure
from recollect.models.embedding import Embedder, Embedding
from recollect.models.factory import open_embedder
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import CONFIG_FILE, Settings
from recollect.stores.base import Log, Records, Store
from recollect.stores.factory import check_supported_tiers, open_store, parse_local_path, resolve_locations
from recollect.types import Progress, ProgressCallback, Tier

_GROUPS = ("store", "config", "access", "index", "disk", "capacity", "upkeep", "tasks")

CHECKLIST: tuple[DoctorCheck, ...] = tuple(
    sorted(
        (check for module in (checks_stores, checks_access, checks_maintenance) for check in module.CHECKS),
        key=lambda check: _GROUPS.index(check.id.partition(".")[0]),
    )
)


async def run_checks(
    context: CheckContext,
    *,
    fix: bool = False,
    progress: ProgressCallback | None = None,
    checks: Sequence[DoctorCheck] = CHECKLIST,
) -> DoctorReport:
    """Run the checks. With `fix`, run the fix of each check that does not pass, then run the check again.

    `progress` is called for each check, and for each stage of a full scan, possibly in another thread.
    """
    await context.refresh_stats()
    findings = []
    for done, check in enumerate(checks):
        if progress is not None:
            progress(Progress(check.title, done, len(checks)))
            context.on_stage = partial(_report_stage, progress, check.title, done, len(checks))
        findings.append(await _run_check(context, check, fix=fix))
    if progress is not None:
        progress(Progress("done", len(checks), len(checks)))
    return DoctorReport(context.now, tuple(findings))


def _report_stage(progress: ProgressCallback, title: str, done: int, total: int, stage: str) -> None:
    progress(Progress(f"{title}: {stage}", done, total))


async def _run_check(context: CheckContext, check: DoctorCheck, *, fix: bool) -> DoctorFinding:
    result, is_fixed = await _run_safely(context, check), False
    if fix and check.fix is not None and result.status != "pass":
        try:
            await check.fix(context)
            await context.refresh_stats()
        except (RecollectError, OSError) as error:
            detail = f"{result.detail}; the fix failed with {type(error).__name__}"
            result = CheckResult(result.status, detail, result.fix)
        else:
            result = await _run_safely(context, check)
            is_fixed = result.status == "pass"
    return DoctorFinding(id=check.id, title=check.title, why=check.why, is_fixed=is_fixed, **dataclasses.asdict(result))


async def _run_safely(context: CheckContext, check: DoctorCheck) -> CheckResult:
    try:
        return await check.run(context)
    except (RecollectError, OSError) as error:
        # Only the type: the message may contain user content.
        return make_failure(f"the check failed with {type(error).__name__}", "see disk.integrity and store.opens")


async def examine_memory(
    engine: Engine, *, fix: bool, progress: ProgressCallback | None, free_space: Callable[[Path], int] = get_free_bytes
) -> DoctorReport:
    """Check an open memory with its stores and models."""
    urls = engine.stores.urls
    targets = [
        StoreTarget(url=url, tiers=tiers, store=engine.stores.get_store(tiers[0]))
        for url in dict.fromkeys(urls.values())
        if (tiers := tuple(tier for tier in urls if urls[tier] == url))
    ]
    context = CheckContext(
        settings=engine.settings,
        settings_file=await asyncio.to_thread(_find_settings_file),
        clock=engine.clock,
        targets=targets,
        embedding=engine.embedding,
        llm="" if engine.llm is None else engine.llm.name,
        turn_index=engine.turn_index,
        free_bytes=free_space,
    )
    return await run_checks(context, fix=fix, progress=progress)


async def examine_store(
    store: str | Path | Mapping[str, str] | None = None,
    *,
    fix: bool = False,
    progress: ProgressCallback | None = None,
    embedder: str | Embedder | Callable[[Any], Any] | None = None,
    settings: Settings | None = None,
    clock: Clock = system_clock,
    free_space: Callable[[Path], int] = get_free_bytes,
) -> DoctorReport:
    """Check a store that may not open. An error when opening it is a finding; the other checks still run."""
    bad_settings: RecollectError | None = None
    bad_embedding: RecollectError | None = None
    embedding: Embedding | None = None
    try:
        options = settings if settings is not None else await asyncio.to_thread(Settings.load)
    except BadSettings as error:
        options, bad_settings = Settings(), error
    try:
        urls = resolve_locations(store, options)
    except RecollectError as error:
        bad_settings, urls = bad_settings or error, resolve_locations(None, Settings())
    try:
        embedding = await open_embedder(embedder, options, ask_size=False)
    except RecollectError as error:
        bad_embedding = error
    targets = [await _open_target(url, urls, options, clock) for url in dict.fromkeys(urls.values())]
    try:
        context = CheckContext(
            settings=options,
            bad_settings=bad_settings,
            settings_file=await asyncio.to_thread(_find_settings_file),
            clock=clock,
            targets=targets,
            embedding=embedding,
            bad_embedding=bad_embedding,
            llm=options.llm,
            turn_index=_build_turn_index(targets, embedding, clock),
            free_bytes=free_space,
        )
        return await run_checks(context, fix=fix, progress=progress)
    finally:
        for target in targets:
            if target.store is not None:
                await target.store.close()
        if embedding is not None:
            embedding.close()
            await embedding.release()


async def _open_target(url: str, urls: Mapping[Tier, str], settings: Settings, clock: Clock) -> StoreTarget:
    """Open a store for checking. A store that does not exist is not created, and an older one is not migrated."""
    tiers = tuple(tier for tier in urls if urls[tier] == url)
    try:
        check_supported_tiers(url, tiers)
        path = parse_local_path(url)
        if path is not None and not await asyncio.to_thread(path.exists):
            raise StoreUnavailable(f"there is no store at {path}; create one with `recollect remember`")
        store = await open_store(url, settings, clock, migrates=False)
    except RecollectError as error:
        return StoreTarget(url=url, tiers=tiers, error=error)
    return StoreTarget(url=url, tiers=tiers, store=store)


def _build_turn_index(targets: list[StoreTarget], embedding: Embedding | None, clock: Clock) -> TurnIndex | None:
    stores: dict[Tier, Store | None] = {tier: target.store for target in targets for tier in target.tiers}
    records, log = stores.get("semantic"), stores.get("conversation")
    if embedding is None or not isinstance(records, Records) or not isinstance(log, Log):
        return None
    return TurnIndex(records, log, embedding, clock)


def _find_settings_file() -> Path | None:
    file = Path.cwd() / CONFIG_FILE
    return file if file.is_file() else None
