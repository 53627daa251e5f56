"""The examples, run as their docstrings say: in processes, with files, MiniLM and a server on loopback."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire.script import Call, Request, Say
from tests.wire.server import Wire

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(example: str, *arguments: str, cwd: Path, typed: str = "", code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *arguments],
        cwd=cwd,
        # Keys and settings of the machine that runs the tests must not change the result.
        env={name: value for name, value in os.environ.items() if not re.match("RECOLLECT_|OPENAI_|ANTHROPIC_", name)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, f"{example} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_minimal_chat_recalls_messages_of_the_previous_run(tmp_path: Path):
    said = "My dog is called Biscuit and she is afraid of thunder.\nI live in Graz.\n"
    assert run("minimal_chat.py", cwd=tmp_path, typed=said).count("nothing yet") == 2
    answer = run("minimal_chat.py", cwd=tmp_path, typed="What is my dog called?\n\nnot read any more\n")
    assert re.search(
        r"^- My dog is called Biscuit and she is afraid of thunder\. \(\d{4}-\d\d-\d\d\)$", answer, re.MULTILINE
    )
    assert "nothing yet" in run("minimal_chat.py", "--user", "bob", cwd=tmp_path, typed="What is my dog called?\n")


def test_minimal_chat_with_model_sends_earlier_messages(tmp_path: Path):
    with Wire(Say("A lovely name."), Say("Biscuit.")) as wire:
        model = f"openai:small@{wire.openai}"
        output = run("minimal_chat.py", "--model", model, cwd=tmp_path, typed="My dog is called Biscuit.\n")
        asked = run("minimal_chat.py", "--model", model, cwd=tmp_path, typed="What is my dog called?\n")
        assert (output, asked) == ("A lovely name.\n", "Biscuit.\n")
        assert "My dog is called Biscuit." in read_prompt(wire.requests[-1])
        assert wire.unexpected == 0


def read_prompt(request: Request) -> str:
    """Return the contents of all messages of a request."""
    return "\n".join(str(message["content"]) for message in request.body["messages"])


def test_pipeline_killed_during_charge_resumes_and_charges_once(tmp_path: Path):
    # Mutants: a completed step is not skipped; the idempotency key depends on the attempt.
    first = run("resumable_pipeline.py", "kept", "--power-cut", "2", cwd=tmp_path, code=1)
    assert first.splitlines()[-1].split() == ["started", "step_3_charge"]
    second = run("resumable_pipeline.py", "kept", cwd=tmp_path)
    assert re.findall(r"skipped +(\w+)", second) == ["step_0_read", "step_1_price", "step_2_charge"]
    assert re.findall(r"started +(\w+)", second) == ["step_3_charge", "step_4_charge", "step_5_report"]
    assert second.splitlines()[-1] == "3 orders, 108 in all"
    charges = (tmp_path / "kept" / "charges.txt").read_text("utf-8").splitlines()
    assert [line.split(" ", 1)[1] for line in charges] == ["ada paid 36", "bob paid 12", "cem paid 60"]
    third = run("resumable_pipeline.py", "kept", cwd=tmp_path)
    assert re.findall(r"started +(\w+)", third) == []
    assert third.splitlines()[-1] == "3 orders, 108 in all"


def test_multi_user_service_returns_only_each_users_facts(tmp_path: Path):
    # Mutant: `scoped` ignores the user.
    for store in ("memory://", "service.db"):
        output = run("multi_user_service.py", "--users", "20", "--store", store, cwd=tmp_path)
        assert "20 of them were told their own home and nothing else" in output
        assert "user-1: I live in Kyoto, flat 1." in output
        assert "user-2: I live in Porto, flat 101." in output


def test_local_model_calls_tool_and_receives_memories(tmp_path: Path):
    wanted = Say(calls=(Call("weather", {"city": "Porto"}),))
    with Wire(wanted, Say("18 °C (64 °F) and light rain in Porto.")) as wire:
        task = "Which degrees should the temperature in Porto be given in?"
        output = run("local_model.py", "--url", wire.openai, "--model", "tiny", task, cwd=tmp_path)
        assert output.splitlines() == [
            "[weather(Porto) → Porto: 18 °C, light rain]",
            "18 °C (64 °F) and light rain in Porto.",
        ]
        first, second = wire.requests
        assert first.body["model"] == "tiny"
        assert "weather" in {tool["function"]["name"] for tool in first.body["tools"]}
        assert "degrees Fahrenheit" in read_prompt(first)
        assert "Porto: 18 °C, light rain" in read_prompt(second)


def test_json_store_counts_items_of_its_file(tmp_path: Path):
    assert "items=0" in run("json_store.py", cwd=tmp_path)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda example: example.name)
def test_example_is_documented_listed_and_short(example: Path):
    docstring = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    assert docstring.partition("\n\n")[0].endswith(".")
    assert f"python examples/{example.name}" in docstring
    assert f"]({example.name})" in (EXAMPLES / "README.md").read_text("utf-8")
    # A backend implements 16 methods; tests/contract/test_example_backend.py limits it.
    if example.name != "json_store.py":
        assert len(example.read_text("utf-8").splitlines()) <= 120, "an example has at most 120 lines"


def test_examples_readme_lists_required_arguments():
    # Mutant: an example fails with "the following arguments are required" when it is started as listed.
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        needed = re.findall(r'add_argument\("([a-z]+)"', example.read_text(encoding="utf-8"))
        [row] = [line for line in listed.splitlines() if line.startswith(f"| [{example.name}]")]
        head = row.split(" | ")[0]
        assert [word.strip('"').lower() for word in re.findall(r"`([^`]+)`", head)] == needed
