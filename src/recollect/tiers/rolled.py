"""A summary that has rolled, as an entry of its conversation's log and as a part of an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from recollect.errors import BadInput
from recollect.stores.ops import Entry
from recollect.tiers.facts import in_utc
from recollect.tiers.messages import Message
from recollect.tiers.trust import TRUST, UNKNOWN, checked_trust, told_trust
from recollect.tiers.window import Summary

SUMMARY = "summary"

# Of the newest summaries one reaches furthest; more than a few are never in doubt.
IN_DOUBT = 8

Standing = tuple[Summary | None, Sequence[Entry]]
"""The summary that counts, if there is one, and the entries of its conversation that it does not cover."""


def covers(entry: Entry) -> int:
    """How far a summary reaches: up to its own place, if it does not say."""
    return int(entry.metadata.get("covers", entry.seq))


def summary_of(entry: Entry, most: int) -> Summary:
    """What an entry says; `most` is what the conversation shows of a message now."""
    told = entry.metadata
    trust = told_trust(told)
    return Summary(
        entry.content,
        covers=covers(entry),
        most=min(told["most"], most),
        noted=told["noted"],
        unanswered=tuple(told["unanswered"]),
        at=entry.at,
        trust=UNKNOWN if trust is None else trust,
    )


def in_turn(summaries: Sequence[Entry]) -> list[Entry]:
    """In the order in which they count. Two who rolled at once both covered all before them: further comes first."""
    return sorted(summaries, key=lambda one: (covers(one), one.seq), reverse=True)


def standing(newest: Sequence[Entry], most: int, *, whole: bool) -> Standing | None:
    """What stands, by the end of a log, or by the `whole` of it; None where that end does not tell.

    A summary that was made while the conversation was cleared speaks of what is no longer there, and does not count.
    """
    places = {entry.seq for entry in newest}
    for entry in in_turn([entry for entry in newest if entry.kind == SUMMARY][-IN_DOUBT:]):
        reach = covers(entry)
        if reach in places or (whole and reach == 0):
            return summary_of(entry, most), [one for one in newest if one.seq > reach]
    return (None, newest) if whole else None


def entry_of(summary: Summary, at: datetime, fault: str | None) -> Entry:
    return Entry(
        # Two who come to the same decision write one summary.
        id=f"{SUMMARY}:{summary.covers}:{summary.most}",
        kind=SUMMARY,
        content=summary.text,
        at=summary.at or at,
        metadata={
            "covers": summary.covers,
            "most": summary.most,
            "noted": summary.noted,
            "unanswered": list(summary.unanswered),
            TRUST: summary.trust,
            **({"fault": fault} if fault else {}),
        },
    )


def exported(summary: Summary, said: Sequence[Message]) -> dict[str, Any]:
    """What an export says of a summary besides its text."""
    return {
        "messages": sum(one.seq <= summary.covers for one in said),
        "most": summary.most,
        "noted": summary.noted,
        "unanswered": list(summary.unanswered),
        "at": None if summary.at is None else summary.at.isoformat(),
        TRUST: summary.trust,
    }


def imported(text: str, rolled: Any, messages: int, most: int) -> tuple[int, Summary]:
    """How many of so many messages it covers, and the summary; `BadInput` saying what cannot be meant."""
    told = dict(rolled) if isinstance(rolled, Mapping) else {}
    covered = told.get("messages", 0)
    if isinstance(covered, bool) or not isinstance(covered, int) or not 0 <= covered <= messages:
        raise BadInput(f"the export's summary covers {covered!r:.80} messages of {messages}")
    trust = checked_trust(told.get(TRUST))
    unanswered = told.get("unanswered", ())
    if not isinstance(unanswered, list | tuple) or not all(isinstance(id, str) for id in unanswered):
        raise BadInput(f"the export's 'unanswered' is a list of ids, not {unanswered!r:.80}")
    return covered, Summary(
        text,
        covers=0,
        most=min(_whole(told, "most", most), most),
        noted=bool(told.get("noted", True)),
        unanswered=tuple(unanswered),
        at=moment(told.get("at"), "the summary"),
        trust=UNKNOWN if trust is None else trust,
    )


def moment(given: Any, what: str) -> datetime | None:
    """A time as an export has it."""
    if given is None:
        return None
    try:
        return in_utc(f"the time of {what}", datetime.fromisoformat(given))
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the time of {what} is {given!r:.80}, not an ISO time") from error


def _whole(told: Mapping[str, Any], name: str, default: int) -> int:
    value = told.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"the export's {name!r} is a whole number from 1, not {value!r:.80}")
    return value
