"""The engine: follows the chain, answers from shelves, and puts what has been written into its place later."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from recollect.errors import StoreCorrupt, StoreUnavailable
from recollect.stores.chroma.batch import Batch, Models
from recollect.stores.chroma.chain import Chain
from recollect.stores.chroma.collections import Collections
from recollect.stores.chroma.places import Places
from recollect.stores.chroma.resolve import Resolving
from recollect.stores.chroma.search import Search
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.chroma.vectors import nearness
from recollect.stores.ops import Touch, Write
from recollect.values import MemoryItem, Space

# So many batches stay in the chain alone before they are put into their places, all in one go.
SETTLE_AFTER = 32
# Others may be faster this often in a row; then something else is wrong.
_ATTEMPTS = 100
# A writer may sleep for as long as others take for so many batches, and still learn whether it was faster.
_REMEMBERED = 256

T = TypeVar("T")


def token() -> str:
    return secrets.token_hex(8)


class Engine:
    """All of it in one thread at a time: its caller sees to that.

    `alone` says that nobody else writes here, as in a directory that is locked: then nobody else is asked for news.
    """

    def __init__(
        self,
        collections: Collections,
        *,
        alone: bool,
        cache_bytes: int,
        settle_after: int = SETTLE_AFTER,
        token: Callable[[], str] = token,
    ) -> None:
        self.collections = collections
        self.places = Places(collections)
        self.models = Models()
        self.touches: list[Touch] = []
        # Batches are large, and the log of them is read again and again. Where a torn index is mended at the next
        # opening it is written often; a server's is mended by hand.
        self._chain = Chain(collections, token, sync_after=16 if alone else 100)
        self._alone = alone
        self._budget = cache_bytes
        self._settle_after = settle_after
        self._shelves: OrderedDict[Space, Shelf] = OrderedDict()
        self._pending: dict[int, Batch] = {}
        self._whose: dict[int, str] = {}
        self._head = 0
        self._floor = 1
        self._resets = 0
        self._unsure = True

    # Writing

    def write(self, writes: Sequence[Write]) -> None:
        """All of the writes, and the accesses that wait to be counted."""
        touches = list(self.touches)
        self._commit(lambda batch: batch.apply([*touches, *writes]))
        del self.touches[: len(touches)]

    @property
    def pending(self) -> Mapping[int, Batch]:
        """Batches that are in the chain alone, by their numbers."""
        return self._pending

    def change(self, what: Callable[[Resolving], object]) -> None:
        """A batch of something else than writes."""
        self._commit(what)

    def settle(self) -> None:
        """Put every batch into its place, and take it out of the chain."""
        batches = [
            batch for batch in self._pending.values() if batch.changes or batch.wiped or batch.models != self.models
        ]
        last = self._head
        if not self._pending or (not batches and len(self._pending) == 1):
            return
        self.places.put(batches, self.models)
        self._look_again()
        if batches and self._floor > batches[0].number:
            # Others have done so meanwhile, and may have erased since what was just put there: it goes again.
            self.places.clear_up({change.space for batch in batches for change in batch.changes}, self._floor)
        # Said in the chain first: from now on nothing below counts, whoever may still be about to write it.
        self._commit(lambda batch: None, floor=last + 1)
        self._chain.sweep(self._floor)

    def _commit(self, what: Callable[[Resolving], object], floor: int = 0) -> None:
        for _ in range(_ATTEMPTS):
            self.follow()
            resolving = Resolving(self._head + 1, self.models, self.shelf)
            head = self._head
            what(resolving)
            if self._head != head:  # reading a space brought news
                continue
            changes = resolving.changes
            if not (changes or resolving.wiped) and resolving.models == self.models and floor <= self._floor:
                return
            settled = self._settled() if floor else {}
            batch = Batch(
                head + 1,
                self._chain.token(),
                max(floor, self._floor),
                resolving.models,
                changes,
                settled,
                resolving.wiped,
            )
            if self._added(batch):
                self._take(batch)
                self._settle_if_due(batch)
                return
        raise StoreUnavailable(f"others wrote first, {_ATTEMPTS} times in a row; nothing was written, try again")

    def _settled(self) -> dict[int, str]:
        last = sorted(self._whose)[-_REMEMBERED:]
        self._whose = {number: self._whose[number] for number in last}
        return self._whose

    def _added(self, batch: Batch) -> bool:
        # Until the answer is here it is not known what the chain holds; whoever comes next then looks.
        self._unsure = True
        try:
            self._chain.add(batch)
        except StoreUnavailable:
            won = self._chain.won(batch)  # raises in its turn while Chroma is away
            if won is None:
                raise
        else:
            won = True if self._alone else self._chain.won(batch)
        self._unsure = not won
        return bool(won)

    def _settle_if_due(self, batch: Batch) -> None:
        # What was deleted does not wait: until then its text stands in the chain.
        if len(self._pending) < self._settle_after and not batch.removes:
            return
        if not batch.changes and batch.wiped is None:
            return
        try:
            self.settle()
        except StoreUnavailable:
            return  # it has been written; the next batch tries again

    # Following

    def follow(self) -> None:
        """Take in what others have written since."""
        if self._alone and not self._unsure:
            return
        news = self._chain.news(self._head, self._floor)
        if news.gap:
            # What happened in between is in its place, and in no shelf of ours.
            self._shelves.clear()
            self._pending.clear()
            self._resets += 1
            self._head = news.floor - 1
        for batch in news.batches:
            self._take(batch)
        self._lower(news.floor)
        self._unsure = False

    def _look_again(self) -> None:
        if not self._alone:
            self.follow()

    def _take(self, batch: Batch) -> None:
        self._head = batch.number
        self._pending[batch.number] = batch
        self._whose.update({**batch.settled, batch.number: batch.by})
        if (batch.models.generation, batch.models.active) != (self.models.generation, self.models.active):
            for shelf in self._shelves.values():
                shelf.matrix = None
        self.models = batch.models
        for change in batch.changes:
            if change.space in self._shelves:
                self._shelves[change.space].apply(batch.number, change, self.models)
        for space in batch.wiped.spaces if batch.wiped is not None else ():
            self._shelves.pop(space, None)
        self._lower(batch.floor)

    def _lower(self, floor: int) -> None:
        self._floor = max(self._floor, floor)
        for number in [number for number in self._pending if number < self._floor]:
            del self._pending[number]

    # Reading

    def ask(self, space: Space, question: Callable[[Search], T]) -> T:
        """The answer to a question about one space, all of it at one moment."""
        self.follow()
        while True:
            shelf = self.shelf(space)
            head, resets = self._head, self._resets
            search = Search(shelf, self.models, nearness(self.places, space, shelf, self.models, self._pending))
            try:
                answer = question(search)
            except StoreCorrupt:
                # Perhaps not: somebody may have replaced, and swept away, what this shelf still names.
                self._look_again()
                if (head, resets) == (self._head, self._resets):
                    raise
                continue
            if (head, resets) == (self._head, self._resets):
                self._make_room()
                return answer

    def shelf(self, space: Space) -> Shelf:
        """A space as of the newest batch known; reading it may bring news."""
        while space not in self._shelves:
            before, resets = dict(self._pending), self._resets
            shelf = self.places.read(space)
            # Others may have put later batches into their places while this one was read: those are news by now.
            self._look_again()
            if resets != self._resets:
                continue
            for number, batch in sorted({**before, **self._pending}.items()):
                for change in batch.changes:
                    if change.space == space:
                        shelf.apply(number, change, self.models)
            self._shelves[space] = shelf
        self._shelves.move_to_end(space)
        return self._shelves[space]

    def spaces(self) -> list[Space]:
        """Every space that has ever held something."""
        self.follow()
        written = {change.space: None for batch in self._pending.values() for change in batch.changes}
        return list({**dict.fromkeys(self.places.spaces()), **written})

    def each(self, tenant: str | None = None) -> Iterator[tuple[Space, Shelf]]:
        """Every space, one after the other: only some of them have to fit into memory at once."""
        for space in (one for one in self.spaces() if tenant in (None, one.tenant)):
            yield space, self.shelf(space)
            self._make_room()

    def lacking(self, models: Models, limit: int) -> list[MemoryItem]:
        """Items without vectors of the model that is being prepared."""
        found: list[MemoryItem] = []
        for _, shelf in self.each():
            found.extend(kept.item for kept in shelf.kept.values() if models.fresh not in kept.refs)
            if len(found) >= limit:
                break
        return found[:limit]

    def _make_room(self) -> None:
        held = sum(shelf.bytes for shelf in self._shelves.values())
        while held > self._budget and len(self._shelves) > 1:
            _, shelf = self._shelves.popitem(last=False)
            held -= shelf.bytes
