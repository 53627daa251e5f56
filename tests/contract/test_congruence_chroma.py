"""Random histories of records on Chroma, compared with the reference, with reopens and two clients that take turns."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.chroma import ChromaStore
from recollect.stores.filters import Where
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.search import EvidenceQuery
from recollect.stores.writes import Embed, Model
from recollect.testing.factories import find_matching, list_ids
from recollect.types import Space
from tests.budgets import limit_examples
from tests.contract.test_congruence import (
    MODEL,
    NAMES,
    SCOPES,
    ask,
    compare,
    move_to_tenant,
    named,
    outcome,
    puts,
    record_questions,
    record_writes,
)
from tests.servers.chroma import ChromaServer

beginnings = st.tuples(
    st.just("write"),
    st.lists(puts(full=True), min_size=len(NAMES), max_size=len(NAMES)).map(
        lambda given: [named(put, name) for put, name in zip(given, NAMES, strict=True)]
    ),
)
batches = st.lists(record_writes, min_size=1, max_size=3)
lines = st.one_of(st.tuples(st.just("write"), batches), *record_questions, st.just(("reopen",)))
# Each line has the number of the client that runs it.
scripts = st.builds(
    lambda first, rest: [(0, first), *rest],
    beginnings,
    st.lists(st.tuples(st.integers(0, 1), lines), min_size=5, max_size=20),
)
tenants = itertools.count()
# More than the items of a space: which of several equal candidates the index finds first is not promised.
ALL = 50


@dataclass
class Clients:
    """One client of a directory or two of a server, and their event loop."""

    runner: asyncio.Runner
    url: str
    stores: list[ChromaStore]

    async def reopen(self, number: int) -> None:
        await self.stores[number].close()
        self.stores[number] = await ChromaStore.open(self.url)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    yield from _clients(f"chroma:{tmp_path_factory.mktemp('congruence') / 'chroma'}", 1)


@pytest.fixture(scope="module")
def server(chroma_server: ChromaServer) -> Iterator[Clients]:
    yield from _clients(chroma_server.create("congruence"), 2)


def _clients(url: str, count: int) -> Iterator[Clients]:
    with asyncio.Runner() as runner:
        clients = Clients(runner, url, [runner.run(ChromaStore.open(url)) for _ in range(count)])
        yield clients
        for store in clients.stores:
            runner.run(store.close())


@limit_examples(0.2)
@given(script=scripts)
def test_directory_answers_like_the_reference(directory: Clients, script: list[Any]) -> None:
    directory.runner.run(_play(directory, f"tenant{next(tenants)}", script))


@limit_examples(0.125)
@given(script=scripts)
def test_two_clients_of_a_server_answer_like_the_reference(server: Clients, script: list[Any]) -> None:
    server.runner.run(_play(server, f"tenant{next(tenants)}", script))


async def _play(clients: Clients, tenant: str, script: list[Any]) -> None:
    reference = InMemoryStore()
    for client, line in script:
        number = client % len(clients.stores)
        match line:
            case ("reopen",):
                await clients.reopen(number)
            case ("write", writes):
                mine = [move_to_tenant(tenant, write) for write in writes]
                store = clients.stores[number]
                assert await outcome(store.write(*mine)) == await outcome(reference.write(*mine)), mine
            case (method, *rest):
                arguments = [move_to_tenant(tenant, one) for one in rest]
                stores = (clients.stores[number], reference)
                answers = [await outcome(_ask_for_all(one, method, arguments)) for one in stores]
                compare(answers[0], answers[1], line)
    for store in clients.stores:
        for scope in SCOPES:
            space = replace(scope.space("semantic"), tenant=tenant)
            assert await store.get(space, *NAMES) == await reference.get(space, *NAMES)
            assert await store.paths(space) == await reference.paths(space)
        assert await store.spaces(tenant) == await reference.spaces(tenant)


async def _ask_for_all(store: Any, method: str, arguments: list[Any]) -> Any:
    """Ask a search for all items. BM25 parts are not compared: Chroma's mean length is that of the candidates."""
    match method, arguments:
        case "nearest", [where, query, _]:
            return await ask(store, method, [where, query, ALL])
        case "matching", [where, terms, _]:
            return sorted(list_ids(await find_matching(store, where, *terms, limit=ALL)))
        case "gather", [where, query, terms, _, reach]:
            asking = EvidenceQuery(where, query, tuple(terms), ALL, reach)
            gathered = await store.gather(asking, lambda evidence, lookup: evidence)
            return (
                gathered.briefs,
                np.nan_to_num(gathered.cosines, nan=-2.0).round(3).tolist(),
                (gathered.parts > 0.0).tolist(),
                gathered.weights.round(6).tolist(),
                gathered.speakers,
            )
    return await ask(store, method, arguments)


OTHER = Model("other", 2, "g")
SPACE = SCOPES[0].space("semantic")
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(puts(), min_size=1, max_size=2)),
        st.tuples(st.just("prepare"), st.sampled_from([MODEL, OTHER])),
        st.tuples(st.just("embed"), st.sampled_from([MODEL, OTHER]), st.integers(1, 3)),
        st.tuples(st.just("switch"), st.sampled_from([MODEL, OTHER])),
        st.tuples(st.just("nearest"), st.lists(st.integers(-3, 3), min_size=3, max_size=3)),
        st.just(("reopen",)),
    ),
    min_size=4,
    max_size=15,
)


@limit_examples(0.1)
@given(script=changes)
def test_model_changes_match_the_reference(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    path = tmp_path_factory.mktemp("models") / "chroma"
    with asyncio.Runner() as runner:
        runner.run(_change_models(f"chroma:{path}", script))


async def _change_models(url: str, script: list[Any]) -> None:
    """Use a new store: a store is bound to one model."""
    store, reference = await ChromaStore.open(url), InMemoryStore()
    for line in script:
        if line == ("reopen",):
            await store.close()
            store = await ChromaStore.open(url)
            continue
        got, expected = [await outcome(_change(one, *line)) for one in (store, reference)]
        compare(got, expected, line)
        assert await store.model() == await reference.model()
    assert await store.check() == []
    await store.close()


async def _change(store: ChromaStore | InMemoryStore, what: str, *given: Any) -> Any:
    match what, given:
        case "put", [writes]:
            return await store.write(*writes)
        case "prepare", [model]:
            return sorted((str(_space(one)), one.id) for one in await store.find_unembedded(model))
        case "embed", [model, parts]:
            rows = np.eye(model.dim, dtype=np.float32)[:parts]
            some = await store.find_unembedded(model)
            chosen = sorted(some, key=lambda one: (str(_space(one)), one.id))[::2]
            return await store.write(*(Embed(_space(one), one.id, rows, model, one.version) for one in chosen))
        case "switch", [model]:
            return await store.activate_model(model)
        case "nearest", [numbers]:
            model = await store.model()
            query = np.array(numbers[: model.dim if model else 3], np.float32)
            return await ask(store, "nearest", [Where(SPACE), query, ALL])
    raise AssertionError(what)


def _space(item: Any) -> Space:
    space: Space = item.scope.space(item.tier)
    return space
