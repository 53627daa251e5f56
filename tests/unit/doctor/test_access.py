"""Which addresses are safe to come in by, as far as a URL can say."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect import Settings
from recollect.clock import system_clock
from recollect.doctor import Patient, Place
from recollect.doctor.access import strangers_stay_out
from recollect.stores.health import Vitals

SERVER = Vitals(engine="a server", survives="power loss")


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("redis://localhost:6379/0", "pass"),
        ("redis://127.0.0.1:6379/0", "pass"),
        ("redis://[::1]:6379/0", "pass"),
        ("redis://cache.example:6379/0", "fail"),
        ("redis://:secret@cache.example:6379/0", "fail"),
        ("rediss://cache.example:6379/0", "warn"),
        ("rediss://:secret@cache.example:6379/0", "pass"),
        ("rediss+cluster://:secret@cache.example:6379/0", "pass"),
        ("postgresql:///agents", "pass"),
        ("postgresql://ada:secret@db.example/agents", "fail"),
        ("postgresql://ada:secret@db.example/agents?sslmode=prefer", "fail"),
        ("postgresql://ada:secret@db.example/agents?sslmode=verify-full", "pass"),
        ("postgresql://ada@db.example/agents?sslmode=require&password=secret", "pass"),
        ("chroma+http://chroma.example:8000", "fail"),
        ("chroma+https://token@chroma.example", "pass"),
        ("chroma+https://chroma.example", "warn"),
    ],
)
async def test_an_address_is_safe_or_not(url: str, status: str):
    """Mutants: every host counts as this one; `prefer` counts as encrypted; no password is asked for."""
    place = Place(url=url, tiers=("semantic",), vitals=SERVER)
    verdict = await strangers_stay_out(Patient(settings=Settings(), clock=system_clock, places=(place,)))
    assert verdict.status == status
    assert "secret" not in verdict.detail + verdict.fix


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ('encryption_key = "0123456789abcdef"', "warn"),
        ("  openai_api_key='sk-1'", "warn"),
        ('encryption_key_file = "agent.key"', "pass"),
        ("# encryption_key comes from the vault", "pass"),
    ],
)
async def test_settings_that_others_may_read_hold_a_key_or_not(line: str, status: str, tmp_path: Path):
    """Mutant: whatever begins like the name of a key counts as one."""
    file = tmp_path / "recollect.toml"
    file.write_text(line + "\n")
    file.chmod(0o644)
    patient = Patient(settings=Settings(), clock=system_clock, places=(), settings_file=file)
    assert (await strangers_stay_out(patient)).status == status
