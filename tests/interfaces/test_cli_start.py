"""How the command line begins and ends: its help, its speed, completion, slips, interrupts and closed pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command

from recollect import __version__
from recollect.interfaces.cli.app import app
from tests.interfaces.running import INTERRUPTED, OK, PLAIN, RECOLLECT, USAGE, Call, caller, run

FRONT_DOOR = (
    "demo", "remember", "recall", "forget", "erase", "procedures", "tasks", "export", "import", "backup", "stats",
    "doctor", "reembed", "lifecycle", "chat", "eval", "config",
)  # fmt: skip
EVERYWHERE = ("--store", "--user", "--agent", "--session", "--tenant", "--json")
# They concern no store and nobody's memory.
ABOUT_THE_MACHINE = {("setup",), ("version",)}
HEAVY = ("numpy", "onnxruntime", "onnx", "apsw", "simsimd", "anthropic", "openai")
LOOK = f"""
import sys
from recollect.interfaces.cli import main
try:
    main()
except SystemExit as ended:
    print("ended with", ended.code, "after loading", [name for name in {HEAVY!r} if name in sys.modules])
"""


def paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command with something to do."""
    if not isinstance(command, click.Group):
        yield path
        return
    for name, inner in command.commands.items():
        yield from paths(inner, *path, name)


COMMANDS = list(paths(get_command(app)))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


class TestHelp:
    def test_it_names_every_command_of_the_front_door_in_the_order_one_meets_them(self, tmp_path: Path, call: Call):
        said = call(tmp_path, "--help").out
        found = re.findall(r"^│ ([a-z]+)  ", said, re.MULTILINE)
        assert set(FRONT_DOOR) <= set(found)
        assert found[:4] == ["demo", "chat", "remember", "recall"]

    @pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
    def test_every_command_says_what_it_does_and_has_the_same_options(
        self, tmp_path: Path, call: Call, path: tuple[str, ...]
    ):
        done = call(tmp_path, *path, "--help", COLUMNS="200")
        assert done.code == OK
        for option in ("--json",) if path in ABOUT_THE_MACHINE else EVERYWHERE:
            assert option in done.out
        assert done.out == call(tmp_path, *path, "-h").out

    @pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
    def test_every_option_and_argument_has_a_word_said_about_it(self, path: tuple[str, ...]):
        command = get_command(app)
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert (command.help or "").strip().endswith(".")
        for parameter in command.params:
            said = getattr(parameter, "help", None)
            assert said, f"{' '.join(path)}: {parameter.name} has no help"

    def test_without_a_command_it_helps_and_says_that_something_is_missing(self, tmp_path: Path, call: Call):
        done = call(tmp_path)
        assert done.code == USAGE
        assert "remember" in done.out + done.err

    @pytest.mark.parametrize("arguments", [["--version"], ["version"]])
    def test_it_knows_its_version(self, tmp_path: Path, call: Call, arguments: list[str]):
        assert call(tmp_path, *arguments)[:2] == (OK, f"{__version__}\n")

    def test_a_program_is_told_the_version_too(self, tmp_path: Path, call: Call):
        assert call(tmp_path, "version", "--json").json == {"version": __version__}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["recall", "--help"], ["chat", "--help"]])
def test_who_asks_for_help_does_not_wait_for_numpy(tmp_path: Path, arguments: list[str]):
    program = [sys.executable, "-c", LOOK, *arguments]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **PLAIN})
    assert done.stdout.splitlines()[-1] == "ended with 0 after loading []"


def test_it_runs_as_a_module_too(tmp_path: Path):
    program = [sys.executable, "-m", "recollect", "--version"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **PLAIN})
    assert (done.returncode, done.stdout) == (OK, f"{__version__}\n")


class TestSlips:
    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            (["remeber", "x"], "remember"),
            (["recall", "x", "--jsn"], "--json"),
            (["tasks", "lst"], "list"),
        ],
    )
    def test_what_was_probably_meant_is_said_once(self, tmp_path: Path, call: Call, arguments: list[str], meant: str):
        done = call(tmp_path, *arguments)
        assert done.code == USAGE
        assert meant in done.err
        assert done.err.count("Did you mean") == 1

    @pytest.mark.parametrize(
        ("arguments", "way_out"),
        [
            (["tasks", "--store", "x.db"], "recollect tasks list --store"),
            (["procedures", "--user", "ada"], "recollect procedures list --user"),
            (["--store", "x.db", "list"], "recollect list --store"),
            (["config", "--json"], "recollect config show --json"),
        ],
    )
    def test_an_option_of_every_command_in_front_of_one_is_put_in_its_place(
        self, tmp_path: Path, call: Call, arguments: list[str], way_out: str
    ):
        done = call(tmp_path, *arguments)
        assert (done.code, done.out) == (USAGE, "")
        assert way_out in done.err


class TestCompletion:
    def test_a_script_for_bash_is_shown(self, tmp_path: Path):
        done = subprocess.run(
            # The last command keeps bash in its place: it is recognised as the parent of our process.
            ["bash", "-c", f"{RECOLLECT} --show-completion; exit $?"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, **PLAIN},
        )
        assert done.returncode == OK, done.stderr
        assert "complete -o default -F _recollect_completion recollect" in done.stdout

    def test_it_completes_in_a_real_bash(self, tmp_path: Path):
        """The script that is shown, loaded by bash, asked for what Tab would ask."""
        program = f"""
            PATH={Path(RECOLLECT).parent}:$PATH
            source <(_RECOLLECT_COMPLETE=source_bash recollect)
            COMP_WORDS=(recollect re); COMP_CWORD=1; _recollect_completion recollect; echo "${{COMPREPLY[*]}}"
            COMP_WORDS=(recollect tasks ''); COMP_CWORD=2; _recollect_completion recollect; echo "${{COMPREPLY[*]}}"
            COMP_WORDS=(recollect recall --min); COMP_CWORD=2; _recollect_completion recollect; echo "${{COMPREPLY[*]}}"
        """
        done = subprocess.run(
            ["bash", "--norc", "-c", program],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **PLAIN},
        )  # fmt: skip
        commands, tasks, options = (set(line.split()) for line in done.stdout.strip().splitlines())
        assert commands == {"remember", "recall", "reembed", "restore"}
        assert tasks == {"list", "show", "retry", "cancel"}
        assert options == {"--min-relevance"}


class TestPipes:
    @pytest.fixture(scope="class")
    @staticmethod
    def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("furnished")
        assert run(directory, "remember", "-", "--lines", given=b"One.\nTwo.\n").code == OK
        return directory

    @pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
    def test_a_reader_who_has_seen_enough_is_no_failure(self, furnished: Path, option: list[str]):
        program = [RECOLLECT, "list", *option]
        with subprocess.Popen(
            program, cwd=furnished, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **PLAIN}
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()  # before anything can have been written
            said = running.stderr.read()
        assert (said, running.returncode) == (b"", OK)

    def test_no_bar_is_drawn_where_nobody_looks(self, furnished: Path):
        done = run(furnished, "lifecycle", "--plan")
        assert (done.code, done.err) == (OK, "")

    def test_ctrl_c_ends_it_without_a_traceback(self, tmp_path: Path):
        with subprocess.Popen(
            [RECOLLECT, "chat"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **PLAIN, "PYTHONUNBUFFERED": "1"},
        ) as running:
            assert running.stdout is not None
            while b"/help" not in running.stdout.readline():  # after this it waits for a line
                pass
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        assert running.returncode == INTERRUPTED
        assert b"Traceback" not in out + err


class TestPiped:
    def test_every_line_is_a_fact_when_asked_for(self, tmp_path: Path, call: Call):
        given = "\nAda likes tea.\r\n  Bo likes coffee.  \n\nAda likes tea.\n"
        done = run(tmp_path, "remember", "-", "--lines", "--source", "web", given=given.encode())
        assert done.out == "remembered 2 facts from 3 lines\n"
        kept = call(tmp_path, "list", "--json").json
        assert {(one["content"], one["source"]) for one in kept} == {
            ("Ada likes tea.", "web"),
            ("Bo likes coffee.", "web"),
        }

    def test_without_that_a_text_is_one_fact(self, tmp_path: Path, call: Call):
        run(tmp_path, "remember", "-", given=b"One line.\nAnother.\n")
        assert [one["content"] for one in call(tmp_path, "list", "--json").json] == ["One line.\nAnother.\n"]

    def test_lines_of_json_say_more(self, tmp_path: Path, call: Call):
        lines: list[dict[str, Any]] = [
            {"content": "The office is in Oslo.", "key": "office", "at": "2024-01-01T00:00Z", "importance": 0.9},
            {"content": "The office is in Bergen.", "key": "office", "metadata": {"floor": 3}},
        ]
        given = "\n".join(map(json.dumps, lines)).encode()
        done = run(tmp_path, "remember", "-", "--jsonl", "--json", given=given)
        assert [one["content"] for one in done.json] == [line["content"] for line in lines]
        values = call(tmp_path, "history", "office", "--json").json
        assert [one["content"] for one in values] == ["The office is in Bergen.", "The office is in Oslo."]
        assert values[1]["created_at"].startswith("2024-01-01T00:00:00")
        assert values[0]["metadata"] == {"floor": 3}

    @pytest.mark.parametrize(
        ("arguments", "given", "said"),
        [
            (["--jsonl"], b'{"content": "x"}\nnot json', "line 2: this is not JSON"),
            (["--jsonl"], b'["x"]', "line 1: a line is an object"),
            (["--jsonl"], b'{"text": "x"}', "line 1: "),
            (["--jsonl"], b'{"content": "x", "at": "yesterday"}', "line 1: at is a moment"),
            (["--lines"], b"\n \n", "no line to remember"),
            (["--lines", "--jsonl"], b"x", "not both"),
            (["--lines", "--key", "k"], b"x", "supersede"),
        ],
    )  # fmt: skip
    def test_a_line_that_cannot_be_meant_is_named_and_nothing_is_kept(
        self, tmp_path: Path, arguments: list[str], given: bytes, said: str
    ):
        done = run(tmp_path, "remember", "-", *arguments, given=given)
        assert done.code == USAGE
        assert said in done.err
        assert list(tmp_path.iterdir()) == []

    def test_lines_are_piped_in_and_not_typed(self, tmp_path: Path, call: Call):
        done = call(tmp_path, "remember", "a text", "--lines")
        assert done.code == USAGE
        assert "`-`" in done.err

    def test_a_question_may_be_piped_in(self, tmp_path: Path, call: Call):
        call(tmp_path, "remember", "Ada prefers metric units in every report.")
        done = run(tmp_path, "recall", "-", given=b"Should distances be in miles or kilometres?\n")
        assert "metric units" in done.out


def test_settings_are_shown_as_the_options_make_them_and_keys_never(tmp_path: Path, call: Call):
    environ = {"RECOLLECT_OPENAI_API_KEY": "sk-very-secret"}
    shown = call(tmp_path, "config", "show", "--store", "other.db", "--json", **environ)
    assert shown.json["store"] == {"value": "other.db", "from": "argument"}
    assert shown.json["openai_api_key"]["from"] == "RECOLLECT_OPENAI_API_KEY"
    told = call(tmp_path, "config", "show", **environ)
    for done in (shown, told):
        assert "very-secret" not in done.out + done.err
        assert "not shown" in done.out
