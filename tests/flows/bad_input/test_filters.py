"""Bad filters: rejected by name, or without matches."""

from __future__ import annotations

import math
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadQuery
from tests.cases import Case
from tests.flows.bad_input.strange import is_answered

# All tests of a store share one memory: rejected input writes nothing, which each test checks.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_unknown_path_error_lists_known_paths(furnished: AgentMemory):
    with pytest.raises(BadQuery, match=r"'rooom'.*room"):
        await furnished.recall("cello", where={"rooom": 3})


async def test_unknown_path_in_an_empty_memory_matches_nothing(furnished: AgentMemory):
    assert not await furnished.scoped(user="nobody").recall("cello", where={"room": 3})


async def test_hostile_path_raises_bad_query(furnished: AgentMemory):
    keys: list[Any] = [
        *("room') or 1=1 --", "room'; drop table records; --", 'room"', "$.room", "room[0]", "room.", ".room", ""),
        *(" room", "room\n", "room\x00", "r\ud800m", "a" * 65, ".".join("a" * 9), "räum", "room floor", "*", "%"),
        *(None, 3, ("room",), b"room"),
    ]
    failures: list[str] = []
    for key in keys:
        with Case(failures, key), pytest.raises(BadQuery, match="path"):
            await furnished.recall("cello", where={key: 3})
        with Case(failures, key):
            assert (await furnished.stats()).items == 3
    assert not failures, "\n".join(failures)


async def test_hostile_value_raises_bad_query(furnished: AgentMemory):
    values: list[Any] = [
        float("nan"),
        2**63, -(2**63) - 1, b"bytes", object(), {"like": "%"}, {"gte": None}, {"gt": True}, {"in": 3},
        {"in": "abc"}, {"eq": {"eq": 1}}, {"in": list(range(2000))}, {5: 3}, {"eq": [1]},
    ]  # fmt: skip
    failures: list[str] = []
    for value in values:
        with Case(failures, value), pytest.raises(BadQuery):
            await furnished.recall("cello", where={"room.floor": value})
    assert not failures, "\n".join(failures)


async def test_unusual_value_matches_nothing(furnished: AgentMemory):
    values: list[Any] = [
        *("' or 1=1 --", "%", "\x00", math.inf, -math.inf, 2**63 - 1, None, True, [], "", "x" * 100_000),
    ]
    failures: list[str] = []
    for value in values:
        with Case(failures, value):
            assert await furnished.semantic.search("cello", where={"room.floor": value}, min_relevance=0.0) == []
    assert not failures, "\n".join(failures)


async def test_lone_surrogate_in_a_filter_raises_or_matches_nothing(furnished: AgentMemory):
    for where in ({"room.floor": "\ud800"}, {"source": "\ud800"}, {"room.floor": ["\ud800"]}):
        await is_answered(furnished, "cello", where=where)


async def test_too_many_conditions_raise(furnished: AgentMemory):
    with pytest.raises(BadQuery, match="at most"):
        await furnished.recall("cello", where={f"a{n}": n for n in range(100)})
