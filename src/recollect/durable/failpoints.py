"""Named places where a test can stop, kill or fail the process; without the variable they do nothing.

`RECOLLECT_FAILPOINTS="completion.before=kill9@18;heartbeat=stop"` is read once, when the process starts.
Each rule names a place and an action: `kill9`, `raise`, `stop` (SIGSTOP) or `sleep:SECONDS`. `@n` limits it to the n-th
visit. `visited=FILE` appends the name of every visited place to a file.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable

from recollect.errors import BadSettings

FAILPOINTS_VARIABLE = "RECOLLECT_FAILPOINTS"

RUN_POINTS = (
    *("claim.after", "intent.before", "intent.after", "body.before", "body.after", "completion.before"),
    *("completion.after", "failure.before", "failure.after", "heartbeat.before", "heartbeat.after", "release.before"),
)
"""All places of a task run."""

OTHER_POINTS = ("stores.between", "migrate.before", "migrate.after")
"""Places between writes to several stores, and around each batch of a migration."""

ERASURE_POINTS = tuple(
    f"erase.{phase}" for phase in ("entered", "wiped", "deleted", "forgotten", "settled", "scanned", "finished")
)
"""Places between the phases of an erasure."""

_ALL_POINTS = (*RUN_POINTS, *OTHER_POINTS, *ERASURE_POINTS)
_RULE = re.compile(r"(?P<action>kill9|raise|stop|sleep)(:(?P<seconds>\d+(\.\d*)?|\.\d+))?(@(?P<visit>[1-9]\d*))?")


class FailPointReached(RuntimeError):
    """The error that the action `raise` raises."""


def arm_failpoints(text: str) -> Callable[[str], None]:
    """Parse the rules and return the function that applies them to a visited place."""
    rules: dict[str, re.Match[str]] = {}
    record: str | None = None
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, separator, rule_text = part.partition("=")
        rule = _RULE.fullmatch(rule_text)
        if name == "visited":
            record = rule_text
        elif name not in _ALL_POINTS or not separator:
            raise BadSettings(f"{FAILPOINTS_VARIABLE}: no fail point {name!r}; use {', '.join(_ALL_POINTS)}")
        elif rule is None:
            actions = "kill9, raise, stop or sleep:SECONDS, and @NUMBER"
            raise BadSettings(f"{FAILPOINTS_VARIABLE}: cannot parse {rule_text!r}; use {actions}")
        else:
            rules[name] = rule
    visits: Counter[str] = Counter()

    def act(name: str) -> None:
        visits[name] += 1
        if record is not None:
            with open(record, "a", encoding="utf-8") as file:
                file.write(name + "\n")
        rule = rules.get(name)
        if rule is None or rule["visit"] not in (None, str(visits[name])):
            return
        if rule["action"] == "raise":
            raise FailPointReached(name)
        if rule["action"] == "sleep":
            time.sleep(float(rule["seconds"] or 0))  # blocks the event loop on purpose
        else:
            os.kill(os.getpid(), signal.SIGKILL if rule["action"] == "kill9" else signal.SIGSTOP)

    return act


def _ignore(name: str) -> None:
    """Do nothing."""


reach_failpoint: Callable[[str], None] = (
    arm_failpoints(os.environ[FAILPOINTS_VARIABLE]) if os.environ.get(FAILPOINTS_VARIABLE) else _ignore
)
