"""Two stores: in one somebody is alone, in the other among strangers; what they see has to be the same in both."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, get_args

from recollect import AgentMemory
from recollect.errors import RecollectError
from recollect.lifecycle.report import LifecycleReport
from recollect.memory.stats import Stats
from recollect.stores.receipts import ErasureReceipt
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.values import Scope, Tier
from tests.embedders import HashEmbedder
from tests.safety.doors import CASES, IN_MIND, ORDER, PAGE, TASKS, TEXTS, TURNS, Pool

ALL: Mapping[str, Any] = {**CASES, **IN_MIND}
TIERS: tuple[Tier, ...] = get_args(Tier)

_numbers = count()


class Tokens:
    """`secrets.token_hex`, so that the same call has the same ids in both worlds, and no other call has them.

    Every place in the code draws from a row of its own: a store that writes in the background draws whenever it gets
    to it, which must not change the id that a task draws meanwhile.
    """

    def __init__(self) -> None:
        self._call = ""
        self._drawn: Counter[str] = Counter()

    def begin(self, call: str) -> None:
        self._call, self._drawn = call, Counter()

    def __call__(self, size: int | None = None) -> str:
        drawer = sys._getframe(1)
        asker = drawer.f_back or drawer
        place = f"{drawer.f_code.co_qualname} for {asker.f_code.co_qualname}"
        self._drawn[place] += 1
        drawn = f"{self._call} {place} {self._drawn[place]}"
        return hashlib.sha256(drawn.encode()).hexdigest()[: 2 * (size or 16)]


@dataclass(frozen=True)
class Worlds:
    """The two stores, and the clock and the ids that both go by."""

    alone: AgentMemory
    among_others: AgentMemory
    clock: ManualClock
    tokens: Tokens
    directory: Path


def people() -> list[Scope]:
    """Of every kind of neighbour one: another user, agent or tenant, and names that run into each other when joined."""
    here, there = (f"{name}{next(_numbers)}" for name in ("acme", "globex"))
    return [
        Scope(here, "ada", "a", "s/t"),
        Scope(here, "bob", "b", "s/t"),
        Scope(here, "ada", "b", "s/t"),
        Scope(here, "bob", "a", "s/t"),
        Scope(there, "ada", "a", "s/t"),
        Scope(here, "ada", "a/s", "t"),
        Scope(f"{here}/semantic", "ada", "a", "s/t"),
    ]


async def open_worlds(alone: Any, among_others: Any, tokens: Tokens, directory: Path) -> Worlds:
    clock = ManualClock()
    opened = [await AgentMemory.open(at, embedder=HashEmbedder(), clock=clock) for at in (alone, among_others)]
    return Worlds(opened[0], opened[1], clock, tokens, directory)


async def tried(worlds: Worlds, whose: int, calls: list[tuple[str, int]]) -> None:
    """Somebody calls this and that, in both worlds at once, with names of their own and of others."""
    scopes = people()
    me = scopes[whose]
    pool = Pool(worlds.directory, worlds.clock, owners=[scope.user for scope in scopes])
    mine, lonely = _mind(worlds, worlds.among_others, me), _mind(worlds, worlds.alone, me)
    strangers = {scope: _apart(scope, me) for scope in scopes if scope != me}
    for scope, tiers in strangers.items():
        await _told(worlds, _as(worlds.among_others, scope), pool, tiers)
    for memory in (mine, lonely):
        await _told(worlds, memory, pool, TIERS)
    pool.files = [await _file(pool, mine), await _file(pool, _as(worlds.among_others, next(iter(strangers))))]
    before = await _seen(worlds.among_others, strangers)
    for number, (name, seed) in enumerate(calls):
        call = f"{me} {number} {name}"
        worlds.clock.forward(Random(seed).choice([timedelta(), timedelta(minutes=1), timedelta(hours=5)]))
        answers = [await _called(worlds, memory, name, seed, pool, call) for memory in (lonely, mine)]
        assert answers[0] == answers[1], f"{name} of {me}, seed {seed}: {_difference(*answers)}"
    assert await _seen(worlds.among_others, strangers) == before, f"{me} changed what is not theirs: {calls}"
    mine_alone, mine_among = await _seen(worlds.alone, {me: TIERS}), await _seen(worlds.among_others, {me: TIERS})
    assert mine_alone == mine_among, f"{me} has something else than alone: {_difference(mine_alone, mine_among)}"


def _as(memory: AgentMemory, scope: Scope) -> AgentMemory:
    return memory.scoped(tenant=scope.tenant, user=scope.user, agent=scope.agent, session=scope.session)


def _mind(worlds: Worlds, memory: AgentMemory, scope: Scope) -> AgentMemory:
    """A memory whose task at hand has the same id in both worlds."""
    worlds.tokens.begin(f"the mind of {scope}")
    return _as(memory, scope)


def _apart(scope: Scope, me: Scope) -> tuple[Tier, ...]:
    """The tiers that two do not share: facts are a user's, whichever the agent, and procedures an agent's."""
    return tuple(tier for tier in TIERS if _owner(scope, tier) != _owner(me, tier))


def _owner(scope: Scope, tier: Tier) -> tuple[str, str, str]:
    space = scope.space(tier)
    return space.tenant, space.user, space.agent


async def _told(worlds: Worlds, memory: AgentMemory, pool: Pool, tiers: Collection[Tier]) -> None:
    """What everybody has: the same texts under the same names, and something of their own."""
    user, now = memory.scope.user, worlds.clock.now
    worlds.tokens.begin(f"{memory.scope}")
    if "semantic" in tiers:
        for text, more in (
            (TEXTS[0], {"key": "units"}),
            (TEXTS[1], {"source": PAGE, "metadata": {"whose": user}}),
            (f"{TEXTS[2]} So says {user}.", {"key": "tea", "metadata": {"deep": {"whose": user}}}),
            (f"{TEXTS[3]} So says {user}.", {"source": "tool", "at": now - timedelta(hours=1)}),
            (f"{TEXTS[4]} So says {user}.", {"speaker": user, "session": "s"}),
            (ORDER, {"source": PAGE}),
            (f"{ORDER} So says {user}.", {"source": PAGE}),
        ):
            pool.ids.append((await memory.remember(text, **more)).id)
    if "conversation" in tiers:
        for turn, text in zip(TURNS, TEXTS, strict=False):
            call = {"name": "browse", "arguments": {}, "result": f"{text} So says {user}."}
            record = await memory.record_turn(text, f"Noted, {user}.", id=turn, tool_calls=[call])
            pool.ids += [message.id for message in record.messages]
        pool.ids.append((await memory.episodic.store(f"{TEXTS[4]} So says {user}.", id=f"of {user}")).id)
    if "procedural" in tiers:
        await memory.procedural.save("deploy", f"Push a tag. So says {user}.", tags=["t"])
        await memory.procedural.record_outcome("deploy", True, note=user, id=f"trial of {user}")
    if "checkpoints" in tiers:
        for task in TASKS:
            await memory.checkpoints.checkpoint(task, {"whose": user}, ttl=None)
    await memory._parts.said.catch_up(memory.scope)


async def _file(pool: Pool, memory: AgentMemory) -> Path:
    path = pool.new_file("given.jsonl")
    await memory.export(path)
    return path


async def _called(worlds: Worlds, memory: AgentMemory, name: str, seed: int, pool: Pool, call: str) -> Any:
    worlds.tokens.begin(call)
    try:
        given = ALL[name](memory, Random(seed), pool)
        answer = await given if inspect.isawaitable(given) else given
        await memory._parts.said.catch_up(memory.scope)
    except RecollectError as error:
        return type(error).__name__, str(error)
    return plain(answer)


def plain(value: Any) -> Any:
    """An answer as far as it tells anything; the size of a file and the hashes of a receipt are the store's."""
    match value:
        case ErasureReceipt():
            return value.status, dict(value.erased)
        case float():
            return round(value, 6)
        case Path():
            return value.name
        case list() | tuple() | frozenset() | set():
            return [plain(one) for one in value]
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        hidden = (
            {"bytes"} if isinstance(value, Stats) else {"seconds"} if isinstance(value, LifecycleReport) else {"path"}
        )
        return type(value).__name__, {
            one.name: plain(getattr(value, one.name)) for one in fields(value) if one.name not in hidden
        }
    return value


def _difference(alone: Any, among: Any, path: str = "") -> str:
    """Where two answers part, so that nobody has to read them whole."""
    if isinstance(alone, dict) and isinstance(among, dict) and alone.keys() == among.keys():
        return next(_difference(alone[key], among[key], f"{path}.{key}") for key in alone if alone[key] != among[key])
    if isinstance(alone, list | tuple) and isinstance(among, list | tuple) and len(alone) == len(among):
        parts = enumerate(zip(alone, among, strict=True))
        return next(_difference(*both, f"{path}[{at}]") for at, both in parts if both[0] != both[1])
    return f"{path} is {alone!r:.600} alone, and {among!r:.600} among others"


async def _seen(memory: AgentMemory, of: Mapping[Scope, Collection[Tier]]) -> list[Any]:
    """Everything that a store holds of some scopes, hidden or not, with every count."""
    return [one for scope, tiers in of.items() for tier in tiers for one in await _held(memory, scope, tier)]


async def _held(memory: AgentMemory, scope: Scope, tier: Tier) -> list[Any]:
    stores, space = memory._parts.stores, scope.space(tier)
    if tier in ("semantic", "quarantine", "procedural", "lifecycle"):
        records = stores.records("procedural" if tier == "procedural" else "semantic")
        found = [space, await records.paths(space), await records.speakers(space)]
        return [*found, *await records.find(Where(space), limit=10_000)]
    if tier in ("conversation", "episodic"):
        log = stores.log(tier)
        return [(one, await log.read(one, hidden=True)) for one in await log.logs(space, hidden=True)]
    if tier == "checkpoints":
        tasks = stores.tasks()
        return [
            (await tasks.task(space, one, hidden=True), await tasks.checkpoints(space, one, hidden=True))
            for one in TASKS
        ]
    return []
