"""`recollect erase`, `verify-erasure` and `restore`, from a shell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import apsw
import pytest

from tests.interfaces.running import FAILED, NOT_FOUND, OK, USAGE, Call, caller
from tests.servers.postgres import Server
from tests.servers.redis import RedisServer

SECRET = "The code of the locker is heliotrope, and nobody else knows it."


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


def test_a_user_is_erased_verified_and_not_brought_back_by_a_backup(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "remember", "Bob likes tea.", "--user", "bob").code == OK
    assert call(tmp_path, "backup", "old.db").code == OK
    done = call(tmp_path, "erase", "--user", "ada", "--yes", "--json")
    assert (done.code, done.json["status"], done.json["erased"]) == (OK, "complete", {"semantic": 1})
    assert not re.search(r"\bada\b", json.dumps(done.json).lower())  # within a hash these letters may well be
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


def test_nobody_is_erased_without_being_named_and_asked_about(call: Call, tmp_path: Path):
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "erase", "--yes", RECOLLECT_USER="ada").code == USAGE
    unsure = call(tmp_path, "erase", "--user", "ada")
    assert (unsure.code, "--yes" in unsure.err) == (USAGE, True)
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker", "--user", "ada").out
    assert call(tmp_path, "verify-erasure", "nothing.json").code == NOT_FOUND


def test_a_name_that_nothing_is_held_of_is_told_and_promised_all_the_same(call: Call, tmp_path: Path):
    """Mutants: whoever is not there is not told of; it is told of somebody of whom something was erased."""
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    mistyped = call(tmp_path, "erase", "--user", "adda", "--yes")
    assert (mistyped.code, "complete" in mistyped.out) == (OK, True)
    assert mistyped.err.startswith("recollect: nothing was held of user adda: see that the name is spelt")
    told = call(tmp_path, "erase", "--user", "adda", "--yes", "--json")
    assert (told.code, told.json["nothing_held"]) == (OK, True)
    (tmp_path / "receipt.json").write_text(told.out, "utf-8")
    assert call(tmp_path, "verify-erasure", "receipt.json").code == OK
    right = call(tmp_path, "erase", "--user", "ada", "--yes", "--json")
    assert (right.json["nothing_held"], right.err) == (False, "")


def test_a_restore_that_knows_of_no_erasures_says_so(call: Call, tmp_path: Path):
    """Mutant: only how many were made again is said."""
    assert call(tmp_path, "remember", SECRET, "--user", "ada").code == OK
    assert call(tmp_path, "backup", "old.db").code == OK
    assert call(tmp_path, "erase", "--user", "ada", "--yes").code == OK
    blind = call(tmp_path, "restore", "old.db", "--to", "blind.db")
    assert (blind.code, "0 erasures were made again" in blind.out) == (OK, True)
    assert "whoever was erased since the backup was made is in" in " ".join(blind.err.split())
    assert "--receipts STORE.erasures.jsonl" in blind.err
    told = call(tmp_path, "restore", "old.db", "--to", "told.db", "--json")
    assert told.json["receipts"] == []
    seeing = call(
        tmp_path, "restore", "old.db", "--to", "new.db", "--receipts", "recollect.db.erasures.jsonl", "--json"
    )
    assert (seeing.err, len(seeing.json["replayed"])) == ("", 1)
    assert [Path(one).name for one in seeing.json["receipts"]] == ["recollect.db.erasures.jsonl"]


def test_on_a_server_too(call: Call, tmp_path: Path, postgres: Server):
    url = f"{postgres.create('cli_erase')}?receipts={tmp_path / 'erasures.jsonl'}"
    assert call(tmp_path, "remember", SECRET, "--user", "ada", "--store", url).code == OK
    done = call(tmp_path, "erase", "--user", "ada", "--yes", "--store", url)
    assert (done.code, "complete" in done.out, "erased     1 semantic" in done.out) == (OK, True, True)
    assert "not seen   the server's own files" in done.out
    id = done.out.split()[1].rstrip(":")
    verified = call(tmp_path, "verify-erasure", id, "--store", url).out
    assert ("it holds" in verified, "not seen: the server's own files" in verified) == (True, True)
    assert "heliotrope" not in call(tmp_path, "recall", "the code of the locker", "--user", "ada", "--store", url).out
    told = [json.loads(line) for line in (tmp_path / "erasures.jsonl").read_text("utf-8").splitlines()]
    assert [one["receipt"]["id"] for one in told if "receipt" in one] == [id]


def test_tiers_on_servers_are_erased_by_the_same_command(call: Call, tmp_path: Path):
    server = RedisServer(tmp_path / "redis").start()
    try:
        stores = f"conversation={server.url} episodic={server.url} checkpoints={server.url} default=chroma:./facts"
        assert call(tmp_path, "remember", SECRET, "--user", "ada", RECOLLECT_STORES=stores).code == OK
        done = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", RECOLLECT_STORES=stores)
        assert (done.code, done.json["status"], done.json["erased"]["semantic"]) == (OK, "complete", 1)
        files = [file for file in (tmp_path / "facts").rglob("*") if file.is_file()]
        assert files
        assert not any(b"heliotrope" in file.read_bytes() for file in files)
        assert call(tmp_path, "verify-erasure", done.json["id"], RECOLLECT_STORES=stores).code == OK
        assert "nothing waits" in call(tmp_path, "finish-erasures", "--store", "chroma:./facts").out
        assert call(tmp_path, "finish-erasures", "--store", "chroma:./nowhere").code == FAILED
    finally:
        server.kill()


def test_a_receipt_that_was_pending_stands_for_what_it_has_become(call: Call, tmp_path: Path):
    # Mutant: it is held against the seal that it did not have yet.
    store = ["--store", str(tmp_path / "agent.db")]
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    reader = apsw.Connection(str(tmp_path / "agent.db"))
    reader.execute("begin")
    reader.execute("select count(*) from records").fetchall()
    pending = call(tmp_path, "erase", "--user", "ada", "--yes", *store)
    assert (pending.code, "recollect lifecycle" in pending.out) == (FAILED, True)
    told = call(tmp_path, "erase", "--user", "ada", "--yes", "--json", *store)
    (tmp_path / "pending.json").write_text(told.out, "utf-8")
    early = call(tmp_path, "verify-erasure", "pending.json", *store)
    assert (early.code, "it is still pending" in early.out) == (FAILED, True)
    reader.execute("rollback")
    reader.close()
    assert call(tmp_path, "lifecycle", *store).code == OK
    for receipt in ("pending.json", told.json["id"]):
        assert call(tmp_path, "verify-erasure", receipt, *store).code == OK


def test_what_was_told_again_is_told_of(call: Call, tmp_path: Path):
    """Mutant: verifying says nothing of what is shared."""
    store = ["--store", str(tmp_path / "agent.db")]
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    (tmp_path / "receipt.json").write_text(call(tmp_path, "erase", "--user", "ada", "--yes", "--json", *store).out)
    alone = call(tmp_path, "verify-erasure", "receipt.json", *store)
    assert call(tmp_path, "remember", SECRET, "--user", "ada", *store).code == OK
    again = call(tmp_path, "verify-erasure", "receipt.json", *store)
    assert (alone.code, "kept now" in alone.out) == (OK, False)
    assert (again.code, "kept now" in again.out) == (OK, True)
