"""Writes that belong together, when they may live in several stores: sources before what is derived from them."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.runtime.failpoints import reach
from recollect.stores.base import Store
from recollect.stores.ops import Write

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
