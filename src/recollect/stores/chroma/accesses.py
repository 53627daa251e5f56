"""Accesses to items that are counted, and not written yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from recollect.clock import aware
from recollect.stores.ops import Touch
from recollect.values import MemoryItem, Space


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses that are not written yet, by item."""

    times: Counter[str]
    last: dict[str, datetime]

    def seen(self, item: MemoryItem) -> MemoryItem:
        if item.id not in self.times:
            return item
        last = max(item.last_accessed or self.last[item.id], self.last[item.id])
        return replace(item, access_count=item.access_count + self.times[item.id], last_accessed=last)


def accesses(touches: Sequence[Touch], space: Space) -> Accesses:
    found = Accesses(Counter(), {})
    for touch in list(touches):
        if touch.space == space:
            found.times.update(touch.ids)
            at = aware(touch.at)
            found.last.update({id: max(found.last.get(id, at), at) for id in touch.ids})
    return found
