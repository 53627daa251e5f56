"""The index of turns: it follows the logs of conversations behind everybody's back, from where it was left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from recollect.clock import Clock, aware
from recollect.errors import BadVector, Conflict, EmbedderFailed, StoreClosed
from recollect.inference.base import Embedding
from recollect.lifecycle.statements import asks_to_be_forgotten
from recollect.memory.in_confidence import is_confided
from recollect.memory.turn_items import id_of, item_of, mark, name_of_mark, owner_of, space_of
from recollect.stores.base import Log, Records
from recollect.stores.ops import Delete, Entry, Model, Put, Vectors
from recollect.stores.tails import Reach, Tail
from recollect.stores.where import Condition, Where
from recollect.tiers.entries import entire
from recollect.tiers.indexing import index_terms, to_embed
from recollect.tiers.one_model import under_one_model
from recollect.tiers.patience import pause
from recollect.values import MemoryItem, Scope, Space

_log = logging.getLogger("recollect.index")

# A page of a log is one transaction. So many texts are embedded at once: a question that comes waits for them.
_PAGE = 64
_AT_ONCE = 8
_TRIES = 32

# A question waits until so much is indexed. It is what the model takes two seconds for; an import goes on behind it.
_WORTH_WAITING = 256

# …and no longer than this: the model may hang, and what was found is shown.
_PATIENCE = 2.0

# Of so many logs it is remembered how far they are indexed.
_KNOWN = 100_000

# More than anybody has.
_EVERY_SESSION = 1 << 20

# What is not indexed when a memory is closed is indexed when it is opened again; nobody is held up for long.
_TO_CLOSE = 10.0


class TurnIndex:
    """Makes items of what was said, a log at a time, in one task for all scopes of a memory.

    How far a log is indexed is noted in the same batch as its items. Whoever clears a log drops that note with them,
    so that one who was indexing meanwhile does not bring back what is gone: every batch names the note that it saw.
    """

    def __init__(self, records: Records, log: Log, embedding: Embedding, clock: Clock) -> None:
        self.records = records
        self.log = log
        self._embedding = embedding
        self._clock = clock
        self._waiting: dict[Space, None] = {}
        self._left: dict[Space, None] = {}
        self._up_to: dict[Space, int] = {}
        self._spoken: set[Scope] = set()
        self._looked: set[Scope] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._by_words_alone = False
        self._told: set[str] = set()

    @property
    def apart(self) -> bool:
        """Whether the items live in another store than what they are made of."""
        return self.records is not self.log  # type: ignore[comparison-overlap]

    @property
    def now(self) -> datetime:
        return aware(self._clock())

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def noted(self, space: Space) -> None:
        """Something was said in a log, or cleared from it: look at it soon."""
        if len(self._up_to) > _KNOWN:  # what is known of them can be read again
            self._up_to.clear()
            self._looked.clear()
            self._spoken.clear()
        self._spoken.add(owner_of(space))
        self._soon([space])

    def holds(self, scope: Scope) -> bool:
        """Whether anything was said that could be found; before the first word nothing is searched."""
        return owner_of(space_of(scope)) in self._spoken

    async def caught_up(self, scope: Scope, tails: Sequence[Tail], *, model_is_up: bool) -> bool:
        """Whether there may be more to find than a moment ago, since what some logs end with was not indexed yet.

        The first time all logs of a user are looked at: others may have left them so, or died over them. What takes
        long is not waited for, and what has failed is not tried again while the model is known to be down.
        """
        owner = owner_of(space_of(scope))
        ends = [tail for tail in tails if tail and tail[-1].seq > self._up_to.get(tail.space, 0)]
        if owner not in self._looked and any(tails):
            self._looked.add(owner)
            self._spoken.add(owner)
            ends = await self._ends(owner)
        behind = await self._behind(ends)
        if not model_is_up:
            self._soon(behind, model_is_up=False)
            return False
        behind |= self._left_of(owner)
        if not behind:
            return False
        self._soon(behind)
        if sum(behind.values()) > _WORTH_WAITING:
            return False
        await self._done(_PATIENCE)
        if left := self._left_of(owner):  # by one who had found the model down, a moment before it was up again
            self._soon(left)
            await self._done(_PATIENCE)
        return True

    async def behind(self, scope: Scope) -> int:
        """How many entries of one user and agent may not be indexed, once what is under way has had its time."""
        await self._done(_PATIENCE)
        return sum((await self._behind(await self._ends(owner_of(space_of(scope))))).values())

    async def catch_up(self, scope: Scope) -> None:
        """Index all that is not, of one user and agent, and wait for it."""
        self._soon(await self._behind(await self._ends(owner_of(space_of(scope)))))
        await self._done()

    async def close(self) -> None:
        """Finish what is under way, within its time; the rest is done when somebody opens this again."""
        self._closed = True
        if self._task is None:
            return
        _, unfinished = await asyncio.wait([self._task], timeout=_TO_CLOSE)
        if unfinished:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def leftovers(self, space: Space) -> list[Delete]:
        """What takes all items of a log out of the index."""
        of_it = Where(space_of(owner_of(space)), conditions=(Condition("session", "eq", space.session),))
        found: list[MemoryItem] = []
        while page := await self.records.find(of_it, limit=1000, after=found[-1] if found else None):
            found += page
        return [Delete(of_it.space, item.id) for item in found]

    async def _done(self, within: float | None = None) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within)

    def _left_of(self, owner: Scope) -> dict[Space, int]:
        return {space: 1 for space in self._left if owner_of(space) == owner}

    def _soon(self, spaces: Iterable[Space], *, model_is_up: bool = True) -> None:
        if self._closed:
            return
        for space in spaces:
            self._left.pop(space, None)
            self._waiting[space] = None
        self._by_words_alone = not model_is_up
        if self._waiting and not self.busy:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="recollect-index")

    async def _work(self) -> None:
        """Log after log. Whatever goes wrong with one is told once, and it is left for later."""
        while self._waiting:
            # Taken out before it is looked at: what is said meanwhile puts it in again.
            space = next(iter(self._waiting))
            del self._waiting[space]
            try:
                await self._follow(space, by_words_alone=self._by_words_alone)
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - it is behind everybody's back: nobody else would hear of it
                self._by_words_alone = self._by_words_alone or isinstance(error, EmbedderFailed)
                self._left[space] = None
                self._tell(error)

    def _tell(self, error: Exception) -> None:
        # The type alone: the message of an error may hold what somebody said.
        kind = type(error).__name__
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("what was said could not be indexed (%s); it is tried again later", kind)

    async def _ends(self, owner: Scope) -> list[Tail]:
        """The last entry of each log."""
        return await self.log.tails(owner.space("conversation"), Reach(own=1, others=_EVERY_SESSION, of_each=1))

    async def _behind(self, tails: Sequence[Tail]) -> dict[Space, int]:
        """Which of some logs of one owner go further than their index, and by how much at most."""
        ends = {tail.space: tail[-1].seq for tail in tails if tail}
        if not ends:
            return {}
        marks = await self._marks(list(ends))
        self._up_to |= {space: _seq(marks.get(space)) for space in ends}
        return {space: end - self._up_to[space] for space, end in ends.items() if end > self._up_to[space]}

    async def _marks(self, spaces: Sequence[Space]) -> dict[Space, MemoryItem]:
        named = {name_of_mark(space): space for space in spaces}
        found = await self.records.get(owner_of(spaces[0]).space("lifecycle"), *named)
        return {named[one.id]: one for one in found}

    async def _follow(self, space: Space, *, by_words_alone: bool) -> None:
        """Index a log from its note to its end. While the embedder is down it is found by its words at least."""
        failed: EmbedderFailed | None = None
        for tries in range(_TRIES):
            try:
                while not await self._is_at_its_end(space, by_words_alone=failed is not None or by_words_alone):
                    pass
                break
            except EmbedderFailed as error:
                failed = error
            except Conflict:  # somebody else indexed it, or cleared it
                await pause(tries)
        else:
            raise Conflict("a log is being indexed by others all the time")
        if failed is not None or by_words_alone:
            raise failed or EmbedderFailed("the embedder is down")

    async def _is_at_its_end(self, space: Space, *, by_words_alone: bool) -> bool:
        """Index one page more, unless there is none."""
        held = (await self._marks([space])).get(space) or await self._begun(space)
        if held is None:
            self._up_to.pop(space, None)
            return True
        after = max(_seq(held), held.metadata.get("words", 0)) if by_words_alone else _seq(held)
        page = await self.log.read(space, after=after, limit=_PAGE)
        told = _told(page, held, by_words_alone=by_words_alone)
        if page:
            try:
                await self._keep(space, page, held, told, by_words_alone=by_words_alone)
            except BadVector:  # the model cannot say what this means, and will not tomorrow: the rest is not held up
                await self._keep(space, page, held, told, by_words_alone=True)
        elif not by_words_alone:
            self._up_to[space] = _seq(held)
        return not page

    async def _begun(self, space: Space) -> MemoryItem | None:
        """The note of a log that has none. It was cleared, or is new; what may be left of it in the index goes."""
        gone = await self.leftovers(space)
        if gone:
            await self.records.write(*gone)
        if not await self.log.recent(space, limit=1):
            return None
        note = mark(space, {"seq": 0}, None, self.now)
        await self.records.write(Put(item=note, expect=0))
        return (await self._marks([space])).get(space)

    async def _keep(
        self, space: Space, page: list[Entry], held: MemoryItem, told: Mapping[str, Any], *, by_words_alone: bool
    ) -> None:
        """A page into the index, and with it in the note what is `told` of that."""
        private = await self._private(space, page, held)
        if private:  # first of all: what somebody took back does not wait for a model
            await self.records.write(*(Delete(space_of(owner_of(space)), id_of(space, one)) for one in private))
        hidden = {one.id for one in private}
        said = [one for one in page if one.id not in hidden]
        items, terms = await asyncio.to_thread(_readied, space, said)
        note = mark(space, told, held, self.now)

        async def write(model: Model) -> None:
            rows: Sequence[Any] = [None] * len(items) if by_words_alone else await self._embedded(items)
            puts = [
                Put(item=item, vectors=vectors, terms=found, model=None if vectors is None else model)
                for item, vectors, found in zip(items, rows, terms, strict=True)
            ]
            await self.records.write(*puts, Put(item=note, expect=held.version))

        await under_one_model(self._embedding, write)

    async def _private(self, space: Space, page: list[Entry], held: MemoryItem) -> list[Entry]:
        """What of a log was said in confidence or taken back: that is for its own session, and not for the index."""
        if not held.metadata.get("private") and not any(map(_is_private, page)):
            return []
        entries = await entire(self.log, space)
        return [one for at, one in enumerate(entries) if is_confided(entries, at)]

    async def _embedded(self, items: Sequence[MemoryItem]) -> list[Vectors]:
        """The vectors of each; a few at a time, so that a question that comes meanwhile is soon its turn."""
        parts = [to_embed(item) for item in items]
        texts = [part for some in parts for part in some]
        rows = [await self._embedding.embed(texts[at : at + _AT_ONCE]) for at in range(0, len(texts), _AT_ONCE)]
        return np.split(np.concatenate(rows), np.cumsum([len(some) for some in parts])[:-1]) if items else []


def _readied(space: Space, entries: Iterable[Entry]) -> tuple[list[MemoryItem], list[tuple[str, ...]]]:
    items = [item for entry in entries if (item := item_of(space, entry)) is not None]
    return items, [index_terms(item) for item in items]


def _is_private(entry: Entry) -> bool:
    return entry.kind == "user" and asks_to_be_forgotten(entry.content)


def _told(page: Sequence[Entry], held: MemoryItem, *, by_words_alone: bool) -> Mapping[str, Any]:
    """What the note says after a page: how far the log is indexed, and whether the next words may answer a secret."""
    if not page:
        return held.metadata
    users = [entry for entry in page if entry.kind == "user"]
    private = _is_private(users[-1]) if users else bool(held.metadata.get("private"))
    if by_words_alone:
        return {"seq": _seq(held), "words": page[-1].seq, "private": private or bool(held.metadata.get("private"))}
    return {"seq": page[-1].seq, "private": private}


def _seq(mark: MemoryItem | None) -> int:
    return int(mark.metadata["seq"]) if mark is not None else 0
