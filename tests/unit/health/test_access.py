"""Check of server URLs for encryption and passwords, and of the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect import Settings
from recollect.clock import system_clock
from recollect.health.checks_access import check_server_access
from recollect.health.context import CheckContext, StoreTarget
from recollect.stores.health import StoreStats

SERVER = StoreStats(engine="a server", durability="power loss")


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
async def test_server_url_has_its_access_status(url: str, status: str):
    # Mutants: every host counts as local; `prefer` counts as encrypted; missing passwords are accepted.
    target = StoreTarget(url=url, tiers=("semantic",), stats=SERVER)
    verdict = await check_server_access(CheckContext(settings=Settings(), clock=system_clock, targets=(target,)))
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
async def test_readable_settings_file_with_a_key_warns(line: str, status: str, tmp_path: Path):
    # Mutant: every option that starts with the name of a key counts as a key.
    file = tmp_path / "recollect.toml"
    file.write_text(line + "\n")
    file.chmod(0o644)
    context = CheckContext(settings=Settings(), clock=system_clock, targets=(), settings_file=file)
    assert (await check_server_access(context)).status == status
