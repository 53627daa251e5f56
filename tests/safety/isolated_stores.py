"""Two stores: one with a single scope, one with other scopes too; the scope must get the same results in both."""

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
from recollect.health.stats import Stats
from recollect.lifecycle.report import LifecycleReport
from recollect.stores.erasure import ErasureReceipt
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceQuery
from recollect.testing import ManualClock
from recollect.types import Scope, Tier
from tests.embedders import HashEmbedder
from tests.safety.method_cases import CASES, INSTRUCTION, PAGE, TASKS, TEXTS, TURNS, WORKING_CASES, Pool

ALL: Mapping[str, Any] = {**CASES, **WORKING_CASES}
TIERS: tuple[Tier, ...] = get_args(Tier)

_numbers = count()


class TokenSequence:
    """A replacement of `secrets.token_hex` that returns the same ids for the same call in both stores.

    Each call site has its own sequence, because background writes draw ids at random times.
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
class StorePair:
    """The two stores, with the clock and the id generator that they share."""

    alone: AgentMemory
    among_others: AgentMemory
    clock: ManualClock
    tokens: TokenSequence
    directory: Path


def list_scopes() -> list[Scope]:
    """Return scopes that differ in user, agent or tenant, and some that are equal when their names are joined."""
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


async def open_pair(alone: Any, among_others: Any, tokens: TokenSequence, directory: Path) -> StorePair:
    clock = ManualClock()
    opened = [await AgentMemory.open(at, embedder=HashEmbedder(), clock=clock) for at in (alone, among_others)]
    return StorePair(opened[0], opened[1], clock, tokens, directory)


async def compare_calls(pair: StorePair, scope_index: int, calls: list[tuple[str, int]]) -> None:
    """Make the same calls in both stores, with names of this scope and of others, and compare the results."""
    scopes = list_scopes()
    me = scopes[scope_index]
    pool = Pool(pair.directory, pair.clock, owners=[scope.user for scope in scopes])
    memory_among, alone_memory = _open_scope(pair, pair.among_others, me), _open_scope(pair, pair.alone, me)
    others = {scope: _find_unshared_tiers(scope, me) for scope in scopes if scope != me}
    for scope, tiers in others.items():
        await _fill(pair, _scoped(pair.among_others, scope), pool, tiers)
    for memory in (memory_among, alone_memory):
        await _fill(pair, memory, pool, TIERS)
    pool.files = [
        await _export(pool, memory_among),
        await _export(pool, _scoped(pair.among_others, next(iter(others)))),
    ]
    before = await _read_all(pair.among_others, others)
    for number, (name, seed) in enumerate(calls):
        call = f"{me} {number} {name}"
        pair.clock.forward(Random(seed).choice([timedelta(), timedelta(minutes=1), timedelta(hours=5)]))
        answers = [await _run_call(pair, memory, name, seed, pool, call) for memory in (alone_memory, memory_among)]
        assert answers[0] == answers[1], f"{name} of {me}, seed {seed}: {_difference(*answers)}"
    assert await _read_all(pair.among_others, others) == before, f"{me} changed data of another scope: {calls}"
    mine_alone, mine_among = await _read_all(pair.alone, {me: TIERS}), await _read_all(pair.among_others, {me: TIERS})
    assert mine_alone == mine_among, f"{me} has other data than alone: {_difference(mine_alone, mine_among)}"


def _scoped(memory: AgentMemory, scope: Scope) -> AgentMemory:
    return memory.scoped(tenant=scope.tenant, user=scope.user, agent=scope.agent, session=scope.session)


def _open_scope(pair: StorePair, memory: AgentMemory, scope: Scope) -> AgentMemory:
    """Open a memory whose current task has the same id in both stores."""
    pair.tokens.begin(f"the working memory of {scope}")
    return _scoped(memory, scope)


def _find_unshared_tiers(scope: Scope, me: Scope) -> tuple[Tier, ...]:
    """Return the tiers that two scopes do not share: facts belong to a user, and procedures to an agent."""
    return tuple(tier for tier in TIERS if _owner(scope, tier) != _owner(me, tier))


def _owner(scope: Scope, tier: Tier) -> tuple[str, str, str]:
    space = scope.space(tier)
    return space.tenant, space.user, space.agent


async def _fill(pair: StorePair, memory: AgentMemory, pool: Pool, tiers: Collection[Tier]) -> None:
    """Store the same texts under the same names in every scope, and some that name the user."""
    user, now = memory.scope.user, pair.clock.now
    pair.tokens.begin(f"{memory.scope}")
    if "semantic" in tiers:
        for text, more in (
            (TEXTS[0], {"key": "units"}),
            (TEXTS[1], {"source": PAGE, "metadata": {"whose": user}}),
            (f"{TEXTS[2]} So says {user}.", {"key": "tea", "metadata": {"deep": {"whose": user}}}),
            (f"{TEXTS[3]} So says {user}.", {"source": "tool", "at": now - timedelta(hours=1)}),
            (f"{TEXTS[4]} So says {user}.", {"speaker": user, "session": "s"}),
            (INSTRUCTION, {"source": PAGE}),
            (f"{INSTRUCTION} So says {user}.", {"source": PAGE}),
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
    await memory._engine.turn_index.catch_up(memory.scope)


async def _export(pool: Pool, memory: AgentMemory) -> Path:
    path = pool.new_file("given.jsonl")
    await memory.export(path)
    return path


async def _run_call(pair: StorePair, memory: AgentMemory, name: str, seed: int, pool: Pool, call: str) -> Any:
    pair.tokens.begin(call)
    try:
        given = ALL[name](memory, Random(seed), pool)
        answer = await given if inspect.isawaitable(given) else given
        await memory._engine.turn_index.catch_up(memory.scope)
    except RecollectError as error:
        return type(error).__name__, str(error)
    return plain(answer)


def plain(value: Any) -> Any:
    """Return a comparable form of a result, without file sizes, durations and receipt hashes."""
    match value:
        case ErasureReceipt():  # a server's background work may delay the status
            return dict(value.erased)
        case float():
            return round(value, 6)
        case Path():
            return value.name
        case list() | tuple() | frozenset() | set():
            return [plain(part) for part in value]
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        hidden = (
            {"bytes"} if isinstance(value, Stats) else {"seconds"} if isinstance(value, LifecycleReport) else {"path"}
        )
        return type(value).__name__, {
            part.name: plain(getattr(value, part.name)) for part in fields(value) if part.name not in hidden
        }
    return value


def _difference(alone: Any, among: Any, path: str = "") -> str:
    """Return the path and the values of the first difference."""
    if isinstance(alone, dict) and isinstance(among, dict) and alone.keys() == among.keys():
        return next(_difference(alone[key], among[key], f"{path}.{key}") for key in alone if alone[key] != among[key])
    if isinstance(alone, list | tuple) and isinstance(among, list | tuple) and len(alone) == len(among):
        parts = enumerate(zip(alone, among, strict=True))
        return next(_difference(*both, f"{path}[{at}]") for at, both in parts if both[0] != both[1])
    return f"{path} is {alone!r:.600} alone, and {among!r:.600} among others"


async def _read_all(memory: AgentMemory, of: Mapping[Scope, Collection[Tier]]) -> list[Any]:
    """Return all stored data of some scopes, including expired rows and access counts."""
    return [part for scope, tiers in of.items() for tier in tiers for part in await _read_tier(memory, scope, tier)]


async def _read_tier(memory: AgentMemory, scope: Scope, tier: Tier) -> list[Any]:
    stores, space = memory._engine.stores, scope.space(tier)
    if tier in ("semantic", "quarantine", "procedural", "lifecycle"):
        records = stores.records("procedural" if tier == "procedural" else "semantic")
        asked = EvidenceQuery(Where(space), None, (), limit=1, reach=0)
        speakers = await records.gather(asked, lambda found, lookup: found.speakers)
        found = [space, await records.paths(space), speakers]
        return [*found, *await records.find(Where(space), limit=10_000)]
    if tier in ("conversation", "episodic"):
        log = stores.log(tier)
        return [(part, await log.read(part, hidden=True)) for part in await log.logs(space, hidden=True)]
    if tier == "checkpoints":
        tasks = stores.tasks()
        return [
            (await tasks.task(space, part, hidden=True), await tasks.checkpoints(space, part, hidden=True))
            for part in TASKS
        ]
    return []
