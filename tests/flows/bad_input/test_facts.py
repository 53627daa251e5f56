"""Bad input to `remember` and `add_many`: stored unchanged, or rejected with its path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from tests.cases import Case
from tests.embedders import HashEmbedder
from tests.flows.bad_input.strange import EAST, WEST

# All tests of a store share one memory: rejected input writes nothing, which each test checks.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def count_items(memory: AgentMemory) -> int:
    return (await memory.stats()).items


async def test_metadata_that_is_not_json_raises_with_its_path(furnished: AgentMemory):
    cases: dict[str, tuple[Any, str]] = {
        "object": ({"a": object()}, "metadata.a"),
        "set": ({"a": {"b": [1, {"c": {1, 2}}]}}, r"metadata\.a\.b\[1\]\.c"),
        "bytes": ({"a": b"bytes"}, "metadata.a"),
        "nan": ({"a": float("nan")}, "metadata.a"),
        "infinity": ({"a": [1.0, float("-inf")]}, r"metadata\.a\[1\]"),
        "tuple key": ({("tuple",): 1}, "metadata"),
        "huge number": ({"a": 10**5000}, "metadata.a"),
    }
    failures: list[str] = []
    for name, (metadata, path) in cases.items():
        before = await count_items(furnished)
        with Case(failures, name), pytest.raises(BadInput, match=path):
            await furnished.remember(f"x {name}", metadata=metadata)
        with Case(failures, name):
            assert await count_items(furnished) == before
    assert not failures, "\n".join(failures)


async def test_self_referencing_metadata_raises(furnished: AgentMemory):
    endless: dict[str, Any] = {}
    endless["again"] = endless
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    for metadata in (endless, {"deep": deep}):
        with pytest.raises(BadInput, match="metadata"):
            await furnished.remember("x", metadata=metadata)


async def test_metadata_depth_is_limited(furnished: AgentMemory):
    failures: list[str] = []
    for depth, kept in ((20, True), (64, True), (100, False), (900, False)):
        another = furnished.scoped(user=f"another {depth}")
        deep: Any = 1
        for _ in range(depth):
            deep = {"a": deep}
        with Case(failures, depth):
            if kept:
                assert dict((await another.remember("deep", metadata=deep)).metadata) == deep
            else:
                with pytest.raises(BadInput, match="deep"):
                    await another.remember("deep", metadata=deep)
    assert not failures, "\n".join(failures)


BAD_OPTIONS: list[dict[str, Any]] = [
        {"content": ""}, {"content": " \n"}, {"content": None}, {"content": 5}, {"content": b"x"}, {},
        {"importance": 2}, {"importance": -1}, {"importance": float("nan")}, {"importance": "high"},
        {"importance": True}, {"trust": 1.5}, {"trust": "much"}, {"key": 5}, {"key": ""}, {"key": " "},
        {"source": 5}, {"at": "2020-01-01"}, {"at": 2020}, {"valid_from": "now"}, {"valid_to": 5},
        {"at": datetime.min.replace(tzinfo=EAST)}, {"valid_to": datetime.max.replace(tzinfo=WEST)},
        {"metadata": "x"}, {"metadata": [("a", 1)]}, {"speaker": 5}, {"session": []}, {"no_such_option": 1},
        {"content": "half \ud800"}, {"key": "half \ud800"}, {"source": "\ud800"}, {"session": "\ud800"},
        {"metadata": {"a": "\ud800"}}, {"metadata": {"\ud800": 1}}, {"speaker": "\udfff", "session": "s"},
]  # fmt: skip


async def test_add_many_bad_option_raises_and_stores_nothing(furnished: AgentMemory):
    failures: list[str] = []
    for number, options in enumerate(BAD_OPTIONS):
        before = await count_items(furnished)
        fact = {"content": "x", **options} if options else {}
        with Case(failures, options), pytest.raises(BadInput):
            await furnished.semantic.add_many([{"content": f"good {number}"}, fact])
        with Case(failures, options):
            assert await count_items(furnished) == before
    assert not failures, "\n".join(failures)


async def test_add_many_without_dicts_raises(furnished: AgentMemory):
    bad: list[Any] = [None, 5, "text", ["text"], [None], [["content", "x"]], {"content": "x"}]
    failures: list[str] = []
    for facts in bad:
        with Case(failures, facts), pytest.raises(BadInput):
            await furnished.semantic.add_many(facts)
    assert not failures, "\n".join(failures)


async def test_valid_to_before_valid_from_raises(furnished: AgentMemory):
    day = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(BadInput, match="before"):
        await furnished.remember("x", valid_from=day, valid_to=day - timedelta(days=1))


async def test_content_beyond_max_content_raises(furnished: AgentMemory):
    with pytest.raises(BadInput, match="max_content"):
        await furnished.remember("x" * 1_000_001)


async def test_invalid_scope_name_raises():
    names: list[Any] = ["", " ", "x" * 257, "a\x00b", None, 5]
    failures: list[str] = []
    for name in names:
        with Case(failures, name), pytest.raises(BadInput):
            AgentMemory.open("memory://", user=name)
    assert not failures, "\n".join(failures)


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
