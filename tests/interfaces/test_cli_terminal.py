"""The command line at a real terminal: bars on long work, none for a program, and colours only where wanted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pexpect
import pytest

from recollect.sync import AgentMemory
from tests.embedders import HashEmbedder
from tests.interfaces.running import OK, PLAIN, RECOLLECT, USAGE, Call, caller

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


def seen(directory: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """What somebody at a terminal sees of a command, with all that drives the terminal."""
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
    """A store to export from, the export, one of another model, and something to evaluate."""
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
        ("exporting", ["export", "{}.jsonl"]),
        ("importing", ["import", "all.jsonl", "--store", "{}.db"]),
        ("embedding", ["reembed", "minilm", "--store", "hashed.db"]),
        ("comparing", ["consolidate", "--plan"]),
        ("sweep", ["lifecycle", "--plan"]),
        ("storing turns", ["eval", "locomo", "locomo.json"]),
    ],
)
def test_long_work_has_a_bar_for_people_and_none_for_programs(place: Path, bar: str, arguments: list[str]):
    code, shown = seen(place, *(one.format("people") for one in arguments))
    assert code == OK, shown
    assert bar in shown
    code, told = seen(place, *(one.format("programs") for one in arguments), "--json")
    assert code == OK, told
    assert bar not in told
    assert json.loads(told)


def test_a_search_has_neither_bar_nor_colour(place: Path):
    code, shown = seen(place, "recall", "which colour has parcel 7?", "-n", "1")
    assert code == OK
    assert shown.startswith("## Relevant knowledge\r\n- The parcel")
    assert "\x1b" not in shown


def test_colours_are_left_out_on_request(place: Path):
    assert "\x1b[" in seen(place, "--help")[1]
    assert "\x1b[3" not in seen(place, "--help", NO_COLOR="1", TERM="dumb")[1]


def test_an_evaluation_may_keep_its_store_and_overwrites_none(
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
