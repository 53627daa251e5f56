"""Users who return after days or in session 47, each session in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.models.minilm import MiniLM

MONDAY = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]


class House:
    """A store file and visits to it; each visit is a process that ends before the next starts."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def visit(self, time: datetime, user: str, session: str, *commands: list[Any]) -> list[Any]:
        program = Path(__file__).with_name("visit_process.py")
        completed = subprocess.run(
            [sys.executable, str(program), str(self.store), time.isoformat(), user, session],
            input=json.dumps(commands), capture_output=True, text=True, timeout=240, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )  # fmt: skip
        killed = any(command[0] == "killed" for command in commands)
        assert (completed.returncode == 0) != killed, completed.stderr
        answers: list[Any] = json.loads(completed.stdout)
        return answers


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "agent.db")


ON_MONDAY = [
    ["say", "Hi there, how are you?", "Fine, thanks. What can I do?"],
    ["say", "I'm allergic to peanuts, so no satay for the team lunch.", "Noted, no satay."],
    ["say", "I prefer metric units in every report.", "Metric it is."],
    ["say", "Please remember that the staging database listens on port 6432.", "I will."],
    ["say", "What time is it in Lisbon?", "Nine o'clock."],
    ["fail", "Export the invoices of 2025", "export all rows at once", "timed out", "It times out above 10,000 rows."],
]
ON_THURSDAY = [
    ["ask", "Which units should the distances in the report have?"],
    ["ask", "May I order food with peanuts for lunch?"],
    ["ask", "On which port is the staging database?"],
    ["ask", "How should the invoices be exported?"],
    ["ask", "What is the capital of Mongolia?"],
]


def check_answers(answers: list[Any]) -> None:
    units, food, port, invoices, mongolia = answers
    assert any("metric units" in fact for fact in units["known"])
    assert any("allergic to peanuts" in fact for fact in food["known"])
    assert any("6432" in fact for fact in port["known"])
    assert any("times out above 10,000 rows" in fact for fact in invoices["known"])  # the lesson of the failed task
    assert mongolia["known"] == []
    everything = "\n".join(answer["text"] for answer in answers)
    assert "metric units" in units["text"]
    assert "2026-03-02" in everything  # the date of the turn
    assert not any("how are you" in fact for answer in answers for fact in answer["known"])


def test_user_returning_after_three_days_gets_promoted_facts(house: House):
    house.visit(MONDAY, "ada", "monday", *ON_MONDAY)
    [counts] = house.visit(MONDAY + timedelta(hours=12), "ada", "night", ["tidy"])
    assert counts["promoted"] >= 3
    thursday = MONDAY + timedelta(days=3)
    _, episodes_left, *answers = house.visit(thursday, "ada", "thursday", ["tidy"], ["episodes"], *ON_THURSDAY)
    assert episodes_left == 0  # the episodes have expired, so the known facts were promoted
    check_answers(answers)


def test_user_returning_without_lifecycle_runs_gets_promoted_facts(house: House):
    """The process was killed on Monday and its episodes have expired, but the conversation still has the turns."""
    house.visit(MONDAY, "ada", "monday", *ON_MONDAY, ["killed"])
    thursday = MONDAY + timedelta(days=3)
    episodes_left, counts, *answers = house.visit(thursday, "ada", "thursday", ["episodes"], ["tidy"], *ON_THURSDAY)
    assert episodes_left == 0
    assert counts["promoted"] >= 3
    check_answers(answers)


def test_another_user_gets_nothing(house: House):
    house.visit(MONDAY, "ada", "monday", *ON_MONDAY, ["tidy"])
    answers = house.visit(MONDAY + timedelta(days=3), "bob", "monday", ["tidy"], *ON_THURSDAY)[1:]
    assert [answer["text"] for answer in answers] == [""] * len(ON_THURSDAY)


CHATTER = [
    ("The build of project {n} is green again.", "Good to hear."),
    ("How many commits are in release {n}?", "About {n}."),
    ("Let's look at ticket {n} next.", "Ticket {n} is about the login page."),
    ("The meeting about topic {n} was moved to room {n}.", "I'll tell the others."),
]


def test_preference_of_session_1_is_recalled_in_session_47(house: House):
    house.visit(
        MONDAY, "ada", "session-1",
        ["say", "I prefer metric units in every report.", "Metric it is."],
        ["say", "My name is Ada and I work as a surveyor in Porto.", "Nice to meet you, Ada."],
        ["tidy"],
    )  # fmt: skip
    house.visit(MONDAY, "bob", "session-1", ["say", "I prefer imperial units in every report.", "Fine."], ["tidy"])
    # One session a day, 15 in each process, with a lifecycle run every night.
    for first in range(2, 47, 15):
        days: list[list[Any]] = []
        for n in range(first, min(first + 15, 47)):
            days += [["session", f"session-{n}"]]
            days += [["say", user.format(n=n), assistant.format(n=n)] for user, assistant in CHATTER]
            days += [["tidy"], ["wait", 24]]
        house.visit(MONDAY + timedelta(days=first - 1), "ada", "session-0", *days)
    _, units, job = house.visit(
        MONDAY + timedelta(days=46), "ada", "session-47",
        ["tidy"],
        ["ask", "Which units should the distances in the report have?"],
        ["ask", "What is my job, and where do I work?"],
    )  # fmt: skip
    assert any("metric units" in fact for fact in units["known"])
    assert not any("imperial" in fact for fact in units["known"])
    assert any("surveyor in Porto" in fact for fact in job["known"])


LANDING = "The chap across the landing saws away at his cello every evening."
INSTRUMENT: list[Any] = ["ask", "Which musical instrument does my neighbour play?", 5]


def test_turn_is_found_by_meaning_after_a_crash_before_indexing(house: House):
    # Mutant: opening a memory does not check the logs for unindexed turns.
    house.visit(MONDAY, "ada", "monday", ["behind"], ["say", LANDING, "Poor you."], ["killed"])
    talk = [
        command for n in range(4) for command in (["session", f"day {n}"], ["say", f"Build {n} is green.", "Good."])
    ]
    house.visit(MONDAY + timedelta(days=1), "ada", "day", ["behind"], *talk, ["killed"])
    [answer] = house.visit(MONDAY + timedelta(days=400), "ada", "a year later", INSTRUMENT)
    assert f"- {LANDING} (2026-03-02)" in answer["text"].splitlines()


async def test_turn_recorded_by_another_process_is_found(house: House, minilm: MiniLM):
    async with AgentMemory.open(house.store, user="ada", session="here", embedder=minilm) as memory:
        await memory.record_turn("Good morning, the build is green.", "Good.")
        assert "cello" not in str(await memory.recall(*INSTRUMENT[1:]))
        house.visit(MONDAY, "ada", "there", ["say", LANDING, "Poor you."])
        house.visit(MONDAY, "ada", "elsewhere", ["behind"], ["say", "I have moved to Tromsø.", "Brr."], ["killed"])
        assert LANDING in str(await memory.recall(*INSTRUMENT[1:]))
        assert "Tromsø" in str(await memory.recall("Which town do I live in?", 5))
