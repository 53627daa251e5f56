"""Invalid options: each raises a typed error that says what to do instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, BadSettings
from recollect.types import Scope
from tests.embedders import HashEmbedder

CONTROLS = ["a\nb", "a\tb", "a\x1b[31m", "a\x00b", "a\x7f", "a\x85b", "a\u2028b", "a\u2029b"]


@pytest.mark.parametrize(
    "clock",
    [
        "x",
        5,
        datetime(2026, 1, 1, tzinfo=UTC),
        lambda: 5,
        lambda: None,
        lambda: "2026-01-01",
        lambda: datetime(2026, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None),
        lambda moment: moment,
    ],
    ids=["text", "number", "datetime", "returns 5", "returns None", "returns a string", "naive", "takes an argument"],
)
async def test_open_with_invalid_clock_raises_bad_settings(clock: Any):
    with pytest.raises(BadSettings, match=r"clock.*datetime\.now\(UTC\)"):
        await AgentMemory.open("memory://", embedder=HashEmbedder(), clock=clock)


async def test_clock_in_any_time_zone_is_accepted():
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    async with AgentMemory.open("memory://", embedder=HashEmbedder(), clock=lambda: noon) as memory:
        assert (await memory.remember("Tea at noon.")).created_at == noon


@pytest.mark.parametrize("name", CONTROLS, ids=ascii)
def test_scope_name_with_control_characters_raises(name: str):
    for part in ("tenant", "user", "agent", "session"):
        with pytest.raises(BadInput, match=f"the {part} of a scope must not contain control characters"):
            Scope(**{part: name})
    with pytest.raises(BadInput, match="control characters"):
        AgentMemory.open("memory://", user=name)


@pytest.mark.parametrize("name", CONTROLS, ids=ascii)
async def test_source_and_speaker_with_control_characters_raise(memory: AgentMemory, name: str):
    for options in ({"source": name}, {"speaker": name, "session": "s"}, {"session": name, "speaker": "Ada"}):
        with pytest.raises(BadInput, match="control characters"):
            await memory.remember("x", **options)  # type: ignore[arg-type]
    assert (await memory.stats()).items == 0


async def test_source_longer_than_256_characters_raises(memory: AgentMemory):
    with pytest.raises(BadInput, match="source must have at most 256 characters; got 257"):
        await memory.remember("x", source="s" * 257)
    assert (await memory.remember("x", source="s" * 256)).source == "s" * 256


@pytest.mark.parametrize("metadata", [{1: "a"}, {"a": {None: 1}}, {"a": [{True: 1}]}, {2.5: 1}], ids=str)
async def test_metadata_with_non_string_keys_raises(memory: AgentMemory, metadata: Any):
    """JSON would turn `{1: …}` into `{"1": …}`, and a filter on 1 would find nothing."""
    with pytest.raises(BadInput, match="must have string keys"):
        await memory.remember("x", metadata=metadata)
    with pytest.raises(BadInput, match="must have string keys"):
        await memory.episodic.store("x", metadata=metadata)


@pytest.mark.parametrize(
    "bad",
    [
        {"content": ""},
        {"content": "x", "importance": 7},
        {"content": "x", "colour": "red"},
        {"content": "x", "speaker": "Ada"},
        {"content": "x" * 1_000_001},
        "no dict",
    ],
    ids=["empty", "importance", "option", "no session", "too long", "text"],
)
async def test_add_many_error_names_the_bad_fact(memory: AgentMemory, bad: Any):
    with pytest.raises(BadInput, match=r"^facts\[2\]: "):
        await memory.semantic.add_many([{"content": "fine"}, {"content": "fine too"}, bad, {"content": "fine as well"}])
    assert (await memory.stats()).items == 0


async def test_remember_error_has_no_index(memory: AgentMemory):
    with pytest.raises(BadInput, match=r"^(?!facts)"):
        await memory.remember("x", importance=7)


async def test_self_referencing_arguments_raise_a_short_error(memory: AgentMemory):
    circle: dict[str, Any] = {}
    circle["again"] = circle
    with pytest.raises(BadInput, match="contain itself") as refused:
        await memory.record_turn("x", tool_calls=[{"name": "draw", "arguments": circle}])
    assert len(str(refused.value)) < 200
