"""What was ever said, searched: the turns of all sessions that a question is about, by meaning and by words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recollect.errors import EmbedderFailed, StoreClosed, StoreError, StoreUnavailable
from recollect.inference.base import Embedding
from recollect.memory.asked import Asked
from recollect.memory.candidates import Told
from recollect.memory.in_confidence import is_confided
from recollect.memory.turn_index import TurnIndex
from recollect.memory.turn_items import space_of, told_of
from recollect.recall.across import together
from recollect.recall.recall import Recall
from recollect.stores.question import Mode, Question, Width
from recollect.stores.tails import Tail
from recollect.stores.where import Where
from recollect.tiers.one_model import under_one_model
from recollect.values import Hit, Scope, Space

# More do not find more, and each of them costs its share: docs/decisions/012 has the figures.
_WIDTH = Width(proposed=16, reach=1)
_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the index has for a question, and what could not be asked of it."""

    told: Sequence[Told] = ()
    warnings: Sequence[str] = ()


class Said:
    """The index of turns as one question sees it."""

    def __init__(self, index: TurnIndex, recall: Recall, embedding: Embedding, scope: Scope, asked: Asked) -> None:
        self._index = index
        self._recall = recall
        self._embedding = embedding
        self._scope = scope
        self._asked = asked

    @property
    def anything(self) -> bool:
        """Whether it is worth asking before it is known what the logs hold."""
        return self._index.holds(self._scope)

    async def caught_up(self, tails: Sequence[Tail], *, model_is_up: bool) -> bool:
        """Whether there may be more to find now that the ends of the logs are known; not where the index is down."""
        try:
            return await self._index.caught_up(self._scope, tails, model_is_up=model_is_up)
        except (StoreUnavailable, OSError):
            return False  # whoever searches it is told

    async def found(self, asks_again: Callable[[str], bool], *, model_is_up: bool) -> Heard:
        """The turns that the question is about, best first; those with a text that only asks again are passed over.

        A store that is down costs what it holds alone: the ends of the logs are read elsewhere.
        """
        try:
            try:
                told = await self._told("hybrid" if model_is_up else "text", asks_again)
            except EmbedderFailed:
                told = await self._told("text", asks_again)
            return Heard(told=await self._still_there(told) if self._index.apart else told)
        except StoreClosed:
            raise
        except (StoreError, OSError) as error:
            said = str(error) or type(error).__name__
            return Heard(warnings=[f"what was said longer ago could not be searched: {said}"])

    async def _told(self, mode: Mode, asks_again: Callable[[str], bool]) -> list[Told]:
        width = _WIDTH
        while True:
            again = 0

            def counted(text: str) -> bool:
                nonlocal again
                asks = asks_again(text)
                again += asks
                return asks

            hits = await self._hits(mode, counted, width)
            # Who asks this every day has said it more often than its answer, which may not even be among so many.
            if 2 * again < width.proposed or width.proposed >= _MOST:
                break
            width = replace(width, proposed=4 * width.proposed)
        told = [_told(hit) for hit in hits]
        return [one for one in told if self._asked.means(one.hit.item)]

    async def _hits(self, mode: Mode, asks_again: Callable[[str], bool], width: Width) -> list[Hit]:
        asked = self._asked
        question = Question(
            text=asked.query,
            where=Where(space_of(self._scope), known_at=asked.as_of, conditions=asked.conditions),
            n=asked.n,
            min_relevance=asked.min_relevance,
            mode=mode,
            now=asked.now if asked.as_of is None else asked.as_of,
            asked_at=asked.now,
            asks_again=asks_again,
            width=width,
        )
        return await under_one_model(self._embedding, lambda _: self._recall.found(question))

    async def _still_there(self, told: Sequence[Told]) -> list[Told]:
        """Two stores cannot be changed at one moment: what the log no longer has was never found."""
        if not told:
            return []
        sessions: dict[Space, list[str]] = {}
        for one in told:
            sessions.setdefault(one.space, []).append(one.entry.id)
        held = await together(*(self._index.log.entries(space, *ids) for space, ids in sessions.items()))
        there = {(space, entry.id) for space, entries in zip(sessions, held, strict=True) for entry in entries}
        return [one for one in told if (one.space, one.entry.id) in there]


def open_to_all(told: Sequence[Told], here: Space, tails: Sequence[Tail]) -> list[Told]:
    """Without what was taken back a moment ago in another session: the ends of the newest logs tell of it already."""
    later = {tail.space: tail for tail in tails if tail and tail.space != here}
    return [
        one
        for one in told
        if one.space not in later
        or not is_confided([one.entry, *(after for after in later[one.space] if after.seq > one.entry.seq)], 0)
    ]


def _told(hit: Hit) -> Told:
    space, entry, shown = told_of(hit.item)
    return Told(entry, space, replace(hit, item=shown))
