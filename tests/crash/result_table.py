"""The result table of a run: each promise, the scenario, the violations, and whether the mutants were detected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

KEY = "promise"
ORDER = ("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "R1", "R2", "O1", "E1", "E2", "E3", "E4")


class Row(NamedTuple):
    """The result of one test. The row of a mutant counts how often the injected fault was detected."""

    promise: str
    done: str
    violations: int
    mutant: bool = False


class Table:
    """A recorder of result rows in the test report, which also works with parallel test processes."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record

    def add_result(self, promise: str, done: str, violations: int) -> None:
        self._record(KEY, tuple(Row(promise, done, violations)))

    def add_mutant(self, promise: str, mutant: str, violations: int) -> None:
        self._record(KEY, tuple(Row(promise, mutant, violations, True)))


def lines(rows: Iterable[Row], seed: int) -> list[str]:
    """Return the table as lines of text."""
    ordered = sorted(rows, key=lambda row: (ORDER.index(row.promise), row.mutant))
    width = max((len(_what(row)) for row in ordered), default=0)
    text = [f"{'':2}  {'scenario':<{width}}  violations"]
    last = ""
    for row in ordered:
        text.append(f"{'' if row.promise == last else row.promise:2}  {_what(row):<{width}}  {row.violations:>10}")
        last = row.promise
    return [*text, f"seed {seed}: CRASH_SEED={seed} repeats this run"]


def _what(row: Row) -> str:
    return f"  mutant: {row.done}" if row.mutant else row.done
