"""The command line at a pseudo-terminal: progress bars for people only, and colors only if wanted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pexpect
import pytest

from recollect.sync import AgentMemory
from tests.cli.cli_runner import OK, PLAIN, RECOLLECT, USAGE, Call, caller
from tests.embedders import HashEmbedder

LOCOMO = [
    {
        "sample_id": "one",
        "conversation": {
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "I adopted a grey cat last week."},
                {"speaker": "Bo", "dia_id": "D1:2", "text": "The bakery closes at noon on Sundays."},
            ],
        },
        "qa": [{"question": "Which animal did Ada adopt?", "category": 4, "evidence": ["D1:1"]}],
    }
]


def run_at_terminal(directory: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run a command at a pseudo-terminal and return its exit code and its output with escapes."""
    terminal = pexpect.spawn(
        RECOLLECT,
        list(arguments),
        cwd=str(directory),
        env={**os.environ, **PLAIN, "COLUMNS": "100", "TERM": "xterm-256color", **environ},
        encoding="utf-8",
        timeout=120,
        dimensions=(40, 100),
    )
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert "Traceback" not in terminal.before
    return int(terminal.exitstatus), str(terminal.before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store, its export, a store of another model, and a dataset to evaluate."""
    directory = tmp_path_factory.mktemp("terminal")
    with AgentMemory.open(directory / "recollect.db") as memory:
        memory.semantic.add_many([{"content": f"The parcel {number} is blue."} for number in range(30)])
        memory.export(directory / "all.jsonl")
    with AgentMemory.open(directory / "hashed.db", embedder=HashEmbedder()) as memory:
        memory.remember("The parcel is blue.")
    (directory / "locomo.json").write_text(json.dumps(LOCOMO), "utf-8")
    return directory


@pytest.mark.parametrize(
    ("bar", "arguments"),
    [
        ("export", ["export", "{}.jsonl"]),
        ("import", ["import", "all.jsonl", "--store", "{}.db"]),
        ("reembed", ["reembed", "minilm", "--store", "hashed.db"]),
        ("consolidating", ["consolidate", "--plan"]),
        ("sweep", ["lifecycle", "--plan"]),
        ("storing turns", ["eval", "locomo", "locomo.json"]),
    ],
)
def test_progress_bar_is_shown_at_terminal_and_not_in_json(place: Path, bar: str, arguments: list[str]):
    code, shown = run_at_terminal(place, *(argument.format("people") for argument in arguments))
    assert code == OK, shown
    assert bar in shown
    code, output = run_at_terminal(place, *(argument.format("programs") for argument in arguments), "--json")
    assert code == OK, output
    assert bar not in output
    assert json.loads(output)


def test_recall_prints_no_progress_bar_and_no_color(place: Path):
    code, shown = run_at_terminal(place, "recall", "which colour has parcel 7?", "-n", "1")
    assert code == OK
    assert shown.startswith("## Relevant knowledge\r\n- The parcel")
    assert "\x1b" not in shown


def test_no_color_disables_color(place: Path):
    assert "\x1b[" in run_at_terminal(place, "--help")[1]
    assert "\x1b[3" not in run_at_terminal(place, "--help", NO_COLOR="1", TERM="dumb")[1]


def test_eval_keeps_its_store_and_overwrites_no_other(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    call: Call = caller(capsys, monkeypatch)
    measured = call(place, "eval", "locomo", "locomo.json", "--json", "--store", "kept.db").json
    assert measured["questions"] == 1
    assert measured["turn"]["recall@5"] == 1.0
    assert set(measured) >= {"turn", "session", "by_category", "latency_ms"}
    assert (place / "kept.db").is_file()
    again = call(place, "eval", "locomo", "locomo.json", "--store", "recollect.db")
    assert again.code == USAGE
    assert "exists already" in again.err
