"""`recollect key`: a store is encrypted, rekeyed and decrypted, and no key is ever printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_runner import FAILED, NOT_FOUND, OK, Call, caller

SECRET = "The code of the locker is heliotrope, and nobody else knows it."


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    return caller(capsys, monkeypatch)


def test_store_is_encrypted_rekeyed_and_decrypted(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = tmp_path / "recollect.db"
    assert call(tmp_path, "remember", SECRET).code == OK
    assert call(tmp_path, "key", "new", "first.key").code == OK
    assert call(tmp_path, "key", "new", "second.key", "--json").json == {"path": str(tmp_path / "second.key")}
    unset = call(tmp_path, "key", "set")
    assert (unset.code, "recollect key new" in unset.err) == (FAILED, True)

    monkeypatch.setenv("RECOLLECT_ENCRYPTION_KEY_FILE", "first.key")
    refused = call(tmp_path, "recall", "locker")
    assert (refused.code, "recollect key set" in refused.err) == (FAILED, True)
    assert call(tmp_path, "key", "set", "--json").json == {"changed": [str(store)]}
    assert b"heliotrope" not in store.read_bytes()
    assert "nothing to do" in call(tmp_path, "key", "set").out
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker").out
    assert call(tmp_path, "backup", "old.db").code == OK

    rotated = call(tmp_path, "key", "rotate", "--to", "second.key")
    assert (rotated.code, "set encryption_key_file to second.key" in rotated.err) == (OK, True)
    wrong = call(tmp_path, "recall", "locker", "--json")
    assert (wrong.code, wrong.error_json["error"]) == (FAILED, "WrongKey")
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker", "--store", "old.db").out
    # A backup is restored with its own key, and rekeyed afterwards.
    assert call(tmp_path, "restore", "old.db", "--to", "new.db").code == OK
    assert call(tmp_path, "key", "rotate", "--to", "second.key", "--store", "new.db").code == OK

    monkeypatch.setenv("RECOLLECT_ENCRYPTION_KEY_FILE", "second.key")
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker", "--store", "new.db").out
    lost = call(tmp_path, "restore", "old.db", "--to", "lost.db")
    assert (lost.code, f"{tmp_path / 'old.db'} is encrypted with another key" in lost.err) == (FAILED, True)
    shown = call(tmp_path, "config", "show").out
    keys = [(tmp_path / name).read_text().strip() for name in ("first.key", "second.key")]
    assert "second.key" in shown
    assert not any(key in shown for key in keys)
    assert call(tmp_path, "key", "remove").code == OK
    assert b"heliotrope" in store.read_bytes()
    assert call(tmp_path, "key", "remove", "--store", "nothing.db").code in (NOT_FOUND, FAILED)

    monkeypatch.delenv("RECOLLECT_ENCRYPTION_KEY_FILE")
    assert "heliotrope" in call(tmp_path, "recall", "the code of the locker").out
    needed = call(tmp_path, "recall", "locker", "--store", "new.db")
    assert (needed.code, "RECOLLECT_ENCRYPTION_KEY_FILE" in needed.err) == (FAILED, True)
