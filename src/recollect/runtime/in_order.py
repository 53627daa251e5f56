"""Writes that belong together, when they may live in several stores: sources before what is derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from recollect.runtime.failpoints import reach
from recollect.stores.base import Log, Store
from recollect.stores.ops import Append, Entry, Write

Share = tuple[Store, Sequence[Write]]
"""What one store gets of something that may concern several."""


async def write_in_order(*shares: Share) -> None:
    """Neighbours that live in one store are one transaction; with everything in one store all of it is.

    Otherwise a crash leaves the first shares without the later ones. So whoever calls this names the source of a
    thing before the thing itself, gives every write an id of its own, and may then simply do it again.
    """
    batches: list[tuple[Store, list[Write]]] = []
    for store, writes in shares:
        if batches and batches[-1][0] is store:
            batches[-1][1].extend(writes)
        elif writes:
            batches.append((store, list(writes)))
    for place, (store, together) in enumerate(batches):
        if place:
            reach("stores.between")
        await store.write(*together)


async def append_in_order(*shares: tuple[Log, Sequence[Append]]) -> list[list[Entry]]:
    """The same for entries of logs: what the logs hold of each share afterwards, as far as it can be seen."""
    held: list[Entry | None] = []
    rest = list(shares)
    while rest:
        log, together = rest[0][0], list[Append]()
        while rest and rest[0][0] is log:
            together += rest.pop(0)[1]
        held += await log.append(*together)
        if rest:
            reach("stores.between")
    told = iter(held)
    return [[entry for entry in islice(told, len(appends)) if entry is not None] for _, appends in shares]
