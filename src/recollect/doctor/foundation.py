"""Checks of what everything stands on: that stores open, what they survive, their versions and their clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from recollect.doctor.advisories import AS_OF, known_holes
from recollect.doctor.check import Check, of_each
from recollect.doctor.finding import Verdict, failed, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.errors import SchemaTooNew, StoreCorrupt
from recollect.stores.health import Vitals

# No clock that is right says less: this was written later.
_SURELY_PAST = datetime(2025, 1, 1, tzinfo=UTC)
_APART, _FAR_APART = timedelta(seconds=2), timedelta(seconds=60)
_AHEAD = timedelta(minutes=2)


async def stores_open(patient: Patient) -> Verdict:
    ill = [place for place in patient.places if place.error is not None and not _has_its_own_check(place)]
    if ill:
        return failed("; ".join(str(place.error) for place in ill), "see to what it says, then run recollect doctor")
    return passed(f"{', '.join(place.name for place in patient.places)}: open and answering")


async def schemas_are_known(patient: Patient) -> Verdict:
    ill = [place for place in patient.places if _is_of_schema(place)]
    if ill:
        return failed("; ".join(str(place.error) for place in ill), "pip install --upgrade recollect")

    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.schema is None:
            return None
        found, newest = vitals.schema
        if found > newest:
            return failed(f"it has schema {found}, and we know them up to {newest}", "pip install --upgrade recollect")
        if found < newest:
            return warned(f"it has schema {found} of {newest}", "open it once with this release")
        return passed(f"schema {found}, the newest")

    return await of_each(patient, look, "its records say themselves how they are to be read")


async def what_is_kept_survives(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict:
        tiers = ", ".join(place.tiers)
        if vitals.survives == "nothing":
            return failed(f"{tiers}: gone when the process ends", "keep them in a file or on a server")
        # Whether a server could do better is what `store.persistence` says.
        return passed(f"{tiers}: survive {vitals.survives}")

    return await of_each(patient, look, "there is no store")


async def servers_keep_their_word(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.survives == "nothing":
            return None
        if not vitals.lapses:
            return passed(f"{vitals.engine} writes down what it acknowledges")
        tell = failed if any(lapse.grave for lapse in vitals.lapses) else warned
        return tell("; ".join(lapse.what for lapse in vitals.lapses), "; ".join(lapse.fix for lapse in vitals.lapses))

    return await of_each(patient, look, "nothing is kept in a memory:// store, and nothing is promised")


async def no_version_has_a_known_hole(patient: Patient) -> Verdict:
    versions = {
        name: version
        for place in patient.places
        if place.vitals is not None
        for name, version in place.vitals.versions.items()
    }
    looked, holes = known_holes(versions)
    if holes:
        return warned(
            "; ".join(f"{hole.component} {hole.version}: {hole.cve}, {hole.what}" for hole in holes),
            "; ".join(dict.fromkeys(hole.way_out for hole in holes)),
        )
    told = ", ".join(f"{name} {version}" for name, version in looked.items())
    return passed(f"nothing known against {told}, in the table of {AS_OF}")


async def clocks_agree(patient: Patient) -> Verdict:
    now = patient.now
    if now < _SURELY_PAST:
        return failed(f"this machine's clock says {now:%Y-%m-%d}", "set the clock: timedatectl set-ntp true")

    def look(place: Place, vitals: Vitals) -> Verdict:
        apart = abs(vitals.now - now) if vitals.now is not None else timedelta()
        if apart > _APART:
            tell = failed if apart > _FAR_APART else warned
            return tell(
                f"the server's clock and ours are {apart.total_seconds():,.1f} s apart", "timedatectl set-ntp true"
            )
        if vitals.newest is not None and vitals.newest > now + _AHEAD:
            ahead = timedelta(seconds=round((vitals.newest - now).total_seconds()))
            return warned(f"the newest thing in it is {ahead} ahead of our clock", "timedatectl set-ntp true")
        return passed(f"our clock says {now:%Y-%m-%d %H:%M} UTC, and nothing speaks against it")

    return await of_each(patient, look, "there is no store")


def _is_of_schema(place: Place) -> bool:
    return isinstance(place.error, SchemaTooNew)


def _has_its_own_check(place: Place) -> bool:
    """Whether what is wrong is told elsewhere: by `store.schema`, or by `disk.integrity` where it did open."""
    return _is_of_schema(place) or (place.store is not None and isinstance(place.error, StoreCorrupt))


CHECKS = (
    Check(
        "store.opens",
        "Every store opens",
        "Nothing can be remembered or recalled where a store does not open.",
        stores_open,
    ),
    Check(
        "store.schema",
        "The schema is the newest",
        "An older release does not open a newer store; after a rollback of the program that is the first surprise.",
        schemas_are_known,
    ),
    Check(
        "store.durability",
        "What is kept survives",
        "What was acknowledged is believed to be there tomorrow, whatever happens tonight.",
        what_is_kept_survives,
    ),
    Check(
        "store.persistence",
        "Stores write down what they acknowledge",
        "One setting of a server decides whether a power cut costs nothing, a second, or everything.",
        servers_keep_their_word,
    ),
    Check(
        "store.versions",
        "No version has a known hole",
        "What is published is tried against everybody within days.",
        no_version_has_a_known_hole,
    ),
    Check(
        "store.clock",
        "The clock can be believed",
        "Leases, lifetimes and what is true now all go by the clock: a wrong one hides what is there.",
        clocks_agree,
    ),
)
