"""A memory before the doctor: what is open as it is, and what does not open as far as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.clock import Clock, system_clock
from recollect.doctor import DoctorReport, Patient, Place, Progress, Turns, examine, room_at
from recollect.errors import BadSettings, RecollectError, StoreUnavailable
from recollect.inference.base import Embedder, Embedding
from recollect.inference.connect import connect_embedder
from recollect.memory.parts import Parts
from recollect.memory.turn_index import TurnIndex
from recollect.settings import FILE, Settings
from recollect.stores.base import Log, Records, Store
from recollect.stores.connect import check_keeps, open_one, path_of, routed
from recollect.values import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is around a memory, and may be given instead: the models, the settings, the time, the room on a disk."""

    embedder: str | Embedder | Callable[[Any], Any] | None = None
    settings: Settings | None = None
    clock: Clock = system_clock
    room: Callable[[Path], int] = room_at


async def examine_memory(
    parts: Parts, *, fix: bool, progress: Progress | None, room: Callable[[Path], int] = room_at
) -> DoctorReport:
    """An open memory, with the stores and models that it has."""
    places: dict[str, Place] = {}
    for tier, url in parts.stores.urls.items():
        held = places.get(url)
        tiers = (tier,) if held is None else (*held.tiers, tier)
        places[url] = Place(url=url, tiers=tiers, store=parts.stores.of(tier))
    patient = Patient(
        settings=parts.settings,
        settings_file=await asyncio.to_thread(_settings_file),
        clock=parts.clock,
        places=tuple(places.values()),
        embedding=parts.embedding,
        llm="" if parts.llm is None else parts.llm.name,
        turns=Turns(behind=parts.said.behind, catch_up=parts.said.catch_up),
        room=room,
    )
    return await examine(patient, fix=fix, progress=progress)


async def examine_store(
    store: str | Path | Mapping[str, str] | None = None,
    *,
    fix: bool = False,
    progress: Progress | None = None,
    around: Around = Around(),
) -> DoctorReport:
    """A store that may not open at all: what keeps it shut is a finding, and the rest is looked at all the same."""
    settings, bad_settings = await asyncio.to_thread(_loaded, around.settings)
    try:
        urls = routed(store, settings)
    except RecollectError as error:
        bad_settings, urls = bad_settings or error, routed(None, Settings())
    embedding, bad_embedding = await _model(around.embedder, settings)
    places = [await _opened(url, urls, settings, around.clock) for url in dict.fromkeys(urls.values())]
    try:
        patient = Patient(
            settings=settings,
            bad_settings=bad_settings,
            settings_file=await asyncio.to_thread(_settings_file),
            clock=around.clock,
            places=tuple(places),
            embedding=embedding,
            bad_embedding=bad_embedding,
            llm=settings.llm,
            turns=_turns(places, embedding, around.clock),
            room=around.room,
        )
        return await examine(patient, fix=fix, progress=progress)
    finally:
        for place in places:
            if place.store is not None:
                await place.store.close()
        if embedding is not None:
            embedding.close()
            await embedding.release()


async def _opened(url: str, urls: Mapping[Tier, str], settings: Settings, clock: Clock) -> Place:
    """A place as it is found; what is not there is not made, for there would be nothing in it to look at."""
    tiers = tuple(tier for tier in urls if urls[tier] == url)
    try:
        check_keeps(url, tiers)
        path = path_of(url)
        if path is not None and not await asyncio.to_thread(path.exists):
            raise StoreUnavailable(f"there is no store at {path}; `recollect remember` makes one")
        store = await open_one(url, settings, clock)
    except RecollectError as error:
        return Place(url=url, tiers=tiers, error=error)
    return Place(url=url, tiers=tiers, store=store)


async def _model(
    given: str | Embedder | Callable[[Any], Any] | None, settings: Settings
) -> tuple[Embedding | None, RecollectError | None]:
    try:
        return await connect_embedder(given, settings, ask_size=False), None
    except RecollectError as error:
        return None, error


def _turns(places: list[Place], embedding: Embedding | None, clock: Clock) -> Turns | None:
    found: dict[Tier, Store | None] = {tier: place.store for place in places for tier in place.tiers}
    records, log = found.get("semantic"), found.get("conversation")
    if embedding is None or not isinstance(records, Records) or not isinstance(log, Log):
        return None
    said = TurnIndex(records, log, embedding, clock)
    return Turns(behind=said.behind, catch_up=said.catch_up)


def _loaded(given: Settings | None) -> tuple[Settings, RecollectError | None]:
    """The settings; the defaults where they cannot be used."""
    if given is not None:
        return given, None
    try:
        return Settings.load(), None
    except BadSettings as error:
        return Settings(), error


def _settings_file() -> Path | None:
    file = Path.cwd() / FILE
    return file if file.is_file() else None
