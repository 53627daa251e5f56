"""The doctor's entry points: for an open memory, and for a store that may not open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from recollect.clock import Clock, system_clock
from recollect.engine import Engine
from recollect.errors import BadSettings, RecollectError, StoreUnavailable
from recollect.health.context import CheckContext, StoreTarget, get_free_bytes
from recollect.health.report import DoctorReport
from recollect.health.runner import run_checks
from recollect.models.embedding import Embedder, Embedding
from recollect.models.factory import open_embedder
from recollect.retrieval.turn_index import TurnIndex
from recollect.settings import CONFIG_FILE, Settings
from recollect.stores.base import Log, Records, Store
from recollect.stores.factory import check_supported_tiers, open_store, parse_local_path, resolve_locations
from recollect.types import ProgressCallback, Tier


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
    options, bad_settings = await asyncio.to_thread(_load_settings, settings)
    try:
        urls = resolve_locations(store, options)
    except RecollectError as error:
        bad_settings, urls = bad_settings or error, resolve_locations(None, Settings())
    embedding, bad_embedding = await _connect_model(embedder, options)
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


async def _connect_model(
    embedder: str | Embedder | Callable[[Any], Any] | None, settings: Settings
) -> tuple[Embedding | None, RecollectError | None]:
    try:
        return await open_embedder(embedder, settings, ask_size=False), None
    except RecollectError as error:
        return None, error


def _build_turn_index(targets: list[StoreTarget], embedding: Embedding | None, clock: Clock) -> TurnIndex | None:
    stores: dict[Tier, Store | None] = {tier: target.store for target in targets for tier in target.tiers}
    records, log = stores.get("semantic"), stores.get("conversation")
    if embedding is None or not isinstance(records, Records) or not isinstance(log, Log):
        return None
    return TurnIndex(records, log, embedding, clock)


def _load_settings(settings: Settings | None) -> tuple[Settings, RecollectError | None]:
    """Return the settings and None; if they are invalid, the defaults and the error."""
    if settings is not None:
        return settings, None
    try:
        return Settings.load(), None
    except BadSettings as error:
        return Settings(), error


def _find_settings_file() -> Path | None:
    file = Path.cwd() / CONFIG_FILE
    return file if file.is_file() else None
