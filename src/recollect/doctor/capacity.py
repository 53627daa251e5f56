"""Checks of what runs out first: connections and memory of a server, and the memory for vectors."""

from __future__ import annotations

from recollect.doctor.check import Check, of_each, sized
from recollect.doctor.finding import Verdict, failed, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.stores.health import Fill, Vitals

_NEARLY, _ALL_BUT = 0.8, 0.95


async def servers_have_some_left(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not vitals.fills:
            return None
        fullest = max(vitals.fills, key=_share)
        endless = [fill for fill in vitals.fills if not fill.most]
        if _share(fullest) > _NEARLY:
            tell = failed if _share(fullest) > _ALL_BUT else warned
            return tell(f"{_told(fullest)} in use", f"raise the server's limit of {fullest.what}, or use less of it")
        if endless:
            return warned(
                f"there is no limit of {endless[0].what}: the system ends the server when it has none left",
                "CONFIG SET maxmemory to less than the machine has",
            )
        return passed(f"{', '.join(map(_told, vitals.fills))} in use")

    return await of_each(patient, look, "there is no server that others share")


async def vectors_fit_into_memory(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.largest_space is None:
            return None
        cache = patient.settings.cache_mib << 20
        told = f"the vectors of the largest scope take {sized(vitals.largest_space)} of {sized(cache)}"
        if vitals.largest_space > cache:
            enough = -(-vitals.largest_space // (1 << 20)) * 2
            return warned(f"{told}: each question reads them from disk", f"RECOLLECT_CACHE_MIB={enough}")
        return passed(told)

    return await of_each(patient, look, "the server keeps in its own memory what is asked for often")


def _share(fill: Fill) -> float:
    return fill.used / fill.most if fill.most else 0.0


def _told(fill: Fill) -> str:
    tell = sized if fill.what == "memory" else "{:,}".format
    return f"{tell(fill.used)} of {tell(fill.most)} {fill.what}" if fill.most else f"{tell(fill.used)} {fill.what}"


CHECKS = (
    Check(
        "capacity.server",
        "Servers have connections and memory left",
        "A server without either refuses whoever comes next, in the middle of their work.",
        servers_have_some_left,
    ),
    Check(
        "capacity.cache",
        "The vectors of a scope fit into memory",
        "A scope that does not fit is read from disk for each question, which takes a hundred times as long.",
        vectors_fit_into_memory,
    ),
)
