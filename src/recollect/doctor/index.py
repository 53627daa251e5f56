"""Checks of what memories are found by: the model, the vectors, the words, the index of turns, the index by meaning."""

from __future__ import annotations

from recollect.doctor.check import OPENED_FIRST, Check, counted, of_each
from recollect.doctor.finding import Verdict, failed, not_applicable, passed, warned
from recollect.doctor.patient import Patient, Place
from recollect.errors import RecollectError
from recollect.stores.base import Log, Records
from recollect.stores.health import Examined, Vitals
from recollect.stores.ops import Model
from recollect.values import Scope

_DAMAGED = warned("it was not looked at: the data itself is damaged", "see disk.integrity")


async def the_model_is_the_same(patient: Patient) -> Verdict:
    embedding = patient.embedding
    if embedding is None:
        told = patient.bad_embedding or RecollectError("there is no embedding model")
        return failed(str(told), "recollect setup, or set RECOLLECT_EMBEDDER")

    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not isinstance(place.store, Records):
            return None
        frozen = await place.store.model()
        if frozen is None:
            return passed(f"no vector is stored yet; {embedding.name} will make the first")
        if frozen.name == embedding.name:
            await embedding.size_up(frozen.dim)
        if frozen != Model(embedding.name, embedding.dim, embedding.fingerprint):
            return failed(
                f"the vectors are {frozen.name}'s ({frozen.dim}), and the model is {embedding.name} ({embedding.dim})",
                f"recollect reembed {embedding.name} --store {place.where}, or RECOLLECT_EMBEDDER={frozen.name}",
            )
        return passed(f"{frozen.name}, {frozen.dim} dimensions, frozen in the store")

    return await of_each(patient, look, "no store here holds vectors")


async def every_item_has_its_vector(patient: Patient) -> Verdict:
    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not isinstance(place.store, Records):
            return None
        sound = await patient.soundness(place)
        if sound.faults and sound.lacking_vectors is None:
            return _DAMAGED
        if sound.lacking_vectors is None:
            return None
        model = patient.embedding.name if patient.embedding is not None else patient.settings.embedder
        again = f"recollect reembed {model} --store {place.where}"
        if sound.lacking_vectors:
            return failed(f"{counted(sound.lacking_vectors, 'item lacks', 'items lack')} a vector", again)
        if sound.stray_vectors:
            return failed(f"{counted(sound.stray_vectors, 'vector belongs', 'vectors belong')} to no item", again)
        return passed("facts and procedures have their vectors, and no vector is without its item")

    return await of_each(patient, look, "no store here holds vectors")


async def every_item_has_its_words(patient: Patient) -> Verdict:
    async def look(place: Place, vitals: Vitals) -> Verdict | None:
        if not isinstance(place.store, Records):
            return None
        sound = await patient.soundness(place)
        if sound.faults and sound.lacking_words is None:
            return _DAMAGED
        if sound.lacking_words is None:
            return None
        if sound.lacking_words or sound.stray_words:
            return failed(
                f"{counted(sound.lacking_words, 'item is', 'items are')} not found by all of their words, and the "
                f"index knows {counted(sound.stray_words or 0, 'item')} that are gone",
                f"recollect doctor --fix --store {place.where}",
            )
        return passed("every item is found by its words, and nothing else is")

    return await of_each(patient, look, "no store here has an index of words")


async def make_words_anew(patient: Patient) -> None:
    for place in patient.places:
        if isinstance(place.store, Examined) and place.vitals is not None:
            sound = await patient.soundness(place)
            if sound.lacking_words or sound.stray_words:
                await place.store.repair("words")


async def what_was_said_is_found(patient: Patient) -> Verdict:
    index, place = patient.place_of("semantic"), patient.place_of("conversation")
    if index.error is not None:
        return warned(index.closed, OPENED_FIRST)
    if place.error is not None or not isinstance(place.store, Log):
        return warned(place.closed, OPENED_FIRST)
    if patient.turns is None:
        return warned("it was not looked at: there is no model to index with", "recollect setup")
    owners = await _speakers(place.store)
    behind = [lag for owner in owners if (lag := await patient.turns.behind(owner))]
    if behind:
        return warned(
            f"{counted(sum(behind), 'entry', 'entries')} of {counted(len(behind), 'conversation owner')} "
            "cannot be found yet",
            f"recollect lifecycle --everybody --store {place.where}",
        )
    if not owners:
        return passed("nothing was said yet")
    return passed(f"what {counted(len(owners), 'owner')} said is indexed to its end")


async def index_what_was_said(patient: Patient) -> None:
    store = patient.place_of("conversation").store
    if patient.turns is not None and isinstance(store, Log):
        for owner in await _speakers(store):
            await patient.turns.catch_up(owner)


async def large_spaces_have_an_index(patient: Patient) -> Verdict:
    def look(place: Place, vitals: Vitals) -> Verdict | None:
        if vitals.near is None:
            return None
        large, broken = vitals.near
        if broken:
            return warned(
                f"{counted(broken, 'large space')} of {large:,} {'has' if broken == 1 else 'have'} no whole HNSW index",
                "recall once in it: the index is built behind the question; an invalid one is built anew",
            )
        return passed(f"{counted(large, 'space is', 'spaces are')} large enough for an HNSW index, and have it")

    if all(place.vitals is not None and place.vitals.near is None for place in patient.places):
        return not_applicable("every question is answered exactly, from the vectors themselves")
    return await of_each(patient, look, "every question is answered exactly, from the vectors themselves")


async def _speakers(log: Log) -> list[Scope]:
    return [
        Scope(tenant, owner.user, owner.agent)
        for tenant in await log.tenants()
        for owner in await log.owners(tenant)
        if owner.tier == "conversation"
    ]


CHECKS = (
    Check(
        "index.model",
        "The embedding model is the one that is stored",
        "Vectors of two models cannot be compared: a store that is opened with another refuses to work.",
        the_model_is_the_same,
    ),
    Check(
        "index.vectors",
        "Every item has its vector, and no vector is left over",
        "An item without one is never found by meaning; a vector without its item is what was meant to be gone.",
        every_item_has_its_vector,
    ),
    Check(
        "index.words",
        "Every item has its words, and no word is left over",
        "Names, numbers and codes are found by words alone: an item that lost them is lost to such questions.",
        every_item_has_its_words,
        make_words_anew,
    ),
    Check(
        "index.turns",
        "What was said can be found",
        "Conversations are indexed behind the answer; where that was cut short, they are searched in vain.",
        what_was_said_is_found,
        index_what_was_said,
    ),
    Check(
        "index.nearest",
        "Large spaces have a whole index by meaning",
        "Without it every question reads all vectors of the space, and an index that broke off is not used.",
        large_spaces_have_an_index,
    ),
)
