"""A store of records on Chroma: a directory of this machine, or a server that many share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from recollect.clock import Clock, aware, system_clock
from recollect.errors import RecollectError, StoreClosed, StoreFull, StoreUnavailable, Unsupported
from recollect.stores.admission import admitted, count_of, mismatch
from recollect.stores.base import SpaceCount, Vector
from recollect.stores.chroma import ledger
from recollect.stores.chroma.accesses import Accesses, accesses
from recollect.stores.chroma.address import Address
from recollect.stores.chroma.collections import Collections
from recollect.stores.chroma.engine import SETTLE_AFTER, Engine
from recollect.stores.chroma.faults import CLOSED
from recollect.stores.chroma.guard import Guard
from recollect.stores.chroma.health import bytes_in, bytes_of, vitals
from recollect.stores.chroma.integrity import faults, soundness
from recollect.stores.chroma.mend import mended
from recollect.stores.chroma.physical import drop_indices, scan_directory, scan_server, tick, written_anew
from recollect.stores.chroma.search import Search
from recollect.stores.chroma.shelf import Shelf
from recollect.stores.chroma.wiping import holdings, wipe
from recollect.stores.erasing import Doomed, Erasure
from recollect.stores.evidence import Ask, Brief, Evidence, Found, Lookup, Matches
from recollect.stores.health import Repair, Soundness, Tell, Vitals, quiet
from recollect.stores.ops import Model, Put, Touch, Write
from recollect.stores.receipts import ErasureReceipt, Scan
from recollect.stores.vectors import normalised
from recollect.stores.where import Where
from recollect.values import MemoryItem, Space

_COUNTED_WITHIN = 0.25
_PATIENCE = 30.0

T = TypeVar("T")


class ChromaStore:
    """Records in one Chroma. Open it with `ChromaStore.open`; it belongs to that event loop.

    One thread does all the work, in the order it is asked: Chroma's client blocks, and a batch that was begun is
    finished even when nobody waits for it any more.
    """

    def __init__(self, url: str, engine: Engine, guard: Guard | None, salt: bytes, clock: Clock) -> None:
        self.url = url
        self._address = Address.parse(url)
        self._engine = engine
        self._salt = salt
        self._clock = clock
        self._guard = guard
        self._worker = ThreadPoolExecutor(1, "recollect-chroma")
        self._timer: asyncio.TimerHandle | None = None
        self._counting: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        cache_bytes: int = 256 << 20,
        settle_after: int = SETTLE_AFTER,
        patience: float = _PATIENCE,
        clock: Clock = system_clock,
    ) -> ChromaStore:
        """Open what a URL names: `chroma:./directory`, or `chroma+http://host:port`."""
        address = Address.parse(url)

        def opened() -> ChromaStore:
            guard = Guard(address.directory) if address.directory is not None else None
            try:
                opens = mended if guard is not None and guard.was_killed else Collections.open
                collections = opens(address, patience=patience)
                engine = Engine(
                    collections, alone=guard is not None, cache_bytes=cache_bytes, settle_after=settle_after
                )
                engine.follow()
                salt = b""
                with suppress(StoreFull, StoreUnavailable):  # where nothing can be written now, reading goes on
                    salt = ledger.salt(collections)
            except BaseException:
                if guard is not None:
                    guard.drop()
                raise
            return cls(url, engine, guard, salt, clock)

        return await asyncio.to_thread(opened)

    async def write(self, *writes: Write) -> None:
        def work(engine: Engine) -> None:
            checked = [admitted(write) for write in writes]
            if checked:
                engine.write(checked)

        await self._run(work)

    async def close(self) -> None:
        if self._closed:
            return
        self._stop_timer()
        with suppress(RecollectError):  # what has been written stays in the chain, and counts
            await self._run(_finish)
        self._closed = True
        await asyncio.to_thread(self._let_go)

    async def check(self) -> list[str]:
        return await self._run(faults)

    async def vitals(self) -> Vitals:
        directory, size = Address.parse(self.url).directory, await self.size()
        return await self._run(lambda engine: vitals(engine, directory, size))

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        tell("items and vectors")
        return await self._run(soundness)

    async def repair(self, what: Repair) -> None:
        raise Unsupported(f"Chroma looks after its {what} itself; there is nothing to repair")

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"Chroma has no copy that is made while it is in use; for one at {path}, close the store or stop the "
            "server and copy its directory, or use: recollect export"
        )

    # Erasing

    @property
    def receipts(self) -> Path | None:
        """Beside a directory, so that an older copy in its place learns of them; a server has nothing beside it."""
        directory = self._address.directory
        return None if directory is None else directory.with_name(directory.name + ".erasures.jsonl")

    async def salt(self) -> bytes:
        if self._closed:
            raise StoreClosed(CLOSED)
        if not self._salt:
            self._salt = await self._run(lambda engine: ledger.salt(engine.collections))
        return self._salt

    async def resalt(self, salt: bytes) -> None:
        await self._run(lambda engine: ledger.resalt(engine.collections, salt))
        self._salt = salt

    async def holdings(self) -> list[Space]:
        return await self._run(holdings)

    async def ledger(self, *, unfinished: bool = False) -> list[Erasure]:
        def work(engine: Engine) -> list[Erasure]:
            engine.follow()
            rows = ledger.rows(engine.collections, list(engine.pending.values()))
            return [row for row in rows if not unfinished or row.receipt is None]

        return await self._run(work)

    async def enter(self, erasure: Erasure) -> None:
        await self._run(lambda engine: ledger.enter(engine.collections, erasure))

    async def wipe(self, id: str, doomed: Doomed) -> None:
        def work(engine: Engine) -> None:
            checked = [admitted(write) for write in doomed.writes]
            ledger.check(engine.collections, id)
            wipe(engine, salt, id, doomed.spaces, checked)

        salt = await self.salt()
        await self._run(work)

    async def deleted(self, id: str) -> None:
        now = aware(self._clock())
        await self._run(lambda engine: ledger.deleted(engine.collections, id, now))

    async def settle(self) -> bool:
        def work(engine: Engine) -> bool:
            engine.touches.clear()
            engine.follow()
            engine.settle()
            directory = self._address.directory
            if directory is not None:
                tick(engine.collections)
                return engine.collections.closed_for(lambda: written_anew(directory), self._address)
            return True

        return await self._run(work)

    async def scan(self, evidence: bytes) -> Scan:
        def work(engine: Engine) -> Scan:
            if self._address.directory is None:
                return scan_server(engine, str(self._address), evidence)
            return scan_directory(engine, self._address, evidence)

        return await self._run(work)

    async def finish(self, receipt: ErasureReceipt) -> ErasureReceipt:
        now = aware(self._clock())
        return await self._run(lambda engine: ledger.finish(engine.collections, receipt, now))

    # Records

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        def answer(search: Search) -> list[MemoryItem]:
            kept = (search.shelf.kept.get(id) for id in dict.fromkeys(ids))
            return [one.item for one in kept if one is not None]

        return await self._items(space, answer)

    async def whole(self, space: Space, *ids: str) -> list[Put]:
        def work(engine: Engine) -> list[Put]:
            found = engine.ask(space, lambda search: search.whole(ids))
            waiting = accesses(engine.touches, space)
            return [replace(put, item=waiting.seen(put.item)) for put in found]

        return await self._run(work)

    async def tenants(self) -> list[str]:
        return await self._run(lambda engine: sorted({space.tenant for space, shelf in engine.each() if shelf.kept}))

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        most = count_of(limit)
        await self._counted_for(where)
        return await self._items(where.space, lambda search: search.find(where, most, after))

    async def nearest(self, where: Where, vector: Vector, *, limit: int = 10) -> list[Found]:
        query, most = normalised(vector)[0], count_of(limit)
        await self._counted_for(where)
        return await self._ask(where.space, lambda search: search.nearest(where, query, most))

    async def matching(self, where: Where, terms: Sequence[str], *, limit: int = 10) -> Matches:
        most = count_of(limit)
        await self._counted_for(where)
        return await self._ask(where.space, lambda search: search.matching(where, terms, most))

    async def around(self, where: Where, places: Sequence[tuple[str, float]], *, reach: int = 1) -> list[Brief]:
        await self._counted_for(where)
        return await self._ask(where.space, lambda search: search.around(where, places, reach))

    async def gather(self, ask: Ask, judge: Callable[[Evidence, Lookup], T]) -> T:
        checked = replace(ask, vector=None if ask.vector is None else normalised(ask.vector)[0])
        await self._counted_for(ask.where)

        def work(engine: Engine) -> T:
            def answer(search: Search) -> tuple[Evidence, Shelf]:
                active = search.models.active
                if checked.vector is not None and active is not None and checked.model not in (None, active):
                    raise mismatch(active, checked.model)
                return search.gather(checked), search.shelf

            evidence, shelf = engine.ask(ask.where.space, answer)
            return judge(evidence, _Lookup(shelf, accesses(engine.touches, ask.where.space)))

        return await self._run(work)

    def touch(self, touch: Touch) -> None:
        if self._closed:
            return
        self._engine.touches.append(touch)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_COUNTED_WITHIN, self._count)

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        most = count_of(limit)
        return await self._items(space, lambda search: search.last_turns(session, most))

    async def paths(self, space: Space) -> frozenset[str]:
        return await self._ask(space, lambda search: search.shelf.paths)

    async def speakers(self, space: Space) -> frozenset[str]:
        return await self._ask(space, lambda search: search.speakers)

    async def size(self) -> int:
        directory = self._address.directory
        return await self._run(lambda engine: bytes_in(directory) if directory is not None else bytes_of(engine))

    async def spaces(self, tenant: str | None = None) -> list[SpaceCount]:
        def work(engine: Engine) -> list[SpaceCount]:
            counts = [
                SpaceCount(space, len(shelf.kept), shelf.newest) for space, shelf in engine.each(tenant) if shelf.kept
            ]
            return sorted(counts, key=lambda count: str(count.space).split("/"))

        return await self._run(work)

    async def model(self) -> Model | None:
        def work(engine: Engine) -> Model | None:
            engine.follow()
            return engine.models.active

        return await self._run(work)

    async def adopt(self, model: Model) -> None:
        await self._run(lambda engine: engine.change(lambda batch: batch.adopt(model)))

    async def unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        most = count_of(limit)

        def work(engine: Engine) -> list[MemoryItem]:
            engine.change(lambda batch: batch.prepare(model))
            return engine.lacking(engine.models, most)

        return await self._run(work)

    async def switch(self, model: Model) -> None:
        def work(engine: Engine) -> None:
            engine.change(lambda batch: batch.switch(model, lambda models: bool(engine.lacking(models, 1))))

        await self._run(work)

    # Accesses

    async def _items(self, space: Space, question: Callable[[Search], list[MemoryItem]]) -> list[MemoryItem]:
        """Items with the accesses that are not written yet."""

        def work(engine: Engine) -> list[MemoryItem]:
            found = engine.ask(space, question)
            waiting = accesses(engine.touches, space)
            return [waiting.seen(item) for item in found]

        return await self._run(work)

    async def _counted_for(self, where: Where) -> None:
        """A question about accesses is answered from what is written."""
        if any(condition.path == "access_count" for condition in where.conditions) and self._engine.touches:
            await self._run(lambda engine: engine.write(()))

    def _count(self) -> None:
        self._stop_timer()
        if self._engine.touches and (self._counting is None or self._counting.done()):
            self._counting = asyncio.get_running_loop().create_task(self._counted())

    async def _counted(self) -> None:
        waiting = len(self._engine.touches)
        try:
            await self._run(lambda engine: engine.write(()))
        except RecollectError:
            del self._engine.touches[:waiting]  # given up: a count is not worth failing anybody for

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Work

    async def _ask(self, space: Space, question: Callable[[Search], T]) -> T:
        return await self._run(lambda engine: engine.ask(space, question))

    async def _run(self, work: Callable[[Engine], T]) -> T:
        if self._closed:
            raise StoreClosed(CLOSED)
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, self._engine)

    def _let_go(self) -> None:
        self._worker.shutdown()
        self._engine.collections.close()
        directory = self._address.directory
        if directory is not None:
            drop_indices(directory)  # what was erased may have lain in this process's memory when they were written
        if self._guard is not None:
            self._guard.close()


def _finish(engine: Engine) -> None:
    if engine.touches:
        engine.write(())
    engine.follow()
    engine.settle()


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Reads for a judge, who is done before the shelf changes."""

    shelf: Shelf
    waiting: Accesses

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {id: self.waiting.seen(self.shelf.kept[id].item) for id in ids if id in self.shelf.kept}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: " ".join(self.shelf.kept[id].terms) for id in ids if id in self.shelf.kept}
