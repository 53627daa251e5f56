"""A real language model, end to end: llama.cpp's server, OpenAI's client, our provider, a memory's summary.

Slow, and in an environment of its own: `make soak` sets that up and runs this.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect import Settings, WorkingMemory
from recollect.models.chat import ChatMessage, ToolSpec
from recollect.models.factory import open_chat, open_llm
from recollect.models.usage import UsageLedger

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = os.environ.get("REAL_MODEL_PYTHON", str(ROOT / ".venv-model" / "bin" / "python"))
WAITS = Settings(llm_timeout=600)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The name of a model that runs in a process of its own for as long as these tests."""
    serve = Path(__file__).with_name("serve.py")
    with subprocess.Popen(
        [PYTHON, str(serve)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        yield f"openai:smollm2@{address}/v1"
        process.stdin.close()
        process.terminate()  # its threads outlive the end of its input


async def test_it_speaks_and_is_heard_while_it_does(model: str):
    ledger = UsageLedger(tokens=100_000)
    chat = open_chat(model, WAITS, ledger=ledger)
    heard: list[str] = []
    try:
        reply = await chat.reply(
            [
                ChatMessage("user", "My name is Ada."),
                ChatMessage("assistant", "Hello Ada."),
                ChatMessage("user", "Hi!"),
            ],
            system="You are a friendly assistant. Answer in one short sentence.",
            tools=[ToolSpec("now", "Tell the time.", {"type": "object", "properties": {}})],
            on_text=heard.append,
        )
    finally:
        await chat.close()
    assert "".join(heard) == reply.text
    assert reply.text.strip() or reply.tool_calls
    assert reply.stop in ("end", "length", "tools")
    [spent] = ledger.by_model
    assert (spent.model, spent.calls, spent.usd) == ("openai:smollm2", 1, 0.0)
    assert spent.read > 20
    assert 1 <= spent.written <= 48


async def test_a_memory_has_its_summary_written_by_it(model: str):
    llm = open_llm(model, WAITS)
    assert llm is not None
    working = WorkingMemory(max_tokens=400, keep_recent=1, llm=llm)
    try:
        for n in range(18):
            await working.add(
                f"Step {n}: the ledger service was moved to port {7000 + n} because the old one was taken."
            )
    finally:
        await llm.close()
    assert working.summaries
    assert not [warning for warning in working.warnings if "offline" in warning and "shortened" not in warning]
