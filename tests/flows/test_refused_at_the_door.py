"""What nobody can mean, refused where it comes in: each time with a typed error that says what to do instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from recollect import AgentMemory, BadInput, BadSettings
from recollect.values import Scope
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
    ids=["text", "number", "datetime", "returns 5", "returns None", "returns a text", "naive", "wants an argument"],
)
async def test_a_clock_that_does_not_tell_the_time_is_refused(clock: Any):
    with pytest.raises(BadSettings, match=r"clock.*datetime\.now\(UTC\)"):
        await AgentMemory.open("memory://", embedder=HashEmbedder(), clock=clock)


async def test_a_clock_of_any_time_zone_will_do():
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    async with AgentMemory.open("memory://", embedder=HashEmbedder(), clock=lambda: noon) as memory:
        assert (await memory.remember("Tea at noon.")).created_at == noon


@pytest.mark.parametrize("name", CONTROLS, ids=ascii)
def test_the_names_of_a_scope_have_no_control_characters(name: str):
    for part in ("tenant", "user", "agent", "session"):
        with pytest.raises(BadInput, match=f"the {part} of a scope has at most 256 characters and no control"):
            Scope(**{part: name})
    with pytest.raises(BadInput, match="control characters"):
        AgentMemory.open("memory://", user=name)


@pytest.mark.parametrize("name", CONTROLS, ids=ascii)
async def test_source_and_speaker_have_no_control_characters(memory: AgentMemory, name: str):
    for options in ({"source": name}, {"speaker": name, "session": "s"}, {"session": name, "speaker": "Ada"}):
        with pytest.raises(BadInput, match="control characters"):
            await memory.remember("x", **options)  # type: ignore[arg-type]
    assert (await memory.stats()).items == 0


async def test_a_source_is_a_name_and_no_document(memory: AgentMemory):
    with pytest.raises(BadInput, match="a source has at most 256 characters, not 257"):
        await memory.remember("x", source="s" * 257)
    assert (await memory.remember("x", source="s" * 256)).source == "s" * 256


@pytest.mark.parametrize("metadata", [{1: "a"}, {"a": {None: 1}}, {"a": [{True: 1}]}, {2.5: 1}], ids=str)
async def test_a_key_of_metadata_is_a_text(memory: AgentMemory, metadata: Any):
    """JSON would make `{1: …}` into `{"1": …}`, and then nothing is found under 1."""
    with pytest.raises(BadInput, match="a key is a text"):
        await memory.remember("x", metadata=metadata)
    with pytest.raises(BadInput, match="a key is a text"):
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
async def test_of_many_the_bad_one_is_named(memory: AgentMemory, bad: Any):
    with pytest.raises(BadInput, match=r"^facts\[2\]: "):
        await memory.semantic.add_many([{"content": "fine"}, {"content": "fine too"}, bad, {"content": "fine as well"}])
    assert (await memory.stats()).items == 0


async def test_one_alone_needs_no_number(memory: AgentMemory):
    with pytest.raises(BadInput, match=r"^(?!facts)"):
        await memory.remember("x", importance=7)


async def test_what_contains_itself_is_refused_in_few_words(memory: AgentMemory):
    circle: dict[str, Any] = {}
    circle["again"] = circle
    with pytest.raises(BadInput, match="contains itself") as refused:
        await memory.record_turn("x", tool_calls=[{"name": "draw", "arguments": circle}])
    assert len(str(refused.value)) < 200
