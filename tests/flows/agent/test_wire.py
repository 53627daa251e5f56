"""Agents with the official clients of Anthropic and OpenAI, against a fake server of their protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import tool
from recollect.errors import ModelFailed
from tests.wire.script import Call, Fail, Request, Reset, Say
from tests.wire.server import Wire


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _fake_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-test")
    for name in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as server:
        yield server


def model_of(wire: Wire, provider: str) -> str:
    return f"{provider}:some-model@{getattr(wire, provider)}"


def system_of(request: Request) -> str:
    """Return the system prompt of a request in either protocol."""
    given: Any = request.body.get("system") or [
        message for message in request.body["messages"] if message["role"] in ("system", "developer")
    ]
    return json.dumps(given, ensure_ascii=False)


def read_results(request: Request) -> dict[str, tuple[str, bool]]:
    """Return the tool results in a request by call id, each with its error flag."""
    results: dict[str, tuple[str, bool]] = {}
    for message in request.body["messages"]:
        if message["role"] == "tool":
            results[message["tool_call_id"]] = (str(message["content"]), "rror" in str(message["content"]))
        elif isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result":
                    results[block["tool_use_id"]] = (json.dumps(block["content"]), bool(block.get("is_error")))
    return results


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def fails() -> None:
    """Fail."""
    raise ConnectionError("Error: no route to host")


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
async def test_run_over_the_wire(memory: AgentMemory, wire: Wire, provider: str, streams: bool):
    # Mutants: results out of order; a result with the id of another call; the prompt without memory.
    await memory.remember("Ada wants sums in metric units.")
    wire.script(
        Fail(429, headers={"retry-after": "0"}),
        Say("Let me see.", calls=(Call("add", {"a": 2, "b": 3}, "c1"), Call("fails", {}, "c2"))),
        Say(calls=(Call("add", '{"a": 2, "b"', "c3"),)),
        Say("It is 5, in metric units.", read=50, written=7, cached=40),
    )
    pieces: list[str] = []
    async with AgentWithMemory(memory, [add, fails], model_of(wire, provider)) as agent:
        on_text = pieces.append if streams else None
        answer = await agent.run("Which units do sums have, and what is 2 + 3?", on_text=on_text)
    assert answer == "It is 5, in metric units."
    assert "".join(pieces) == ("Let me see.It is 5, in metric units." if streams else "")
    _, first, second, third = wire.requests
    assert system_of(first) == system_of(second) == system_of(third)
    assert "Ada wants sums in metric units." in system_of(first)
    results = read_results(third)
    assert results["c1"][0].strip('"') == "5"
    assert "no route to host" in results["c2"][0]
    assert results["c2"][1]
    assert "could not be read" in results["c3"][0]
    assert wire.unexpected == 0
    assert agent.last_run is not None
    assert agent.last_run.usage.written == 17
    assert [use.failed for step in agent.last_run.steps for use in step.tools] == [False, True, True]


async def test_run_is_resumed_over_the_wire(memory: AgentMemory, wire: Wire, provider: str):
    # Mutant: the reply is requested again.
    keys: list[str] = []

    @tool(source="system")
    def pay(amount: float, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        return f"paid {amount:g}"

    wire.script(Say(calls=(Call("pay", {"amount": 5}),)), Fail(400, "invalid_request_error", "no"))
    async with AgentWithMemory(memory, [pay], model_of(wire, provider)) as agent:
        with pytest.raises(ModelFailed):
            await agent.run("Pay five.", task_id="t")
    wire.script(Say("It is paid."))
    async with AgentWithMemory(memory, [pay], model_of(wire, provider)) as agent:
        assert await agent.run("Pay five.", task_id="t") == "It is paid."
    assert len(keys) == 1
    assert wire.requests[-1].body["messages"] == wire.requests[-2].body["messages"]
    assert "paid 5" in json.dumps(wire.requests[-1].body["messages"])


async def test_refusal_after_a_reset_connection_is_the_answer(memory: AgentMemory, wire: Wire, provider: str):
    wire.script(Reset(), Say("I cannot help with that.", stop="refusal"))
    async with AgentWithMemory(memory, model=model_of(wire, provider)) as agent:
        assert await agent.run("Do something bad.") == "I cannot help with that."
    assert agent.last_run is not None
    assert agent.last_run.stopped == "refusal"
    assert (await memory.episodic.get_recent(1))[0].metadata["success"] is False


async def test_agent_usage_is_counted_in_the_memory(memory: AgentMemory, wire: Wire, provider: str):
    wire.script(Say("Hello.", read=100, written=10))
    async with AgentWithMemory(memory, model=model_of(wire, provider)) as agent:
        await agent.run("Say hello.")
    [spent] = memory._engine.usage.by_model
    assert "some-model" in spent.model
    assert spent.calls == 1


async def test_max_steps_over_the_wire_disables_tool_choice(memory: AgentMemory, wire: Wire, provider: str):
    wire.script(Say(calls=(Call("add", {"a": 1, "b": 1}),)), Say("Two, so far."))
    async with AgentWithMemory(memory, [add], model_of(wire, provider), max_steps=1) as agent:
        assert await agent.run("Add for ever.") == "Two, so far."
    assert wire.requests[1].body["tools"] == wire.requests[0].body["tools"]
    assert "tool_choice" not in wire.requests[0].body
    assert "none" in str(wire.requests[1].body["tool_choice"])
