"""The same memory on every backend: what a call costs there, beside the bare engine doing the same work by hand.

Every backend holds the same items of many users. Ours and the bare engine take turns call by call, in a new order each
time, so whatever else the machine does hits both alike. Vectors are known beforehand: what is timed is memory and
engine, not a model. "Our share" is the part of a call that the bare engine does not need.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The servers are those of the tests, which start them on free ports of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

from bare import BareChroma, BarePostgres, BareRedis, BareSqlite
from report import ms, progress, save, show, summary
from rich.progress import Progress
from synthetic import Collection, KnownVectors, collection

from recollect import AgentMemory
from tests.servers.chroma import ChromaServer
from tests.servers.postgres import Server as PostgresServer
from tests.servers.redis import RedisServer

_AIM = 30.0
_SEED = 20260101
_AT_ONCE = 16
_WARM = 10
_TURNS = 12
_TOGETHER = 2000
_STATE = {"notes": "a line of notes that a task takes with it, " * 20, "done": list(range(20))}
Figures = dict[str, Any]
Call = Callable[[int], Awaitable[object]]

ITEMS = ("remember", "recall")
LOGS = ("record_turn", "checkpoint")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is kept and how often each call is made."""

    users: int = 1000
    items: int = 100
    rounds: int = 200
    asked: int = 50
    """Users who are asked; the others are only there."""


QUICK = Sizes(users=20, items=100, rounds=40, asked=10)


@dataclass(frozen=True, slots=True)
class Backend:
    """A place where memory lives, the bare engine beside it, and the calls that it answers."""

    name: str
    store: str | dict[str, str]
    bare: BareSqlite | BarePostgres | BareRedis | BareChroma
    calls: tuple[str, ...]
    tiers: tuple[str, ...] | None = None
    """Those that this engine keeps; None for all."""


class Pair:
    """Ours and the bare engine, each ready to do the same."""

    def __init__(self, memory: AgentMemory, backend: Backend, abouts: Sequence[Collection]) -> None:
        self._memory = memory
        self._backend = backend
        self._abouts = abouts
        self._scoped = [memory.scoped(user=one.user, session="today") for one in abouts]

    def calls(self, name: str) -> tuple[Call, Call]:
        return getattr(self, f"_{name}"), getattr(self, f"_bare_{name}")

    def _who(self, nth: int) -> int:
        return nth % len(self._abouts)

    def _said(self, nth: int) -> tuple[str, str]:
        texts = self._abouts[self._who(nth)].texts
        return f"{texts[nth % len(texts)]} {nth}", f"Noted, {texts[(nth + 1) % len(texts)]} {nth}"

    def _question(self, nth: int) -> tuple[str, Any]:
        about = self._abouts[self._who(nth)]
        at = nth // len(self._abouts) % len(about.questions)
        return about.questions[at], about.asked[at]

    def _new(self, nth: int) -> tuple[str, Any]:
        about = self._abouts[self._who(nth)]
        return f"{about.texts[nth % len(about.texts)]} again {nth}", about.rows[nth % len(about.rows)]

    async def _remember(self, nth: int) -> None:
        await self._scoped[self._who(nth)].remember(self._new(nth)[0], importance=0.5)

    async def _bare_remember(self, nth: int) -> None:
        await self._backend.bare.remember(self._who(nth), *self._new(nth))

    async def _recall(self, nth: int) -> None:
        await self._scoped[self._who(nth)].recall(self._question(nth)[0], tiers=self._backend.tiers)

    async def _bare_recall(self, nth: int) -> None:
        await self._backend.bare.recall(self._who(nth), *self._question(nth))

    async def _record_turn(self, nth: int) -> None:
        await self._scoped[self._who(nth)].record_turn(*self._said(nth))

    async def _bare_record_turn(self, nth: int) -> None:
        await self._backend.bare.record_turn(self._who(nth), *self._said(nth))

    async def _checkpoint(self, nth: int) -> None:
        await self._memory.checkpoints.checkpoint(f"task {self._who(nth)}", {**_STATE, "at": nth})

    async def _bare_checkpoint(self, nth: int) -> None:
        await self._backend.bare.checkpoint(f"task {self._who(nth)}", nth, {**_STATE, "at": nth})


class Bench:
    """One run: its sizes, its vectors and its progress bars."""

    def __init__(self, sizes: Sizes, bar: Progress) -> None:
        self.sizes = sizes
        self.bar = bar
        self.known = KnownVectors()

    async def run(self, backend: Backend) -> Figures:
        asked: list[Collection] = []
        async with AgentMemory.open(backend.store, embedder=self.known) as memory:
            if "remember" in backend.calls:
                asked = await self._fill(memory, backend)
            else:
                asked = [self._about(number) for number in range(self.sizes.asked)]
            for one in asked:
                self.known.know(one.questions, one.asked)
                self.known.know(one.texts, one.rows)
            pair = Pair(memory, backend, asked)
            if "record_turn" in backend.calls:
                for nth in self.bar.track(range(_TURNS * len(asked)), description=f"{backend.name}: talking"):
                    for call in pair.calls("record_turn"):
                        await call(nth + 10_000_000)
            try:
                return {
                    "backend": backend.name,
                    "calls": {name: await self._timed(pair, name, backend) for name in backend.calls},
                }
            finally:
                self.known.forget()

    def _about(self, number: int) -> Collection:
        return collection(f"u{number}", self.sizes.items, questions=20)

    async def _fill(self, memory: AgentMemory, backend: Backend) -> list[Collection]:
        """The items of all users, ours and the bare engine's; those who will be asked come back."""
        asked = []
        task = self.bar.add_task(f"{backend.name}: filling", total=self.sizes.users)
        for number in range(self.sizes.users):
            one = self._about(number)
            self.known.know(one.texts, one.rows)
            await memory.scoped(user=one.user).semantic.add_many(one.facts())
            await backend.bare.fill(number, one.texts, one.rows)
            self.known.forget()
            if number < self.sizes.asked:
                asked.append(one)
            self.bar.advance(task)
        self.bar.remove_task(task)
        return asked

    async def _timed(self, pair: Pair, name: str, backend: Backend) -> Figures:
        ours, bare = pair.calls(name)
        order, seconds = random.Random(f"{_SEED} {name}"), {"ours": [0.0], "bare": [0.0]}
        for kept in seconds.values():
            kept.clear()
        for nth in self.bar.track(range(_WARM + self.sizes.rounds), description=f"{backend.name}: {name}"):
            for who, call in order.sample([("ours", ours), ("bare", bare)], 2):
                began = time.perf_counter()
                await call(nth)
                if nth >= _WARM:
                    seconds[who].append(time.perf_counter() - began)
        first = _WARM + self.sizes.rounds
        return {
            "ours": {**summary(seconds["ours"]), "per_second": await self._throughput(ours, first)},
            "bare": {**summary(seconds["bare"]), "per_second": await self._throughput(bare, first)},
        }

    async def _throughput(self, call: Call, first: int) -> float:
        """Calls a second with several under way."""
        waiting = iter(range(first, first + 2 * self.sizes.rounds))

        async def worker() -> None:
            for nth in waiting:
                await call(nth)

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
        return round(2 * self.sizes.rounds / (time.perf_counter() - began), 1)


@asynccontextmanager
async def backends(directory: Path, names: Sequence[str]) -> AsyncIterator[list[Callable[[], Awaitable[Backend]]]]:
    """Each is started when its turn comes, and ended with the run."""
    async with AsyncExitStack() as stack:
        file = str(directory / "beside.db")

        async def sqlite() -> Backend:
            bare = BareSqlite(directory / "bare.db")
            stack.push_async_callback(bare.close)
            return Backend("SQLite", str(directory / "ours.db"), bare, (*ITEMS, *LOGS))

        async def postgres() -> Backend:
            server = stack.enter_context(_running(PostgresServer(settings=()), "close"))
            bare = await BarePostgres.open(server.create("bare"), _AT_ONCE)
            stack.push_async_callback(bare.close)
            return Backend("PostgreSQL", server.create("ours"), bare, (*ITEMS, *LOGS))

        async def redis() -> Backend:
            server = stack.enter_context(_running(RedisServer(directory / "redis").start(), "stop"))
            bare = BareRedis(server.url)
            stack.push_async_callback(bare.close)
            tiers = ("conversation", "episodic")
            store = {"default": file, **dict.fromkeys((*tiers, "checkpoints"), server.url)}
            return Backend("Redis", store, bare, ("recall", *LOGS), tiers)

        async def chroma() -> Backend:
            server = stack.enter_context(_running(ChromaServer(directory / "chroma").start(), "stop"))
            bare = await BareChroma.open(server.port)
            stack.push_async_callback(bare.close)
            return Backend("Chroma", {"default": file, "semantic": server.create("ours")}, bare, ITEMS, ("semantic",))

        every = {"sqlite": sqlite, "postgres": postgres, "redis": redis, "chroma": chroma}
        yield [every[name] for name in names]


@contextmanager
def _running(server: Any, end: str) -> Any:
    try:
        yield server
    finally:
        getattr(server, end)()


async def run(sizes: Sizes, names: Sequence[str], directory: Path, bar: Progress) -> Figures:
    bench = Bench(sizes, bar)
    async with backends(directory, names) as starts:
        figures = [await bench.run(await start()) for start in starts]
    return {"users": sizes.users, "items": sizes.users * sizes.items, "backends": figures}


def print_tables(figures: Figures) -> None:
    rows = [
        _row(backend["backend"], name, told)
        for backend in figures["backends"]
        for name, told in backend["calls"].items()
    ]
    columns = ("", "ours p50 / p95", "bare p50 / p95", "our share", f"aim ≤ {_AIM:g} %", "ours /s", "bare /s")
    show(
        f"{figures['items']:,} items of {figures['users']:,} users, in ms; calls a second with {_AT_ONCE} under way",
        columns,
        rows,
        note="the aim is for servers: with an embedded engine there is no way there that both would pay for",
    )


def _row(backend: str, name: str, told: Figures) -> tuple[str, ...]:
    ours, bare = told["ours"], told["bare"]
    share = 100.0 * (1.0 - bare["p50"] / ours["p50"])
    verdict = "–" if backend == "SQLite" else "ok" if share <= _AIM else "missed"
    return (
        f"{backend}: {name}",
        *(f"{ms(one['p50'])} / {ms(one['p95'])}" for one in (ours, bare)),
        f"{share:.0f} %",
        verdict,
        *(f"{one['per_second']:,.0f}" for one in (ours, bare)),
    )


def options() -> argparse.Namespace:
    names = ("sqlite", "postgres", "redis", "chroma")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute: 20 users")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="the backends that take part")
    parser.add_argument("--users", type=int, help="how many have 100 items each")
    parser.add_argument("--rounds", type=int, help="calls of each kind that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    given = options()
    base = QUICK if given.quick else Sizes()
    users = given.users or base.users
    sizes = Sizes(users=users, items=base.items, rounds=given.rounds or base.rounds, asked=min(base.asked, users))
    with progress() as bar, tempfile.TemporaryDirectory(prefix="recollect-backends-") as directory:
        figures = asyncio.run(run(sizes, given.only, Path(directory), bar))
    print_tables(figures)
    save(figures, given.json)


if __name__ == "__main__":
    main()
