"""What a durable store promises besides: closing and opening again loses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Protocol

import pytest

from recollect.errors import EmbeddingModelMismatch, FencedOut, LeaseHeld
from recollect.stores.base import Log, Records, Tasks
from recollect.stores.ops import Delete, Embed, Journal, Save, Touch
from recollect.testing.samples import (
    EVERYTHING,
    LOG,
    MODEL,
    OTHER_MODEL,
    SPACE,
    START,
    TASKS,
    append,
    ids,
    put,
    turn,
    vector,
)


class Everything(Records, Log, Tasks, Protocol):
    """A store that keeps all three protocols."""


Reopen = Callable[[], Awaitable[Everything]]


class DurableContract:
    """What was there is there."""

    pytestmark = pytest.mark.asyncio

    async def test_reopening_keeps_every_item(self, store: Everything, reopen: Reopen) -> None:
        await store.write(
            *(turn(f"i{n}", "s", n, vector=[1, n, 0, 0], terms=f"word w{n}", metadata={"n": n}) for n in range(9))
        )
        await store.write(Delete(SPACE, "i3"), put("i4", [0, 0, 1, 0], "changed"), Touch(SPACE, ("i5",), START))
        before = await _seen(store)
        store = await reopen()
        assert await _seen(store) == before
        with pytest.raises(EmbeddingModelMismatch):
            await store.adopt(OTHER_MODEL)
        await store.write(put("later", [1, 1, 1, 1], "word"))
        assert ids(await store.nearest(EVERYTHING, vector(1, 1, 1, 1), limit=1)) == ["later"]

    async def test_reopening_keeps_every_entry(self, store: Everything, reopen: Reopen) -> None:
        await store.write(*(append(f"e{n}", cap=3) for n in range(5)))
        before = await store.read(LOG)
        store = await reopen()
        assert await store.read(LOG) == before
        await store.write(append("e4"), append("e5"))
        after = await store.read(LOG)
        assert ids(after) == ["e2", "e3", "e4", "e5"]
        assert after[-1].seq > before[-1].seq

    async def test_reopening_keeps_leases_and_fences(self, store: Everything, reopen: Reopen) -> None:
        lease = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
        step = Journal(
            space=TASKS, task="t", step="a", status="started", fence=lease.fence, attempts=1, idempotency_key="k"
        )
        await store.write(step, Save(space=TASKS, task="t", state="[1]", fence=lease.fence))
        before = (await store.task(TASKS, "t"), await store.checkpoints(TASKS, "t"), await store.steps(TASKS, "t"))
        store = await reopen()
        assert before == (
            await store.task(TASKS, "t"),
            await store.checkpoints(TASKS, "t"),
            await store.steps(TASKS, "t"),
        )
        with pytest.raises(LeaseHeld):
            await store.claim(TASKS, "t", "w2", timedelta(minutes=1))
        again = await store.claim(TASKS, "t", "w1", timedelta(minutes=1))
        assert again.fence > lease.fence
        with pytest.raises(FencedOut):
            await store.write(Save(space=TASKS, task="t", state="[2]", fence=lease.fence))

    async def test_preparing_a_model_goes_on_after_reopening(self, store: Everything, reopen: Reopen) -> None:
        await store.write(put("a", [1, 0, 0, 0]), put("b", [0, 1, 0, 0]))
        await store.unembedded(OTHER_MODEL)
        await store.write(Embed(SPACE, "a", vector(1, 0, 0)[None], OTHER_MODEL, 1))
        store = await reopen()
        assert await store.model() == MODEL
        assert ids(await store.unembedded(OTHER_MODEL)) == ["b"]
        await store.write(Embed(SPACE, "b", vector(0, 1, 0)[None], OTHER_MODEL, 1))
        await store.switch(OTHER_MODEL)
        store = await reopen()
        assert await store.model() == OTHER_MODEL
        assert ids(await store.nearest(EVERYTHING, vector(0, 1, 0))) == ["b", "a"]


async def _seen(store: Everything) -> list[object]:
    return [
        await store.find(EVERYTHING),
        await store.nearest(EVERYTHING, vector(1, 2, 0, 0), limit=99),
        await store.matching(EVERYTHING, ("word", "w5", "changed"), limit=99),
        await store.around(EVERYTHING, [("s", 4.0)]),
        await store.paths(SPACE),
        await store.spaces(),
        await store.model(),
    ]
