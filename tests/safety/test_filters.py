"""Questions and filters made of anything: an answer of this scope's own, or an error of ours, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery
from recollect.stores.in_memory import InMemoryStore
from recollect.stores.where import FIELDS, Condition, Where, holds, parse_where
from recollect.testing import ManualClock
from recollect.testing.samples import SPACE, ids, put
from tests.embedders import HashEmbedder
from tests.flows.bad_input.strange import SYNTAX
from tests.servers.postgres import Server

# The grammar of a filter, and what somebody writes who wants out of it.
QUOTES = ["'", '"', "\\", "`", ";", "--", "/*", "%", "_", "?", ":1", "$1", "%s", "{}", "\x00", ")", "(", "]", "\n"]
fragments = st.sampled_from([*QUOTES, " or 1=1 ", "union select ", "drop table records", "$.a", "[0]", "a", "b", "é"])
evil = st.lists(fragments, max_size=6).map("".join)
names = st.sampled_from(["a", "b", "deep.a", "metadata.a", "metadata.source", *sorted(FIELDS)])
paths = names | evil | st.none() | st.integers() | st.text(max_size=8)
numbers = st.integers(-(2**64), 2**64) | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 1e308, 10**30])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | evil
signs = (
    st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has", "$gte", "==", "like", "or"]) | evil
)
values = st.recursive(scalars, lambda one: st.lists(one, max_size=4) | st.dictionaries(signs, one, max_size=3))
wheres = st.dictionaries(paths, values | st.dictionaries(signs, values, max_size=3), max_size=4)


@given(wheres)
def test_a_filter_is_refused_or_names_only_what_may_be_asked_for(where: dict[Any, Any]):
    """Mutant: `_PATH` takes any text."""
    try:
        conditions = parse_where(where)
    except BadQuery:
        return
    for condition in conditions:
        assert condition.is_field or all(key.replace("-", "_").isidentifier() for key in condition.keys)
        assert condition.op in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "prefix", "has")


OURS = put("mine", [1, 0, 0, 0], "apple", metadata={"a": 1, "deep": {"a": "x"}})
THEIRS = put("theirs", [1, 0, 0, 0], "apple", metadata={"a": 1}, scope=OURS.item.scope.__class__("acme", "eve"))


def quoted() -> Iterator[Where]:
    """Every sign that means something in a statement, wherever a text can be compared."""
    texts = [*QUOTES, "' or 1=1 --", "x') or ('1'='1", "x' union select 1 --"]
    for path in ("source", "key", "session", "speaker", "agent", "a", "deep.a", "metadata.source"):
        for text, sign in product(texts, ("eq", "ne", "gt", "lte", "prefix", "in", "has")):
            if sign != "has" or path not in FIELDS:
                yield Where(SPACE, conditions=parse_where({path: {sign: [text] if sign == "in" else text}}))


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "chroma"])
def test_whatever_is_filtered_by_the_answer_is_the_references_and_never_anothers(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
):
    """The same grammar, through the whole backend. Mutants: the text of a field, or a value of metadata, is put into
    the statement and not bound: then a quote in it is an error of the store, which nobody has to expect here."""
    with asyncio.Runner() as runner:
        store: Any = runner.run(_opened(backend, request, tmp_path))
        reference = InMemoryStore(clock=ManualClock())
        for one in (store, reference):
            runner.run(one.write(OURS, THEIRS))

        @settings(
            max_examples=max(25, settings().max_examples // 4), phases=(Phase.explicit, Phase.reuse, Phase.generate)
        )
        @given(st.dictionaries(names, values | st.dictionaries(signs, values, max_size=2), max_size=3))
        def play(where: dict[Any, Any]) -> None:
            try:
                conditions = parse_where(where)
            except BadQuery:
                return
            asked = Where(SPACE, conditions=conditions)
            found = runner.run(store.find(asked))
            assert ids(found) == ids(runner.run(reference.find(asked)))
            assert "theirs" not in ids(found)
            assert runner.run(store.get(SPACE, "mine"))

        try:
            for asked in quoted():
                found = runner.run(store.find(asked))
                assert ids(found) == ids(runner.run(reference.find(asked))), asked
            play()
        finally:
            runner.run(store.close())


async def _opened(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match backend:
        case "sqlite":
            from recollect.stores.sqlite import SqliteStore

            return SqliteStore.open(tmp_path / "a.db", readers=1)
        case "postgres":
            from recollect.stores.postgres import PostgresStore

            server: Server = request.getfixturevalue("postgres")
            return await PostgresStore.open(server.create("filters"), connections=2)
        case _:
            from recollect.stores.chroma import ChromaStore

            return await ChromaStore.open(f"chroma:{tmp_path / 'c'}")


@pytest.mark.parametrize(("backend", "queries"), [("postgres", 200), ("chroma", 200)])
async def test_fuzzed_questions_raise_nothing_but_our_errors(
    backend: str, queries: int, request: pytest.FixtureRequest, tmp_path: Path
):
    """As `tests/flows/bad_input` does ten thousand times in memory and on SQLite. Mutant: a term is not quoted."""
    if backend == "postgres":
        server: Server = request.getfixturevalue("postgres")
        place: Any = server.create("questions")
    else:
        place = {"semantic": f"chroma:{tmp_path / 'c'}", "default": str(tmp_path / "a.db")}
    chance = Random(f"{backend} {queries}")
    times = queries * max(1, settings().max_examples // 100)
    async with AgentMemory.open(place, user="ada", embedder=HashEmbedder(), clock=ManualClock()) as memory:
        await memory.remember("The cello is in the attic.", metadata={"room": {"floor": 3}})
        await memory.scoped(user="eve").remember("The cello of eve is in the attic.")
        answered = 0
        for _ in range(times):
            text = chance.choice(["", " "]).join(chance.choices(SYNTAX, k=chance.randint(1, 6)))
            try:
                hits = await memory.semantic.search(text, 5, min_relevance=0.0, mode=chance.choice(["hybrid", "text"]))
            except BadInput:
                continue
            answered += 1
            assert not any("eve" in hit.item.content for hit in hits)
        assert answered > times // 2
        assert (await memory.stats()).items == 1


def test_the_reference_refuses_what_is_not_a_condition():
    item = OURS.item
    assert holds(Where(SPACE, conditions=(Condition("a", "eq", 1),)), item)
    assert not holds(Where(SPACE, conditions=(Condition("a", "eq", "1"),)), item)
