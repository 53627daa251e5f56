"""Failpoints: ignored in a normal run, and actions of their rules in a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.durable import failpoints
from recollect.durable.failpoints import (
    ERASURE_POINTS,
    FAILPOINTS_VARIABLE,
    OTHER_POINTS,
    RUN_POINTS,
    FailPointReached,
    arm_failpoints,
)
from recollect.errors import BadSettings

SOURCE = Path(failpoints.__file__).parent


def run(rules: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from recollect.durable.failpoints import reach_failpoint\n{program}"],
        env={**os.environ, FAILPOINTS_VARIABLE: rules},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_normal_run_ignores_failpoints():
    assert FAILPOINTS_VARIABLE not in os.environ
    assert failpoints.reach_failpoint is failpoints._ignore
    failpoints.reach_failpoint("any name")


def test_failpoints_in_the_code_and_the_lists_are_equal():
    used = [
        name
        for module in SOURCE.parent.rglob("*.py")
        for name in re.findall(r'\breach_failpoint\("([^"]+)"\)', module.read_text("utf-8"))
    ]
    assert sorted(set(used)) == sorted((*RUN_POINTS, *OTHER_POINTS, *ERASURE_POINTS))


def test_visits_are_counted_and_logged(tmp_path: Path):
    act = arm_failpoints(f"body.before=raise@2; visited={tmp_path / 'visited'}")
    act("body.before")
    act("body.after")
    with pytest.raises(FailPointReached, match=r"body\.before"):
        act("body.before")
    act("body.before")
    assert (tmp_path / "visited").read_text().split() == ["body.before", "body.after", "body.before", "body.before"]


def test_kill_rule_kills_the_process():
    done = run("claim.after=kill9@2", "for n in (1, 2, 3): print(n, flush=True); reach_failpoint('claim.after')")
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["1", "2"])


def test_sleep_rule_delays_the_process():
    done = run(
        "claim.after=sleep:0.2",
        "import time; t = time.monotonic(); reach_failpoint('claim.after'); print(time.monotonic() - t)",
    )
    assert float(done.stdout) >= 0.2


@pytest.mark.parametrize("rules", ["nowhere=raise", "body.before", "body.before=explode", "body.before=raise@x"])
def test_invalid_rule_is_refused(rules: str):
    with pytest.raises(BadSettings, match=FAILPOINTS_VARIABLE):
        arm_failpoints(rules)
    assert run(rules, "").returncode == 1
