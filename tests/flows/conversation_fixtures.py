"""Old conversations, access to their index, and embedders that fail or wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from recollect import AgentMemory
from recollect.retrieval.turn_index import build_mark_name, get_owner
from recollect.stores.filters import Where
from recollect.stores.writes import Delete
from recollect.types import MemoryItem, get_turn_space
from tests.embedders import AsyncEmbedder, HashEmbedder
from tests.flows.conftest import indexed

REMARK = "By the way, our neighbour practises the cello until midnight."
ASKED = "What instrument is played next door?"  # the test embedder maps both texts to one topic


async def load_index(memory: AgentMemory) -> list[MemoryItem]:
    """Return all items in the turn index of a memory."""
    return await memory._engine.stores.records("semantic").find(Where(get_turn_space(memory.scope)), limit=5000)


async def search_turns(memory: AgentMemory, question: str = ASKED, **options: Any) -> list[str]:
    """Return the turns that recall finds for a question asked in a new session."""
    context = await memory.scoped(session="new").recall(question, tiers=("conversation",), **options)
    return [hit.item.content for hit in context]


async def small_talk(memory: AgentMemory, sessions: int = 4, turns: int = 2) -> None:
    """Record newer sessions, so that earlier turns are not among the newest of any tier."""
    for number in range(sessions):
        for turn in range(turns):
            await memory.scoped(session=f"talk {number}").record_turn(
                f"Ticket {number}{turn} waits for review.", f"I assign ticket {number}{turn}."
            )


async def index_turns(memory: AgentMemory) -> AgentMemory:
    await indexed(memory)
    return memory


async def draft_mark_deletion(memory: AgentMemory) -> list[Any]:
    log = memory.conversation._space
    return [Delete(get_owner(log).space("lifecycle"), build_mark_name(log))]


class Failing(HashEmbedder):
    """Embedder that raises while `down` is true."""

    down = False

    def embed_batch(self, texts: Sequence[str]) -> Any:
        if self.down:
            raise RuntimeError("no answer")
        return super().embed_batch(texts)


class Stumbling(HashEmbedder):
    """Embedder that returns NaN for one text."""

    def embed_batch(self, texts: Sequence[str]) -> Any:
        return [self.embed(text) * (np.nan if text.startswith("The gibberish") else 1.0) for text in texts]


class Hesitating(AsyncEmbedder):
    """Embedder that waits while `hangs` is true, and sets `asked` when it does."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def embed_batch(self, texts: Sequence[str]) -> Any:  # type: ignore[override]
        if self.hangs:
            self.asked.set()
            await self.go_on.wait()
        return await super().embed_batch(texts)
