"""Facts: their options and checks, the trust of sources, dialogue fields in metadata, and the values of keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from recollect.clock import to_utc
from recollect.errors import BadInput, Conflict
from recollect.security.injection import AGENT_TRUST
from recollect.stores.base import Records
from recollect.stores.filters import Where
from recollect.stores.writes import Put
from recollect.tiers.indexing import find_all, retry_on_conflict
from recollect.types import MemoryItem, Space, Turn, make_content_id
from recollect.validation import check_flag, check_fraction, check_json, check_name, check_text, check_utc, is_number

_SOURCE_TRUST = {"user": 1.0, "agent": 0.8, "assistant": 0.8, "system": 1.0, "tool": 0.6, "import": 0.6, "web": 0.3}
_DEFAULT_TRUST = 0.5
_MAX_NAME_LENGTH = 256
_MAX_ID_VARIANTS = 1000

# Names that metadata commonly uses for the dialogue fields; the first one present counts. Ambiguous names such as
# "name", "thread" and "from" are not listed.
_SESSION_KEYS = ("session", "session_id", "conversation_id", "thread_id", "chat_id")
_POSITION_KEYS = ("position", "turn", "turn_index", "turn_id", "message_index", "seq")
_SPEAKER_KEYS = ("speaker", "role", "author", "sender")
_TIME_KEYS = ("at", "time", "timestamp", "date", "datetime", "created_at", "session_date", "date_time")

_TIME_FORMATS = (
    *("%Y/%m/%d (%a) %H:%M", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%I:%M %p on %d %B, %Y"),
    *("%d %B %Y", "%d %B, %Y", "%B %d, %Y"),
)


def source_trust(source: str) -> float:
    """Return the default trust in a source. A URL counts as the web."""
    return _SOURCE_TRUST["web"] if "://" in source else _SOURCE_TRUST.get(source, _DEFAULT_TRUST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact with its options; None if the caller left an option out."""

    content: str
    importance: float | None = None
    key: str | None = None
    pinned: bool | None = None
    metadata: Mapping[str, Any] | None = None
    source: str | None = None
    trust: float | None = None
    at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    session: str | None = None
    position: float | None = None
    speaker: str | None = None


def parse_fact(options: Mapping[str, Any]) -> Fact:
    """Return a checked fact; raise `BadInput` for an unknown option or a bad value. None counts as left out."""
    if "content" not in options or not options.keys() <= _CHECKS.keys():
        unknown = ", ".join(sorted(repr(name) for name in options if name not in _CHECKS))
        problem = f"unknown option {unknown}" if unknown else "content is missing"
        raise BadInput(f"{problem}; the options of a fact are {', '.join(field.name for field in fields(Fact))}")
    given = {name: value for name, value in options.items() if value is not None or name == "content"}
    return Fact(**{name: _CHECKS[name](name, value) for name, value in given.items()})


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Return a copy of the metadata as plain JSON; {} for None."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise BadInput(f"metadata must be a dict; got {type(metadata).__name__}")
    return dict(check_json("metadata", dict(metadata)))


def check_string(name: str, value: Any) -> str:
    """Return any string; an id or a key that cannot exist is simply not found."""
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a string; got {type(value).__name__}")
    return value


def resolve_dialogue(fact: Fact, metadata: Mapping[str, Any]) -> Fact:
    """Return the fact with its session, position, speaker and time, completed from the usual names in metadata.

    Without a session only the given time counts: a date in the metadata may be a date that the text is about.
    """
    session = _parse_name(fact.session if fact.session is not None else _first_value(metadata, _SESSION_KEYS))
    if session is None:
        return fact
    position, speaker = _first_value(metadata, _POSITION_KEYS), _first_value(metadata, _SPEAKER_KEYS)
    if fact.position is not None or not _is_finite(position):
        position = fact.position
    return replace(
        fact,
        session=session,
        position=None if position is None else float(position),
        speaker=_parse_name(speaker if fact.speaker is None else fact.speaker),
        at=fact.at or _parse_time(_first_value(metadata, _TIME_KEYS)),
    )


def _check_position(name: str, value: Any) -> float:
    if not _is_finite(value):
        raise BadInput(f"{name} must be a finite number; got {value!r:.80}")
    return float(value)


def _check_session(name: str, value: Any) -> str | float:
    """Return a session's name; in many data sets it is a number."""
    return value if is_number(value) else check_name(name, value, max_length=_MAX_NAME_LENGTH, example="monday")


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "content": partial(check_text, allow_empty=True),
    "importance": check_fraction,
    "key": partial(check_name, max_length=512, example="user.units"),
    "pinned": check_flag,
    "metadata": lambda _, value: check_metadata(value),
    "source": partial(check_name, max_length=_MAX_NAME_LENGTH, example="user"),
    "trust": check_fraction,
    "at": check_utc,
    "valid_from": check_utc,
    "valid_to": check_utc,
    "session": _check_session,
    "position": _check_position,
    "speaker": partial(check_name, max_length=_MAX_NAME_LENGTH, example="Ada"),
}


def _parse_time(value: Any) -> datetime | None:
    """Return a time from metadata: an epoch, ISO 8601 or a common English form; None for anything else."""
    if _is_finite(value):
        seconds = value / 1000.0 if value > 1e11 else float(value)  # of milliseconds, or of seconds
        return datetime.fromtimestamp(seconds, UTC) if 3e8 < seconds < 1e11 else None  # a smaller one is a count
    for time_format in (None, *_TIME_FORMATS) if isinstance(value, str) else ():
        try:
            if time_format is None:
                return to_utc(datetime.fromisoformat(value.strip()))
            return datetime.strptime(value.strip(), time_format).replace(tzinfo=UTC)
        except (ValueError, OverflowError):  # OverflowError: the first or last day of the calendar in a time zone
            continue
    return None


def _first_value(metadata: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((metadata[name] for name in names if metadata.get(name) is not None), None)


def _parse_name(value: Any) -> str | None:
    if isinstance(value, bool) or value is None or isinstance(value, Mapping | list | tuple):
        return None
    # One line, so that a name cannot look like several lines where it is shown.
    return " ".join(str(value).split()) or None


def _is_finite(value: Any) -> bool:
    return is_number(value) and abs(value) <= sys.float_info.max


async def find_values(store: Records, space: Space, key: str) -> list[MemoryItem]:
    """Return all values that a key has had, newest first."""
    return await find_all(store, Where(space, key=key))


async def find_open_values(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """Return the current values of an item's key that the item would supersede."""
    values = await _find_overlapping(store, space, item)
    start = get_valid_from(item)
    return [value for value in values if value.superseded_by is None and value.live_at(start) and value.id != item.id]


def can_supersede(trust: float, old: MemoryItem) -> bool:
    """Return whether a value with this trust may supersede another: trusted as much, or at least as an agent."""
    return trust >= min(old.trust, AGENT_TRUST)


def get_valid_from(item: MemoryItem) -> datetime:
    return item.valid_from or item.created_at


def end_value(old: MemoryItem, successor: MemoryItem) -> Put:
    """Return the write that supersedes a value: it ends where its successor begins, unless it ended before."""
    start = get_valid_from(successor)
    end = max(min(old.valid_to or start, start), get_valid_from(old))
    return Put(item=replace(old, valid_to=end, superseded_by=successor.id), expect=old.version)


def turn_id_parts(turn: Turn | None) -> list[str]:
    """Return the parts of an id that distinguish equal texts at different places of a dialogue."""
    if turn is None:
        return []
    return [f"session={turn.session}", f"speaker={turn.speaker}", f"position={turn.position!r}"]


def can_use_content_id(item: MemoryItem, stored: MemoryItem | None) -> bool:
    """Return whether an unkeyed item can have the id of its content; a superseded value of a key may have it."""
    return item.key is None and (stored is None or stored.key is None or stored.superseded_by is None)


async def assign_id(store: Records, space: Space, item: MemoryItem) -> tuple[MemoryItem, MemoryItem | None]:
    """Return the item with its id, and the unkeyed item of the same content that it supersedes, if any."""
    values = [] if item.key is None else await _find_overlapping(store, space, item)
    for value in values:
        if value.superseded_by is None and (value.content, value.turn) == (item.content, item.turn):
            return replace(item, id=value.id), None
    displaced: MemoryItem | None = None
    for parts in candidate_id_parts(item):
        id = make_content_id(space, item.content, *parts)
        stored = next(iter(await store.get(space, id)), None)
        if stored is None or can_use_content_id(item, stored):
            return replace(item, id=id), displaced
        if stored.superseded_by is None and stored.key == item.key:
            return replace(item, id=id), None  # another writer stored the value meanwhile
        if stored.key is None and stored.superseded_by is None:
            # An unkeyed item becomes the value of the key, unless the key has a later value.
            if all(get_valid_from(value) <= get_valid_from(stored) for value in values):
                return replace(item, id=id), None
            displaced = displaced or stored
    raise Conflict(f"the key {item.key!r} got the same content {_MAX_ID_VARIANTS:,} times at one moment; try again")


def candidate_id_parts(item: MemoryItem) -> Iterator[list[str]]:
    """Yield what an id is derived from besides the content, in the order to try; the content alone comes first."""
    yield turn_id_parts(item.turn)
    if item.key is None:  # the content is a former value of a key
        yield from ([*turn_id_parts(item.turn), "without a key", str(n)] for n in range(_MAX_ID_VARIANTS))
        return
    yield [f"key={item.key}", *turn_id_parts(item.turn)]  # the content is known under another key
    for n in range(_MAX_ID_VARIANTS):  # a former value of this key
        yield [item.key, item.created_at.isoformat(), str(n)]


async def write_keyed_facts(store: Records, space: Space, puts: list[Put], keyed: list[MemoryItem]) -> None:
    """Write `puts` and supersede the older values of the keys, in one transaction. After a `Conflict`, call it again.

    Values are ordered by when they became valid, so a value that is stored late takes its place in the history.
    """
    values = {item.key: await _find_overlapping(store, space, item) for item in keyed}
    endings = [
        end_value(old, item)
        for item in {item.key: item for item in keyed}.values()
        for old in values[item.key]
        if old.id != item.id
        and get_valid_from(old) <= get_valid_from(item)
        and (old.superseded_by is None or old.live_at(get_valid_from(item)))
        and can_supersede(item.trust, old)
    ]
    if not puts and not endings:
        return
    await store.write(*(_insert_into_history(put, values) for put in puts), *endings)
    ended_keys = {put.item.key for put in endings}
    # A write that ends a value checks its version. The first values of a key have nothing to check, so two concurrent
    # writers can both succeed.
    for item in keyed:
        if item.key not in ended_keys:
            await retry_on_conflict(partial(_resolve_double_values, store, space, item), f"the key {item.key!r}")


def _insert_into_history(put: Put, values: Mapping[str | None, list[MemoryItem]]) -> Put:
    """Return the write of a value; if a later value exists, it ends where that one begins."""
    item, start = put.item, get_valid_from(put.item)
    later = (value for value in values.get(item.key, ()) if value.id != item.id and get_valid_from(value) > start)
    successor = min(later, key=get_valid_from, default=None)
    if successor is None:
        return put
    end = min(item.valid_to or get_valid_from(successor), get_valid_from(successor))
    return replace(put, item=replace(item, valid_to=end, superseded_by=successor.id))


async def _resolve_double_values(store: Records, space: Space, item: MemoryItem) -> None:
    current = [value for value in await _find_overlapping(store, space, item) if value.superseded_by is None]
    if len(current) > 1:
        winner = next(
            (value for value in current if all(can_supersede(value.trust, other) for other in current)), current[0]
        )
        await store.write(*(end_value(value, winner) for value in current if value is not winner))


async def _find_overlapping(store: Records, space: Space, item: MemoryItem) -> list[MemoryItem]:
    """Return the values of an item's key that end after the item begins."""
    return await find_all(store, Where(space, key=item.key, open_at=get_valid_from(item)))
