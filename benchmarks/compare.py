"""Comparison with another checkout: run the same benchmarks of both in alternation, and print the ratio of each figure.

Each checkout runs its own scripts with its own `src` and the packages of this environment, with the same arguments:
old, new, old, new. A ratio is the new median divided by the old one. The noise is the larger spread, highest ÷ lowest,
of the runs of one checkout; a change within it means nothing. A control is work that does not depend on our code, such
as a numpy scan, so its ratio shows what else the machine did. The noise of a time is at least the median spread of all
times, and the median change of the controls: two runs may agree by chance.

    git worktree add /tmp/before COMMIT
    python benchmarks/compare.py /tmp/before                             # all scripts, about 20 minutes
    python benchmarks/compare.py /tmp/before engine.py --arguments "--scopes 1000 --users 10 --no-chroma"
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from report import console, print_table, save_json

SIDES = OLD, NEW = ("old", "new")
Metric = tuple[str, ...]

ARGUMENTS = {
    "engine.py": "--scopes 100 1000 10000 --users 100 --chroma-users 0 --no-chroma",
    "recall.py": "--scopes 1000 10000 --users 0",
    "steps.py": "--no-peers --rounds 50",
    "backends.py": "--only in_memory sqlite postgres redis --users 50 --rounds 100",
    "retrieval.py": "--corpus LoCoMo --peers",
}
"""The scripts that are compared by default, with their arguments. Both checkouts must know these."""

_NAMES = ("case", "backend")
_RENAMED = {
    "contenders": "systems",
    "bare": "baseline",
    "our_way": "own_statements",
    "filled_in": "fill_seconds",
    "begin_and_end_ms": "start_and_end_ms",
    "silent": "abstained",
    "recall, question known": "recall, known vector",
    "recall, in a row": "recall, consecutive",
    "dense, file in memory": "dense, file in page cache",
    "hybrid, file in memory": "hybrid, file in page cache",
    "10,000 and 20 sessions before": "10,000 and 20 earlier sessions",
}
"""Names of figures in earlier versions of the scripts, and their names today."""
_CONTROLS = {"bare numpy scan", "baseline", "raw_ms", "raw_in_a_thread_ms", "one_row_ms", "raw_per_second"}
_MORE_IS_BETTER = re.compile(r"per_s$|per_second$|@\d+$|^abstained$|^evidence_in_ten$|^after_threshold$")
_LESS_IS_BETTER = re.compile(r"^p\d\d$|_ms$|_mib$|_seconds$|^ratio|commits_per_|bytes_per_")
_INPUTS = {"latency_ms", "away_ms"}
_QUALITY = re.compile(r"@\d+$|_in_ten$|_threshold$")
_DETAILS = {"p95", "p99", "before_mib", "after_mib"}


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of both checkouts."""

    metric: Metric
    old: float
    new: float
    noise: float
    more_is_better: bool

    @property
    def ratio(self) -> float:
        return self.new / self.old

    @property
    def is_control(self) -> bool:
        return _is_control(self.metric)

    @property
    def cost(self) -> float:
        """The ratio, turned so that a value above 1 is worse."""
        return 1 / self.ratio if self.more_is_better else self.ratio

    @property
    def verdict(self) -> str:
        if self.is_control:
            return "control"
        worse = self.cost > self.noise
        return "worse" if worse else "better" if 1 / self.cost > self.noise else "within noise"


def run_script(checkout: Path, script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a checkout's own script and return its figures."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, str(checkout / "benchmarks" / script), *arguments, "--json", file.name]
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} failed with code {done.returncode}:\n{done.stderr[-3000:]}")
        figures: dict[str, Any] = json.load(file)
        return figures


def flatten(figures: Any, path: Metric = ()) -> Iterator[tuple[Metric, float]]:
    """Yield each number with its path; an element of a list has the name of its case or backend in the path."""
    if isinstance(figures, dict):
        name = next((figures[key] for key in _NAMES if key in figures), None)
        inner = path if name is None else (*path[:-1], _RENAMED.get(str(name), str(name)))
        for key, value in figures.items():
            yield from flatten(value, (*inner, _RENAMED.get(key, key)))
    elif isinstance(figures, list):
        for number, value in enumerate(figures):
            yield from flatten(value, (*path, str(number)))
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        yield path, float(figures)


def compare(runs: dict[str, list[dict[Metric, float]]]) -> tuple[list[Change], dict[str, list[Metric]]]:
    """Return the figures that both sides have, and by reason those that cannot be compared."""
    names = {side: list(dict.fromkeys(metric for run in runs[side] for metric in run)) for side in SIDES}
    missing = {
        f"only in {side}": [metric for metric in names[side] if metric not in set(names[other])]
        for side, other in (SIDES, SIDES[::-1])
    }
    values = {
        metric: {side: [run[metric] for run in runs[side] if metric in run] for side in SIDES}
        for metric in names[NEW]
        if metric in set(names[OLD]) and _get_direction(metric)
    }
    missing["zero in a run"] = [metric for metric, both in values.items() if not all(both[OLD] + both[NEW])]
    spreads = {
        metric: max(max(both[side]) / min(both[side]) for side in SIDES)
        for metric, both in values.items()
        if metric not in missing["zero in a run"]
    }
    times = [metric for metric in spreads if not _is_quality(metric)]
    drifts = [
        median(both[NEW]) / median(both[OLD]) for metric in times if _is_control(metric) and (both := values[metric])
    ]
    usual = max(
        median([spreads[metric] for metric in times] or [1.0]),
        median([max(drift, 1 / drift) for drift in drifts] or [1.0]),
    )
    changes = [
        Change(
            metric,
            median(values[metric][OLD]),
            median(values[metric][NEW]),
            spread if _is_quality(metric) else max(spread, usual),
            _get_direction(metric) > 0,
        )
        for metric, spread in spreads.items()
    ]
    return changes, {reason: measured for reason, metrics in missing.items() if (measured := _drop_counts(metrics))}


def _is_control(metric: Metric) -> bool:
    return not _CONTROLS.isdisjoint(metric)


def _is_quality(metric: Metric) -> bool:
    return any(_QUALITY.search(part) for part in metric)


def _drop_counts(metrics: Sequence[Metric]) -> list[Metric]:
    return [metric for metric in metrics if _get_direction(metric)]


def _get_direction(metric: Metric) -> int:
    """Return 1 if more is better, -1 if less is better, and 0 if the figure is a count, a goal or an argument."""
    if metric[-1] in _INPUTS:
        return 0
    if any(_MORE_IS_BETTER.search(part) for part in metric):
        return 1
    return -1 if any(_LESS_IS_BETTER.search(part) for part in metric) else 0


def print_changes(script: str, changes: Sequence[Change], missing: dict[str, list[Metric]], *, details: bool) -> None:
    shown = [change for change in changes if details or _DETAILS.isdisjoint(change.metric)]
    rows = [
        (
            ", ".join(change.metric),
            f"{change.old:.4g}",
            f"{change.new:.4g}",
            f"{change.ratio:.2f}",
            f"{change.noise:.2f}",
            change.verdict,
        )
        for change in shown
    ]
    print_table(script, ("", "old", "new", "new ÷ old", "noise", ""), rows)
    for reason, metrics in missing.items():
        parents = dict.fromkeys(", ".join(metric[:-1] or metric) for metric in metrics)
        print(f"{script}, {reason}: {'; '.join(parents)}")
    for label, group in (
        ("our figures", [change for change in shown if not change.is_control]),
        ("controls", [change for change in shown if change.is_control]),
    ):
        if group:
            mean = math.exp(fmean(math.log(change.cost) for change in group))
            counts = ", ".join(
                f"{sum(change.verdict == verdict for change in group)} {verdict}"
                for verdict in ("better", "within noise", "worse")
            )
            counted = f": {counts}" if label == "our figures" else ""
            print(f"{script}, {label}{counted}; geometric mean of the costs {mean:.2f} × old")
    console.print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="directory of the other checkout")
    parser.add_argument("scripts", nargs="*", help=f"scripts to compare; default: {' '.join(ARGUMENTS)}")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[1], help="directory; default: this checkout")
    parser.add_argument("--runs", type=int, default=2, help="runs of each checkout, at least 2")
    parser.add_argument("--arguments", help="arguments of the scripts instead of the default ones")
    parser.add_argument("--details", action="store_true", help="also print p95 and p99")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of all runs to a file")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("the noise needs at least 2 runs of each checkout")
    if "retrieval.py" in (arguments.scripts or ARGUMENTS) and not os.environ.get("RECOLLECT_LOCOMO"):
        parser.error("retrieval.py needs LoCoMo: set RECOLLECT_LOCOMO to the path of locomo10.json")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    checkouts = {OLD: arguments.old.resolve(), NEW: arguments.new.resolve()}
    saved: dict[str, Any] = {}
    for script in arguments.scripts or ARGUMENTS:
        own = shlex.split(ARGUMENTS.get(script, "") if arguments.arguments is None else arguments.arguments)
        raw: dict[str, list[Any]] = {side: [] for side in SIDES}
        for number in range(arguments.runs):
            for side in SIDES:
                started = time.perf_counter()
                raw[side].append(run_script(checkouts[side], script, own))
                print(f"{script}, {side}, run {number + 1}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
        changes, missing = compare({side: [dict(flatten(run)) for run in raw[side]] for side in SIDES})
        print_changes(script, changes, missing, details=arguments.details)
        saved[script] = {"arguments": own, **raw}
        save_json(saved, arguments.json)  # the next script may take minutes


if __name__ == "__main__":
    main()
