"""Checks of what has to be done now and then: copies, the lifecycle, erasures, reviews, and how a store grows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from recollect.clock import from_micros
from recollect.doctor.check import OPENED_FIRST, Check, counted, of_each, sized
from recollect.doctor.finding import Verdict, failed, not_applicable, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.errors import StoreCorrupt
from recollect.lifecycle import beside, ledgers
from recollect.lifecycle.sanity import NOTE
from recollect.stores.base import Records
from recollect.stores.erasing import Erasing, Erasure
from recollect.stores.health import Vitals

_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
# What a store of fewer items does, says nothing of where it is going.
_FEW = 1000
_SOON, _VERY_SOON = timedelta(days=30), timedelta(days=7)
_MOSTLY = 0.5
# The lifecycle looks after everybody at once or one by one; that many users say enough of when.
_ASKED = 1000


async def copies_are_fresh(patient: Patient) -> Verdict:
    now = patient.now

    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not vitals.backs_up:
            return None
        fix = f"recollect backup NEW_FILE --store {place.where}"
        if vitals.newest is None:
            return passed("there is nothing to lose yet")
        if vitals.backed_up is None:
            return warned("no copy was ever made", fix)
        age = now - vitals.backed_up
        if age > _WEEK and vitals.newest > vitals.backed_up:
            return warned(f"the last copy is {age.days} days old, and things were kept since", fix)
        return passed(f"the last copy is of {vitals.backed_up:%Y-%m-%d %H:%M} UTC")

    return await of_each(patient, look, "copies are made by the server's own tools, and cannot be seen from here")


async def the_lifecycle_runs(patient: Patient) -> Verdict:
    place = patient.place_of("semantic")
    if place.vitals is None or not isinstance(place.store, Records):
        return warned(place.closed, OPENED_FIRST)
    now, last = patient.now, await _last_run(place.store)
    known = [one.vitals.oldest for one in patient.places if one.vitals is not None and one.vitals.oldest is not None]
    if not known or now - min(known) < _DAY:
        return passed("there is nothing to look after that is older than a day")
    fix = f"recollect lifecycle --everybody --store {place.where}, each night; or memory.lifecycle.start(3600)"
    if last is None:
        return warned("it has never run", fix)
    if now - last > _WEEK:
        return warned(f"it ran {(now - last).days} days ago", fix)
    return passed(f"it ran at {last:%Y-%m-%d %H:%M} UTC")


async def erasures_are_complete(patient: Patient) -> Verdict:
    stores = patient.stores(Erasing)  # type: ignore[type-abstract]
    shut = [place.closed for place in patient.places if place.error is not None]
    if shut:
        return warned("; ".join(shut), OPENED_FIRST)
    if not stores:
        return not_applicable("no store here keeps a ledger of erasures")
    open_ones: dict[str, Erasure] = {}
    done = 0
    lacking: Verdict | None = None
    for store in stores:
        rows = await store.ledger()
        broken = beside.chain_faults([row.receipt for row in rows if row.receipt is not None])
        if broken:
            return failed(f"the chain of receipts is broken: {broken[0]}", "restore the store from a backup")
        beside_it = await _receipts_beside(store, rows)
        if beside_it is not None and beside_it.status == "fail":
            return beside_it
        lacking = lacking or beside_it
        open_ones |= {row.id: row for row in rows if row.phase != "complete"}
        done = max(done, sum(row.phase == "complete" for row in rows))
    if not open_ones and lacking is not None:
        return lacking
    if not open_ones:
        return passed(f"{counted(done, 'erasure')} complete, none pending")
    age = patient.now - min(row.requested_at for row in open_ones.values())
    tell = failed if age > _DAY else warned
    hours = max(age, timedelta()).total_seconds() / 3600
    return tell(
        f"{counted(len(open_ones), 'erasure is', 'erasures are')} not complete, the oldest for {hours:,.1f} h",
        "recollect lifecycle",
    )


async def _receipts_beside(store: Erasing, rows: Sequence[Erasure]) -> Verdict | None:
    """What is wrong with the file that an older copy of the store learns from; nothing where all is well."""
    path = store.receipts
    if path is None:
        return None
    try:
        known = await asyncio.to_thread(beside.read, path)
    except StoreCorrupt as error:
        return failed(str(error), f"mv {path} ELSEWHERE, then recollect doctor --fix: the store's own ledger has them")
    if known is not None and rows and known.salt != await store.salt():
        return failed(
            f"{path} holds the erasures of another store", f"mv {path} ELSEWHERE, then recollect doctor --fix"
        )
    held = {one.id for one in known.entered} if known is not None else set()
    lacking = sum(row.id not in held for row in rows)
    if not lacking:
        return None
    return warned(
        f"{path} lacks {counted(lacking, 'erasure')}: a backup that is restored with it would bring them back",
        "recollect doctor --fix",
    )


async def write_receipts_beside(patient: Patient) -> None:
    for store in patient.stores(Erasing):  # type: ignore[type-abstract]
        rows = await store.ledger()
        verdict = await _receipts_beside(store, rows)
        if verdict is not None and verdict.status == "warn":
            await ledgers.note_beside(store)


async def nothing_waits_for_review(patient: Patient) -> Verdict:
    waiting = 0
    for store in patient.stores(Records):  # type: ignore[type-abstract]
        waiting += sum(one.items for one in await store.spaces() if one.space.tier == "quarantine")
    if waiting:
        return warned(
            f"{counted(waiting, 'text waits', 'texts wait')} in quarantine",
            "recollect quarantine list --user NAME, of each user, then approve or drop",
        )
    shut = [place.closed for place in patient.places if place.error is not None]
    return warned("; ".join(shut), OPENED_FIRST) if shut else passed("quarantine is empty")


async def growth_has_room(patient: Patient) -> Verdict:
    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.oldest is None and not vitals.items:
            return None
        told = f"{counted(vitals.fresh, 'item')} of {vitals.items:,} came in the last 7 days"
        if not vitals.files or vitals.items < _FEW or not vitals.fresh:
            return passed(told)
        weekly = vitals.bytes / vitals.items * vitals.fresh
        free = await asyncio.to_thread(patient.room, vitals.files[0])
        left = _WEEK * (free / weekly)
        if left > _SOON:
            return passed(f"{told}, some {sized(weekly)} a week")
        tell = failed if left < _VERY_SOON else warned
        return tell(
            f"{told}: at {sized(weekly)} a week the disk is full in {left.days} days",
            "let less in, shorten lifetimes, or move the store to a larger disk",
        )

    return await of_each(patient, look, "there is nothing in it that could grow")


async def history_stays_small(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not vitals.items:
            return None
        share = vitals.superseded / vitals.items
        told = f"{vitals.superseded:,} of {vitals.items:,} items are past values"
        if share > _MOSTLY and vitals.items >= _FEW:
            return warned(
                told, "see which keys change all the time; what changes by the minute is no fact: give it expires_at"
            )
        return passed(told)

    return await of_each(patient, look, "nothing is kept yet that could be superseded")


async def _last_run(store: Records) -> datetime | None:
    """When the lifecycle last noted the time, for whomever."""
    noted = [one.space for one in await store.spaces() if one.space.tier == "lifecycle"][:_ASKED]
    moments = [
        from_micros(at)
        for space in noted
        for note in await store.get(space, NOTE)
        if isinstance(at := note.metadata.get("at"), int)
    ]
    return max(moments, default=None)


CHECKS = (
    Check(
        "upkeep.backup",
        "There is a fresh copy",
        "A disk that dies takes all that was kept since the last copy with it.",
        copies_are_fresh,
    ),
    Check(
        "upkeep.lifecycle",
        "The lifecycle runs",
        "It promotes, merges, ages and drops; where it does not run, memory grows and gets worse with every week.",
        the_lifecycle_runs,
    ),
    Check(
        "upkeep.erasures",
        "Erasures are complete",
        "Somebody was promised that nothing of them is left, and there may be a law that says by when.",
        erasures_are_complete,
        write_receipts_beside,
    ),
    Check(
        "upkeep.quarantine",
        "Nothing waits for review",
        "What looked like an order of a stranger is held back until a person has read it; some of it may be wanted.",
        nothing_waits_for_review,
    ),
    Check(
        "upkeep.growth",
        "The disk has room for how it grows",
        "The day on which a disk is full can be known a month before.",
        growth_has_room,
    ),
    Check(
        "upkeep.history",
        "Past values are the smaller part",
        "Each value of a key is kept when it is superseded: a key that changes by the minute buries the others.",
        history_stays_small,
    ),
)
