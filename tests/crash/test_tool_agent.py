"""R1 with tools: an agent killed at any point repeats no completed call and returns the same answer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from recollect.durable.failpoints import FAILPOINTS_VARIABLE
from tests.crash.acknowledgments import Ledger
from tests.crash.forkserver import ForkServer
from tests.crash.process_launcher import start
from tests.crash.result_table import Table
from tests.crash.tool_agent import ANSWER, MUTANT, TOOLS

AT_ONCE = 3
STRIDE = 1 if "CRASH_ROUNDS" in os.environ else 2
Case = tuple[str, ...]
"""The failpoint rules of the killed processes, in order; the process after them runs to the end."""


class ToolAgentForkServer(ForkServer):
    """A fork server that has also imported the agent."""

    def __init__(self, *keep: int) -> None:
        self._process = start("tool_agent", keep=keep)


def run_cases(directory: Path, cases: Sequence[Case], mutant: str = "") -> dict[Case, list[list[str]]]:
    """Run each case to its end and return its notes."""
    directory.mkdir(exist_ok=True)
    notes: dict[Case, list[list[str]]] = {}
    for at in range(0, len(cases), AT_ONCE):
        some = cases[at : at + AT_ONCE]
        ledgers = {case: Ledger() for case in some}
        fork_server = ToolAgentForkServer(*(ledger.writing for ledger in ledgers.values()))
        for turn in range(max(map(len, some)) + 1):
            children = []
            for place, (case, ledger) in enumerate(ledgers.items()):
                if turn <= len(case):
                    rules = case[turn] if turn < len(case) else ""
                    args = (directory / f"{mutant}{at + place}.db", ledger.writing)
                    children.append(
                        fork_server.start_child(
                            "tool_agent", *args, environ={FAILPOINTS_VARIABLE: rules, MUTANT: mutant}
                        )
                    )
            for child in children:
                fork_server.wait(child)
        fork_server.close()
        for case, ledger in ledgers.items():
            notes[case] = ledger.read()
            ledger.close()
    return notes


def find_faults(lines: list[list[str]]) -> list[str]:
    """Return the faults of a run by its noted effects, results and answer."""
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
    found += [f"{tool} was called with different arguments: {ways}" for tool, ways in effects.items() if len(ways) > 1]
    if set(effects) != set(TOOLS):
        found.append(f"only {sorted(effects)} had an effect, of six tools")
    ends = [line for line in lines if line[0] == "end"]
    if len(ends) != 1:
        found.append(f"{len(ends)} processes reached the end")
    elif ends[0][1:] != [ANSWER.replace(" ", "_"), "6", "6", "2"]:
        found.append(f"the end was {ends[0]}")
    return found


def list_kill_points(directory: Path) -> list[Case]:
    """Return a case for every second visit of each failpoint in a run without kills, or for all in a soak."""
    visited = directory / "visited"
    [lines] = run_cases(directory / "well", [(f"visited={visited}",)]).values()
    assert [line[0] for line in lines].count("effect") == len(TOOLS)  # the second process had no work
    seen = Counter(point for point in visited.read_text().split() if not point.startswith("heartbeat"))
    return [
        (f"{point}=kill9@{visit}",) for point, times in seen.items() for visit in {*range(1, times + 1, STRIDE), times}
    ]


@pytest.mark.promise("R1")
def test_agent_killed_anywhere_repeats_no_completed_call(memory_dir: Path, table: Table):
    cases = list_kill_points(memory_dir)
    # Failpoints that only a resumed run passes: it writes another intent for a call that did not finish.
    cases += [(f"body.after=kill9@{visit}", f"intent.{when}=kill9") for visit in (1, 6) for when in ("before", "after")]
    assert len(cases) >= 30
    notes = run_cases(memory_dir / "killed", cases)
    found = {case: wrong for case, lines in notes.items() if (wrong := find_faults(lines))}
    table.add_result("R1", f"an agent with six tools, killed at {len(cases)} points", len(found))
    assert found == {}


@pytest.mark.parametrize("mutant", ["forget_results", "forget_replies", "change_keys", "delay_commit"])
def test_agent_mutant_is_detected(mutant: str, memory_dir: Path):
    cases = [("body.after=kill9@4",), ("completion.before=kill9@7",), ("body.after=kill9@6",)]
    assert any(find_faults(lines) for lines in run_cases(memory_dir, cases, mutant).values())
