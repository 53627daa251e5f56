"""Table of known vulnerabilities: version ranges, fixes and sources."""

from __future__ import annotations

import re
from datetime import date
from importlib import metadata

import pytest

from recollect.health import checks_stores
from recollect.health.checks_stores import TABLE_DATE, find_advisories


def find_cves(component: str, version: str) -> list[str]:
    return [advisory.cve for advisory in find_advisories({component: version})[1] if advisory.component == component]


@pytest.mark.parametrize(
    ("component", "version", "expected"),
    [
        ("SQLite", "3.50.1", ["CVE-2026-11824", "CVE-2025-6965"]),
        ("SQLite", "3.50.2", ["CVE-2026-11824"]),
        ("SQLite", "3.53.2", []),
        ("SQLite", "3.54.1", []),
        ("PostgreSQL", "18.6", []),
        ("PostgreSQL", "18.5", ["CVE-2026-14662"]),
        ("PostgreSQL", "18.3", ["CVE-2026-14662", "CVE-2026-6473"]),
        ("PostgreSQL", "17.11", []),
        ("PostgreSQL", "17.10", ["CVE-2026-14662"]),
        ("PostgreSQL", "13.20", ["CVE-2026-14662", "CVE-2026-6473"]),
        ("PostgreSQL", "19.0", []),
        ("pgvector", "0.5.1", []),
        ("pgvector", "0.8.1", ["CVE-2026-3172"]),
        ("pgvector", "0.8.2", []),
        ("Redis", "7.2.10", ["CVE-2025-49844"]),
        ("Redis", "7.2.11", []),
        ("Redis", "7.0.15", ["CVE-2025-49844"]),
        ("Redis", "8.2.2", []),
        ("Redis", "8.4.0", []),
        ("Valkey", "9.0.1", ["CVE-2026-21863", "CVE-2026-27623"]),
        ("Valkey", "9.0.2", ["CVE-2026-21863", "CVE-2026-27623"]),
        ("Valkey", "9.0.3", []),
        ("Valkey", "8.1.6", []),
        ("Chroma server", "1.5.9", ["CVE-2026-45829"]),
        ("Chroma server", "0.6.3", []),
        ("Chroma server", "1.6.0", []),
    ],
)
def test_advisories_match_version_ranges(component: str, version: str, expected: list[str]):
    # Mutants: branches are not distinguished; `since` is ignored; `<` becomes `<=`.
    assert find_cves(component, version) == expected


def test_fix_is_on_the_same_branch():
    _, found = find_advisories({"PostgreSQL": "16.2", "Chroma server": "1.2.0"})
    assert {advisory.fix for advisory in found} == {
        "upgrade PostgreSQL to 16.15 or newer",
        "upgrade PostgreSQL to 16.14 or newer",
        f"restrict access to Chroma server: no release fixed CVE-2026-45829 on {TABLE_DATE}",
    }


def test_installed_packages_are_checked():
    looked, _ = find_advisories({})
    assert looked["onnx"] == metadata.version("onnx")


def test_every_advisory_has_a_valid_entry():
    assert date.fromisoformat(TABLE_DATE) > date(2026, 1, 1)
    for entry in checks_stores._load_table()["holes"]:
        assert re.fullmatch(r"CVE-20\d\d-\d{4,}", entry["cve"])
        assert entry["what"]
        assert entry["source"]
        assert ("fixed" in entry) != ("last" in entry)
