"""What encryption costs: the same calls on an encrypted store and on a plain one, by turns, as ratios."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import apsw
import numpy as np
from report import ms, progress, save, show, summary, times

from recollect import AgentMemory, Settings
from recollect.stores.sqlite import file

DIM = 384
KEY = "5eed" * 16
PLAIN, ENCRYPTED = "plain", "encrypted"
WORDS = [f"{a}{b}" for a in ("ab", "cor", "del", "fen", "gor", "hul") for b in ("an", "ter", "mish", "vor", "len")]

Took = tuple[float, float]
"""Seconds of a clock and of a processor, which tell the same only on a quiet machine."""
Times = dict[str, dict[str, list[Took]]]


class Known:
    """Vectors that cost next to nothing, so that no model is in the way."""

    name, dim = "known", DIM

    def embed(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        row = np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
        return row / np.linalg.norm(row)

    def embed_batch(self, texts: list[str]) -> Any:
        return np.stack([self.embed(text) for text in texts])


def said(chance: random.Random, n: int) -> str:
    return f"{' '.join(chance.choices(WORDS, k=14))} number {n}"


async def timed(call: Awaitable[Any]) -> Took:
    began = time.perf_counter(), time.process_time()
    await call
    return time.perf_counter() - began[0], time.process_time() - began[1]


def settings(kind: str) -> Settings:
    return Settings(encryption_key=KEY) if kind == ENCRYPTED else Settings()


async def filled(path: Path, kind: str, items: int, tell: Any) -> None:
    chance = random.Random(1)
    async with AgentMemory.open(path, embedder=Known(), settings=settings(kind)) as memory:
        for start in range(0, items, 500):
            facts = [{"content": said(chance, n)} for n in range(start, min(start + 500, items))]
            # Ten users: a question is asked in the memory of one.
            await memory.scoped(user=f"u{start // 500 % 10}").semantic.add_many(facts)
            tell()


async def rounds(paths: dict[str, Path], count: int, batch: int, tell: Any) -> Times:
    """Everybody's turn in every round, in another order each time."""
    found: Times = defaultdict(lambda: defaultdict(list))
    chance = random.Random(2)
    opened = {
        kind: await AgentMemory.open(path, user="u1", embedder=Known(), settings=settings(kind))
        for kind, path in paths.items()
    }
    for n in range(count):
        question, fact = said(chance, n), said(chance, 10**6 + n)
        facts = [{"content": said(chance, 10**7 + n * batch + i)} for i in range(batch)]
        for kind in chance.sample(list(opened), len(opened)):
            memory = opened[kind]
            found["recall"][kind].append(await timed(memory.recall(question)))
            found["remember"][kind].append(await timed(memory.remember(fact)))
            found[f"ingest of {batch}"][kind].append(
                await timed(memory.scoped(user=f"new{n}").semantic.add_many(facts))
            )
        tell()
    for memory in opened.values():
        await memory.close()
    return found


async def openings(paths: dict[str, Path], count: int, found: Times, tell: Any) -> None:
    """Opened anew each time: nothing is in a cache of ours, and every page that is read has to be decrypted."""
    chance = random.Random(3)
    for n in range(count):
        for kind in chance.sample(list(paths), len(paths)):
            began = time.perf_counter(), time.process_time()
            memory = await AgentMemory.open(paths[kind], user=f"u{n % 10}", embedder=Known(), settings=settings(kind))
            found["open"][kind].append((time.perf_counter() - began[0], time.process_time() - began[1]))
            found["first recall after opening"][kind].append(await timed(memory.recall(said(chance, n))))
            await memory.close()
        tell()


async def erasures(paths: dict[str, Path], found: Times, tell: Any) -> None:
    for n in range(3):
        for kind, path in paths.items():
            async with AgentMemory.open(path, embedder=Known(), settings=settings(kind)) as memory:
                found["erase of a user"][kind].append(await timed(memory.erase(user=f"new{n}")))
        tell()


async def measured(folder: Path, items: int, count: int) -> tuple[Times, dict[str, int]]:
    paths = {kind: folder / f"{kind}.db" for kind in (PLAIN, ENCRYPTED)}
    with progress() as bar:
        filling = bar.add_task("filling", total=2 * -(-items // 500))
        for kind, path in paths.items():
            await filled(path, kind, items, lambda: bar.advance(filling))
        asking = bar.add_task("by turns", total=count)
        found = await rounds(paths, count, 100, lambda: bar.advance(asking))
        opening = bar.add_task("opening", total=max(count // 5, 10))
        await openings(paths, max(count // 5, 10), found, lambda: bar.advance(opening))
        sizes = {kind: path.stat().st_size for kind, path in paths.items()}
        erasing = bar.add_task("erasing", total=3)
        await erasures(paths, found, lambda: bar.advance(erasing))
    return found, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="2,000 items and 40 rounds")
    parser.add_argument("--cipher", default=file._CIPHER, help="another one that SQLite3 Multiple Ciphers knows")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    file._CIPHER = given.cipher
    items, count = (2_000, 40) if given.quick else (given.items, given.rounds)
    with tempfile.TemporaryDirectory(prefix="recollect-encryption-") as folder:
        found, sizes = asyncio.run(measured(Path(folder), items, count))
    figures: dict[str, Any] = {"cipher": given.cipher, "items": items, "rounds": count, "bytes": sizes}
    rows = []
    for call, kinds in found.items():
        clock, processor = (
            {kind: summary([took[which] for took in kinds[kind]]) for kind in (PLAIN, ENCRYPTED)} for which in (0, 1)
        )
        ratios = [round(one[ENCRYPTED]["p50"] / one[PLAIN]["p50"], 3) for one in (clock, processor)]
        figures[call] = {"clock": clock, "processor": processor, "ratio": ratios[0], "processor_ratio": ratios[1]}
        told = clock[ENCRYPTED]["p50"], clock[PLAIN]["p50"]
        rows.append((call, times(ratios[0]), times(ratios[1]), ms(told[0]), ms(told[1])))
    rows.append(
        ("bytes on disk", times(sizes[ENCRYPTED] / sizes[PLAIN]), "", f"{sizes[ENCRYPTED]:,}", f"{sizes[PLAIN]:,}")
    )
    note = f"SQLite {apsw.sqlite_lib_version()}, {apsw.mc_version}, {given.cipher}"  # type: ignore[attr-defined]
    show(
        f"Encrypted against plain, {items:,} items, {count} rounds",
        ("p50", "ratio", "of a processor", "encrypted, ms", "plain, ms"),
        rows,
        note,
    )
    save(figures, given.json)


if __name__ == "__main__":
    main()
