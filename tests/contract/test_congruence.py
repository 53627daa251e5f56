"""Random histories: SQLite and PostgreSQL answer like the in-memory reference."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.stores.base import TailLimits
from recollect.stores.filters import Where, parse_where
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.postgres import PostgresStore
from recollect.stores.search import EvidenceQuery, ScoredItem
from recollect.stores.sqlite import SqliteStore
from recollect.stores.writes import Append, Clear, Delete, DropTask, Entry, Journal, Model, Put, Save, SetStatus, Touch
from recollect.testing import ManualClock
from recollect.testing.factories import SECOND, START, find_matching, find_nearest
from recollect.types import MemoryItem, Scope, Turn
from tests.servers.postgres import Server

MODEL = Model("m", 3, "f")
NAMES = ["a", "b", "c", "\x00", "é", "b "]
WORDS = ["apple", "Apple", "pear", "_", "not", "漢字", "a_b", "x" * 80]
SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    5,
    0.5,
    1.0,
    -2.5,
    2**53 + 1,
    1e300,
    "",
    "a",
    "b",
    "B",
    "5",
    "é",
    "\x00",
]
PATHS = ["p", "q", "o.p", "o", "gone", "metadata.p"]
FIELDS = ["importance", "source", "trust", "key", "session", "speaker", "position", "agent", "access_count"]

names = st.sampled_from(NAMES)
scalars = st.sampled_from(SCALARS)
moments = st.integers(-3, 3).map(lambda n: START + n * SECOND)
maybe_moments = st.none() | moments
tenths = st.integers(0, 10).map(lambda n: n / 10)
metadata = st.dictionaries(
    st.sampled_from(["p", "q", "o"]), scalars | st.lists(scalars, max_size=2) | st.fixed_dictionaries({"p": scalars})
)
terms = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(tuple)
vectors = st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=3)
SCOPES = [Scope(user="ada"), Scope(user="bob"), Scope(user="ada", agent="other", session="s")]
scopes = st.sampled_from([SCOPES[0], SCOPES[2], SCOPES[0], SCOPES[1]])
turns = st.builds(Turn, st.sampled_from("xy"), st.sampled_from([0, 1, 1.5, 2, 3]), st.sampled_from([None, "Ada"]))


@st.composite
def items(draw: st.DrawFn) -> MemoryItem:
    start, end = draw(maybe_moments), draw(maybe_moments)
    if start and end and end < start:
        start, end = end, start
    return MemoryItem(
        id=draw(names),
        content=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)) + "x",
        scope=draw(scopes),
        created_at=draw(moments),
        metadata=draw(metadata),
        importance=draw(tenths),
        trust=draw(tenths),
        valid_from=start,
        valid_to=end,
        expires_at=draw(st.none() | maybe_moments),
        source=draw(st.sampled_from(["user", "web"])),
        key=draw(st.none() | names),
        turn=draw(st.none() | turns | turns),
    )


@st.composite
def puts(draw: st.DrawFn, full: bool = False) -> Put:
    rows = draw(vectors if full else st.none() | vectors)
    return Put(
        item=draw(items()),
        vectors=None if rows is None else np.array(rows, np.float32),
        terms=draw(terms if full else st.none() | terms),
        model=None if rows is None else MODEL,
        expect=None if full else draw(st.sampled_from([None, None, 0, 1, 2])),
    )


spaces = scopes.map(lambda scope: scope.space("semantic"))
logs = scopes.map(lambda scope: scope.space("conversation"))
task_spaces = scopes.map(lambda scope: scope.space("checkpoints"))
entries = st.builds(
    Entry,
    id=names,
    kind=st.sampled_from("kl"),
    content=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    at=moments,
    metadata=metadata,
    expires_at=maybe_moments,
)
record_writes = st.one_of(
    puts(),
    puts(),
    st.builds(Delete, spaces, names),
    st.builds(Touch, spaces, st.lists(names, max_size=3).map(tuple), moments),
)
log_writes = st.builds(Append, space=logs, entry=entries, cap=st.none() | st.integers(1, 3)) | st.builds(Clear, logs)
conditional_appends = st.builds(
    Append, space=logs, entry=entries, expect_last=st.integers(0, 4), cap=st.none() | st.integers(1, 3)
)
task_names = st.sampled_from(["t", "u"])
fences = st.integers(1, 4)
statuses = st.sampled_from(["ready", "running", "done", "failed"])
task_writes = st.one_of(
    st.builds(
        Save,
        space=task_spaces,
        task=task_names,
        state=st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        expect=st.none() | st.integers(0, 3),
        fence=st.none() | fences,
        ttl=st.none() | st.integers(1, 3).map(lambda n: n * SECOND),
        status=st.none() | statuses,
        keep=st.none() | st.integers(1, 3),
    ),
    st.builds(
        Journal,
        space=task_spaces,
        task=task_names,
        step=names,
        status=st.sampled_from(["started", "completed"]),
        fence=fences,
        attempts=st.integers(1, 3),
        idempotency_key=names,
    ),
    st.builds(SetStatus, space=task_spaces, task=task_names, status=statuses, fence=st.none() | fences),
    st.builds(DropTask, task_spaces, task_names, st.none() | moments),
)
# Initial data, before the first query.
beginnings = st.tuples(
    st.just("write"),
    st.builds(
        lambda given, logged: [*(named(put, name) for put, name in zip(given, NAMES, strict=True)), *logged],
        st.lists(puts(full=True), min_size=len(NAMES), max_size=len(NAMES)),
        st.lists(log_writes, max_size=3),
    ),
)
batches = st.lists(
    st.one_of(record_writes, record_writes, log_writes, conditional_appends, task_writes), min_size=1, max_size=3
)


@st.composite
def narrow(draw: st.DrawFn) -> Where:
    arguments: dict[str, Any] = {}
    for path in draw(st.lists(st.sampled_from(PATHS + FIELDS), max_size=2, unique=True)):
        op = draw(st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "in"]))
        if op == "in":
            arguments[path] = draw(st.lists(scalars, max_size=3))
        elif op in ("eq", "ne"):
            arguments[path] = {op: draw(scalars)}
        else:
            arguments[path] = {op: draw(scalars.filter(lambda one: one is not None and not isinstance(one, bool)))}
    return Where(
        draw(spaces),
        live_at=draw(st.none() | maybe_moments),
        known_at=draw(st.none() | maybe_moments),
        open_at=draw(st.none() | st.none() | maybe_moments),
        created_from=draw(st.none() | maybe_moments),
        created_until=draw(st.none() | maybe_moments),
        min_importance=draw(st.sampled_from([0.0, 0.0, 0.0, 0.5])),
        key=draw(st.sampled_from([None, None, None, *NAMES[:2]])),
        key_prefix=draw(st.sampled_from([None, None, None, "", *NAMES])),
        ids=draw(st.none() | st.none() | st.frozensets(names)),
        conditions=parse_where(arguments),
    )


wheres = st.one_of(st.builds(Where, spaces), st.builds(Where, spaces, live_at=moments), narrow())
queries = st.lists(st.integers(-3, 3), min_size=3, max_size=3).map(lambda row: np.array(row, np.float32))
words = st.lists(st.sampled_from([*WORDS, "nowhere"]), max_size=4, unique=True)
limits = st.sampled_from([5, 2, 1, 0])
seconds = st.integers(1, 3).map(lambda n: n * SECOND)
record_questions = (
    st.tuples(st.just("find"), wheres, limits),
    st.tuples(st.just("find"), wheres, limits),
    st.tuples(st.just("nearest"), wheres, queries, limits),
    st.tuples(st.just("matching"), wheres, words, limits),
    st.tuples(st.just("gather"), wheres, queries, words, limits, st.integers(1, 2)),
    st.tuples(st.just("gather"), wheres, st.none(), words, limits, st.integers(1, 2)),
    st.tuples(st.just("last_turns"), spaces, st.sampled_from("xyz"), limits),
)
questions = st.one_of(
    *record_questions,
    st.tuples(st.just("log"), logs, limits, st.integers(0, 4), maybe_moments, maybe_moments),
    st.tuples(st.just("claim"), task_spaces, task_names, st.sampled_from(["w1", "w2"]), seconds),
    st.tuples(st.just("task"), task_spaces, task_names),
)
clock_moves = st.tuples(st.just("clock"), st.integers(-2, 2))
lines = st.one_of(st.tuples(st.just("write"), batches), questions, questions, clock_moves)
scripts = st.builds(lambda first, rest: [first, *rest], beginnings, st.lists(lines, min_size=5, max_size=25))

tenants = itertools.count()


class SharedStore:
    """One store and its event loop for all examples: opening a store takes longer than an example."""

    def __init__(self, opened: Callable[[ManualClock], Awaitable[SqliteStore | PostgresStore]]) -> None:
        self.clock = ManualClock(START)
        self._runner = asyncio.Runner()
        self._store = self._runner.run(_awaited(opened(self.clock)))

    def play(self, script: list[Any]) -> None:
        self.clock.now = START
        # Every example has its own tenant, so that fences and sequences restart.
        tenant = f"tenant{next(tenants)}"
        reference = InMemoryStore(clock=self.clock)
        self._runner.run(_play(self._store, reference, self.clock, tenant, script))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


async def _awaited(opening: Awaitable[SqliteStore | PostgresStore]) -> SqliteStore | PostgresStore:
    return await opening


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStore]:
    path = tmp_path_factory.mktemp("congruence") / "store.db"

    async def opened(clock: ManualClock) -> SqliteStore:
        return SqliteStore.open(path, readers=1, clock=clock)

    shared = SharedStore(opened)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def shared_server(postgres: Server) -> Iterator[SharedStore]:
    url = postgres.create("congruence")
    shared = SharedStore(lambda clock: PostgresStore.open(url, connections=2, clock=clock))
    yield shared
    shared.close()


@given(script=scripts)
def test_sqlite_answers_like_the_reference(shared_file: SharedStore, script: list[Any]) -> None:
    shared_file.play(script)


@given(script=scripts)
def test_postgres_answers_like_the_reference(shared_server: SharedStore, script: list[Any]) -> None:
    shared_server.play(script)


async def _play(
    store: SqliteStore | PostgresStore,
    reference: InMemoryStore,
    clock: ManualClock,
    tenant: str,
    script: list[Any],
) -> None:
    for line in script:
        match line:
            case ("clock", moved):
                clock.forward(timedelta(seconds=moved))
            case ("write", writes):
                mine = [move_to_tenant(tenant, write) for write in writes]
                assert await outcome(store.write(*mine)) == await outcome(reference.write(*mine)), mine
            case (method, *rest):
                arguments = [move_to_tenant(tenant, one) for one in rest]
                answers = [await outcome(ask(one, method, arguments)) for one in (store, reference)]
                compare(answers[0], answers[1], line)
    for scope in SCOPES:
        space = replace(scope.space("semantic"), tenant=tenant)
        assert await store.get(space, *NAMES) == await reference.get(space, *NAMES)
        assert await store.paths(space) == await reference.paths(space)
    assert await store.spaces(tenant) == await reference.spaces(tenant)


async def ask(store: Any, method: str, arguments: list[Any]) -> Any:
    match method, arguments:
        case "find", [where, limit]:
            first = await store.find(where, limit=limit)
            return first, await store.find(where, limit=2, after=first[-1]) if first else []
        case "nearest", [where, query, limit]:
            return await find_nearest(store, where, query, limit=limit)
        case "matching", [where, terms, limit]:
            return await find_matching(store, where, *terms, limit=limit)
        case "gather", [where, query, terms, limit, reach]:
            asking = EvidenceQuery(where, query, tuple(terms), limit, reach)
            gathered = await store.gather(asking, lambda evidence, lookup: evidence)
            return (
                gathered.briefs,
                np.nan_to_num(gathered.cosines, nan=-2.0).round(3).tolist(),
                gathered.parts.round(6).tolist(),
                gathered.weights.round(6).tolist(),
                gathered.speakers,
            )
        case "last_turns", [space, session, limit]:
            return await store.last_turns(space, session, limit=limit)
        case "log", [space, limit, after, since, until]:
            return (
                await store.recent(space, limit=limit, kinds="k" * (after % 2)),
                await store.read(space, after=after, limit=limit, since=since, until=until),
                await store.logs(space),
                [(tail.space, list(tail)) for tail in await store.read_tails(space, TailLimits(limit, after, limit))],
            )
        case "claim", [space, task, owner, ttl]:
            return await store.claim(space, task, owner, ttl)
        case "task", [space, task]:
            return (
                await store.task(space, task),
                await store.task(space, task, hidden=True),
                await store.tasks(space),
                await store.tasks(space, prefix=task, limit=1),
                await store.expired(space, START + SECOND),
                await store.task_spaces(space.tenant),
                await store.checkpoints(space, task),
                await store.checkpoint(space, task),
                await store.steps(space, task),
                await store.checkpoints(space, task, hidden=True),
                await store.steps(space, task, hidden=True),
            )
    raise AssertionError(method)


async def outcome(work: Any) -> Any:
    try:
        return await work
    except RecollectError as error:
        return type(error), str(error)


def compare(got: Any, expected: Any, arguments: Any) -> None:
    ranked = isinstance(expected, list) and bool(expected) and isinstance(expected[0], ScoredItem)
    if not ranked:
        assert got == expected, arguments
        return
    assert [one.score for one in got] == pytest.approx([one.score for one in expected], abs=1e-4), arguments
    assert _parts(got) == pytest.approx(_parts(expected), abs=1e-4), arguments
    assert _ids(got) == _ids(expected), arguments
    assert [one.brief for one in got] == [one.brief for one in expected], arguments


def named(put: Put, name: str) -> Put:
    return replace(put, item=replace(put.item, id=name))


def _parts(found: Sequence[ScoredItem]) -> list[float]:
    return [part for one in found for part in one.parts]


def _ids(found: Sequence[ScoredItem]) -> list[str]:
    return [one.brief.id for one in found]


def move_to_tenant(tenant: str, value: Any) -> Any:
    """Return the value in another tenant."""
    match value:
        case Where() | Delete() | Touch() | Append() | Clear() | Save() | Journal() | SetStatus() | DropTask():
            return replace(value, space=replace(value.space, tenant=tenant))
        case Put():
            scope = replace(value.item.scope, tenant=tenant)
            return replace(value, item=replace(value.item, scope=scope))
        case _ if hasattr(value, "tenant"):
            return replace(value, tenant=tenant)
        case _:
            return value
