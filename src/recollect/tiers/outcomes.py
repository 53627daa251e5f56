"""How well something has worked so far: rates with honest bounds, and the rule by which a falling one is demoted."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from recollect.clock import from_micros, to_micros

RECENT = 10
"""How many of the newest outcomes are held against all that came before them."""

NOTES_KEPT = 20
IDS_KEPT = 50

# Two-sided: 95 of 100 intervals hold the true rate, and 99 of 100.
_USUAL = 1.959964
_STRICT = 2.575829


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """A share of successes, and between which bounds the true one lies with 95 % confidence.

    With no trials nothing is known: the rate is 0, and the bounds are 0 and 1.
    """

    rate: float
    lower: float
    upper: float
    trials: int


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody said about one outcome."""

    at: datetime
    success: bool
    text: str
    by: tuple[str, ...] = ()
    """Whose work it was, as hashes: a procedure is an agent's, and what is said of a trial may be about its user."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Everything kept about the trials of one thing; its size does not grow with their number."""

    trials: int = 0
    successes: int = 0
    recent: tuple[bool, ...] = ()
    """The newest outcomes, newest last."""
    bar: float | None = None
    """While demoted: the rate that the recent outcomes have to reach again."""
    timed: int = 0
    seconds: float = 0.0
    """The sum over the trials that were timed."""
    last_at: datetime | None = None
    notes: tuple[Note, ...] = ()
    counted: tuple[str, ...] = ()
    """The newest trials that had an id: told again, they are not counted again."""

    @property
    def demoted(self) -> bool:
        return self.bar is not None

    @property
    def success_rate(self) -> SuccessRate:
        return wilson(self.successes, self.trials)

    @property
    def recent_rate(self) -> SuccessRate:
        return wilson(sum(self.recent), len(self.recent))

    @property
    def mean_seconds(self) -> float | None:
        return self.seconds / self.timed if self.timed else None

    def after(
        self,
        success: bool,
        at: datetime,
        *,
        seconds: float | None = None,
        note: str | None = None,
        id: str | None = None,
        by: tuple[str, ...] = (),
    ) -> Outcomes:
        """These outcomes and one more; one whose id is known is among them already."""
        if id is not None and id in self.counted:
            return self
        notes = self.notes if note is None else (*self.notes, Note(at, success, note, by))[-NOTES_KEPT:]
        grown = replace(
            self,
            trials=self.trials + 1,
            successes=self.successes + success,
            recent=(*self.recent, success)[-RECENT:],
            timed=self.timed + (seconds is not None),
            seconds=self.seconds + (seconds or 0.0),
            last_at=at if self.last_at is None else max(at, self.last_at),
            notes=notes,
            counted=self.counted if id is None else (*self.counted, id)[-IDS_KEPT:],
        )
        return replace(grown, bar=_bar(grown))


def author_of(user: str, session: str | None = None) -> str:
    """A user, or one of their sessions, as a note says it: as a hash, since others read it too."""
    return hashlib.blake2b(json.dumps([user, session]).encode(), digest_size=12).hexdigest()


def wilson(successes: int, trials: int, deviations: float = _USUAL) -> SuccessRate:
    """The rate with the bounds of Wilson's score interval.

    Wilson and not a Beta posterior: it needs no prior, which somebody would have to choose and defend, and which would
    decide the order exactly where there is little evidence; it is a closed formula, where Beta quantiles need a
    library of special functions; and it covers what it claims even for three trials, and for all or none of them
    successful, where the textbook interval (rate ± deviations) shrinks to nothing.
    """
    if trials == 0:
        return SuccessRate(0.0, 0.0, 1.0, 0)
    rate = successes / trials
    square = deviations * deviations
    centre = (successes + square / 2) / (trials + square)
    reach = deviations * math.sqrt(trials * rate * (1 - rate) + square / 4) / (trials + square)
    return SuccessRate(
        rate=rate,
        lower=0.0 if successes == 0 else centre - reach,
        upper=1.0 if successes == trials else centre + reach,
        trials=trials,
    )


UNTRIED = wilson(1, 2).lower
"""The rank of what was never tried: as if it had worked once in two trials."""


def rank(outcomes: Outcomes) -> tuple[bool, float, int]:
    """Where something stands among others, higher is better.

    The demoted are last. The others are ordered by the lower bound of their rate, so that 9 of 10 beats 1 of 1. What
    was never tried has no such bound: it stands after all that has worked more often than not, and before what has
    only failed, since a new idea deserves a trial before a known bad one gets another.
    """
    known = outcomes.success_rate
    return not outcomes.demoted, known.lower if known.trials else UNTRIED, known.trials


def promise(outcomes: Outcomes) -> float:
    """From 0 to 1, how likely it is to work now; ½ when nothing is known. Of the demoted only recent trials count."""
    counted = outcomes.recent_rate if outcomes.demoted else outcomes.success_rate
    return (counted.lower + counted.upper) / 2


def _bar(outcomes: Outcomes) -> float | None:
    """Demoted when the last ten are clearly worse than all before them; restored when they are back at that level.

    Clearly: the 99 % intervals of the two do not meet. The rule is asked after every trial, so 95 % would be too
    little: it would demote every third steady procedure within 200 trials, and this one demotes one in twenty; a
    fall from 9 in 10 to 3 in 10 is noticed after about ten trials. The level is remembered, since otherwise a long
    run of failures would become the history that failures are measured by.
    """
    recent = sum(outcomes.recent)
    if outcomes.bar is not None:
        return None if recent >= outcomes.bar * len(outcomes.recent) else outcomes.bar
    before = wilson(outcomes.successes - recent, outcomes.trials - len(outcomes.recent), _STRICT)
    return before.lower if wilson(recent, len(outcomes.recent), _STRICT).upper < before.lower else None


def as_json(outcomes: Outcomes) -> dict[str, Any]:
    return {
        "trials": outcomes.trials,
        "successes": outcomes.successes,
        "recent": "".join("1" if success else "0" for success in outcomes.recent),
        "bar": outcomes.bar,
        "timed": outcomes.timed,
        "seconds": outcomes.seconds,
        "last_at": None if outcomes.last_at is None else to_micros(outcomes.last_at),
        "notes": [[to_micros(note.at), note.success, note.text, *note.by] for note in outcomes.notes],
        **({"counted": list(outcomes.counted)} if outcomes.counted else {}),
    }


def from_json(given: Mapping[str, Any]) -> Outcomes:
    return Outcomes(
        trials=given["trials"],
        successes=given["successes"],
        recent=tuple(one == "1" for one in given["recent"]),
        bar=given["bar"],
        timed=given["timed"],
        seconds=given["seconds"],
        last_at=None if given["last_at"] is None else from_micros(given["last_at"]),
        notes=tuple(Note(from_micros(at), success, text, tuple(by)) for at, success, text, *by in given["notes"]),
        counted=tuple(given.get("counted", ())),
    )
