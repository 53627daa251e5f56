"""The commands `recollect erase`, `finish-erasures`, `verify-erasure` and `restore`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import apsw
import pytest

from tests.cli.cli_runner import FAILED, NOT_FOUND, OK, USAGE, Call, caller, run
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

SECRET = "The code of the locker is heliotrope, and nobody else knows it."


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


def test_erased_user_is_verified_and_stays_erased_after_restore(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "remember", "Bob likes tea.", "--user", "bob").code == OK
    assert call(tmp_path, "backup", "old.db").code == OK
    done = call(tmp_path, "erase", "--user", "ada", "--yes", "--json")
    assert (done.code, done.json["status"], done.json["erased"]) == (OK, "complete", {"semantic": 1})
    assert not re.search(r"\bada\b", json.dumps(done.json).lower())  # a hash may contain these letters
    (tmp_path / "receipt.json").write_text(done.out, "utf-8")
    assert "it holds" in call(tmp_path, "verify-erasure", "receipt.json").out
    assert call(tmp_path, "verify-erasure", done.json["id"]).code == OK
    files = [file for file in tmp_path.iterdir() if file.name.startswith("recollect.db")]
    assert not any(b"heliotrope" in file.read_bytes() for file in files)
    given = ("restore", "old.db", "--to", "new.db", "--receipts", "recollect.db.erasures.jsonl")
    assert "1 erasure was made again, of 1 known" in call(tmp_path, *given).out
    assert b"heliotrope" not in (tmp_path / "new.db").read_bytes()
    assert "Bob likes tea." in call(tmp_path, "recall", "tea", "--user", "bob", "--store", "new.db").out
    (tmp_path / "receipt.json").write_text(done.out.replace('"semantic": 1', '"semantic": 2'), "utf-8")
    changed = call(tmp_path, "verify-erasure", "receipt.json")
    assert (changed.code, "was changed" in changed.out) == (FAILED, True)


def test_erase_requires_a_named_subject_and_confirmation(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "erase", "--yes", RECOLLECT_USER="ada").code == USAGE
    unsure = call(tmp_path, "erase", "--user", "ada")
    assert (unsure.code, "--yes" in unsure.err) == (USAGE, True)
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker", "--user", "ada").out
    assert call(tmp_path, "verify-erasure", "nothing.json").code == NOT_FOUND


def test_erase_of_unknown_user_warns_and_returns_receipt(call: Call, tmp_path: Path):
    """Mutants: no warning for an unknown user; a warning for a known user."""
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    mistyped = call(tmp_path, "erase", "--user", "adda", "--yes")
    assert (mistyped.code, "complete" in mistyped.out) == (OK, True)
    assert mistyped.err.startswith("recollect: nothing was stored for user adda; check the spelling")
    repeated = call(tmp_path, "erase", "--user", "adda", "--yes", "--json")
    assert (repeated.code, repeated.json["nothing_held"]) == (OK, True)
    (tmp_path / "receipt.json").write_text(repeated.out, "utf-8")
    assert call(tmp_path, "verify-erasure", "receipt.json").code == OK
    right = call(tmp_path, "erase", "--user", "ada", "--yes", "--json")
    assert (right.json["nothing_held"], right.err) == (False, "")


def test_restore_without_receipts_warns(call: Call, tmp_path: Path):
    """Mutant: only the number of repeated erasures is printed."""
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "backup", "old.db").code == OK
    assert call(tmp_path, "erase", "--user", "ada", "--yes").code == OK
    without_receipts = call(tmp_path, "restore", "old.db", "--to", "without.db")
    assert (without_receipts.code, "0 erasures were made again" in without_receipts.out) == (OK, True)
    assert "users who were erased after the backup was made are in" in " ".join(without_receipts.err.split())
    assert "--receipts STORE.erasures.jsonl" in without_receipts.err
    as_json = call(tmp_path, "restore", "old.db", "--to", "json.db", "--json")
    assert as_json.json["receipts"] == []
    complete = call(
        tmp_path, "restore", "old.db", "--to", "new.db", "--receipts", "recollect.db.erasures.jsonl", "--json"
    )
    assert (complete.err, len(complete.json["replayed"])) == ("", 1)
    assert [Path(file).name for file in complete.json["receipts"]] == ["recollect.db.erasures.jsonl"]


def test_erase_on_postgres_returns_verifiable_receipt(call: Call, tmp_path: Path, postgres: Server):
    url = f"{postgres.create('cli_erase')}?receipts={tmp_path / 'erasures.jsonl'}"
    assert call(tmp_path, "remember", SECRET, "--user", "ada", "--store", url).code == OK
    done = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", "--store", url)
    assert (done.code, done.json["status"], done.json["erased"]) == (OK, "complete", {"semantic": 1})
    assert any("the server's files" in place for place in done.json["scan"]["unseen"])
    id = done.json["id"]
    verified = call(tmp_path, "verify-erasure", id, "--store", url).out
    assert "it holds: the chain of receipts is intact\nnot seen: the erased data" in verified
    (tmp_path / "receipt.json").write_text(json.dumps(done.json), "utf-8")
    verified = call(tmp_path, "verify-erasure", str(tmp_path / "receipt.json"), "--store", url).out
    assert ("it holds" in verified, "not seen: the server's files" in verified) == (True, True)
    assert "heliotrope" not in call(tmp_path, "recall", "the code of the locker", "--user", "ada", "--store", url).out
    receipts = [json.loads(line) for line in (tmp_path / "erasures.jsonl").read_text("utf-8").splitlines()]
    assert [line["receipt"]["id"] for line in receipts if "receipt" in line] == [id]


def test_erase_covers_tiers_on_redis_and_chroma(call: Call, tmp_path: Path):
    server = RedisServer(tmp_path / "redis").start()
    try:
        stores = f"conversation={server.url} episodic={server.url} checkpoints={server.url} default=chroma:./facts"
        assert call(tmp_path, "remember", SECRET, "--user", "ada", RECOLLECT_STORES=stores).code == OK
        done = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", RECOLLECT_STORES=stores)
        assert (done.code, done.json["status"], done.json["erased"]["semantic"]) == (FAILED, "pending_physical", 1)
        [waits] = done.json["scan"]["waits"]
        assert "facts keeps deleted texts in chroma.sqlite3" in waits
        assert "heliotrope" not in call(tmp_path, "recall", "locker", "--user", "ada", RECOLLECT_STORES=stores).out
    finally:
        server.kill()


def test_pending_receipt_verifies_after_completion(call: Call, tmp_path: Path):
    # Mutant: a pending receipt is compared with the hash of the completed one.
    store = ["--store", str(tmp_path / "agent.db")]
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    reader = apsw.Connection(str(tmp_path / "agent.db"))
    reader.execute("begin")
    reader.execute("select count(*) from records").fetchall()
    pending = call(tmp_path, "erase", "--user", "ada", "--yes", *store)
    assert (pending.code, "recollect lifecycle" in pending.out) == (FAILED, True)
    repeated = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", *store)
    (tmp_path / "pending.json").write_text(repeated.out, "utf-8")
    early = call(tmp_path, "verify-erasure", "pending.json", *store)
    assert (early.code, "it is still pending" in early.out) == (FAILED, True)
    reader.execute("rollback")
    reader.close()
    assert call(tmp_path, "lifecycle", *store).code == OK
    for receipt in ("pending.json", repeated.json["id"]):
        assert call(tmp_path, "verify-erasure", receipt, *store).code == OK


def test_finish_erasures_rewrites_a_file_above_the_limit(call: Call, tmp_path: Path):
    # Mutants: the limit of the settings does not reach the store; the command obeys it; the exit code is 0.
    store = ["--store", str(tmp_path / "agent.db")]
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    erased = run(tmp_path, "erase", "--user", "ada", "--yes", *store, RECOLLECT_VACUUM_LIMIT_MB="0")
    assert (erased.code, "pending_physical" in erased.out) == (FAILED, True)
    assert f"run `recollect finish-erasures --store {tmp_path / 'agent.db'}`" in erased.out
    reader = apsw.Connection(str(tmp_path / "agent.db"))
    reader.execute("begin")
    reader.execute("select count(*) from records").fetchall()
    blocked = run(tmp_path, "finish-erasures", *store, RECOLLECT_VACUUM_LIMIT_MB="0")
    assert (blocked.code, "end of an open transaction" in blocked.out) == (FAILED, True)
    reader.close()
    done = run(tmp_path, "finish-erasures", "--json", *store, RECOLLECT_VACUUM_LIMIT_MB="0")
    [receipt] = done.json
    assert (done.code, receipt["status"], receipt["erased"]) == (OK, "complete", {"semantic": 1})
    assert receipt["scan"]["writers_waited"] > 0
    (tmp_path / "receipt.json").write_text(json.dumps(receipt), "utf-8")
    verified = call(tmp_path, "verify-erasure", "receipt.json", *store)
    assert (verified.code, "none found" in verified.out) == (OK, True)
    again = call(tmp_path, "finish-erasures", *store)
    assert (again.code, again.out.strip()) == (OK, "no erasure is pending")
    assert call(tmp_path, "finish-erasures", "--store", "missing.db").code == FAILED
    assert not (tmp_path / "missing.db").exists()


def test_lifecycle_rewrites_a_file_above_the_limit(call: Call, tmp_path: Path):
    # Mutant: the lifecycle obeys the limit.
    store, limit = ["--store", str(tmp_path / "agent.db")], {"RECOLLECT_VACUUM_LIMIT_MB": "0"}
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    pending = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", *store, **limit)
    assert (pending.code, pending.json["status"]) == (FAILED, "pending_physical")
    (tmp_path / "receipt.json").write_text(pending.out, "utf-8")
    assert f"erasure {pending.json['id']} is complete" in call(tmp_path, "lifecycle", *store, **limit).out
    assert call(tmp_path, "verify-erasure", "receipt.json", *store).code == OK


def test_verify_reports_data_stored_again(call: Call, tmp_path: Path):
    """Mutant: verification does not report data that was stored again."""
    store = ["--store", str(tmp_path / "agent.db")]
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    (tmp_path / "receipt.json").write_text(call(tmp_path, "erase", "--user", "ada", "--yes", "--json", *store).out)
    alone = call(tmp_path, "verify-erasure", "receipt.json", *store)
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    again = call(tmp_path, "verify-erasure", "receipt.json", *store)
    assert (alone.code, "kept now" in alone.out) == (OK, False)
    assert (again.code, "kept now" in again.out) == (OK, True)
