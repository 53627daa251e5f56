"""Histories for working memory: messages and tool exchanges in every shape, and test models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import strategies as st


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def make_varied_text(words: str, sentences: int = 1000) -> str:
    """Return a long text without repeated sentences."""
    return " ".join(f"{words} number {number}." for number in range(sentences))


def openai_exchange(names: list[str], answer: str, argument: str = "x") -> list[dict[str, Any]]:
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": argument})}}
        for name in names
    ]
    return [
        message("assistant", None, tool_calls=calls),
        *(message("tool", f"{name}: {answer}", tool_call_id=name) for name in names),
    ]


def anthropic_exchange(names: list[str], answer: str, argument: str = "x") -> list[dict[str, Any]]:
    return [
        message(
            "assistant",
            [{"type": "text", "text": "Let me look."}]
            + [{"type": "tool_use", "id": name, "name": "look", "input": {"q": argument}} for name in names],
        ),
        message(
            "user",
            [{"type": "tool_result", "tool_use_id": name, "content": f"{name}: {answer}"} for name in names],
        ),
    ]


def responses_exchange(names: list[str], answer: str, argument: str = "x") -> list[dict[str, Any]]:
    call = {"type": "function_call", "name": "look", "arguments": json.dumps({"q": argument})}
    return [
        *({**call, "call_id": n} for n in names),
        *({"type": "function_call_output", "call_id": n, "output": f"{n}: {answer}"} for n in names),
    ]


EXCHANGES = [openai_exchange, anthropic_exchange, responses_exchange]


@st.composite
def histories(draw: st.DrawFn, longest: int = 1500) -> list[Any]:
    """Draw messages and tool exchanges of every shape and size, some of them interleaved with other messages."""
    history: list[Any] = []
    for number in range(draw(st.integers(1, 14))):
        words = min(longest, draw(st.sampled_from([1, 1, 3, 10, 40, 400, 1500])))
        body = f"m{number}x " + "The host 10.0.0.7 failed again. " * (words // 6) + "word " * (words % 6)
        kind = draw(st.sampled_from(["text", "message", "exchange", "exchange", "interleaved", "unanswered", "free"]))
        names = [f"call-{number}-{at}" for at in range(draw(st.integers(1, 4)))]
        exchange = draw(st.sampled_from(EXCHANGES))(names, body, body if draw(st.booleans()) else "x")
        match kind:
            case "text":
                history.append(body)
            case "message":
                history.append(message(draw(st.sampled_from(["user", "assistant", "system"])), body))
            case "exchange":
                history += exchange
            case "interleaved":
                for at, one in enumerate(exchange):
                    history += [one, *([f"m{number}y{at} meanwhile"] * draw(st.integers(0, 3)))]
            case "unanswered":
                history.append(exchange[0])
            case "free":
                history.append({"kind": "note", "data": {"text": body, "n": [1, 2, {"deep": None}]}})
    return history


def find_pairs(items: list[Any]) -> tuple[set[str], set[str]]:
    """Return the ids of all calls and all results, without using the tested code."""
    parts = [item for item in items if isinstance(item, dict)]
    parts += [block for item in parts if isinstance(item.get("content"), list) for block in item["content"]]
    calls = {call["id"] for part in parts for call in part.get("tool_calls") or ()}
    results = {part["tool_call_id"] for part in parts if "tool_call_id" in part}
    for kind, id, found in (
        ("tool_use", "id", calls),
        ("function_call", "call_id", calls),
        ("tool_result", "tool_use_id", results),
        ("function_call_output", "call_id", results),
    ):
        found |= {part[id] for part in parts if part.get("type") == kind}
    return calls, results


class SummaryModel:
    """Model that writes summaries and records its prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return f"Summary number {len(self.prompts)}: the host failed."


async def failing(prompt: str) -> str:
    raise RuntimeError(prompt)


async def hanging(prompt: str) -> str:
    await asyncio.Event().wait()
    return ""


async def rambling(prompt: str) -> str:
    await asyncio.sleep(0)  # lets concurrent adds run
    return make_varied_text("As I said", 200)


async def silent(prompt: str) -> str:
    return " "


MODELS: dict[str, Any] = {"none": None, "failing": failing, "hanging": hanging, "rambling": rambling, "silent": silent}
