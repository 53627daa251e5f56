"""What an erasure costs: one user among a thousand, beside a plain delete of the same rows."""

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
from recollect.lifecycle import Erasures, Subject
from recollect.stores.ops import Delete, Model, Put
from recollect.stores.sqlite import SqliteStore
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope
from recollect.words import analyse

USERS = 1000
DIM = 384
MODEL = Model("bench", DIM, "bench")
AT = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 500
WORDS = [
    f"{a}{b}" for a in ("ab", "cor", "del", "fen", "gor", "hul") for b in ("an", "ter", "mish", "vor", "len", "ick")
]


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of a clock and of a processor, which tell the same only on a quiet machine."""

    seconds: float
    processor: float

    @classmethod
    def until_now(cls) -> Took:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, start: Took) -> Took:
        return Took(self.seconds - start.seconds, self.processor - start.processor)


def scope(user: int) -> Scope:
    return Scope(user=f"user-{user}")


async def fill(path: Path, items: int) -> None:
    """Everybody by turns, as a service would see them."""
    store = SqliteStore.open(path)
    chance = np.random.default_rng(1)
    for start in range(0, items, BATCH):
        puts = []
        for n in range(start, min(start + BATCH, items)):
            text = f"{' '.join(chance.choice(WORDS, 12))} {n}"
            item = MemoryItem(
                id=f"{n:024d}", content=text, scope=scope(n % USERS), created_at=AT + timedelta(seconds=n)
            )
            row = chance.standard_normal((1, DIM), np.float32)
            puts.append(Put(item=item, vectors=row, terms=tuple(analyse(text)), model=MODEL))
        await store.write(*puts)
    await store.close()


async def plainly(path: Path) -> Took:
    """The rows deleted and no more, as `forget` would."""
    store = SqliteStore.open(path)
    space = scope(1).space("semantic")
    found = await store.find(Where(space), limit=1 << 20)
    took = Took.until_now()
    await store.write(*(Delete(space, item.id) for item in found))
    took = Took.until_now() - took
    await store.close()
    return took


async def provably(path: Path, user: int) -> tuple[Took, str]:
    store = SqliteStore.open(path)
    took = Took.until_now()
    receipt = await Erasures([store], system_clock).erase(Subject("default", user=f"user-{user}"))
    took = Took.until_now() - took
    await store.close()
    return took, receipt.status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument(
        "--filled", type=Path, help="a store that was filled before, or where to keep one; it is copied"
    )
    given = parser.parse_args()
    items, filled = given.items, given.filled
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
        delete = asyncio.run(plainly(path))
        # Twice: the first also blanks what years of moved rows have left between the others.
        first, status = asyncio.run(provably(path, 2))
        second, again = asyncio.run(provably(path, 3))
        print(f"SQLite {apsw.sqlite_lib_version()}, {items:,} items of {USERS:,} users, {size / 1e6:,.0f} MB")
        print(f"{'':<30} {'':>21} {'of a processor':>22}")
        for name, took in (("a plain delete", delete), (f"erase, {status}", first), (f"the next, {again}", second)):
            ratios = took.seconds / delete.seconds, took.processor / delete.processor
            print(
                f"{name:<30} {1000 * took.seconds:>9.1f} ms {ratios[0]:>6.1f} x"
                f" {1000 * took.processor:>11.1f} ms {ratios[1]:>6.1f} x"
            )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
