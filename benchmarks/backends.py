"""The same memory on every backend: what a call costs there, and how much of that is the engine's own.

Every backend holds the same items of many users (where only logs are kept: entries). Vectors are known beforehand and
looked up on the spot, where a model would be asked in a thread of its own, and looking them up is not counted: what is
timed is memory and engine. Beside each of our calls stand three others, made in turn with it so that whatever else the
machine does hits all alike:

- **engine**: what our call sent to the server, statement by statement and value by value, sent once more to a copy of
  the database by the driver as it comes, in the same transactions and by as many connections at once, with nothing of
  ours around it (`tapes.py`). It is what the same work costs with no memory in between. Our share is what this leaves
  of a call, in a hundred of the call. Below nothing, a call is over before the driver alone would be: its cursors take
  a journey for each statement, which tells from afar. Chroma's driver blocks the one thread that it is used in: there
  the time inside of it is taken during the call itself.
- **sent our way**: the same to another copy, by our own lines, which send several statements in one journey, and take
  less time than the drivers do. What this leaves of a call (`share then`) is all that we do before, between and after;
  what is gained on the way is counted as the engine's.
- **by hand**: what somebody would write who needs the rows and nothing else: no index of what was said, no versions, no
  checks, no row security, no ranking, another schema (`bare.py`). It says what a call costs who does without all that,
  so that nobody takes the engine's cost for the least that could be asked of it.

Fewer and better statements make a call faster and its share larger, so read the milliseconds before the share. What is
done behind a call (indexing a turn, counting accesses) is waited for between calls; calls a second include all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The servers are those of the tests, which start them on free ports of this machine.
sys.path.insert(0, str(Path(__file__).parents[1]))

import tapes
from places import ENGINE, NAMES, OUR_WAY, Place, places
from report import ms, progress, save, show, summary
from rich.progress import Progress
from synthetic import AtHand, Collection, collection

from recollect import AgentMemory
from recollect.stores.ops import Append, Entry
from recollect.stores.redis import RedisStore
from recollect.values import Scope

_AIM = 30.0
_SEED = 20260101
_AT_ONCE = 16
_WARM = 10
_TURNS = 12
_STATE = {"notes": "a line of notes that a task takes with it, " * 20, "done": list(range(20))}
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Figures = dict[str, Any]
Call = Callable[[int], Awaitable[object]]
Twins = dict[str, tapes.Twin]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is kept and how often each call is made."""

    users: int = 1000
    items: int = 100
    rounds: int = 200
    asked: int = 50
    """Users who are asked; the others are only there."""


QUICK = Sizes(users=20, items=100, rounds=40, asked=10)


class Pair:
    """Ours and the bare engine, each ready to do the same."""

    def __init__(self, memory: AgentMemory, place: Place, abouts: Sequence[Collection]) -> None:
        self._memory = memory
        self._bare: Any = place.bare
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
        await self._bare.remember(self._who(nth), *self._new(nth))

    async def _recall(self, nth: int, tiers: tuple[str, ...] | None = None) -> None:
        await self._scoped[self._who(nth)].recall(self._question(nth)[0], tiers=tiers)

    async def _bare_recall(self, nth: int) -> None:
        await self._bare.recall(self._who(nth), *self._question(nth))

    async def _recall_facts(self, nth: int) -> None:
        await self._recall(nth, ("semantic",))

    _bare_recall_facts = _bare_recall

    async def _recall_episodes(self, nth: int) -> None:
        await self._recall(nth, ("episodic",))

    async def _bare_recall_episodes(self, nth: int) -> None:
        await self._bare.recall_episodes(self._who(nth))

    async def _recall_sessions(self, nth: int) -> None:
        await self._recall(nth, ("conversation", "episodic"))

    _bare_recall_sessions = _bare_recall

    async def _record_turn(self, nth: int) -> None:
        await self._scoped[self._who(nth)].record_turn(*self._said(nth))

    async def _bare_record_turn(self, nth: int) -> None:
        await self._bare.record_turn(self._who(nth), *self._said(nth))

    async def _checkpoint(self, nth: int) -> None:
        await self._memory.checkpoints.checkpoint(f"task {self._who(nth)}", {**_STATE, "at": nth})

    async def _bare_checkpoint(self, nth: int) -> None:
        await self._bare.checkpoint(f"task {self._who(nth)}", nth, {**_STATE, "at": nth})


class Bench:
    """One run: its sizes, its vectors and its progress bars."""

    def __init__(self, sizes: Sizes, bar: Progress) -> None:
        self.sizes = sizes
        self.bar = bar
        self.known = AtHand()

    async def run(self, place: Place) -> Figures:
        """Fill, copy what was filled, and time every call."""
        asked = [self._about(number) for number in range(self.sizes.asked)]
        memory, twins = await self._opened(place), Twins()
        try:
            began = time.perf_counter()
            await self._fill(memory, place)
            filled = time.perf_counter() - began
            self._know(asked)
            pair = Pair(memory, place, asked)
            await self._talk(pair, place)
            if place.copied is not None:  # a database is copied while nobody uses it
                await memory.close()
                twins = await place.copied()
                memory = await self._opened(place)
                pair = Pair(memory, place, asked)
            tapes.behind()
            calls = {name: await self._timed(pair, name, place, twins) for name in place.calls}
        finally:
            await memory.close()
            self.known.forget()
        figures: Figures = {"backend": place.name, "filled_in": round(filled, 1), "calls": calls}
        if twins:
            figures |= {way: {"sent": twin.played, "found_otherwise": twin.differences} for way, twin in twins.items()}
        return figures

    async def _opened(self, place: Place) -> AgentMemory:
        return await AgentMemory.open(place.store, embedder=self.known)

    def _about(self, number: int) -> Collection:
        return collection(f"u{number}", self.sizes.items, questions=20)

    def _know(self, some: Sequence[Collection]) -> None:
        for one in some:
            self.known.know(one.questions, one.asked)
            self.known.know(one.texts, one.rows)

    async def _fill(self, memory: AgentMemory, place: Place) -> None:
        """The items of all users, ours and the bare engine's."""
        task = self.bar.add_task(f"{place.name}: filling", total=self.sizes.users)
        log = None if place.logs is None else await RedisStore.open(place.logs)
        for number in range(self.sizes.users):
            one = self._about(number)
            if log is not None:
                if number >= self.sizes.asked:  # the others talk as themselves
                    await log.write(*_entries(one))
            else:
                self._know([one])
                await memory.scoped(user=one.user).semantic.add_many(one.facts())
                self.known.forget()
            if place.bare is not None and log is None:
                await place.bare.fill(number, one.texts, one.rows)  # type: ignore[union-attr]
            self.bar.advance(task)
        if log is not None:
            await log.close()
        self.bar.remove_task(task)

    async def _talk(self, pair: Pair, place: Place) -> None:
        """Those who are asked have said something before: where logs alone are kept, as much as others have facts."""
        if "record_turn" not in place.calls:
            return
        turns = _TURNS if place.logs is None else self.sizes.items // 4
        for nth in self.bar.track(range(turns * self.sizes.asked), description=f"{place.name}: talking"):
            for call in pair.calls("record_turn")[: 1 if place.bare is None else 2]:
                await call(nth + 10_000_000)
        await _idle()

    async def _timed(self, pair: Pair, name: str, place: Place, twins: Twins) -> Figures:
        ours, bare = pair.calls(name)
        order = random.Random(f"{_SEED} {name}")
        turns = ["ours", "bare"] if place.bare is not None else ["ours"]
        seconds: dict[str, list[float]] = {}
        for nth in self.bar.track(range(_WARM + self.sizes.rounds), description=f"{place.name}: {name}"):
            took: dict[str, float] = {}
            for who in order.sample(turns, len(turns)):
                took |= (
                    await self._ours(ours, nth, place, twins) if who == "ours" else {"bare": await _seconds(bare(nth))}
                )
            for who, one in took.items() if nth >= _WARM else ():
                seconds.setdefault(who, []).append(one)
        figures = {who: summary(kept) for who, kept in seconds.items()}
        first, taped = _WARM + self.sizes.rounds, _Taped(ours)
        figures["ours"]["per_second"] = await self._throughput(taped, first)
        behind = tapes.behind()
        for way, twin in twins.items():
            figures[way]["per_second"] = await self._throughput(_Played(twin, taped.tapes, behind), 0)
        if place.bare is not None:
            figures["bare"]["per_second"] = await self._throughput(bare, first)
        return figures

    async def _ours(self, call: Call, nth: int, place: Place, twins: Twins) -> dict[str, float]:
        """The seconds of our call, and of what it sent, sent again."""
        with tapes.recorded() as tape, tapes.blocking(tape):
            before = self.known.spent
            took = {"ours": await _seconds(call(nth)) - (self.known.spent - before)}
        if place.blocks:
            took[ENGINE] = tape.blocked
        await _idle()
        behind = tapes.behind()
        for way, twin in twins.items():
            took[way] = await _seconds(twin.play(tape))
            await twin.play(behind)
        return took

    async def _throughput(self, call: Call, first: int) -> float:
        """Calls a second with several under way, and with all that is done behind them."""
        waiting = iter(range(first, first + 2 * self.sizes.rounds))

        async def worker() -> None:
            for nth in waiting:
                await call(nth)

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
        await _idle()
        return round(2 * self.sizes.rounds / (time.perf_counter() - began), 1)


class _Taped:
    """A call that is kept on tape each time, and what was done behind all of them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.tapes: list[tapes.Tape] = []

    async def __call__(self, nth: int) -> None:
        with tapes.recorded() as tape:
            await self._call(nth)
        self.tapes.append(tape)


class _Played:
    """The tapes in their order, and with the last of them what was done behind."""

    def __init__(self, twin: tapes.Twin, some: Sequence[tapes.Tape], behind: tapes.Tape) -> None:
        self._twin = twin
        self._tapes = some
        self._behind = behind

    async def __call__(self, nth: int) -> None:
        await self._twin.play(self._tapes[nth])
        if nth == len(self._tapes) - 1:
            await self._twin.play(self._behind)


async def _seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _idle() -> None:
    """Wait until nothing is under way behind the calls."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def _entries(one: Collection) -> list[Append]:
    """A user's items as what they said: half in the conversation, half among the episodes."""
    spaces = [Scope(user=one.user, session="before").space(tier) for tier in ("conversation", "episodic")]
    return [
        Append(
            space=spaces[at % 2],
            entry=Entry(id=f"{one.user}-{at}", kind=("user", "turn")[at % 2], content=text, at=_NOON),
        )
        for at, text in enumerate(one.texts)
    ]


async def run(sizes: Sizes, names: Sequence[str], directory: Path, away: float, bar: Progress) -> Figures:
    tapes.record()
    bench = Bench(sizes, bar)
    async with places(directory, names, _AT_ONCE, away) as starts:
        figures = [await bench.run(await start()) for start in starts]
    return {"users": sizes.users, "items": sizes.users * sizes.items, "away_ms": away, "backends": figures}


def print_tables(figures: Figures) -> None:
    rows = [
        _row(backend["backend"], name, told)
        for backend in figures["backends"]
        for name, told in backend["calls"].items()
    ]
    columns = ("", "ours p50 / p95", "engine p50 / p95", "our share", f"aim ≤ {_AIM:g} %", "sent our way", "share then")
    where = f"; servers {figures['away_ms']:g} ms away" if figures["away_ms"] else ""
    show(
        f"{figures['items']:,} items of {figures['users']:,} users, in ms{where}; calls a second, {_AT_ONCE} at once",
        (*columns, "by hand", "ours, engine, by hand /s"),
        rows,
        note="the aim is for servers: an embedded engine is no other place that its cost could be told apart by",
    )


def _row(backend: str, name: str, told: Figures) -> tuple[str, ...]:
    share, then = (_share(told, way) for way in (ENGINE, OUR_WAY))
    return (
        f"{backend}: {name.replace('recall_', 'recall, ')}",
        *(f"{ms(told[one]['p50'])} / {ms(told[one]['p95'])}" if one in told else "–" for one in ("ours", ENGINE)),
        _percent(share),
        "–" if share is None else "ok" if share <= _AIM else "missed",
        ms(told[OUR_WAY]["p50"]) if OUR_WAY in told else "–",
        _percent(then),
        ms(told["bare"]["p50"]) if "bare" in told else "–",
        ", ".join(
            f"{told[one]['per_second']:,.0f}" if "per_second" in told.get(one, ()) else "–"
            for one in ("ours", ENGINE, "bare")
        ),
    )


def _share(told: Figures, way: str) -> float | None:
    return 100.0 * (1.0 - told[way]["p50"] / told["ours"]["p50"]) if way in told else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0f} %"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: 20 users")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="the backends that take part")
    parser.add_argument("--users", type=int, help="how many have 100 items each")
    parser.add_argument("--rounds", type=int, help="calls of each kind that are timed")
    parser.add_argument(
        "--away", type=float, default=0.0, metavar="MS", help="PostgreSQL and Redis are so far away, there and back"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    return parser.parse_args()


def main() -> None:
    given = options()
    base = QUICK if given.quick else Sizes()
    users = given.users or base.users
    sizes = Sizes(users=users, items=base.items, rounds=given.rounds or base.rounds, asked=min(base.asked, users))
    with progress() as bar, tempfile.TemporaryDirectory(prefix="recollect-backends-") as directory:
        figures = asyncio.run(run(sizes, given.only, Path(directory), given.away, bar))
    print_tables(figures)
    save(figures, given.json)


if __name__ == "__main__":
    main()
