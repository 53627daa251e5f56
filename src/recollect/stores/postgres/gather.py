"""Evidence of one moment: what is near and what matches, with the turns around it, judged in another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from recollect.clock import aware
from recollect.errors import StoreClosed
from recollect.stores.admission import mismatch
from recollect.stores.evidence import Ask, Brief, Column, Evidence, Found, Lookup, in_order
from recollect.stores.ops import Touch
from recollect.stores.postgres import items, search
from recollect.stores.postgres.search import Standing
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


async def gather(
    work: Work, at: Standing, ask: Ask, judge: Callable[[Evidence, Lookup], T], touched: Sequence[Touch]
) -> T:
    evidence = await _evidence(work, at, ask)
    reading = Reading(work, ask.where.space, touched)
    try:
        return await asyncio.to_thread(judge, evidence, reading)
    finally:
        reading.over = True


async def _evidence(work: Work, at: Standing, ask: Ask) -> Evidence:
    active = at.models.active
    if ask.vector is not None and ask.model is not None and active not in (None, ask.model):
        raise mismatch(active, ask.model)
    found = await search.look(work, at, ask)
    briefs, cosines, parts = found.briefs, found.cosines, found.parts
    if found.crowded:
        words = parts.sum(axis=0)
        lists = [cosines, np.where(words > 0.0, words, np.nan)]
        led = {at for scores in lists for at in _leading(briefs, scores, ask.limit)}
        beside = _Beside([briefs[at] for at in led], ask.reach)
        kept = [at for at, brief in enumerate(briefs) if at in led or beside(brief)]
        briefs, cosines, parts = [briefs[at] for at in kept], cosines[kept], parts[:, kept]
    return Evidence(tuple(briefs), cosines, parts, found.weights, at.speakers)


def _leading(briefs: Sequence[Brief], scores: Column, limit: int) -> list[int]:
    """The best in the order that every store answers in."""
    places = {brief.id: at for at, brief in enumerate(briefs)}
    scored = [Found(briefs[at], score) for at, score in enumerate(scores.tolist()) if score == score]
    return [places[found.brief.id] for found in in_order(scored, limit)]


class _Beside:
    """Whether somebody stands within reach of those who lead."""

    def __init__(self, led: Sequence[Brief], reach: int) -> None:
        self._reach = reach
        self._spoken: dict[str | None, list[float]] = {}
        for brief in led:
            if brief.position is not None:
                self._spoken.setdefault(brief.session, []).append(brief.position)

    def __call__(self, brief: Brief) -> bool:
        at = brief.position
        return at is not None and any(abs(at - one) <= self._reach for one in self._spoken.get(brief.session, ()))


def _seen(item: MemoryItem, touch: Touch) -> MemoryItem:
    at = aware(touch.at)
    return replace(item, access_count=item.access_count + 1, last_accessed=max(item.last_accessed or at, at))
