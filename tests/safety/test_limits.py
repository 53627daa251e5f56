"""Every limit there is: what is just within it is taken, and what is beyond it is refused by an error that names it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, BadQuery
from recollect.settings import Settings
from recollect.stores.where import Condition, parse_where
from tests.flows.conftest import Opener
from tests.safety.hostile import deep


@pytest.fixture
def place() -> str:
    """The rules are above the stores, and the same on each."""
    return "memory://"


Call = Callable[[AgentMemory], Awaitable[Any]]


def text(size: int) -> str:
    return "x" * size


def nested(levels: int) -> Any:
    return {"a": deep(levels - 1)}


# What is limited: a call within, one beyond, and what the error says of it.
LIMITS: dict[str, tuple[Call, Call, str]] = {
    "a fact": (lambda m: m.remember(text(5_000)), lambda m: m.remember(text(5_001)), "max_content is 5,000"),
    "one of many": (
        lambda m: m.semantic.add_many([{"content": text(5_000)}]),
        lambda m: m.semantic.add_many([{"content": "fine"}, {"content": text(5_001)}]),
        "max_content is 5,000",
    ),
    "a message": (
        lambda m: m.conversation.add_message("user", text(5_000)),
        lambda m: m.conversation.add_message("user", text(5_001)),
        "max_content is 5,000",
    ),
    "an episode": (
        lambda m: m.episodic.store(text(5_000)),
        lambda m: m.episodic.store(text(5_001)),
        "max_content is 5,000",
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
        "at most 32",
    ),
    "a state": (
        lambda m: m.checkpoints.checkpoint("t", {"a": text(9_900)}),
        lambda m: m.checkpoints.checkpoint("t", {"a": text(10_000)}),
        "max_state is 10,000",
    ),
    "the depth of a state": (
        lambda m: m.checkpoints.checkpoint("t", nested(200)),
        lambda m: m.checkpoints.checkpoint("t", nested(201)),
        "more than 200 deep",
    ),
    "the id of a task": (
        lambda m: m.checkpoints.checkpoint(text(512), {}),
        lambda m: m.checkpoints.checkpoint(text(513), {}),
        "at most 512",
    ),
    "the depth of metadata": (
        lambda m: m.remember("x", metadata=nested(64)),
        lambda m: m.remember("x", metadata=nested(65)),
        "more than 64 deep",
    ),
    "the values of metadata": (
        lambda m: m.remember("x", metadata={"a": [0] * 99_000}),
        lambda m: m.remember("x", metadata={"a": [0] * 100_001}),
        "more than 100,000 values",
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
        "at most 1,000,000",
    ),
    "how many are listed": (
        lambda m: m.semantic.page(1_000_000),
        lambda m: m.semantic.page(1_000_001),
        "at most 1,000,000",
    ),
    "how many messages": (
        lambda m: m.conversation.get_last_n(1_000_000),
        lambda m: m.conversation.get_last_n(10**30),
        "at most 1,000,000",
    ),
    "a budget": (lambda m: m.recall("x", budget=1), lambda m: m.recall("x", budget=0), "from 1"),
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
    "something in mind": (
        lambda m: m.working.add(text(1_000_000)),
        lambda m: m.working.add(text(1_000_001)),
        "1,000,000",
    ),
    "a path": (
        lambda m: m.semantic.page(),
        lambda m: m.export(text(300)),
        "a name in it 220",
    ),
    "a name of a scope": (
        lambda m: m.scoped(user=text(256)).semantic.page(),
        lambda m: _raised(lambda: m.scoped(user=text(257))),
        "at most 256",
    ),
}


async def _raised(call: Callable[[], Any]) -> None:
    call()


@pytest.mark.parametrize("limit", LIMITS)
async def test_beyond_a_limit_it_is_refused_by_name(limit: str, opener: Opener):
    """Mutants: each of the limits off by one; that of a state, of the values of metadata and of a path left out."""
    within, beyond, says = LIMITS[limit]
    settings = Settings(max_content=5_000, max_state=10_000)
    memory = await opener(store="memory://", user="ada", session="s", settings=settings)
    await within(memory)
    with pytest.raises((BadInput, BadQuery), match=says):
        await beyond(memory)


def test_a_path_has_at_most_eight_steps():
    assert parse_where({".".join("abcdefgh"): 1}) == (Condition("a.b.c.d.e.f.g.h", "eq", 1),)
    with pytest.raises(BadQuery, match="not a path"):
        parse_where({".".join("abcdefghi"): 1})
