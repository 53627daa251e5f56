"""Accesses that were counted and are not in the file yet: many are written together, a moment later."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from recollect.clock import to_micros
from recollect.stores.ops import Touch
from recollect.values import Space


class Access(NamedTuple):
    """How often an item was read since, and when last."""

    times: int
    last: int


Counted = dict[Space, dict[str, Access]]


class Accesses:
    """What waits to be written, by space and id.

    Each commit makes every reader read its pages anew, which costs a search more than anything else it does. So the
    accesses of some searches are written at once, and whoever reads before that adds what is still waiting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Counted = {}

    def note(self, touch: Touch) -> None:
        at = to_micros(touch.at)
        with self._lock:
            space = self._waiting.setdefault(touch.space, {})
            for id in touch.ids:
                times, last = space.get(id, (0, at))
                space[id] = Access(times + 1, max(last, at))

    def take(self) -> Counted:
        """Everything that waits; it is the caller's to write now."""
        with self._lock:
            taken, self._waiting = self._waiting, {}
            return taken

    def waiting(self, space: Space, ids: Iterable[str]) -> dict[str, Access]:
        """What is still to be added to these items."""
        with self._lock:
            counted = self._waiting.get(space)
            return {id: counted[id] for id in ids if id in counted} if counted else {}
