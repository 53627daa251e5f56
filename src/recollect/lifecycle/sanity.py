"""Whether the clock can be believed: after a leap nothing is dropped or aged before a second look, some time later."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta

from recollect.clock import from_micros, to_micros
from recollect.errors import Conflict
from recollect.lifecycle.marks import Marks
from recollect.lifecycle.run import Run

NOTE = "clock"
"""The note on when the lifecycle last ran."""

# Whoever runs once a month is believed; a clock that is set to another year is not, at once.
_LEAP = timedelta(days=100)
# Noted no more often than this: the note only has to be younger than a leap.
_NOTED_EVERY = timedelta(hours=1)


async def is_believable(run: Run) -> bool:
    """Whether what depends on the time may be done. A doubtful time is noted, and believed once it has lasted."""
    marks = Marks(run.ground, run.scope)
    held = (await marks.get([NOTE])).get(NOTE)
    told = dict(held.metadata) if held is not None else {}
    grace = timedelta(seconds=run.means.settings.purge_grace_seconds)
    last, doubt = _moment(told, "at"), _moment(told, "doubt")
    believed = last is None or abs(run.now - last) <= _LEAP
    if not believed and doubt is not None and grace <= run.now - doubt <= _LEAP:
        believed = True
    if believed:
        changed = {"at": to_micros(run.now)} if last is None or abs(run.now - last) >= _NOTED_EVERY else told
    else:
        again = doubt is not None and timedelta() <= run.now - doubt <= _LEAP
        changed = told if again else {**told, "doubt": to_micros(run.now)}
        run.ledger.note(
            f"the clock has moved by {abs(run.now - last).days:,} days since the last run"  # type: ignore[operator]
            f"; nothing is dropped or aged before a run that is at least {grace} later says the same"
        )
    if changed != told:
        with contextlib.suppress(Conflict):  # another run has noted the same moment
            await run.ground.write(marks.put(NOTE, changed, held, run.now))
    return believed


def _moment(told: dict[str, object], name: str) -> datetime | None:
    value = told.get(name)
    return from_micros(value) if isinstance(value, int) else None
