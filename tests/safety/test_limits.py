"""Every limit: a value at the limit is accepted, and one beyond it raises an error that names the limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery
from recollect.settings import Settings
from recollect.stores.filters import Condition, parse_where
from tests.flows.conftest import Opener
from tests.safety.hostile_inputs import nest


@pytest.fixture
def place() -> str:
    """Use the in-memory store: limits are checked above the stores."""
    return "memory://"


Call = Callable[[AgentMemory], Awaitable[Any]]


def text(size: int) -> str:
    return "x" * size


def nested(levels: int) -> Any:
    return {"a": nest(levels - 1)}


# For each limit: a call at the limit, a call beyond it, and the error message.
LIMITS: dict[str, tuple[Call, Call, str]] = {
    "a fact": (lambda m: m.remember(text(5_000)), lambda m: m.remember(text(5_001)), "content must have at most 5,000"),
    "one of many": (
        lambda m: m.semantic.add_many([{"content": text(5_000)}]),
        lambda m: m.semantic.add_many([{"content": "fine"}, {"content": text(5_001)}]),
        "content must have at most 5,000",
    ),
    "a message": (
        lambda m: m.conversation.add_message("user", text(5_000)),
        lambda m: m.conversation.add_message("user", text(5_001)),
        "content must have at most 5,000",
    ),
    "an episode": (
        lambda m: m.episodic.store(text(5_000)),
        lambda m: m.episodic.store(text(5_001)),
        "content must have at most 5,000",
    ),
    "a turn": (lambda m: m.record_turn(text(5_000)), lambda m: m.record_turn(text(5_001)), "5,000"),
    "a procedure": (
        lambda m: m.procedural.save("p", text(5_000)),
        lambda m: m.procedural.save("p", text(5_001)),
        "at most 5,000",
    ),
    "a description": (
        lambda m: m.procedural.save("p", "b", description=text(4_000)),
        lambda m: m.procedural.save("p", "b", description=text(4_001)),
        "at most 4,000",
    ),
    "tags": (
        lambda m: m.procedural.save("p", "b", tags=[f"t{n}" for n in range(32)]),
        lambda m: m.procedural.save("p", "b", tags=[f"t{n}" for n in range(33)]),
        "tags must be a whole number from 0 to 32; got 33",
    ),
    "a state": (
        lambda m: m.checkpoints.checkpoint("t", {"a": text(9_900)}),
        lambda m: m.checkpoints.checkpoint("t", {"a": text(10_000)}),
        "max_state is 10,000",
    ),
    "the depth of a state": (
        lambda m: m.checkpoints.checkpoint("t", nested(200)),
        lambda m: m.checkpoints.checkpoint("t", nested(201)),
        "more than 200 levels deep",
    ),
    "the id of a task": (
        lambda m: m.checkpoints.checkpoint(text(512), {}),
        lambda m: m.checkpoints.checkpoint(text(513), {}),
        "at most 512",
    ),
    "the depth of metadata": (
        lambda m: m.remember("x", metadata=nested(64)),
        lambda m: m.remember("x", metadata=nested(65)),
        "at most 64 levels deep",
    ),
    "the values of metadata": (
        lambda m: m.remember("x", metadata={"a": [0] * 99_000}),
        lambda m: m.remember("x", metadata={"a": [0] * 100_001}),
        "at most 100,000 values",
    ),
    "a key": (
        lambda m: m.remember("x", key=text(512)),
        lambda m: m.remember("x", key=text(513)),
        "at most 512",
    ),
    "a source": (
        lambda m: m.remember("x", source=text(256)),
        lambda m: m.remember("x", source=text(257)),
        "at most 256",
    ),
    "the id of a message": (
        lambda m: m.conversation.add_message("user", "x", id=text(256)),
        lambda m: m.conversation.add_message("user", "x", id=text(257)),
        "at most 256",
    ),
    "tool calls of a turn": (
        lambda m: m.record_turn("x", tool_calls=[{"name": "f", "arguments": {}}] * 1_000),
        lambda m: m.record_turn("x", tool_calls=({"name": "f", "arguments": {}} for _ in range(1_001))),
        "at most 1000",
    ),
    "a question": (lambda m: m.recall(text(20_000)), lambda m: m.recall(text(20_001)), "at most 20,000"),
    "how many are wanted": (
        lambda m: m.recall("x", 1_000_000),
        lambda m: m.recall("x", 1_000_001),
        "from 0 to 1,000,000",
    ),
    "how many are listed": (
        lambda m: m.semantic.page(1_000_000),
        lambda m: m.semantic.page(1_000_001),
        "from 0 to 1,000,000",
    ),
    "how many messages": (
        lambda m: m.conversation.get_last_n(1_000_000),
        lambda m: m.conversation.get_last_n(10**30),
        "from 0 to 1,000,000",
    ),
    "a budget": (lambda m: m.recall("x", budget=1), lambda m: m.recall("x", budget=0), "at least 1; got 0"),
    "conditions": (
        lambda m: m.recall("x", where={f"a{n}": 1 for n in range(32)}),
        lambda m: m.recall("x", where={f"a{n}": 1 for n in range(33)}),
        "at most 32",
    ),
    "choices": (
        lambda m: m.recall("x", where={"source": ["x"] * 1_000}),
        lambda m: m.recall("x", where={"source": ["x"] * 1_001}),
        "at most 1000",
    ),
    "a working memory item": (
        lambda m: m.working.add(text(1_000_000)),
        lambda m: m.working.add(text(1_000_001)),
        "1,000,000",
    ),
    "a path": (
        lambda m: m.semantic.page(),
        lambda m: m.export(text(300)),
        "220 bytes per name",
    ),
    "a name of a scope": (
        lambda m: m.scoped(user=text(256)).semantic.page(),
        lambda m: _call_sync(lambda: m.scoped(user=text(257))),
        "at most 256",
    ),
}


async def _call_sync(call: Callable[[], Any]) -> None:
    call()


@pytest.mark.parametrize("limit", LIMITS)
async def test_value_beyond_limit_is_rejected_with_the_limit(limit: str, opener: Opener):
    """Mutants: each limit is off by one; the limit of a state, of metadata values or of a path is removed."""
    within, beyond, message = LIMITS[limit]
    settings = Settings(max_content=5_000, max_state=10_000)
    memory = await opener(store="memory://", user="ada", session="s", settings=settings)
    await within(memory)
    with pytest.raises((BadInput, BadQuery), match=message):
        await beyond(memory)


def test_filter_path_has_at_most_eight_parts():
    assert parse_where({".".join("abcdefgh"): 1}) == (Condition("a.b.c.d.e.f.g.h", "eq", 1),)
    with pytest.raises(BadQuery, match="not a path"):
        parse_where({".".join("abcdefghi"): 1})
