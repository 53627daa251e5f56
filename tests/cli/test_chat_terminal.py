"""`recollect chat` at a pseudo-terminal: the prompt, streaming, Ctrl-C, Ctrl-D, history and Tab."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

from tests.cli.cli_runner import OK, PLAIN, RECOLLECT, run
from tests.wire.script import Fail, Hang, Say
from tests.wire.server import Wire

PROMPT = "you> "
ENVIRON = {**os.environ, **PLAIN, "TERM": "xterm", "NO_COLOR": "1", "OPENAI_API_KEY": "k", "RECOLLECT_RETRIES": "0"}


@contextmanager
def open_terminal(directory: Path, *arguments: str, **environ: str) -> Iterator[pexpect.spawn[str]]:
    """Start a chat at a pseudo-terminal and wait for its first prompt."""
    terminal = pexpect.spawn(
        RECOLLECT,
        ["chat", "--user", "ada", *arguments],
        cwd=str(directory),
        env={**ENVIRON, **environ},
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 120),
    )
    try:
        terminal.expect_exact(PROMPT)
        yield terminal
    finally:
        terminal.close(force=True)


def leave(terminal: pexpect.spawn[str]) -> int:
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    return int(terminal.exitstatus)


def test_chat_without_model_greets_recalls_and_exits(tmp_path: Path):
    with open_terminal(tmp_path) as terminal:
        assert "Hello. Nothing is remembered of you yet." in terminal.before
        terminal.sendline("My flat is in Lisbon.")
        terminal.expect_exact("Stored. No earlier")
        terminal.expect_exact(PROMPT)
        terminal.sendline("Where is my flat?")
        terminal.expect_exact("recalled 1 memory; /why")
        terminal.expect_exact("user: My flat is in Lisbon.")
        terminal.expect_exact(PROMPT)
        terminal.sendline("/why")
        terminal.expect(r"\+ 0\.\d\d \[episodic\] My flat is in Lisbon\.")
        terminal.expect_exact(PROMPT)
        assert leave(terminal) == OK
        assert "To continue this session" in terminal.before
    with open_terminal(tmp_path) as terminal:
        assert "Welcome back. 0 facts and 1 conversation are remembered." in terminal.before
        terminal.sendline("/quit")
        terminal.expect(pexpect.EOF)


def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path):
    with (
        Wire(Hang(), Say("Here I am again.")) as wire,
        open_terminal(tmp_path, "--model", f"openai:m@{wire.openai}", "--session", "s") as terminal,
    ):
        terminal.sendline("Tell me everything.")
        terminal.expect_exact("recalled nothing")
        assert wire.asked.wait(60)
        terminal.sendintr()
        terminal.expect_exact("stopped")
        terminal.expect_exact(PROMPT)
        terminal.sendintr()
        terminal.expect_exact("Ctrl-D or /quit leaves")
        terminal.expect_exact(PROMPT)
        terminal.sendline("And now?")
        terminal.expect_exact("Here I am again.")
        terminal.expect_exact(PROMPT)
        assert leave(terminal) == OK
        assert "Traceback" not in terminal.before
    kept = run(tmp_path, "chat", "--user", "ada", "--session", "s", given=b"/session\n").out
    assert "user: Tell me everything.\n" in kept
    assert "assistant: Here I am again.\n" in kept


def test_answer_is_streamed_and_partial_answer_is_stored(tmp_path: Path):
    answer = "One two three four five six"
    with (
        Wire(Say(answer, breaks_after=3), Fail(500), Say("Better.")) as wire,
        open_terminal(tmp_path, "--model", f"openai:m@{wire.openai}", "--session", "s") as terminal,
    ):
        terminal.sendline("Count.")
        terminal.expect_exact("One two three")
        terminal.expect_exact("recollect: the language model")
        terminal.expect_exact(PROMPT)
        terminal.sendline("Again?")
        terminal.expect_exact("recollect: the language model")
        terminal.expect_exact(PROMPT)
        terminal.sendline("Please.")
        terminal.expect_exact("Better.")
        terminal.expect_exact(PROMPT)
        terminal.sendline("/session")
        terminal.expect_exact("assistant: One two three …")
        terminal.expect_exact("assistant: Better.")
        terminal.expect_exact(PROMPT)
        assert leave(terminal) == OK


def test_shell_keys_work(tmp_path: Path):
    with open_terminal(tmp_path, "--session", "s") as terminal:
        terminal.sendline("The parcel is blue.")
        terminal.expect_exact(PROMPT)
        terminal.send("\x1b[A")  # the up arrow recalls the previous line
        terminal.expect_exact("The parcel is blue.")
        terminal.send("\x15/sta\t")  # Ctrl-U clears it, and Tab completes a command
        terminal.expect_exact("/stats ")
        terminal.sendline("")
        terminal.expect_exact("on disk")
        terminal.expect_exact(PROMPT)
        assert leave(terminal) == OK
    with open_terminal(tmp_path, "--session", "s") as terminal:
        terminal.send("\x1b[A")  # also in a resumed session
        terminal.expect_exact("The parcel is blue.")
