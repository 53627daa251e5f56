"""The table that a run ends with: each promise, what was done to break it, and whether a broken product was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

KEY = "promise"
ORDER = ("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "R1", "R2", "O1", "E1", "E2", "E3", "E4")


class Row(NamedTuple):
    """One test's result. A mutant's row tells how often the fault that was put in was seen."""

    promise: str
    done: str
    violations: int
    mutant: bool = False


class Table:
    """Where a test leaves its row: with its report, which reaches the summary from any process."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record

    def held(self, promise: str, done: str, violations: int) -> None:
        self._record(KEY, tuple(Row(promise, done, violations)))

    def seen(self, promise: str, mutant: str, violations: int) -> None:
        self._record(KEY, tuple(Row(promise, mutant, violations, True)))


def lines(rows: Iterable[Row], seed: int) -> list[str]:
    """The table as text."""
    ordered = sorted(rows, key=lambda row: (ORDER.index(row.promise), row.mutant))
    wide = max((len(_what(row)) for row in ordered), default=0)
    told = [f"{'':2}  {'what was done':<{wide}}  violations"]
    last = ""
    for row in ordered:
        told.append(f"{'' if row.promise == last else row.promise:2}  {_what(row):<{wide}}  {row.violations:>10}")
        last = row.promise
    return [*told, f"seed {seed}: CRASH_SEED={seed} tries the same again"]


def _what(row: Row) -> str:
    return f"  mutant: {row.done}" if row.mutant else row.done
