"""The demo, as a user runs it: a real process, killed by a real signal."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[3] / "examples" / "killed_at_18.py"


def test_killed_at_18_of_25_and_resumed(tmp_path: Path):
    # Mutant: a completion that does not list the step as completed. Mutant: a key that depends on the attempt.
    done = subprocess.run(
        [sys.executable, str(DEMO), str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("-- second run")
    assert f"-- ended with -{signal.SIGKILL.value}" in first
    assert [int(number) for number in re.findall(r"step (\d+), attempt 1", first)] == list(range(1, 19))
    assert re.findall(r"step (\d+), attempt (\d)", second)[0] == ("18", "2")
    assert [int(number) for number in re.findall(r"step (\d+), ", second)] == list(range(18, 26))
    assert "completed 25 of 25" in second
    lines = (tmp_path / "effects.txt").read_text("utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 25
    assert [line.split(" ", 1)[1] for line in lines] == [f"effect of step {n}" for n in range(1, 26)]
