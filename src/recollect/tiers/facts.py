"""What a caller asks to be kept, before it is an item: the options there are, and a check of every one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypedDict

from recollect.clock import aware
from recollect.errors import BadInput
from recollect.tiers.checks import checked_name, checked_plain, checked_writable

# How far to trust a text by where it came from, unless the caller says.
_TRUST = {"user": 1.0, "agent": 0.8, "assistant": 0.8, "system": 1.0, "tool": 0.6, "import": 0.6, "web": 0.3}
_TRUST_OF_OTHERS = 0.5
_TRUST_OF_PAGES = _TRUST["web"]

_NAMES = (
    ("key", 512, "user.units"),
    ("source", 256, "user"),
    ("speaker", 256, "Ada"),
    ("session", 256, "monday"),
)


class FactOptions(TypedDict, total=False):
    """What may be said of a fact besides its content. `session`, `position` and `speaker` mark a turn of a dialogue."""

    importance: float | None
    key: str | None
    pinned: bool | None
    metadata: Mapping[str, Any] | None
    source: str
    trust: float | None
    at: datetime | None
    valid_from: datetime | None
    valid_to: datetime | None
    session: str | None
    position: float | None
    speaker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact with its options; None where the caller said nothing."""

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

    @property
    def is_turn(self) -> bool:
        """Whether the caller says that this was said by somebody, or somewhere in a dialogue."""
        return self.speaker is not None or self.position is not None

    @property
    def trusted(self) -> float:
        return self.trust if self.trust is not None else trust_in(self.source or "user")


def trust_in(source: str) -> float:
    """How far a source is trusted. A page goes by its address, and anybody can have one."""
    return _TRUST_OF_PAGES if "://" in source else _TRUST.get(source, _TRUST_OF_OTHERS)


def in_utc(name: str, value: Any) -> datetime:
    """A moment in UTC, or `BadInput` for what is none, or lies outside the calendar there.

    One without a time zone could mean any of 38 hours.
    """
    if not isinstance(value, datetime):
        raise BadInput(f"{name} is a datetime, not {value!r:.80}")
    if value.tzinfo is None:
        raise BadInput(f"{name} is {value}, without a time zone; say which, as in datetime.now(UTC)")
    try:
        return aware(value)
    except OverflowError as error:
        raise BadInput(f"{name} is {value}, which lies outside the calendar in UTC") from error


def facts_of(given: Any) -> list[Fact]:
    """Dicts as facts, or `BadInput` saying what cannot be meant."""
    if not isinstance(given, Iterable):
        raise BadInput(f"add_many takes a list of dicts with a 'content', not {type(given).__name__}")
    return [_fact_at(place, one) for place, one in enumerate(given)]


def fact_of(content: Any, options: Mapping[str, Any]) -> Fact:
    """One fact, or `BadInput` saying what cannot be meant."""
    return _fact({"content": content, **options})


def _fact_at(place: int, given: Any) -> Fact:
    with named_by(place):
        return _fact(given)


@contextmanager
def named_by(place: int) -> Iterator[None]:
    """Say which of many it is."""
    try:
        yield
    except BadInput as error:
        raise type(error)(f"facts[{place}]: {error}") from error


def _fact(given: Any) -> Fact:
    if not isinstance(given, Mapping):
        raise BadInput(f"add_many takes dicts with a 'content', not {type(given).__name__}")
    try:
        fact = Fact(**given)
    except TypeError as error:
        known = [option.name for option in fields(Fact)]
        unknown = ", ".join(sorted(repr(name) for name in given if name not in known))
        what = f"there is no option {unknown}" if unknown else "content is missing"
        raise BadInput(f"{what}; a fact has {', '.join(known)}") from error
    for name, kind, called in _KINDS:
        value = getattr(fact, name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise BadInput(f"{name} is {called}, not {value!r:.80}")
        if isinstance(value, datetime):
            in_utc(name, value)
    _check_shares(fact)
    if fact.pinned is not None and not isinstance(fact.pinned, bool):
        raise BadInput(f"pinned is True or False, not {fact.pinned!r:.80}")
    if fact.content is None:
        raise BadInput("content is a text, not None")
    checked_writable("content", fact.content)
    for name, most, example in _NAMES:
        value = getattr(fact, name)
        if isinstance(value, str):
            checked_name(f"a {name}", value, most, example)
    return fact if fact.metadata is None else replace(fact, metadata=checked_plain("metadata", dict(fact.metadata)))


def _check_shares(fact: Fact) -> None:
    for name, value in (("importance", fact.importance), ("trust", fact.trust)):
        if value is not None and not 0.0 <= value <= 1.0:
            raise BadInput(f"{name} is a number from 0 to 1, not {value!r:.80}")


_KINDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("content", str, "a text"),
    ("importance", (int, float), "a number from 0 to 1"),
    ("key", str, "a text"),
    ("metadata", Mapping, "a mapping"),
    ("source", str, "a text"),
    ("trust", (int, float), "a number from 0 to 1"),
    ("at", datetime, "a datetime"),
    ("valid_from", datetime, "a datetime"),
    ("valid_to", datetime, "a datetime"),
    ("session", (str, int), "a text"),
    ("speaker", str, "a text"),
)
