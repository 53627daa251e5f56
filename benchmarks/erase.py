"""Cost of erasing one user of a thousand, compared with a plain delete of the same rows."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import numpy as np

from recollect.clock import system_clock
from recollect.erasure import Eraser, ErasureSubject
from recollect.language.analysis import analyze
from recollect.stores.erasure import ErasureReceipt
from recollect.stores.filters import Where
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Delete, Model, Put
from recollect.types import MemoryItem, Scope

USERS = 1000
DIM = 384
MODEL = Model("bench", DIM, "bench")
AT = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 500
WORDS = [
    f"{a}{b}" for a in ("ab", "cor", "del", "fen", "gor", "hul") for b in ("an", "ter", "mish", "vor", "len", "ick")
]


@dataclass(frozen=True, slots=True)
class Timing:
    """Elapsed seconds and CPU seconds; they agree only on a machine without other load."""

    seconds: float
    cpu: float

    @classmethod
    def read_clocks(cls) -> Timing:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, start: Timing) -> Timing:
        return Timing(self.seconds - start.seconds, self.cpu - start.cpu)


def scope(user: int) -> Scope:
    return Scope(user=f"user-{user}")


async def fill(path: Path, items: int) -> None:
    """Write items of all users in rotation, like a service does."""
    store = SqliteStore.open(path)
    rng = np.random.default_rng(1)
    for start in range(0, items, BATCH):
        puts = []
        for n in range(start, min(start + BATCH, items)):
            text = f"{' '.join(rng.choice(WORDS, 12))} {n}"
            item = MemoryItem(
                id=f"{n:024d}", content=text, scope=scope(n % USERS), created_at=AT + timedelta(seconds=n)
            )
            row = rng.standard_normal((1, DIM), np.float32)
            puts.append(Put(item=item, vectors=row, terms=tuple(analyze(text)), model=MODEL))
        await store.write(*puts)
    await store.close()


async def measure_delete(path: Path) -> Timing:
    """Delete one user's rows like `forget` does."""
    store = SqliteStore.open(path)
    space = scope(1).space("semantic")
    items = await store.find(Where(space), limit=1 << 20)
    started = Timing.read_clocks()
    await store.write(*(Delete(space, item.id) for item in items))
    timing = Timing.read_clocks() - started
    await store.close()
    return timing


async def measure_erasure(path: Path, user: int) -> tuple[Timing, ErasureReceipt]:
    """Erase a user and return the time and the receipt."""
    store = SqliteStore.open(path)
    started = Timing.read_clocks()
    receipt = await Eraser([store], system_clock).erase(ErasureSubject("default", user=f"user-{user}"))
    timing = Timing.read_clocks() - started
    await store.close()
    return timing, receipt


async def measure_completion(path: Path) -> tuple[Timing, ErasureReceipt]:
    """Complete the erasure that a file larger than `vacuum_limit_mb` has left pending, as the lifecycle does."""
    store = SqliteStore.open(path)
    started = Timing.read_clocks()
    [receipt] = await Eraser([store], system_clock).resume()
    timing = Timing.read_clocks() - started
    await store.close()
    return timing, receipt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument(
        "--filled", type=Path, help="path of a filled store, which is copied; it is created if it does not exist"
    )
    arguments = parser.parse_args()
    items, filled = arguments.items, arguments.filled
    if filled is not None and not filled.exists():
        asyncio.run(fill(filled, items))
    directory = Path(tempfile.mkdtemp(prefix="recollect-erase-"))
    try:
        path = directory / "store.db"
        if filled is None:
            asyncio.run(fill(path, items))
        else:
            shutil.copy(filled, path)
        size = path.stat().st_size
        delete = asyncio.run(measure_delete(path))
        measured = []
        for user, name in ((2, "first erase"), (3, "second erase")):
            timing, receipt = asyncio.run(measure_erasure(path, user))
            measured.append((name, timing, receipt))
            if not receipt.complete:
                measured.append(("completion", *asyncio.run(measure_completion(path))))
        print(f"SQLite {apsw.sqlite_lib_version()}, {items:,} items of {USERS:,} users, {size / 1e6:,.0f} MB")
        print(f"{'':<30} {'':>21} {'CPU time':>22}")
        rows = [("plain delete", delete)]
        rows += [(f"{name}, {receipt.status}", timing) for name, timing, receipt in measured]
        for name, timing in rows:
            print(
                f"{name:<30} {1000 * timing.seconds:>9.1f} ms {timing.seconds / delete.seconds:>6.1f} x"
                f" {1000 * timing.cpu:>11.1f} ms {timing.cpu / delete.cpu:>6.1f} x"
            )
        for name, _, receipt in measured:
            print(f"writers waited {1000 * receipt.scan.writers_waited:,.1f} ms during the {name}")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
