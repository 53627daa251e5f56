"""Known holes in what a store is made of, by version: a small table, as it was on a day."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Hole:
    """A published weakness of a version that is in use."""

    component: str
    version: str
    cve: str
    what: str
    fixed_in: str
    """The first version of the same branch without it, or the next; empty: there is none."""

    @property
    def way_out(self) -> str:
        if not self.fixed_in:
            return f"keep strangers away from {self.component}: no release without {self.cve} was known then"
        return f"upgrade {self.component} to {self.fixed_in} or newer"


@cache
def _table() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("advisories.json").read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def as_of() -> str:
    """The day of the table."""
    return str(_table()["as_of"])


AS_OF = as_of()


def known_holes(versions: Mapping[str, str]) -> tuple[dict[str, str], list[Hole]]:
    """What was looked at, our own packages included, and what is known against it."""
    looked = {**versions, **_installed()}
    found = [
        Hole(name, version, entry["cve"], entry["what"], _way_out(entry, version))
        for entry in _table()["holes"]
        for name, version in looked.items()
        if entry["component"] == name and _is_in(entry, version)
    ]
    return looked, found


def _installed() -> dict[str, str]:
    """The packages of the table that are here."""
    found = {}
    for name in dict.fromkeys(entry["component"] for entry in _table()["holes"] if entry.get("package")):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_in(entry: Mapping[str, Any], version: str) -> bool:
    ours = _numbers(version)
    if ours < _numbers(entry.get("since", "0")):
        return False
    if "last" in entry:
        return ours <= _numbers(entry["last"])
    for fixed in entry["fixed"]:
        if _branch(fixed, ours):
            return ours < _numbers(fixed)
    return ours < max(map(_numbers, entry["fixed"]))


def _way_out(entry: Mapping[str, Any], version: str) -> str:
    ours = _numbers(version)
    fixed: list[str] = entry.get("fixed", [])
    return next((one for one in fixed if _branch(one, ours)), next((f for f in fixed if ours < _numbers(f)), ""))


def _branch(fixed: str, ours: tuple[int, ...]) -> bool:
    """Whether a version is of the branch that a fix was made for: all but the last number is the same."""
    branch = _numbers(fixed)[:-1]
    return ours[: len(branch)] == branch


def _numbers(version: str) -> tuple[int, ...]:
    """`9.1.2.post2` as 9, 1, 2: what follows the numbers says nothing of their order."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in _NUMBER.findall(match[1])) if match else (0,)
