"""Known vulnerabilities of databases and libraries, from a dated table of versions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Advisory:
    """A published vulnerability of a version that is in use."""

    component: str
    version: str
    cve: str
    summary: str
    fixed_in: str
    """The first fixed version of the same branch, or of the next; empty if there is none."""

    @property
    def fix(self) -> str:
        if not self.fixed_in:
            return f"restrict access to {self.component}: no release fixed {self.cve} on {TABLE_DATE}"
        return f"upgrade {self.component} to {self.fixed_in} or newer"


@cache
def _load_table() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("advisories.json").read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


TABLE_DATE = str(_load_table()["as_of"])


def find_advisories(versions: Mapping[str, str]) -> tuple[dict[str, str], list[Advisory]]:
    """Return the checked versions, including installed packages of the table, and their advisories."""
    checked = {**versions, **_list_installed_versions()}
    found = [
        Advisory(name, version, entry["cve"], entry["what"], _find_fixed_version(entry, version))
        for entry in _load_table()["holes"]
        for name, version in checked.items()
        if entry["component"] == name and _is_affected(entry, version)
    ]
    return checked, found


def _list_installed_versions() -> dict[str, str]:
    """Return the versions of the packages of the table that are installed."""
    found = {}
    for name in dict.fromkeys(entry["component"] for entry in _load_table()["holes"] if entry.get("package")):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_affected(entry: Mapping[str, Any], version: str) -> bool:
    parsed = _parse_version(version)
    if parsed < _parse_version(entry.get("since", "0")):
        return False
    if "last" in entry:
        return parsed <= _parse_version(entry["last"])
    for fixed in entry["fixed"]:
        if _is_same_branch(fixed, parsed):
            return parsed < _parse_version(fixed)
    return parsed < max(map(_parse_version, entry["fixed"]))


def _find_fixed_version(entry: Mapping[str, Any], version: str) -> str:
    parsed = _parse_version(version)
    fixed: list[str] = entry.get("fixed", [])
    same_branch = [candidate for candidate in fixed if _is_same_branch(candidate, parsed)]
    later = [candidate for candidate in fixed if parsed < _parse_version(candidate)]
    return next(iter((*same_branch, *later)), "")


def _is_same_branch(fixed: str, version: tuple[int, ...]) -> bool:
    """Return True if all numbers but the last of the fixed version agree."""
    branch = _parse_version(fixed)[:-1]
    return version[: len(branch)] == branch


def _parse_version(version: str) -> tuple[int, ...]:
    """Return the leading numbers: `9.1.2.post2` is 9, 1, 2."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else (0,)
