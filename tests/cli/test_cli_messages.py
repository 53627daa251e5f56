"""Messages of commands that found, stored or changed nothing: the reason and the next step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from recollect import AgentMemory, ResumableAgent
from recollect.cli import maintenance
from tests.cli.cli_runner import FAILED, NOT_FOUND, OK, USAGE, Call, caller, run


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("RECOLLECT_THREADS", "1")
    return caller(capsys, monkeypatch)


@pytest.mark.parametrize("arguments", [[""], ["x", "--importance", "7"], ["x", "--key", ""], ["x", "--source", "\x00"]])
def test_rejected_remember_creates_no_store(tmp_path: Path, call: Call, arguments: list[str]):
    assert call(tmp_path, "remember", *arguments).code == USAGE
    assert list(tmp_path.iterdir()) == []


def test_rejected_line_is_named_and_creates_no_store(tmp_path: Path):
    done = run(tmp_path, "remember", "-", "--jsonl", given=b'{"content": "a"}\n{"content": "b", "importance": 7}\n')
    assert done.code == USAGE
    assert "line 2: " in done.err
    assert list(tmp_path.iterdir()) == []


def test_remember_in_memory_store_warns(tmp_path: Path, call: Call):
    assert "memory:// keeps nothing" in call(tmp_path, "remember", "x", "--store", "memory://").err
    assert "memory:// keeps nothing" in call(tmp_path, "remember", "x", RECOLLECT_STORE="memory://").err
    assert call(tmp_path, "remember", "x", "--store", "a.db").err == ""


def test_import_and_migrate_to_memory_store_are_rejected(tmp_path: Path, call: Call):
    """Mutant: the lines are reported as added."""
    call(tmp_path, "remember", "Ada likes tea.")
    call(tmp_path, "export", "all.jsonl")
    for more in ({}, {"RECOLLECT_STORE": "memory://"}):
        done = call(tmp_path, "import", "all.jsonl", *([] if more else ["--store", "memory://"]), **more)
        assert (done.code, done.out) == (USAGE, "")
        assert "memory:// keeps nothing: an import would be lost when the command ends; use --store FILE" in done.err
    moved = call(tmp_path, "migrate", "--to", "memory://")
    assert (moved.code, moved.out, "memory://, which stores nothing" in moved.err) == (USAGE, "", True)


def test_empty_recall_names_the_user_and_the_next_step(tmp_path: Path, call: Call):
    call(tmp_path, "remember", "Ada likes tea.")
    done = call(tmp_path, "recall", "What is the capital of Mongolia?")
    assert done.code == NOT_FOUND
    assert done.err == (
        "recollect: nothing relevant is remembered for user 'default'; --min-relevance 0 shows the nearest items\n"
    )
    other_user = call(tmp_path, "recall", "tea", "--user", "bo", "--min-relevance", "0")
    assert other_user.err == "recollect: nothing relevant is remembered for user 'bo'\n"


def test_list_limit_zero_is_rejected(tmp_path: Path, call: Call):
    call(tmp_path, "remember", "Ada likes tea.")
    done = call(tmp_path, "list", "--limit", "0")
    assert (done.code, done.out) == (USAGE, "")
    assert "0 is not in the range x>=1" in done.err


def test_consolidate_without_duplicates_says_so(tmp_path: Path, call: Call):
    call(tmp_path, "remember", "Ada likes tea.", "--key", "drink")
    assert call(tmp_path, "consolidate").out.startswith("nothing to merge: no two facts say the same (0 compared;")


def test_counts_of_one_are_singular(tmp_path: Path, call: Call):
    call(tmp_path, "remember", "Tea.", "--user", "ada")
    erased = call(tmp_path, "erase", "--user", "ada", "--yes")
    assert erased.code == OK
    assert " 1 pieces" not in erased.out
    assert " 1 files" not in erased.out


def test_restore_of_invalid_backup_names_the_backup(tmp_path: Path, call: Call):
    # Mutant: the error names the temporary copy.
    (tmp_path / "notes.db").write_text("not a store at all" * 100, "utf-8")
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("create table t (x)")
    other.close()
    for name in ("notes.db", "other.db"):
        done = call(tmp_path, "restore", name, "--to", "c.db")
        assert done.code == FAILED
        assert str(tmp_path / name) in done.err
        assert "restoring" not in done.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["notes.db", "other.db"]


KILLED = """
import asyncio, os, signal, sys
from recollect import AgentMemory, ResumableAgent
async def endless(state):
    os.kill(os.getpid(), signal.SIGKILL)
async def work():
    async with AgentMemory.open("recollect.db") as memory:
        await ResumableAgent(memory, lease_ttl=float(sys.argv[1])).run(sys.argv[2], [endless])
asyncio.run(work())
"""


def test_task_with_expired_lease_is_shown_as_free_to_claim(tmp_path: Path, call: Call):
    # Mutant: the last worker is shown as the holder.
    for lease, task in (("0.3", "left"), ("3600", "held")):
        ended = subprocess.run([sys.executable, "-c", KILLED, lease, task], cwd=tmp_path, env={**os.environ})
        assert ended.returncode == -signal.SIGKILL
    shown = dict(line.split("  ", 1) for line in call(tmp_path, "tasks", "list").out.splitlines())
    assert shown["left"].endswith(" ago; free to claim")
    assert "whose lease expired" in shown["left"]
    assert ", held by " in shown["held"]
    assert "free to claim" in call(tmp_path, "tasks", "show", "left").out


async def test_export_contains_no_tasks_and_documents_it(tmp_path: Path):
    async def note(state: object) -> str:
        return "done"

    async with AgentMemory.open(tmp_path / "recollect.db") as memory:
        await ResumableAgent(memory).run("invoice-1", [note])
        await memory.remember("Ada likes tea.")
        assert dict((await memory.export(tmp_path / "all.jsonl")).lines) == {"semantic": 1}
    assert "invoice-1" not in (tmp_path / "all.jsonl").read_text("utf-8")
    assert "but no tasks" in " ".join(str(maintenance.export_memory.__doc__).split())
    assert "Checkpoints are not exported" in str(AgentMemory.export.__doc__)
