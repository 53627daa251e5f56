"""What a store promises to those who look after it: to tell how it is, nothing of what it holds, and to mend safely."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest

from recollect.errors import Unsupported
from recollect.stores.base import Log, Records
from recollect.stores.health import Examined, Repair
from recollect.stores.where import Where
from recollect.testing.samples import LOG, SPACE, append, ids, put

_SECRET = "heliotrope"


async def filled(store: Examined) -> None:
    """Something of whatever the store keeps."""
    if isinstance(store, Records):
        await store.write(*(put(f"a{n}", [1, n, 0, 0], f"{_SECRET} word{n}") for n in range(3)))
    if isinstance(store, Log):
        await store.write(append("e1"), append("e2"))


async def held(store: Examined) -> tuple[list[str], list[str], list[str]]:
    """What can be found of it, by filter, by word and in a log."""
    items = await store.find(Where(SPACE)) if isinstance(store, Records) else []
    found = await store.matching(Where(SPACE), [_SECRET]) if isinstance(store, Records) else None
    entries = await store.read(LOG) if isinstance(store, Log) else []
    return ids(items), sorted(ids(found.found)) if found else [], [entry.id for entry in entries]


class ExaminedContract:
    """A store tells how it is."""

    pytestmark = pytest.mark.asyncio

    async def test_an_empty_store_is_well(self, store: Examined) -> None:
        vitals = await store.vitals()
        assert vitals.engine
        assert (vitals.items, vitals.fresh, vitals.superseded, vitals.oldest) == (0, 0, 0, None)
        assert (await store.soundness()).sentences == []

    async def test_what_is_kept_is_counted_and_sound(self, store: Examined) -> None:
        await filled(store)
        vitals, sound = await store.vitals(), await store.soundness()
        assert vitals.items == (3 if isinstance(store, Records) else 0)
        assert sound.sentences == []
        assert not any((sound.lacking_vectors, sound.stray_vectors, sound.lacking_words, sound.stray_words))

    async def test_nothing_of_what_is_kept_is_told(self, store: Examined) -> None:
        await filled(store)
        assert _SECRET not in f"{await store.vitals()} {await store.soundness()}"

    async def test_a_repair_loses_nothing(self, store: Examined) -> None:
        await filled(store)
        before = await held(store)
        for what in get_args(Repair):
            with suppress(Unsupported):
                await store.repair(what)
        assert await held(store) == before
        assert (await store.soundness()).sentences == []
