"""Change of the embedding model of a store while it is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from recollect.clock import system_clock
from recollect.engine import list_vector_stores
from recollect.errors import Conflict
from recollect.models.embedding import Embedder, Embedding
from recollect.models.factory import open_embedder
from recollect.settings import Settings
from recollect.stores.base import Records
from recollect.stores.factory import open_stores
from recollect.stores.writes import Embed, Model
from recollect.tiers.indexing import embed_items
from recollect.types import Progress, ProgressCallback

_BATCH_SIZE = 256


async def reembed_store(
    store: str | Path | None,
    embedder: str | Embedder | Callable[[Any], Any],
    *,
    progress: ProgressCallback | None = None,
) -> int:
    """Do the same as `AgentMemory.reembed` for a store whose own model is not available any more."""
    settings = await asyncio.to_thread(Settings.load)
    async with AsyncExitStack() as opened:
        fresh = await open_embedder(embedder, settings)
        opened.push_async_callback(fresh.release)
        opened.callback(fresh.close)
        stores = await open_stores(store, settings, system_clock)
        opened.push_async_callback(stores.close)
        return await reembed_records(list_vector_stores(stores), fresh, fresh, progress)


async def reembed_records(
    stores: list[Records], current: Embedding, fresh: Embedding, progress: ProgressCallback | None
) -> int:
    """Embed all items with the new model, then make it the current one. Return the number of embedded items."""
    model = Model(fresh.name, fresh.dim, fresh.fingerprint)
    total = sum([sum(count.items for count in await records.spaces()) for records in stores])
    done = 0
    while True:
        for records in stores:
            while items := await records.find_unembedded(model, limit=_BATCH_SIZE):
                pairs = zip(items, await embed_items(fresh, items), strict=True)
                await records.write(
                    *(Embed(item.scope.space(item.tier), item.id, rows, model, item.version) for item, rows in pairs)
                )
                done += len(items)
                if progress is not None:
                    progress(Progress("reembed", done, max(total, done)))
        try:
            async with current.switch_lock:
                for records in stores:
                    await records.activate_model(model)
                current.switch_to(fresh)
        except Conflict:  # an item was stored since the last read
            continue
        return done
