"""An agent killed at every place of a run with six tools: no completed call is repeated, and the answer is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from recollect.runtime.failpoints import VARIABLE
from tests.crash.ledger import Ledger
from tests.crash.nursery import Nursery
from tests.crash.processes import start
from tests.crash.table import Table
from tests.crash.tool_agent import ANSWER, MUTANT, TOOLS

AT_ONCE = 3
Case = tuple[str, ...]
"""The rules of the processes that are killed, one after the other; the next one runs to the end."""


class Mother(Nursery):
    """One that has loaded the agent, too: its children begin at once."""

    def __init__(self, *keep: int) -> None:
        self._mother = start("tool_agent", keep=keep)


def killed(directory: Path, cases: Sequence[Case], mutant: str = "") -> dict[Case, list[list[str]]]:
    """What the oracle was told in each case."""
    directory.mkdir(exist_ok=True)
    told: dict[Case, list[list[str]]] = {}
    for at in range(0, len(cases), AT_ONCE):
        some = cases[at : at + AT_ONCE]
        ledgers = {case: Ledger() for case in some}
        nursery = Mother(*(ledger.writing for ledger in ledgers.values()))
        for turn in range(max(map(len, some)) + 1):
            children = []
            for place, (case, ledger) in enumerate(ledgers.items()):
                if turn <= len(case):
                    rules = case[turn] if turn < len(case) else ""
                    given = (directory / f"{mutant}{at + place}.db", ledger.writing)
                    children.append(nursery.child("tool_agent", *given, environ={VARIABLE: rules, MUTANT: mutant}))
            for child in children:
                nursery.wait(child)
        nursery.end()
        for case, ledger in ledgers.items():
            told[case] = ledger.read()
            ledger.close()
    return told


def faults(lines: list[list[str]]) -> list[str]:
    """What is wrong with a run, by what the world saw of it."""
    found: list[str] = []
    kept: set[str] = set()
    effects: dict[str, set[tuple[str, str]]] = {}
    for line in lines:
        if line[0] == "kept":
            kept.add(line[1])
        elif line[0] == "effect":
            _, tool, key, wording = line
            if tool in kept:
                found.append(f"{tool} was completed and called again")
            effects.setdefault(tool, set()).add((key, wording))
    found += [f"{tool} was called in several ways: {ways}" for tool, ways in effects.items() if len(ways) > 1]
    if set(effects) != set(TOOLS):
        found.append(f"of six tools {sorted(effects)} had an effect")
    ends = [line for line in lines if line[0] == "end"]
    if len(ends) != 1:
        found.append(f"{len(ends)} processes came to the end")
    elif ends[0][1:] != [ANSWER.replace(" ", "_"), "6", "6", "2"]:
        found.append(f"the end was {ends[0]}")
    return found


def places(directory: Path) -> list[Case]:
    """Every place that a run without trouble comes by, each time it does."""
    visited = directory / "visited"
    [lines] = killed(directory / "well", [(f"visited={visited}",)]).values()
    assert [line[0] for line in lines].count("effect") == len(TOOLS)  # the second process had nothing to do
    seen = Counter(point for point in visited.read_text().split() if not point.startswith("heartbeat"))
    return [(f"{point}=kill9@{visit}",) for point, times in seen.items() for visit in range(1, times + 1)]


def test_killed_anywhere_an_agent_repeats_no_completed_call(quick: Path, table: Table):
    cases = places(quick)
    # And once more where only a resumed run comes by: it says that it begins again what never ended.
    cases += [(f"body.after=kill9@{visit}", f"intent.{when}=kill9") for visit in (1, 6) for when in ("before", "after")]
    assert len(cases) > 40
    told = killed(quick / "killed", cases)
    found = {case: wrong for case, lines in told.items() if (wrong := faults(lines))}
    table.held("R1", f"an agent with six tools, killed at {len(cases)} places", len(found))
    assert found == {}


@pytest.mark.parametrize("mutant", ["forgetful", "unsure", "fickle", "late"])
def test_the_harness_sees_a_fault(mutant: str, quick: Path):
    cases = [("body.after=kill9@4",), ("completion.before=kill9@7",), ("body.after=kill9@6",)]
    assert any(faults(lines) for lines in killed(quick, cases, mutant).values())
