"""One check: what it is called, why it matters, how it looks, and perhaps how it mends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from recollect.doctor.finding import ORDER, Verdict, not_applicable, warned
from recollect.doctor.patient import Patient, Place
from recollect.stores.health import Vitals

Look = Callable[[Patient], Awaitable[Verdict]]
Mend = Callable[[Patient], Awaitable[None]]

OPENED_FIRST = "recollect doctor, once store.opens has passed"


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the checklist. `mend` puts right what nothing can be lost by."""

    id: str
    title: str
    why: str
    look: Look
    mend: Mend | None = None


async def of_each(
    patient: Patient, look: Callable[[Place, Vitals], Verdict | Awaitable[Verdict | None] | None], otherwise: str
) -> Verdict:
    """The worst of what is found in each store; `otherwise` says why the question arises in none of them."""
    found: list[tuple[Place, Verdict]] = []
    for place in patient.places:
        if place.vitals is None:
            found.append((place, warned(place.closed, OPENED_FIRST)))
            continue
        verdict = look(place, place.vitals)
        if isinstance(verdict, Awaitable):
            verdict = await verdict
        if verdict is not None:
            found.append((place, verdict))
    return worst(patient, found) if found else not_applicable(otherwise)


def worst(patient: Patient, found: list[tuple[Place, Verdict]]) -> Verdict:
    """What is worst, said of every store where it is so bad."""
    status = max((verdict.status for _, verdict in found), key=ORDER.index)
    such = [(place, verdict) for place, verdict in found if verdict.status == status]
    several = len(patient.places) > 1
    details = [
        f"{place.name}: {verdict.detail}" if several and not verdict.detail.startswith(place.name) else verdict.detail
        for place, verdict in such
    ]
    fixes = list(dict.fromkeys(verdict.fix for _, verdict in such if verdict.fix))
    return Verdict(status, "; ".join(details), "; ".join(fixes))


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def sized(count: float) -> str:
    """`12.3 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
