"""Another embedding model for a store, while it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect.clock import system_clock
from recollect.errors import Conflict
from recollect.inference.base import Embedder, Embedding
from recollect.inference.connect import connect_embedder
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.connect import Stores, connect
from recollect.stores.ops import Embed, Model
from recollect.tiers.semantic import embedded

_TOGETHER = 256


async def reembed_store(
    store: str | Path | None,
    embedder: str | Embedder | Callable[[Any], Any],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """As `AgentMemory.reembed`, for a store whose own model nobody has any more: only the new one is needed."""
    options = await asyncio.to_thread(Settings.load)
    fresh = await connect_embedder(embedder, options)
    try:
        stores = await connect(store, options, system_clock)
        try:
            return await reembed(holding_vectors(stores), fresh, fresh, progress)
        finally:
            await stores.close()
    finally:
        fresh.close()
        await fresh.release()


def holding_vectors(stores: Stores) -> list[Records]:
    """The stores that hold vectors, each once."""
    both = (stores.records("semantic"), stores.records("procedural"))
    return list({id(store): store for store in both}.values())


async def reembed(
    stores: list[Records], current: Embedding, fresh: Embedding, progress: Callable[[int, int], None] | None
) -> int:
    model = Model(fresh.name, fresh.dim, fresh.fingerprint)
    total = sum([sum(count.items for count in await records.spaces()) for records in stores])
    done = 0
    while True:
        for records in stores:
            while items := await records.unembedded(model, limit=_TOGETHER):
                vectors = await embedded(fresh, items)
                await records.write(
                    *(
                        Embed(item.scope.space(item.tier), item.id, rows, model, expect=item.version)
                        for item, rows in zip(items, vectors, strict=True)
                    )
                )
                done += len(items)
                if progress is not None:
                    progress(done, max(total, done))
        try:
            async with current.changing:
                for records in stores:
                    await records.switch(model)
                current.become(fresh)
        except Conflict:  # something was stored since we looked
            continue
        return done
