"""Cost of encryption: the same calls on an encrypted and on a plain store, in alternation, as ratios."""

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
from report import create_progress, format_ms, format_ratio, print_table, save_json, summarize

from recollect import AgentMemory, Settings
from recollect.stores.sqlite import connection

DIM = 384
KEY = "5eed" * 16
PLAIN, ENCRYPTED = "plain", "encrypted"
WORDS = [f"{a}{b}" for a in ("ab", "cor", "del", "fen", "gor", "hul") for b in ("an", "ter", "mish", "vor", "len")]

Timing = tuple[float, float]
"""Elapsed seconds and CPU seconds; they agree only on a machine without other load."""
Timings = dict[str, dict[str, list[Timing]]]
"""Timings by call and by kind of store."""


class HashVectors:
    """Embedder without a model: a random vector for each text, seeded by its hash."""

    name, dim = "hash-vectors", DIM

    def embed(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        row = np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
        return row / np.linalg.norm(row)

    def embed_batch(self, texts: list[str]) -> Any:
        return np.stack([self.embed(text) for text in texts])


def build_text(rng: random.Random, n: int) -> str:
    return f"{' '.join(rng.choices(WORDS, k=14))} number {n}"


async def measure(call: Awaitable[Any]) -> Timing:
    started = time.perf_counter(), time.process_time()
    await call
    return time.perf_counter() - started[0], time.process_time() - started[1]


def build_settings(kind: str) -> Settings:
    return Settings(encryption_key=KEY) if kind == ENCRYPTED else Settings()


async def fill(path: Path, kind: str, items: int, report: Any) -> None:
    rng = random.Random(1)
    async with AgentMemory.open(path, embedder=HashVectors(), settings=build_settings(kind)) as memory:
        for start in range(0, items, 500):
            facts = [{"content": build_text(rng, n)} for n in range(start, min(start + 500, items))]
            # There are ten users; a search covers the items of one.
            await memory.scoped(user=f"u{start // 500 % 10}").semantic.add_many(facts)
            report()


async def measure_calls(paths: dict[str, Path], count: int, batch: int, report: Any) -> Timings:
    """Time recall, remember and ingest on each store, in a new order each round."""
    timings: Timings = defaultdict(lambda: defaultdict(list))
    rng = random.Random(2)
    opened = {
        kind: await AgentMemory.open(path, user="u1", embedder=HashVectors(), settings=build_settings(kind))
        for kind, path in paths.items()
    }
    for n in range(count):
        question, fact = build_text(rng, n), build_text(rng, 10**6 + n)
        facts = [{"content": build_text(rng, 10**7 + n * batch + i)} for i in range(batch)]
        for kind in rng.sample(list(opened), len(opened)):
            memory = opened[kind]
            timings["recall"][kind].append(await measure(memory.recall(question)))
            timings["remember"][kind].append(await measure(memory.remember(fact)))
            timings[f"ingest of {batch}"][kind].append(
                await measure(memory.scoped(user=f"new{n}").semantic.add_many(facts))
            )
        report()
    for memory in opened.values():
        await memory.close()
    return timings


async def measure_opening(paths: dict[str, Path], count: int, timings: Timings, report: Any) -> None:
    """Time opening and the first recall: our caches are empty, and every page that is read has to be decrypted."""
    rng = random.Random(3)
    for n in range(count):
        for kind in rng.sample(list(paths), len(paths)):
            started = time.perf_counter(), time.process_time()
            memory = await AgentMemory.open(
                paths[kind], user=f"u{n % 10}", embedder=HashVectors(), settings=build_settings(kind)
            )
            timings["open"][kind].append((time.perf_counter() - started[0], time.process_time() - started[1]))
            timings["first recall after opening"][kind].append(await measure(memory.recall(build_text(rng, n))))
            await memory.close()
        report()


async def measure_erasures(paths: dict[str, Path], timings: Timings, report: Any) -> None:
    for n in range(3):
        for kind, path in paths.items():
            async with AgentMemory.open(path, embedder=HashVectors(), settings=build_settings(kind)) as memory:
                timings["erase of a user"][kind].append(await measure(memory.erase(user=f"new{n}")))
        report()


async def run(folder: Path, items: int, count: int) -> tuple[Timings, dict[str, int]]:
    paths = {kind: folder / f"{kind}.db" for kind in (PLAIN, ENCRYPTED)}
    with create_progress() as bar:
        filling = bar.add_task("filling", total=2 * -(-items // 500))
        for kind, path in paths.items():
            await fill(path, kind, items, lambda: bar.advance(filling))
        asking = bar.add_task("timing calls", total=count)
        timings = await measure_calls(paths, count, 100, lambda: bar.advance(asking))
        opening = bar.add_task("opening", total=max(count // 5, 10))
        await measure_opening(paths, max(count // 5, 10), timings, lambda: bar.advance(opening))
        sizes = {kind: path.stat().st_size for kind, path in paths.items()}
        erasing = bar.add_task("erasing", total=3)
        await measure_erasures(paths, timings, lambda: bar.advance(erasing))
    return timings, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="2,000 items and 40 rounds")
    parser.add_argument("--cipher", default=connection.CIPHER, help="a cipher of SQLite3 Multiple Ciphers")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    connection.CIPHER = arguments.cipher
    items, count = (2_000, 40) if arguments.quick else (arguments.items, arguments.rounds)
    with tempfile.TemporaryDirectory(prefix="recollect-encryption-") as folder:
        timings, sizes = asyncio.run(run(Path(folder), items, count))
    figures: dict[str, Any] = {"cipher": arguments.cipher, "items": items, "rounds": count, "bytes": sizes}
    rows = []
    for call, by_kind in timings.items():
        elapsed, cpu = (
            {kind: summarize([timing[index] for timing in by_kind[kind]]) for kind in (PLAIN, ENCRYPTED)}
            for index in (0, 1)
        )
        ratio, cpu_ratio = (round(times[ENCRYPTED]["p50"] / times[PLAIN]["p50"], 3) for times in (elapsed, cpu))
        figures[call] = {"elapsed": elapsed, "cpu": cpu, "ratio": ratio, "cpu_ratio": cpu_ratio}
        milliseconds = (format_ms(elapsed[kind]["p50"]) for kind in (ENCRYPTED, PLAIN))
        rows.append((call, format_ratio(ratio), format_ratio(cpu_ratio), *milliseconds))
    ratio = sizes[ENCRYPTED] / sizes[PLAIN]
    rows.append(("bytes on disk", format_ratio(ratio), "", f"{sizes[ENCRYPTED]:,}", f"{sizes[PLAIN]:,}"))
    note = f"SQLite {apsw.sqlite_lib_version()}, {apsw.mc_version}, {arguments.cipher}"  # type: ignore[attr-defined]
    print_table(
        f"Encrypted compared with plain, {items:,} items, {count} rounds",
        ("p50", "ratio", "ratio of CPU time", "encrypted, ms", "plain, ms"),
        rows,
        note,
    )
    save_json(figures, arguments.json)


if __name__ == "__main__":
    main()
