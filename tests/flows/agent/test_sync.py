"""The blocking agent and the blocking prompt function."""

from __future__ import annotations

from pathlib import Path

from recollect import sync
from tests.embedders import HashEmbedder
from tests.flows.agent.scripted import Scripted, call, results, says, wants


def test_blocking_agent_runs_and_builds_the_prompt(tmp_path: Path):
    with sync.AgentMemory.open(tmp_path / "agent.db", embedder=HashEmbedder()) as memory:

        def note(text: str) -> str:
            """Store a note; tools are plain functions that may use the same memory."""
            return memory.remember(text).source

        model = Scripted(
            wants(call("note", text="Ada wants metric units.")), lambda messages: says(results(messages)[0])
        )
        pieces: list[str] = []
        with sync.AgentWithMemory(memory, [note], model=model, max_steps=5) as agent:
            assert agent.run("Note it.", task_id="t", on_text=pieces.append) == "user"
            assert agent.last_run is not None
            assert agent.last_run.stopped == "end"
        assert pieces[-1] == "user"
        assert sync.AgentWithMemory(memory, [note], Scripted()).run("Note it.", task_id="t") == "user"
        prompt = sync.create_memory_aware_prompt(memory, "Which units does Ada want?", include_history=False)
        assert "- Ada wants metric units. (" in prompt
