"""A conversation and its index: what is said is indexed after it, and what goes takes its items along."""

from __future__ import annotations

import asyncio

from recollect.errors import Conflict, StoreFull
from recollect.memory.turn_index import TurnIndex
from recollect.memory.turn_items import mark, name_of_mark, owner_of
from recollect.stores.base import Log, Records
from recollect.stores.ops import Append, Clear, Delete, Put
from recollect.tiers.patience import pause
from recollect.values import Space

_TRIES = 32


class Followed:
    """The index as a conversation sees it, through the stores that it writes to itself.

    Those of a running step only collect what is to be committed with it.
    """

    def __init__(self, index: TurnIndex, log: Log, records: Records) -> None:
        self._index = index
        self._log = log
        self._records = records

    async def noted(self, space: Space) -> None:
        """It is looked at when whoever says this waits for something, which is mostly when they have their answer."""
        behind = self._index.busy
        self._index.noted(space)
        if behind:  # where a store never waits, whoever says much at once lets the index go on all the same
            await asyncio.sleep(0)

    async def clear(self, space: Space, *instead: Append) -> None:
        """Empty a log, for what is said `instead`; its items go with it, or before it where they live elsewhere.

        The note on how far it is indexed goes too. So one who is indexing it at this moment finds another note than
        the one they saw, and looks again.
        """
        if self._records is self._log:  # type: ignore[comparison-overlap]
            await self._clear_at_once(space, *instead)
        else:
            await self._drop(space)
            await self._log.write(Clear(space), *instead)
            # Somebody may have indexed it once more in between.
            await self._drop(space)
        self._index.noted(space)

    async def _clear_at_once(self, space: Space, *instead: Append) -> None:
        # What waits for a step is written later, when the note may be another one; the next look finds what is left.
        sure = self._log is self._index.log
        for tries in range(_TRIES):
            try:
                await self._log.write(*await self._gone(space, sure=sure), Clear(space), *instead)
            except Conflict:  # it was indexed further since we looked
                await pause(tries)
            except StoreFull:  # nobody else can write there either, so there is nothing to be sure of
                await self._log.write(*await self._gone(space, sure=False), Clear(space), *instead)
                return
            else:
                return
        raise Conflict("the conversation is being indexed by others all the time; try again")

    async def _drop(self, space: Space) -> None:
        if gone := await self._gone(space, sure=False):
            await self._records.write(*gone)

    async def _gone(self, space: Space, *, sure: bool) -> list[Put | Delete]:
        """What takes the index of a log away; when `sure`, refused if that was changed since it was looked at."""
        notes, name = owner_of(space).space("lifecycle"), name_of_mark(space)
        held = next(iter(await self._index.records.get(notes, name)), None)
        gone = await self._index.leftovers(space)
        if held is not None:
            return [*gone, Delete(notes, name, held.version if sure else None)]
        if not sure:
            return [*gone]
        # That there is still no note is said by writing one that must be new.
        none_yet = Put(item=mark(space, {"seq": 0}, None, self._index.now), expect=0)
        return [*gone, none_yet, Delete(notes, name)]
