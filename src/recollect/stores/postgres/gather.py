"""Evidence of one moment: what is near and what matches, with the turns around it, judged in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from recollect.clock import aware
from recollect.errors import StoreClosed
from recollect.stores.admission import mismatch
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, in_order, laid_out
from recollect.stores.ops import Touch
from recollect.stores.postgres import items, models, search
from recollect.stores.postgres.server import Work
from recollect.values import MemoryItem, Space

T = TypeVar("T")


class Reading:
    """Reads for a judge, in the transaction that the evidence was gathered in.

    The judge is in a thread of its own: what it asks for is read by the loop, which has nothing else to do for it.
    """

    def __init__(self, work: Work, space: Space, touched: Sequence[Touch]) -> None:
        self._work = work
        self._space = space
        self._touched = touched
        self._loop = asyncio.get_running_loop()
        self.over = False

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        found = {item.id: item for item in self._read(items.get(self._work, self._space, ids))}
        # Accesses that are not written yet are counted all the same.
        for touch in self._touched:
            for id in touch.ids if touch.space == self._space else ():
                if id in found:
                    found[id] = _seen(found[id], touch)
        return found

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return self._read(items.terms(self._work, self._space, ids))

    def _read(self, reading: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._while_open(reading), self._loop).result()

    async def _while_open(self, reading: Coroutine[Any, Any, T]) -> T:
        if self.over:
            reading.close()
            raise StoreClosed("nobody waits for this answer any more, and its moment has passed")
        return await reading


async def gather(work: Work, ask: Ask, judge: Callable[[Evidence, Lookup], T], touched: Sequence[Touch]) -> T:
    evidence = await _evidence(work, ask)
    reading = Reading(work, ask.where.space, touched)
    try:
        return await asyncio.to_thread(judge, evidence, reading)
    finally:
        reading.over = True


async def _evidence(work: Work, ask: Ask) -> Evidence:
    known = await models.read(work)
    if ask.vector is not None and ask.model is not None and known.active not in (None, ask.model):
        raise mismatch(known.active, ask.model)
    space = ask.where.space
    words = await search.weighed(work, space, ask.terms)
    near = [] if ask.vector is None else await search.near(work, ask.where, ask.vector, ask.limit, known)
    matched = await search.matched(work, ask.where, words, ask.limit)
    briefs = await items.briefs(work, space, {*near, *matched})
    cosines = {} if ask.vector is None else await search.exact(work, space, ask.vector, near, known)
    parts = await search.parts(work, space, words, {place: briefs[place] for place in matched})
    kept = {
        *_best(briefs, cosines, ask.limit),
        *_best(briefs, {place: sum(said) for place, said in parts.items()}, ask.limit),
    }
    briefs = {place: briefs[place] for place in kept}
    briefs |= await _neighbours(work, ask, briefs)
    if ask.vector is not None:
        lacking = [place for place in briefs if place not in cosines]
        cosines |= await search.exact(work, space, ask.vector, lacking, known)
    parts |= await search.parts(work, space, words, {place: briefs[place] for place in briefs if place not in parts})
    return laid_out(
        briefs.values(),
        {brief.id: cosines[place] for place, brief in briefs.items() if place in cosines},
        {brief.id: parts[place] for place, brief in briefs.items() if place in parts},
        words.weights,
        await items.speakers(work, space),
    )


def _best(briefs: dict[int, Brief], scores: dict[int, float], limit: int) -> list[int]:
    """The leaders' places in the order that every store answers in."""
    places = {briefs[place].id: place for place in scores}
    ordered = in_order([Found(briefs[place], score) for place, score in scores.items()], limit)
    return [places[found.brief.id] for found in ordered]


async def _neighbours(work: Work, ask: Ask, briefs: dict[int, Brief]) -> dict[int, Brief]:
    turns = [(b.session, b.position) for b in briefs.values() if b.session is not None and b.position is not None]
    return await items.around(work, ask.where, turns, ask.reach) if turns else {}


def _seen(item: MemoryItem, touch: Touch) -> MemoryItem:
    at = aware(touch.at)
    return replace(item, access_count=item.access_count + 1, last_accessed=max(item.last_accessed or at, at))
