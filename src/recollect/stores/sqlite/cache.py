"""Spaces in memory: a bounded cache whose entries bring themselves up to date with the file before each use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import apsw

from recollect.stores.damage import Misshapen, reads
from recollect.stores.sqlite.rows import SEQ_BITS
from recollect.values import Space

# So many columns of the row are numbers: its own, and what the space has given out, rewritten and holds.
_COUNTS = 5


@dataclass(frozen=True, slots=True)
class State:
    """What a space's row says: enough to know what a cached copy of it lacks."""

    id: int
    next_seq: int
    rewrites: int
    items: int
    words: int
    generation: str
    model: str | None
    """The model of the vectors, as JSON."""
    wiped: str | None = None
    """How many erasures there have been: what was copied before one is dropped, whosever it is."""

    @classmethod
    def read(cls, connection: apsw.Connection, space: Space) -> State | None:
        row = connection.execute(
            """
            select id, next_seq, rewrites, items, words,
                coalesce((select value from meta where name = 'generation'), 'a'),
                (select value from meta where name = 'model'),
                (select value from meta where name = 'wiped')
            from spaces
            where tenant = ? and tier = ? and user = ? and agent = ? and session = ?
            """,
            (space.tenant, space.tier, space.user, space.agent, space.session),
        ).fetchone()
        return _state(row) if row else None

    def extends(self, copied: State | None) -> bool:
        """Whether a copy made at `copied` only lacks rows that were added since; otherwise it starts again."""
        return copied is not None and (self.rewrites, self.generation) == (copied.rewrites, copied.generation)


@reads("the row of a space")
def _state(row: tuple[Any, ...]) -> State:
    counts = row[:_COUNTS]
    # Who believed it would want room for as many.
    if not all(type(one) is int for one in counts) or min(counts) < 0 or row[1] >> SEQ_BITS:
        raise Misshapen("it counts more items than there can be, or less than none")
    return State(*row)


class Entry(Protocol):
    """A copy of one space."""

    lock: threading.Lock

    def refresh(self, connection: apsw.Connection, state: State) -> None:
        """Take in what was committed since, by this process or any other."""

    @property
    def bytes(self) -> int: ...


E = TypeVar("E", bound=Entry)
V = TypeVar("V")


class Cache(Generic[E]):
    """The entries used last, within a budget of bytes."""

    def __init__(self, budget: int, make: Callable[[], E]) -> None:
        self.budget = budget
        self._make = make
        self._entries: OrderedDict[int, E] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._wiped: str | None = None
        self._lock = threading.Lock()

    def fresh(self, connection: apsw.Connection, state: State, view: Callable[[E], V]) -> V:
        """What `view` takes from the space's entry, as of this connection's moment.

        Taken under the entry's lock: a reader at an earlier moment may turn the entry back right afterwards.
        """
        with self._lock:
            if state.wiped != self._wiped:
                self._empty()
                self._wiped = state.wiped
            entry = self._entries.get(state.id)
            if entry is None:
                entry = self._entries[state.id] = self._make()
            self._entries.move_to_end(state.id)
        with entry.lock:
            entry.refresh(connection, state)
            seen = view(entry)
            size = entry.bytes
        self._account(state.id, size)
        return seen

    def clear(self) -> None:
        with self._lock:
            self._empty()

    def _empty(self) -> None:
        self._entries.clear()
        self._sizes.clear()
        self._held = 0

    @property
    def bytes(self) -> int:
        with self._lock:
            return self._held

    def _account(self, space: int, size: int) -> None:
        """Note an entry's size, and let go of those that were not used for longest until the budget holds."""
        with self._lock:
            if space not in self._entries:
                return
            self._held += size - self._sizes.get(space, 0)
            self._sizes[space] = size
            while self._held > self.budget and self._entries:
                oldest, _ = self._entries.popitem(last=False)
                self._held -= self._sizes.pop(oldest, 0)
