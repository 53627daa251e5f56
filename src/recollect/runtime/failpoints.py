"""Named places where a test may stop, kill or fail the process; in a normal run they do nothing at all.

`RECOLLECT_FAILPOINTS="completion.before=kill9@18;heartbeat=stop"` is read once, when the process starts. Each rule
names a place and an action, `kill9`, `raise`, `stop` (SIGSTOP) or `sleep:SECONDS`, and `@n` means the n-th visit only.
`visited=FILE` writes every place that is passed into a file, a line each.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from recollect.errors import BadSettings

VARIABLE = "RECOLLECT_FAILPOINTS"

POINTS = (
    "claim.after",
    "intent.before",
    "intent.after",
    "body.before",
    "body.after",
    "completion.before",
    "completion.after",
    "failure.before",
    "failure.after",
    "heartbeat.before",
    "heartbeat.after",
    "release.before",
)
"""Every place of a run, so that a test can tell whether it has visited all of them."""

ELSEWHERE = ("stores.between", "migrate.before", "migrate.after")
"""Places outside of runs: between the stores that one act writes to, and around each batch of a migration."""

ERASURE_POINTS = (
    "erase.entered",
    "erase.wiped",
    "erase.deleted",
    "erase.forgotten",
    "erase.settled",
    "erase.scanned",
    "erase.finished",
)
"""Every place of an erasure: between any two of its phases."""

ACTIONS = ("kill9", "raise", "stop", "sleep")


class FailPointReached(RuntimeError):
    """What the action `raise` raises."""


@dataclass(frozen=True, slots=True)
class _Rule:
    action: str
    seconds: float = 0.0
    visit: int | None = None


def armed(text: str) -> Callable[[str], None]:
    """What `reach` does under these rules."""
    rules: dict[str, _Rule] = {}
    record: str | None = None
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, what = part.partition("=")
        if name == "visited":
            record = what
        elif name in (*POINTS, *ELSEWHERE, *ERASURE_POINTS) and separator:
            rules[name] = _rule(what)
        else:
            known = ", ".join((*POINTS, *ELSEWHERE, *ERASURE_POINTS))
            raise BadSettings(f"{VARIABLE} names {name!r}; the fail points are {known}")
    visits: Counter[str] = Counter()

    def act(name: str) -> None:
        visits[name] += 1
        if record is not None:
            with open(record, "a", encoding="utf-8") as file:
                file.write(name + "\n")
        rule = rules.get(name)
        if rule is not None and rule.visit in (None, visits[name]):
            _do(rule, name)

    return act


def _rule(what: str) -> _Rule:
    action, _, visit = what.partition("@")
    action, _, seconds = action.partition(":")
    if action not in ACTIONS:
        raise BadSettings(f"{VARIABLE} asks for {action!r}; the actions are {', '.join(ACTIONS)}")
    try:
        return _Rule(action, float(seconds or 0), int(visit) if visit else None)
    except ValueError as error:
        raise BadSettings(f"{VARIABLE} has {what!r}; write sleep:SECONDS and @NUMBER") from error


def _do(rule: _Rule, name: str) -> None:
    match rule.action:
        case "kill9":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(rule.seconds)  # the whole process stalls, which is the point
        case _:
            raise FailPointReached(name)


def _nothing(name: str) -> None:
    """A normal run."""


reach: Callable[[str], None] = armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _nothing
