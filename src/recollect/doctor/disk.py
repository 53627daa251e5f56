"""Checks of the disk: that the data is sound, that there is room, and that nothing is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from recollect.doctor.check import Check, counted, of_each, sized
from recollect.doctor.finding import Verdict, failed, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.errors import StoreCorrupt
from recollect.stores.health import Examined, Repair, Vitals

_MIB, _GIB = 1 << 20, 1 << 30
_LITTLE_ROOM, _NO_ROOM = 256 * _MIB, 64 * _MIB
_LONG_LOG, _ENDLESS_LOG = 64 * _MIB, _GIB
# Below this size it does not matter how much of a file is unused.
_WORTH_PACKING, _MUCH_UNUSED = 64 * _MIB, 0.25
_LONGEST = 160
_RESTORE = (
    "stop what writes to it, then recollect restore BACKUP --to NEW_FILE --receipts OLD_FILE.erasures.jsonl; "
    "see docs/howto/operate.md"
)


async def the_data_is_sound(patient: Patient) -> Verdict:
    damaged = [place for place in patient.places if place.store is not None and isinstance(place.error, StoreCorrupt)]
    if damaged:
        return failed("; ".join(str(place.error) for place in damaged), _RESTORE)

    async def look(place: Place, vitals: Vitals) -> Verdict:
        faults = (await patient.soundness(place)).faults
        if faults:
            first = " ".join(faults[0].split())[:_LONGEST]
            return failed(f"{counted(len(faults), 'fault')}, the first: {first}", _RESTORE)
        return passed("every page, every count and every checksum is right")

    return await of_each(patient, look, "there is no store")


async def there_is_room(patient: Patient) -> Verdict:
    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not vitals.files:
            return None
        free = await asyncio.to_thread(patient.room, vitals.files[0])
        told = f"{sized(free)} free, and the store takes {sized(vitals.bytes)}"
        fix = f"free some room at {_directory(vitals)}, or move the store to a larger disk"
        if free < _NO_ROOM:
            return failed(told, fix)
        if free < _LITTLE_ROOM or free < vitals.bytes:
            return warned(f"{told}: there is no room for a copy of it and more", fix)
        return passed(told)

    return await of_each(patient, look, "the disk is a server's, and its administrator looks after it")


async def room_is_kept_back(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.ballast is None:
            return None
        if not vitals.ballast:
            return warned("there is no room kept back beside the file", f"recollect doctor --fix --store {place.where}")
        return passed("1 MiB is kept back for deletions on a full disk")

    return await of_each(patient, look, "only a file keeps room back, and there is none")


async def the_log_is_short(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.log_bytes is None:
            return None
        if vitals.log_bytes > _LONG_LOG:
            tell = failed if vitals.log_bytes > _ENDLESS_LOG else warned
            return tell(
                f"the write-ahead log has grown to {sized(vitals.log_bytes)}",
                f"recollect doctor --fix --store {place.where}; a program that reads without end keeps it long",
            )
        return passed(f"the write-ahead log takes {sized(vitals.log_bytes)}")

    return await of_each(patient, look, "a server looks after its log itself")


async def little_is_unused(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.unused is None:
            return None
        told = f"{vitals.unused:.0%} of {sized(vitals.bytes)} is unused"
        if vitals.unused > _MUCH_UNUSED and vitals.bytes > _WORTH_PACKING:
            return warned(told, _packing(place))
        return passed(told)

    return await of_each(patient, look, "no store here tells how much of its room is unused")


async def nobody_holds_others_up(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.locked is None:
            return None
        if vitals.locked:
            return warned(vitals.locked, _unlocking(place))
        return passed("nobody holds others up")

    return await of_each(patient, look, "whoever has such a store open is alone with it")


async def keep_room_back(patient: Patient) -> None:
    await _repair(patient, "ballast", lambda vitals: vitals.ballast is False)


async def cut_the_log(patient: Patient) -> None:
    await _repair(patient, "log", lambda vitals: (vitals.log_bytes or 0) > _LONG_LOG)


async def _repair(patient: Patient, what: Repair, is_needed: Callable[[Vitals], bool]) -> None:
    for place in patient.places:
        if isinstance(place.store, Examined) and place.vitals is not None and is_needed(place.vitals):
            await place.store.repair(what)


def _directory(vitals: Vitals) -> Path:
    return vitals.files[0].parent


def _packing(place: Place) -> str:
    if place.file is None:
        return "vacuum, and see that autovacuum is on"
    return f"with every program that uses it stopped: sqlite3 {place.file} vacuum"


def _unlocking(place: Place) -> str:
    if place.file is None:
        return "look into pg_stat_activity, and end what hangs with pg_terminate_backend"
    return f"find it with: fuser {place.file}"


CHECKS = (
    Check(
        "disk.integrity",
        "The data is sound",
        "Damage spreads into backups: the sooner it is known, the nearer is a copy without it.",
        the_data_is_sound,
    ),
    Check(
        "disk.space",
        "There is room on the disk",
        "On a full disk nothing new is remembered, and no copy can be made of what there is.",
        there_is_room,
    ),
    Check(
        "disk.ballast",
        "Some room is kept back",
        "On a disk that is full to the last byte it is what a deletion is written to.",
        room_is_kept_back,
        keep_room_back,
    ),
    Check(
        "disk.log",
        "The write-ahead log is short",
        "Every question reads through it, and it takes room that nobody counts.",
        the_log_is_short,
        cut_the_log,
    ),
    Check(
        "disk.unused",
        "Little of its room is unused",
        "Unused pages are copied with every backup and read with every scan.",
        little_is_unused,
    ),
    Check(
        "disk.locks",
        "Nobody holds others up",
        "One program that forgot to end a transaction stops everybody's writes.",
        nobody_holds_others_up,
    ),
)
