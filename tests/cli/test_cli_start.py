"""Start and end of the command line: help, imports, completion, typos, interrupts and closed pipes."""

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
from recollect.cli.app import app
from tests.cases import Case
from tests.cli.cli_runner import INTERRUPTED, OK, PLAIN, RECOLLECT, USAGE, Call, caller, run

MAIN_COMMANDS = (
    "demo", "remember", "recall", "forget", "erase", "procedures", "tasks", "export", "import", "backup", "stats",
    "doctor", "reembed", "lifecycle", "chat", "eval", "config",
)  # fmt: skip
COMMON_OPTIONS = ("--store", "--user", "--agent", "--session", "--tenant", "--json")
# Commands that use no store.
COMMANDS_WITHOUT_STORE = {("setup",), ("version",)}
HEAVY = ("numpy", "onnxruntime", "onnx", "apsw", "simsimd", "anthropic", "openai")
REPORT_IMPORTS = f"""
import sys
from recollect.cli import main
try:
    main()
except SystemExit as ended:
    print("ended with", ended.code, "after loading", [name for name in {HEAVY!r} if name in sys.modules])
"""


def paths(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command that is not a group."""
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
    def test_help_lists_every_command_in_order(self, tmp_path: Path, call: Call):
        said = call(tmp_path, "--help").out
        found = re.findall(r"^│ ([a-z]+)  ", said, re.MULTILINE)
        assert set(MAIN_COMMANDS) <= set(found)
        assert found[:4] == ["demo", "chat", "remember", "recall"]

    def test_every_command_has_help_and_the_common_options(self, tmp_path: Path, call: Call):
        assert len(COMMANDS) >= len(MAIN_COMMANDS)
        failures: list[str] = []
        for path in COMMANDS:
            with Case(failures, " ".join(path)):
                done = call(tmp_path, *path, "--help", COLUMNS="200")
                assert done.code == OK
                for option in ("--json",) if path in COMMANDS_WITHOUT_STORE else COMMON_OPTIONS:
                    assert option in done.out
                assert done.out == call(tmp_path, *path, "-h").out
        assert not failures, "\n".join(failures)

    def test_every_option_and_argument_has_help(self):
        assert len(COMMANDS) >= len(MAIN_COMMANDS)
        failures: list[str] = []
        for path in COMMANDS:
            with Case(failures, " ".join(path)):
                command = get_command(app)
                for name in path:
                    assert isinstance(command, click.Group)
                    command = command.commands[name]
                assert (command.help or "").strip().endswith(".")
                without_help = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
                assert without_help == []
        assert not failures, "\n".join(failures)

    def test_missing_command_prints_help_and_exits_with_usage_error(self, tmp_path: Path, call: Call):
        done = call(tmp_path)
        assert done.code == USAGE
        assert "remember" in done.out + done.err

    @pytest.mark.parametrize("arguments", [["--version"], ["version"]])
    def test_version_is_printed(self, tmp_path: Path, call: Call, arguments: list[str]):
        assert call(tmp_path, *arguments)[:2] == (OK, f"{__version__}\n")

    def test_version_json_contains_version(self, tmp_path: Path, call: Call):
        assert call(tmp_path, "version", "--json").json == {"version": __version__}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["recall", "--help"], ["chat", "--help"]])
def test_help_and_version_load_no_heavy_modules(tmp_path: Path, arguments: list[str]):
    program = [sys.executable, "-c", REPORT_IMPORTS, *arguments]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **PLAIN})
    assert done.stdout.splitlines()[-1] == "ended with 0 after loading []"


def test_python_m_recollect_prints_version(tmp_path: Path):
    program = [sys.executable, "-m", "recollect", "--version"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **PLAIN})
    assert (done.returncode, done.stdout) == (OK, f"{__version__}\n")


class TestTypos:
    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            (["remeber", "x"], "remember"),
            (["recall", "x", "--jsn"], "--json"),
            (["tasks", "lst"], "list"),
        ],
    )
    def test_typo_gets_one_suggestion(self, tmp_path: Path, call: Call, arguments: list[str], meant: str):
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
    def test_option_before_subcommand_gets_a_correct_command(
        self, tmp_path: Path, call: Call, arguments: list[str], way_out: str
    ):
        done = call(tmp_path, *arguments)
        assert (done.code, done.out) == (USAGE, "")
        assert way_out in done.err


class TestCompletion:
    def test_show_completion_prints_bash_script(self, tmp_path: Path):
        done = subprocess.run(
            # The second command prevents bash from replacing itself: the parent process must be bash.
            ["bash", "-c", f"{RECOLLECT} --show-completion; exit $?"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, **PLAIN},
        )
        assert done.returncode == OK, done.stderr
        assert "complete -o default -F _recollect_completion recollect" in done.stdout

    def test_completion_works_in_bash(self, tmp_path: Path):
        """Load the completion script in bash and call it as Tab does."""
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
    def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("filled")
        assert run(directory, "remember", "-", "--lines", given=b"One.\nTwo.\n").code == OK
        return directory

    @pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
    def test_closed_output_pipe_exits_with_0(self, filled: Path, option: list[str]):
        program = [RECOLLECT, "list", *option]
        with subprocess.Popen(
            program, cwd=filled, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **PLAIN}
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.close()  # before the process writes anything
            said = running.stderr.read()
        assert (said, running.returncode) == (b"", OK)

    def test_progress_bar_is_not_drawn_without_terminal(self, filled: Path):
        done = run(filled, "lifecycle", "--plan")
        assert (done.code, done.err) == (OK, "")

    def test_ctrl_c_exits_with_130_and_no_traceback(self, tmp_path: Path):
        with subprocess.Popen(
            [RECOLLECT, "chat"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **PLAIN, "PYTHONUNBUFFERED": "1"},
        ) as running:
            assert running.stdout is not None
            while b"/help" not in running.stdout.readline():  # the chat then waits for input
                pass
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        assert running.returncode == INTERRUPTED
        assert b"Traceback" not in out + err


class TestPipedInput:
    def test_lines_option_stores_one_fact_per_line(self, tmp_path: Path, call: Call):
        given = "\nAda likes tea.\r\n  Bo likes coffee.  \n\nAda likes tea.\n"
        done = run(tmp_path, "remember", "-", "--lines", "--source", "web", given=given.encode())
        assert done.out == "remembered 2 facts from 3 lines\n"
        kept = call(tmp_path, "list", "--json").json
        assert {(fact["content"], fact["source"]) for fact in kept} == {
            ("Ada likes tea.", "web"),
            ("Bo likes coffee.", "web"),
        }

    def test_piped_text_without_lines_is_one_fact(self, tmp_path: Path, call: Call):
        run(tmp_path, "remember", "-", given=b"One line.\nAnother.\n")
        assert [fact["content"] for fact in call(tmp_path, "list", "--json").json] == ["One line.\nAnother.\n"]

    def test_jsonl_lines_set_key_time_and_metadata(self, tmp_path: Path, call: Call):
        lines: list[dict[str, Any]] = [
            {"content": "The office is in Oslo.", "key": "office", "at": "2024-01-01T00:00Z", "importance": 0.9},
            {"content": "The office is in Bergen.", "key": "office", "metadata": {"floor": 3}},
        ]
        given = "\n".join(map(json.dumps, lines)).encode()
        done = run(tmp_path, "remember", "-", "--jsonl", "--json", given=given)
        assert [fact["content"] for fact in done.json] == [line["content"] for line in lines]
        values = call(tmp_path, "history", "office", "--json").json
        assert [fact["content"] for fact in values] == ["The office is in Bergen.", "The office is in Oslo."]
        assert values[1]["created_at"].startswith("2024-01-01T00:00:00")
        assert values[0]["metadata"] == {"floor": 3}

    @pytest.mark.parametrize(
        ("arguments", "given", "said"),
        [
            (["--jsonl"], b'{"content": "x"}\nnot json', "line 2: this is not JSON"),
            (["--jsonl"], b'["x"]', "line 1: a line must be an object"),
            (["--jsonl"], b'{"text": "x"}', "line 1: "),
            (["--jsonl"], b'{"content": "x", "at": "yesterday"}', "line 1: at must be a time"),
            (["--lines"], b"\n \n", "standard input is empty"),
            (["--lines", "--jsonl"], b"x", "not both"),
            (["--lines", "--key", "k"], b"x", "supersede"),
        ],
    )  # fmt: skip
    def test_invalid_line_is_named_and_nothing_is_stored(
        self, tmp_path: Path, arguments: list[str], given: bytes, said: str
    ):
        done = run(tmp_path, "remember", "-", *arguments, given=given)
        assert done.code == USAGE
        assert said in done.err
        assert list(tmp_path.iterdir()) == []

    def test_lines_option_requires_standard_input(self, tmp_path: Path, call: Call):
        done = call(tmp_path, "remember", "a text", "--lines")
        assert done.code == USAGE
        assert "`-`" in done.err

    def test_query_is_read_from_standard_input(self, tmp_path: Path, call: Call):
        call(tmp_path, "remember", "Ada prefers metric units in every report.")
        done = run(tmp_path, "recall", "-", given=b"Should distances be in miles or kilometres?\n")
        assert "metric units" in done.out


def test_config_show_reflects_options_and_hides_keys(tmp_path: Path, call: Call):
    environ = {"RECOLLECT_OPENAI_API_KEY": "sk-very-secret"}
    shown = call(tmp_path, "config", "show", "--store", "other.db", "--json", **environ)
    assert shown.json["store"] == {"value": "other.db", "from": "argument"}
    assert shown.json["openai_api_key"]["from"] == "RECOLLECT_OPENAI_API_KEY"
    as_text = call(tmp_path, "config", "show", **environ)
    for done in (shown, as_text):
        assert "very-secret" not in done.out + done.err
        assert "not shown" in done.out
