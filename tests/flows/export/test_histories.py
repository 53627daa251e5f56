"""Random histories survive export and import unchanged."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.testing import ManualClock
from recollect.types import Scope
from tests.budgets import limit_examples
from tests.embedders import HashEmbedder
from tests.flows.export.export_file import list_facts, read

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40).filter(
    str.strip
)
NAME = st.sampled_from(["s1", "s2", "ß 3"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c-d"]), inner, max_size=3),
    max_leaves=6,
)
METADATA = st.dictionaries(st.sampled_from(["a", "b", "other"]), JSON, max_size=3)
ACTION = st.one_of(
    st.tuples(st.just("fact"), TEXT, METADATA, st.none() | st.floats(0, 1)),
    st.tuples(st.just("keyed"), st.sampled_from(["Oslo", "Bergen"]), st.sampled_from(["k1", "k2"])),
    st.tuples(st.just("said"), TEXT, NAME, st.sampled_from(["Mina", None])),
    st.tuples(st.just("search"), TEXT),
    st.tuples(st.just("turn"), TEXT, TEXT, NAME, METADATA),
    st.tuples(st.just("talk"), TEXT, NAME, st.integers(20, 40)),
    st.tuples(st.just("episode"), TEXT, NAME, st.sampled_from(["turn", "tool_call", "decision", "error", "outcome"])),
    st.tuples(st.just("procedure"), TEXT, st.sampled_from(["p.1", "p.2"])),
    st.tuples(st.just("outcome"), st.sampled_from(["p.1", "p.2"]), st.booleans(), st.none() | TEXT),
    st.tuples(st.just("retire"), st.sampled_from(["p.1", "p.2"])),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(0, 10**11)),
    st.tuples(st.just("task"), TEXT),
    st.tuples(st.just("tidy"), NAME, TEXT),
)  # fmt: skip


async def act(memory: AgentMemory, clock: ManualClock, action: tuple[Any, ...]) -> None:  # noqa: C901 - a list of cases
    match action:
        case ("fact", text, metadata, importance):
            await memory.remember(text, metadata=metadata, importance=importance)
        case ("keyed", text, key):
            await memory.remember(text, key=key)
        case ("said", text, session, speaker):
            await memory.remember(text, session=session, speaker=speaker)
        case ("search", text):
            await memory.semantic.search(text, min_relevance=0.0)
        case ("turn", user, assistant, session, metadata):
            await memory.scoped(session=session).record_turn(user, assistant, metadata=metadata)
        case ("talk", text, session, times):
            for n in range(times):
                await memory.scoped(session=session).conversation.add_message("user", f"{text} {n}")
        case ("episode", text, session, kind):
            await memory.episodic.store(text, session=session, kind=kind)
        case ("procedure", text, key):
            await memory.procedural.save(key, text)
        case ("outcome", key, success, note):
            if await memory.procedural.get(key):
                await memory.procedural.record_outcome(key, success, note=note)
        case ("retire", key):
            await memory.procedural.retire(key)
        case ("forget", place):
            facts = await list_facts(memory)
            if place < len(facts):
                await memory.forget(facts[place].id)
        case ("wait", micros):
            clock.forward(timedelta(microseconds=micros))
        case ("tidy", session, text):
            await memory.scoped(session=session).record_turn(f"Please remember that {text} is in Lisbon.")
            await memory.lifecycle.run_once()
        case ("task", text):
            memory.working.set_task(text)


@limit_examples(0.6)
@given(actions=st.lists(ACTION, min_size=1, max_size=14))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_random_history_survives_export_and_import(
    kind: str, actions: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
):
    directory = tmp_path_factory.mktemp("round-trip")

    async def round_trip() -> None:
        clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
        options: dict[str, Any] = {"user": "ada", "embedder": HashEmbedder(), "clock": clock}
        async with AgentMemory.open("memory://", **options) as memory:
            for action in actions:
                await act(memory, clock, action)
            await memory.export(directory / "a.jsonl")
        store = "memory://" if kind == "memory" else str(directory / "fresh.db")
        async with AgentMemory.open(store, **options) as fresh:
            await fresh.import_from(directory / "a.jsonl")
            await fresh.export(directory / "b.jsonl")
            assert (directory / "b.jsonl").read_bytes() == (directory / "a.jsonl").read_bytes()
            again = await fresh.import_from(directory / "a.jsonl")
            assert sum(again.added.values()) == 0
            await fresh.export(directory / "c.jsonl")
            assert (directory / "c.jsonl").read_bytes() == (directory / "a.jsonl").read_bytes()
            assert await fresh.check() == []

    asyncio.run(round_trip())


def test_header_contains_only_version_and_scope(tmp_path: Path):
    async def export() -> None:
        async with AgentMemory.open("memory://", user="ada", tenant="acme", embedder=HashEmbedder()) as memory:
            await memory.export(tmp_path / "a.jsonl")

    asyncio.run(export())
    assert read(tmp_path / "a.jsonl") == [
        {"recollect-export": 1, "scope": {"tenant": "acme", "user": "ada", "agent": Scope().agent}},
        {"end": 0},
    ]
