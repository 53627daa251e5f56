"""Evidence of one moment: what is near and what matches, with the turns around it, and what a judge makes of it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.clock import aware
from recollect.errors import StoreClosed
from recollect.stores.admission import mismatch
from recollect.stores.evidence import Ask, Brief, Column, Evidence, Lookup, best, nothing
from recollect.stores.ops import Touch
from recollect.stores.postgres import items, search
from recollect.stores.postgres.rows import WIDTH, item_of
from recollect.stores.postgres.search import Candidates
from recollect.stores.postgres.server import Server, Work
from recollect.stores.postgres.standing import Standing, first_of, standing
from recollect.stores.postgres.text import given
from recollect.values import MemoryItem, Space

T = TypeVar("T")

_FEW = 200
_SPACES_KNOWN = 4096


class Read:
    """What was read of the candidates, for a judge: items are made of those alone that it asks for."""

    def __init__(self, space: Space, found: Candidates, touched: Sequence[Touch]) -> None:
        self._space = space
        self._touched = [touch for touch in touched if touch.space == space]
        self._found = found

    @cached_property
    def _rows(self) -> dict[str, tuple[Any, ...]]:
        """By the ids of items. Most judges find that nothing is worth a look."""
        return {brief.id: row for brief, row in zip(self._found.briefs, self._found.rows, strict=True)}

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        found = {id: item_of(self._space, self._rows[id]) for id in ids if id in self._rows}
        return _with_accesses(found, self._touched)

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: given(self._rows[id][WIDTH - 1]) for id in ids if id in self._rows}


class Reading(Read):
    """The same where texts are so long that they were not read: those that are asked for are read now.

    The judge is in a thread of its own: what it asks for is read by the loop, which has nothing else to do for it, in
    the transaction that the evidence was gathered in.
    """

    def __init__(self, work: Work, space: Space, found: Candidates, touched: Sequence[Touch]) -> None:
        super().__init__(space, found, touched)
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.over = False

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        read = asyncio.run_coroutine_threadsafe(self._while_open(ids), self._loop).result()
        return _with_accesses({item.id: item for item in read}, self._touched)

    async def _while_open(self, ids: Sequence[str]) -> list[MemoryItem]:
        if self.over:
            raise StoreClosed("nobody waits for this answer any more, and its moment has passed")
        return await items.got(self._work, self._space, ids)


class Gathering:
    """Gathers evidence, and has it judged."""

    def __init__(self, server: Server, stood: Callable[[Space, Standing], None]) -> None:
        self._server = server
        self._stood = stood
        # Spaces that one journey is not enough for: they are large, or have texts too long to be read with others. And
        # those in which there was nothing.
        self._long: OrderedDict[Space, None] = OrderedDict()
        self._empty: OrderedDict[Space, None] = OrderedDict()

    async def __call__(self, ask: Ask, judge: Callable[[Evidence, Lookup], T], touched: Sequence[Touch]) -> T:
        """In one journey to the server, where that is enough.

        Where there was nothing last time, that alone is asked: many have no procedures, and are always asked for them.
        """
        space = ask.where.space
        if space in self._empty:
            at = standing(await self._server.read(space.tenant, *first_of(space)))
            if not at.corpus.items:
                _check_model(at, ask)
                return judge(nothing(ask, at.speakers), Read(space, search.NOBODY, touched))
            self._empty.pop(space, None)
        if space not in self._long:
            at, found = await search.at_once(self._server, ask)
            _check_model(at, ask)
            self._stood(space, at)
            if not at.corpus.items:
                _note(self._empty, space)
            if found is not None and all(row[2] is not None for row in found.rows):
                evidence, read = _evidence(at, ask, found), Read(space, found, touched)
                # To hand a few over to a thread takes longer than to judge them.
                if len(evidence) <= _FEW:
                    return judge(evidence, read)
                return await asyncio.to_thread(judge, evidence, read)
            if found is not None or at.indexed is not None:
                _note(self._long, space)
        return await self._at_length(ask, judge, touched)

    async def _at_length(self, ask: Ask, judge: Callable[[Evidence, Lookup], T], touched: Sequence[Touch]) -> T:
        space = ask.where.space
        async with self._server.reading(space.tenant, first_of(space)) as work:
            at = standing(work.first)
            self._stood(space, at)
            _check_model(at, ask)
            found = await search.looked(work, at, ask)
            reading = Reading(work, space, found, touched)
            try:
                return await asyncio.to_thread(judge, _evidence(at, ask, found), reading)
            finally:
                reading.over = True


def _note(spaces: OrderedDict[Space, None], space: Space) -> None:
    spaces[space] = None
    if len(spaces) > _SPACES_KNOWN:
        spaces.popitem(last=False)


def _check_model(at: Standing, ask: Ask) -> None:
    active = at.models.active
    if ask.vector is not None and ask.model is not None and active not in (None, ask.model):
        raise mismatch(active, ask.model)


def _evidence(at: Standing, ask: Ask, found: Candidates) -> Evidence:
    briefs, cosines, parts = found.briefs, found.cosines, found.parts
    if found.crowded:
        words = parts.sum(axis=0)
        by_meaning, by_words = np.flatnonzero(cosines == cosines), np.flatnonzero(words > 0.0)
        led = {*_leading(briefs, by_meaning, cosines, ask.limit), *_leading(briefs, by_words, words, ask.limit)}
        beside = _Beside([briefs[at] for at in led], ask.reach)
        kept = [at for at, brief in enumerate(briefs) if at in led or beside(brief)]
        if len(kept) < len(briefs):
            briefs, cosines, parts = [briefs[at] for at in kept], cosines[kept], parts[:, kept]
    return Evidence(tuple(briefs), cosines, parts, found.weights, at.speakers)


def _leading(briefs: Sequence[Brief], known: NDArray[np.intp], scores: Column, limit: int) -> list[int]:
    """Of the places that have a score, those that lead in every store."""
    places: list[int] = known.tolist()
    if len(places) <= limit:
        return places
    return [places[at] for at in best([briefs[place].id for place in places], scores[known].tolist(), limit)]


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


def _with_accesses(found: dict[str, MemoryItem], touched: Sequence[Touch]) -> dict[str, MemoryItem]:
    """Accesses that are not written yet are counted all the same."""
    for touch in touched:
        for id in touch.ids:
            if id in found:
                found[id] = _seen(found[id], touch)
    return found


def _seen(item: MemoryItem, touch: Touch) -> MemoryItem:
    at = aware(touch.at)
    return replace(item, access_count=item.access_count + 1, last_accessed=max(item.last_accessed or at, at))
