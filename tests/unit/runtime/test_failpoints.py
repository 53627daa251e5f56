"""Fail points: nothing at all in a normal run, and exactly what was asked for in a test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.errors import BadSettings
from recollect.runtime import failpoints
from recollect.runtime.failpoints import ELSEWHERE, ERASURE_POINTS, POINTS, VARIABLE, FailPointReached, armed

SOURCE = Path(failpoints.__file__).parent


def run(rules: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from recollect.runtime.failpoints import reach\n{program}"],
        env={**os.environ, VARIABLE: rules},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_normal_run_does_nothing():
    assert VARIABLE not in os.environ
    assert failpoints.reach is failpoints._nothing
    failpoints.reach("any name")


def test_every_point_is_in_the_code_and_every_one_in_the_code_is_listed():
    used = [
        name
        for module in SOURCE.parent.rglob("*.py")
        for name in re.findall(r'\breach\("([^"]+)"\)', module.read_text("utf-8"))
    ]
    assert sorted(set(used)) == sorted((*POINTS, *ELSEWHERE, *ERASURE_POINTS))


def test_a_visit_is_counted_and_written_down(tmp_path: Path):
    act = armed(f"body.before=raise@2; visited={tmp_path / 'visited'}")
    act("body.before")
    act("body.after")
    with pytest.raises(FailPointReached, match=r"body\.before"):
        act("body.before")
    act("body.before")
    assert (tmp_path / "visited").read_text().split() == ["body.before", "body.after", "body.before", "body.before"]


def test_a_process_is_killed_where_it_was_asked():
    done = run("claim.after=kill9@2", "for n in (1, 2, 3): print(n, flush=True); reach('claim.after')")
    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["1", "2"])


def test_a_process_can_be_stalled():
    done = run(
        "claim.after=sleep:0.2", "import time; t = time.monotonic(); reach('claim.after'); print(time.monotonic() - t)"
    )
    assert float(done.stdout) >= 0.2


@pytest.mark.parametrize("rules", ["nowhere=raise", "body.before", "body.before=explode", "body.before=raise@x"])
def test_a_rule_that_means_nothing_is_refused(rules: str):
    with pytest.raises(BadSettings, match=VARIABLE):
        armed(rules)
    assert run(rules, "").returncode == 1
