"""Secrets that were left out of what a command kept, and how whoever typed them is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from recollect.guard.policy import LEFT_OUT
from recollect.guard.secrets import PERSONAL


class _Heard(logging.Handler):
    """Notes the kinds; a text may pass the guard several times on its way, and is told of once."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.kinds: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        for kind in getattr(record, LEFT_OUT, ()):
            if kind not in self.kinds:
                self.kinds.append(kind)


@contextmanager
def heard_of_secrets() -> Iterator[list[str]]:
    """The kinds of secrets that are left out of whatever is kept within this block."""
    log, heard = logging.getLogger("recollect.guard"), _Heard()
    level = log.level
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    try:
        yield heard.kinds
    finally:
        log.setLevel(level)
        log.removeHandler(heard)


def told_of_secrets(kinds: list[str]) -> str:
    """What was left out, and what keeps it the next time."""
    named = [f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" for kind in kinds]
    options = {"RECOLLECT_PERSONAL_DATA" if kind in PERSONAL else "RECOLLECT_SECRETS" for kind in kinds}
    said = ", ".join(f"{option}=allow" for option in sorted(options))
    one = len(kinds) == 1
    listed = " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part)
    return f"{listed} {'was' if one else 'were'} left out; {said} keeps {'it' if one else 'them'}"
