"""`recollect migrate`: table and JSON output, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.sync import AgentMemory
from tests.cli.cli_runner import FAILED, OK, USAGE, Call, caller
from tests.embedders import HashEmbedder


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with AgentMemory.open(tmp_path / "a.db", tenant="acme", user="ada", session="s", embedder=HashEmbedder()) as memory:
        memory.remember("Ada prefers metric units.")
        memory.record_turn("hello", "there")
        memory.checkpoints.checkpoint("job", {"n": 1})
    return tmp_path


def test_migrate_prints_a_table(store: Path, call: Call):
    done = call(store, "migrate", "--from", "a.db", "--to", "b.db")
    assert done.code == OK
    assert "the same, by count and sha256" in done.out
    assert "7 from" in done.out  # including the note of the indexed position
    assert "7 of them copied" in done.out
    again = call(store, "migrate", "--from", "a.db", "--to", "b.db")
    assert "0 of them copied" in again.out


def test_migrate_json_defaults_to_the_configured_store(store: Path, call: Call):
    done = call(store, "migrate", "--to", "b.db", "--dry-run", "--json", RECOLLECT_STORE="a.db")
    assert (done.code, done.json["held"], done.json["copied"], done.json["dry_run"]) == (OK, 7, 0, True)
    assert not (store / "b.db").exists()
    done = call(store, "migrate", "--to", "b.db", "--json", RECOLLECT_STORE="a.db")
    assert (done.json["held"], done.json["copied"], done.json["model"]) == (7, 7, "hash")


def test_migrate_moves_one_tier_or_one_tenant(store: Path, call: Call):
    done = call(store, "migrate", "--from", "a.db", "--to", "episodic=e.db", "--to", "conversation=e.db", "--json")
    assert {moved["space"]["tier"] for moved in done.json["moved"]} == {"episodic", "conversation"}
    done = call(store, "migrate", "--from", "a.db", "--to", "one.db", "--tenant", "acme", "--json")
    assert {moved["space"]["tenant"] for moved in done.json["moved"]} == {"acme"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--from", "a.db"], USAGE, "--to"),
        (["--from", "none.db", "--to", "b.db"], FAILED, "no store at"),
        (["--from", "a.db", "--to", "./a.db"], USAGE, "another target"),
        (["--from", "a.db", "--to", "episodik=b.db"], USAGE, "no stored tier"),
        (["--from", "a.db", "--to", "b.db", "--to", "c.db"], USAGE, "given twice"),
        (["--from", "a.db", "--to", "mysql://x"], FAILED, "'mysql://x' names no store that is known"),
        (["--from", "a.db", "--to", "b.db", "--tenant", "globex"], USAGE, "nothing of a tenant 'globex'"),
    ],
)
def test_invalid_migration_is_rejected_with_reason(store: Path, call: Call, arguments: list[str], code: int, said: str):
    done = call(store, "migrate", *arguments)
    assert done.code == code
    assert said in done.err
    assert sorted(path.name for path in store.glob("*=*")) == []
