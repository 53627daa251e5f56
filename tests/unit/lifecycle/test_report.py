"""Lifecycle reports: actions and reasons, without content."""

from __future__ import annotations

from datetime import UTC, datetime

from recollect.lifecycle.report import LifecycleAction, LifecycleReportBuilder

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_report_without_actions_is_falsy():
    report = LifecycleReportBuilder().build(NOW, planned=False)
    assert not report
    assert str(report) == "0 examined: nothing to do"


def test_report_lists_every_action_with_its_reason():
    ledger = LifecycleReportBuilder()
    ledger.examined = 1200
    ledger.add("promoted", [LifecycleAction("a", "semantic", "explicit, from entry e")])
    ledger.add("decayed", (LifecycleAction(f"d{n}", "semantic", "importance 0.50 → 0.40") for n in range(7)))
    ledger.add_note("left for later")
    ledger.add_note("left for later")
    report = ledger.build(NOW, planned=True)
    assert report
    assert report.counts == {"promoted": 1, "expired": 0, "capped": 0, "merged": 0, "decayed": 7, "forgotten": 0}
    lines = str(report).splitlines()
    assert lines[0] == "1,200 examined: 1 promoted, 7 decayed (a plan; nothing was changed)"
    assert lines[1] == "  promoted a (semantic): explicit, from entry e"
    assert lines[-2:] == ["  … and 2 more decayed", "  note: left for later"]
