"""A report tells what was done, to what and why, and nothing of what anybody said."""

from __future__ import annotations

from datetime import UTC, datetime

from recollect.lifecycle.report import Action, Ledger

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_run_without_actions_is_falsy_and_says_so():
    report = Ledger().report(NOW, planned=False)
    assert not report
    assert str(report) == "0 looked at: nothing to do"


def test_every_action_is_there_with_its_reason():
    ledger = Ledger()
    ledger.examined = 1200
    ledger.add("promoted", [Action("a", "semantic", "explicit, from entry e")])
    ledger.add("decayed", (Action(f"d{n}", "semantic", "importance 0.50 → 0.40") for n in range(7)))
    ledger.note("left for later")
    ledger.note("left for later")
    report = ledger.report(NOW, planned=True)
    assert report
    assert report.counts == {"promoted": 1, "expired": 0, "capped": 0, "merged": 0, "decayed": 7, "forgotten": 0}
    said = str(report).splitlines()
    assert said[0] == "1,200 looked at: 1 promoted, 7 decayed (a plan; nothing was changed)"
    assert said[1] == "  promoted a (semantic): explicit, from entry e"
    assert said[-2:] == ["  … and 2 more decayed", "  note: left for later"]
