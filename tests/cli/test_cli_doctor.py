"""`recollect doctor`: 35 lines, JSON, exit codes, and no stored content in the output."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from recollect.health.examine import CHECKLIST
from tests.cli.cli_runner import OK, Call, caller
from tests.cli.test_cli_terminal import run_at_terminal

UNHEALTHY = 1
SECRET = "The code of the locker is heliotrope."


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


def lines(out: str) -> list[str]:
    """Return the lines of the checklist, without the explanations below."""
    return [line for line in out.split("\n\n")[0].splitlines() if line]


def test_fresh_store_prints_35_lines_without_failure(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET).code == OK
    done = call(tmp_path, "doctor")
    assert done.code == OK
    assert len(lines(done.out)) == 35
    assert {line.split()[0] for line in lines(done.out)} == {"pass", "warn"}
    warned = {line.split()[1] for line in lines(done.out) if line.startswith("warn")}
    assert warned <= {"config.compression", "access.files", "access.encryption", "upkeep.backup"}
    assert "heliotrope" not in done.out
    assert done.out.rstrip().endswith("0 fail")


def test_json_contains_every_check_and_counts(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    done = call(tmp_path, "doctor", "--json")
    assert (done.code, done.json["healthy"], len(done.json["checks"])) == (OK, True, 35)
    for check in done.json["checks"]:
        assert {"id", "title", "status", "detail", "fix"} <= set(check)
        assert check["status"] in ("pass", "warn", "fail")
    assert sum(done.json["counts"].values()) == 35


def test_failure_exits_with_1(call: Call, tmp_path: Path):
    missing = call(tmp_path, "doctor", "--store", "none.db")
    assert missing.code == UNHEALTHY
    assert lines(missing.out)[0].startswith("fail  store.opens")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "junk.db").write_bytes(b"\x1b[31mnot a database" * 1000)
    assert call(tmp_path, "doctor", "--store", "junk.db", "--json").code == UNHEALTHY
    refused = call(tmp_path, "doctor", "--json", RECOLLECT_CACHE_MIB="plenty")
    assert refused.code == UNHEALTHY
    assert [check["id"] for check in refused.json["checks"] if check["status"] == "fail"] == [
        "store.opens",
        "config.settings",
    ]


def test_unopenable_store_is_explained_once(call: Call, tmp_path: Path):
    """Mutant: every check that did not run is explained."""
    out = call(tmp_path, "doctor", "--store", "none.db").out
    assert len(lines(out)) == 35
    assert out.count("once store.opens has passed") == 1
    assert "fail store.opens" in out


def test_output_has_no_terminal_escapes(call: Call, tmp_path: Path):
    done = call(tmp_path, "doctor", "--store", "a\x1b[2J\x1b]0;title\x07b.db")
    assert "\x1b" not in done.out


def test_terminal_shows_table_and_progress(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    code, shown = run_at_terminal(tmp_path, "doctor")
    assert code == OK
    assert all(check.id in shown for check in CHECKLIST)
    assert "35/35" in shown


def test_fixed_checks_are_reported(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    file = tmp_path / "recollect.db"
    file.chmod(0o666)
    assert call(tmp_path, "doctor").code == UNHEALTHY
    fixed = call(tmp_path, "doctor", "--fix")
    assert fixed.code == OK
    assert any(line.split()[:2] == ["fixed", "access.files"] for line in lines(fixed.out))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
