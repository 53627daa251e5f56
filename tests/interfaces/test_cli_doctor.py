"""`recollect doctor`, from a shell: 35 lines, JSON, exit codes, and nothing of what is kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from recollect.doctor.checklist import CHECKLIST
from tests.interfaces.running import OK, Call, caller
from tests.interfaces.test_cli_terminal import seen

ILL = 1
SECRET = "The code of the locker is heliotrope."


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


def lines(out: str) -> list[str]:
    """The lines of the checklist, before what is said of those that did not pass."""
    return [line for line in out.split("\n\n")[0].splitlines() if line]


def test_a_fresh_store_is_35_lines_that_pass_or_warn_honestly(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET).code == OK
    done = call(tmp_path, "doctor")
    assert done.code == OK
    assert len(lines(done.out)) == 35
    assert {line.split()[0] for line in lines(done.out)} == {"pass", "warn"}
    warned = {line.split()[1] for line in lines(done.out) if line.startswith("warn")}
    assert warned <= {"config.compression", "access.files", "access.encryption", "upkeep.backup"}
    assert "heliotrope" not in done.out
    assert done.out.rstrip().endswith("0 fail")


def test_json_is_what_the_front_door_says(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    done = call(tmp_path, "doctor", "--json")
    assert (done.code, done.json["healthy"], len(done.json["checks"])) == (OK, True, 35)
    for check in done.json["checks"]:
        assert {"id", "title", "status", "detail", "fix"} <= set(check)
        assert check["status"] in ("pass", "warn", "fail")
    assert sum(done.json["counts"].values()) == 35


def test_a_failure_is_an_exit_code(call: Call, tmp_path: Path):
    gone = call(tmp_path, "doctor", "--store", "none.db")
    assert gone.code == ILL
    assert lines(gone.out)[0].startswith("fail  store.opens")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "junk.db").write_bytes(b"\x1b[31mnot a database" * 1000)
    assert call(tmp_path, "doctor", "--store", "junk.db", "--json").code == ILL
    refused = call(tmp_path, "doctor", "--json", RECOLLECT_CACHE_MIB="plenty")
    assert refused.code == ILL
    assert [one["id"] for one in refused.json["checks"] if one["status"] == "fail"] == [
        "store.opens",
        "config.settings",
    ]


def test_what_keeps_a_store_shut_is_said_once(call: Call, tmp_path: Path):
    """Mutant: every point that could not be looked at is explained."""
    out = call(tmp_path, "doctor", "--store", "none.db").out
    assert len(lines(out)) == 35
    assert out.count("once store.opens has passed") == 1
    assert "fail store.opens" in out


def test_nothing_in_it_can_drive_a_terminal(call: Call, tmp_path: Path):
    done = call(tmp_path, "doctor", "--store", "a\x1b[2J\x1b]0;title\x07b.db")
    assert "\x1b" not in done.out


def test_at_a_terminal_it_is_a_table_and_says_what_is_looked_at(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    code, shown = seen(tmp_path, "doctor")
    assert code == OK
    assert all(check.id in shown for check in CHECKLIST)
    assert "35/35" in shown


def test_what_is_mended_is_told(call: Call, tmp_path: Path):
    call(tmp_path, "remember", SECRET)
    file = tmp_path / "recollect.db"
    file.chmod(0o666)
    assert call(tmp_path, "doctor").code == ILL
    mended = call(tmp_path, "doctor", "--fix")
    assert mended.code == OK
    assert any(line.split()[:2] == ["mended", "access.files"] for line in lines(mended.out))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
