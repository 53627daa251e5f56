"""One space in memory, as of one batch: what all questions are answered from."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from recollect.clock import to_micros
from recollect.stores.chroma.batch import Change, Models, Rows
from recollect.stores.chroma.cells import Kept, handle
from recollect.stores.chroma.matrix import Matrix
from recollect.stores.chroma.words import Words
from recollect.stores.evidence import Brief, brief_of
from recollect.values import MemoryItem

# What Python needs for an item besides its text, its words and their places; measured, and rounded up.
_ITEM_BYTES = 3_000
_TERM_BYTES = 24


class Shelf:
    """The items of a space by id, with what finds them quickly. Of two states of an item the later batch's counts."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self.written: dict[str, int] = {}
        """The batch that wrote an item's state, or that it is gone, by handle."""
        self.paths: frozenset[str] = frozenset()
        self.paths_at = 0
        self.words = Words()
        self.matrix: Matrix | None = None
        """None until a search asks for vectors."""
        self.speakers: Counter[str] = Counter()
        self._ids: dict[str, str] = {}
        self._ages: list[tuple[int, str]] = []
        self._keys: dict[str, set[str]] = {}
        self._sessions: dict[str, dict[str, float]] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes + (self.matrix.bytes if self.matrix is not None else 0)

    def take(self, kept: Kept) -> None:
        """An item's state, unless a later one is known."""
        of = handle(kept.item.id)
        if self.written.get(of, 0) >= kept.at:
            return
        self._forget(of)
        self.written[of] = kept.at
        item = kept.item
        self._ids[of] = item.id
        self.kept[item.id] = kept
        bisect.insort(self._ages, _age(item))
        self._bytes += _bytes(kept)
        self.words.put(item.id, kept.terms)
        if item.key is not None:
            self._keys.setdefault(item.key, set()).add(item.id)
        if item.turn is not None:
            self._sessions.setdefault(item.turn.session, {})[item.id] = item.turn.position
            if item.turn.speaker is not None:
                self.speakers[item.turn.speaker] += 1

    def bury(self, of: str, at: int) -> None:
        """That an item is gone, unless something later is known of it."""
        if self.written.get(of, 0) < at:
            self._forget(of)
            self.written[of] = at

    def take_paths(self, paths: Iterable[str], at: int) -> None:
        if at > self.paths_at:
            self.paths, self.paths_at = frozenset(paths), at

    def apply(self, number: int, change: Change, models: Models) -> None:
        """What a batch did to this space; a second time it does nothing."""
        rows = {one.of: one.rows for one in change.passages if one.generation == models.generation}
        for cell in change.cells:
            if self.written.get(cell.of, 0) >= number:
                continue
            if cell.kept is None:
                self.bury(cell.of, number)
            else:
                self._replace(cell.kept, rows.get(cell.of), models)
        if change.paths is not None:
            self.take_paths(change.paths, number)
        if self.words.is_sparse:
            self.words = Words()
            for id, kept in self.kept.items():
                self.words.put(id, kept.terms)

    def _replace(self, kept: Kept, rows: Rows | None, models: Models) -> None:
        id, matrix = kept.item.id, self.matrix
        if matrix is not None and rows is None and models.generation in kept.refs:
            rows = matrix.rows(id)  # the vectors that it had
        self.take(kept)
        if matrix is not None and rows is not None:
            matrix.put(id, rows)
            if matrix.is_sparse:
                self.matrix = None  # read again by the next search

    def turns(self, session: str) -> Mapping[str, float]:
        """The items said in a session, with their positions."""
        return self._sessions.get(session, {})

    def keyed(self, key: str) -> frozenset[str]:
        return frozenset(self._keys.get(key, ()))

    def newest_first(self, after: MemoryItem | None) -> Iterator[Kept]:
        end = len(self._ages) if after is None else bisect.bisect_left(self._ages, _age(after))
        for place in range(end - 1, -1, -1):
            yield self.kept[self._ages[place][1]]

    @property
    def newest(self) -> datetime | None:
        return self.kept[self._ages[-1][1]].item.created_at if self._ages else None

    def brief(self, id: str, generation: int) -> Brief:
        kept = self.kept[id]
        ref = kept.refs.get(generation)
        return brief_of(kept.item, length=len(kept.terms), passages=1 if ref is None else ref.passages)

    def _forget(self, of: str) -> None:
        id = self._ids.pop(of, None)
        if id is None:
            return
        kept = self.kept.pop(id)
        item = kept.item
        del self._ages[bisect.bisect_left(self._ages, _age(item))]
        self._bytes -= _bytes(kept)
        self.words.drop(id)
        if self.matrix is not None:
            self.matrix.drop(id)
        if item.key is not None:
            self._keys[item.key].discard(id)
        if item.turn is not None:
            del self._sessions[item.turn.session][id]
            if item.turn.speaker is not None:
                self.speakers[item.turn.speaker] -= 1


def _age(item: MemoryItem) -> tuple[int, str]:
    return to_micros(item.created_at), item.id


def _bytes(kept: Kept) -> int:
    return _ITEM_BYTES + 2 * len(kept.item.content) + _TERM_BYTES * len(kept.terms)
