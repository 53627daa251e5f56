"""The tool agent example in real processes, one of which crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.wire.script import Call, Say
from tests.wire.server import Wire

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tool_agent.py"


def run(*arguments: str, code: int = 0) -> list[str]:
    completed = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == code, f"ended with {completed.returncode}\n{completed.stdout}{completed.stderr}"
    return completed.stdout.splitlines()


def orders(directory: Path) -> list[str]:
    lines = (directory / "orders.txt").read_text("utf-8").splitlines()
    return [line.split(" ", 1)[1] for line in lines]


def test_example_agent_resumes_after_a_crash_and_orders_nothing_twice(tmp_path: Path):
    # Mutant: a key that depends on the attempt. Mutant: results are not stored.
    first = run(str(tmp_path), "--power-cut", "2", code=1)
    assert first[:2] == ["[count] 3", "[count] 2"]
    assert sorted(orders(tmp_path)) == ["4 filters", "9 beans"]
    second = run(str(tmp_path))
    assert second[0] == "(goes on where it stopped)"
    assert "[count] 3" not in second
    assert second[-1] == "Done: 9 beans ordered, 4 filters ordered."
    assert sorted(orders(tmp_path)) == ["4 filters", "9 beans"]
    assert run(str(tmp_path)) == ["Done: 9 beans ordered, 4 filters ordered."]


def test_example_agent_runs_with_a_model(tmp_path: Path):
    with Wire(Say(calls=(Call("count", {"item": "beans"}),)), Say("There are 3 of 12.")) as wire:
        lines = run(str(tmp_path), "--model", f"openai:some-model@{wire.openai}")
        assert lines == ["[count] 3", "There are 3 of 12."]
        assert "12 beans and 6 filters" in str(wire.requests[0].body["messages"])
