"""What a migration did, in figures: space by space, with the hashes that say both sides are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recollect.values import Space

Progress = Callable[[str, int, int], None]
"""Called with the stage, how much of it is done, and how much there is of it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One space: how much it holds, how much of that was copied by this run, and the sha256 of both sides.

    In a dry run nothing is copied, and there is no hash.
    """

    space: Space
    held: int
    copied: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What was moved. `notes` tell of what was left behind on purpose."""

    source: str
    target: str
    model: str | None
    moved: tuple[Moved, ...]
    notes: tuple[str, ...] = ()
    dry_run: bool = False

    @property
    def held(self) -> int:
        return sum(one.held for one in self.moved)

    @property
    def copied(self) -> int:
        return sum(one.copied for one in self.moved)
