"""Bad input to `remember` and `add_many`: stored unchanged, or rejected with its path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from tests.embedders import HashEmbedder
from tests.flows.bad_input.strange import EAST, WEST

# All tests of a store share one memory: rejected input writes nothing, which each test checks.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"a": object()}, "metadata.a"),
        ({"a": {"b": [1, {"c": {1, 2}}]}}, r"metadata\.a\.b\[1\]\.c"),
        ({"a": b"bytes"}, "metadata.a"),
        ({"a": float("nan")}, "metadata.a"),
        ({"a": [1.0, float("-inf")]}, r"metadata\.a\[1\]"),
        ({("tuple",): 1}, "metadata"),
        ({"a": 10**5000}, "metadata.a"),
    ],
    ids=["object", "set", "bytes", "nan", "infinity", "tuple key", "huge number"],
)
async def test_metadata_that_is_not_json_raises_with_its_path(furnished: AgentMemory, metadata: Any, path: str):
    with pytest.raises(BadInput, match=path):
        await furnished.remember("x", metadata=metadata)
    assert (await furnished.stats()).items == 3


async def test_self_referencing_metadata_raises(furnished: AgentMemory):
    endless: dict[str, Any] = {}
    endless["again"] = endless
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    for metadata in (endless, {"deep": deep}):
        with pytest.raises(BadInput, match="metadata"):
            await furnished.remember("x", metadata=metadata)


@pytest.mark.parametrize(("depth", "kept"), [(20, True), (64, True), (100, False), (900, False)])
async def test_metadata_depth_is_limited(furnished: AgentMemory, depth: int, kept: bool):
    another = furnished.scoped(user="another")
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    if kept:
        assert dict((await another.remember("deep", metadata=deep)).metadata) == deep
    else:
        with pytest.raises(BadInput, match="deep"):
            await another.remember("deep", metadata=deep)


@pytest.mark.parametrize(
    "options",
    [
        {"content": ""}, {"content": " \n"}, {"content": None}, {"content": 5}, {"content": b"x"}, {},
        {"importance": 2}, {"importance": -1}, {"importance": float("nan")}, {"importance": "high"},
        {"importance": True}, {"trust": 1.5}, {"trust": "much"}, {"key": 5}, {"key": ""}, {"key": " "},
        {"source": 5}, {"at": "2020-01-01"}, {"at": 2020}, {"valid_from": "now"}, {"valid_to": 5},
        {"at": datetime.min.replace(tzinfo=EAST)}, {"valid_to": datetime.max.replace(tzinfo=WEST)},
        {"metadata": "x"}, {"metadata": [("a", 1)]}, {"speaker": 5}, {"session": []}, {"no_such_option": 1},
        {"content": "half \ud800"}, {"key": "half \ud800"}, {"source": "\ud800"}, {"session": "\ud800"},
        {"metadata": {"a": "\ud800"}}, {"metadata": {"\ud800": 1}}, {"speaker": "\udfff", "session": "s"},
    ],
    ids=str,
)  # fmt: skip
async def test_add_many_bad_option_raises_and_stores_nothing(furnished: AgentMemory, options: dict[str, Any]):
    fact = {"content": "x", **options} if options else {}
    with pytest.raises(BadInput):
        await furnished.semantic.add_many([{"content": "good"}, fact])
    assert (await furnished.stats()).items == 3


@pytest.mark.parametrize("facts", [None, 5, "text", ["text"], [None], [["content", "x"]], {"content": "x"}])
async def test_add_many_without_dicts_raises(furnished: AgentMemory, facts: Any):
    with pytest.raises(BadInput):
        await furnished.semantic.add_many(facts)


async def test_valid_to_before_valid_from_raises(furnished: AgentMemory):
    day = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(BadInput, match="before"):
        await furnished.remember("x", valid_from=day, valid_to=day - timedelta(days=1))


async def test_content_beyond_max_content_raises(furnished: AgentMemory):
    with pytest.raises(BadInput, match="max_content"):
        await furnished.remember("x" * 1_000_001)


@pytest.mark.parametrize("name", ["", " ", "x" * 257, "a\x00b", None, 5])
async def test_invalid_scope_name_raises(name: Any):
    with pytest.raises(BadInput):
        AgentMemory.open("memory://", user=name)


async def test_exponentially_nested_metadata_raises_at_once():
    unfolding: list[Any] = ["ha"]
    for _ in range(40):
        unfolding = [unfolding, unfolding]
    endless: list[Any] = []
    endless += [endless, endless]
    async with AgentMemory.open("memory://", embedder=HashEmbedder()) as memory:
        for metadata in ({"x": unfolding}, {"x": endless}):
            with pytest.raises(BadInput, match="levels deep"):
                await memory.remember("text", metadata=metadata)
