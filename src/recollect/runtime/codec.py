"""A task's state as JSON text and back: plain data only, versioned, and refused by path where it cannot be kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recollect.errors import BadInput, SchemaTooNew, StoreCorrupt
from recollect.values import Scope

SCHEMA = 1

# What JSON parsers everywhere read back without running out of stack.
_DEEPEST = 200
_LONG = 2**63

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Author:
    """For whom a checkpoint was written: tasks are an agent's, and what is in them goes with its user."""

    user: str
    session: str | None = None

    @classmethod
    def of(cls, scope: Scope) -> Author:
        return cls(scope.user, scope.session)


@dataclass(frozen=True, slots=True)
class Document:
    """What one checkpoint holds: the state, what the agent had in mind, and for whom it worked."""

    state: State
    working: Mapping[str, Any] | None = None
    by: Author | None = None


class _Unstorable(Exception):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.steps: list[str | int] = []
        self.own = False


def encode(state: Any, working: Mapping[str, Any] | None = None, *, by: Author | None = None, largest: int) -> str:
    """The document as text, or `BadInput` naming the path inside the state of what cannot be stored."""
    text, _ = plain(state, working, by)
    check_size(text, state, largest)
    return text


def plain(state: Any, working: Mapping[str, Any] | None, by: Author | None = None) -> tuple[str, State]:
    """The document as text, and the state as it will be read from it: a copy that nobody else has."""
    if not isinstance(state, dict):
        raise BadInput(f"a task's state is a dict, not {type(state).__name__}")
    try:
        document = {"state": state} if working is None else {"state": state, "working": working}
        text = written(document if by is None else {**document, "by": [by.user, by.session]})
        copy: State = json.loads(text)["state"]
        same = copy == state
    except (TypeError, ValueError, RecursionError):
        check("state", state)  # says where
        raise
    # What comes back the same needs no closer look, and each level of nesting begins with a bracket.
    if not same or text.count("{") + text.count("[") > _DEEPEST:
        check("state", state)
    return text, copy


def check_size(text: str, state: State, largest: int) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        check("state", state)
        raise
    if size > largest:
        raise BadInput(
            f"the state takes {size:,} bytes and max_state is {largest:,}; keep large results elsewhere and their "
            "names in the state, or raise the setting"
        )


def written(value: Any) -> str:
    """Plain data as JSON, as short as it gets."""
    return _ENCODER.encode(value)


def decode(schema: int, text: str) -> Document:
    """The document of a stored text; nothing in it is ever revived as anything but plain data."""
    if schema > SCHEMA:
        raise SchemaTooNew(f"this checkpoint has format {schema} and this Recollect reads {SCHEMA}; upgrade it")
    try:
        document = json.loads(text)
        state, working = document["state"], document.get("working")
        by = Author(*document["by"]) if "by" in document else None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreCorrupt(f"a checkpoint is not what was written: {error}") from error
    if not isinstance(state, dict) or not isinstance(working, dict | None):
        raise StoreCorrupt("a checkpoint is not what was written: its state is no object")
    return Document(state, working, by)


def check(name: str, value: Any) -> None:
    """`BadInput` naming the first place inside the value that JSON cannot hold."""
    try:
        _walk(value, ())
    except _Unstorable as bad:
        raise BadInput(f"{_path(name, bad.steps)} {bad}") from None


def _walk(value: Any, above: tuple[int, ...]) -> None:
    kind = type(value)  # most values are exactly what they seem
    if kind is str or isinstance(value, str):
        if not value.isascii():
            _check_text(value)
    elif value is None or kind is bool:
        return
    elif kind is dict or kind is list or isinstance(value, dict | list | tuple):
        _walk_inside(value, above)
    elif isinstance(value, int):
        if not -_LONG < value < _LONG:
            _check_number(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Unstorable(f"is {value!r}, which JSON has no word for; use None or a text")
    else:
        raise _Unstorable(f"is a {kind.__name__}, which cannot be stored; use texts, numbers, lists and dicts")


def _walk_inside(value: Any, above: tuple[int, ...]) -> None:
    if id(value) in above:
        raise _Unstorable("refers to itself, which cannot be stored")
    if len(above) >= _DEEPEST:
        raise _Unstorable(f"is nested more than {_DEEPEST} deep; flatten it")
    inside = (*above, id(value))
    keyed = isinstance(value, dict)
    step: Any = 0
    try:
        for step, inner in value.items() if keyed else enumerate(value):
            if keyed and not (isinstance(step, str) and step.isascii()):
                _check_key(step)
            _walk(inner, inside)
    except _Unstorable as bad:
        if not bad.own:
            bad.steps.append(step)
        bad.own = False
        raise


def _check_key(key: Any) -> None:
    try:
        if not isinstance(key, str):
            raise _Unstorable(f"has the key {key!r:.80}, a {type(key).__name__}; keys are texts")
        _check_text(key)
    except _Unstorable as bad:
        bad.own = True  # it is about whatever has the key, not about what is under it
        raise


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Unstorable(
            f"has half a character (a lone surrogate) at {error.start}; decode the text properly"
        ) from None


def _check_number(number: int) -> None:
    try:
        str(number)
    except ValueError as error:  # Python itself refuses to write numbers of thousands of digits
        raise _Unstorable("is a number too long to be written; use a text") from error


def _path(name: str, steps: list[str | int]) -> str:
    shown = name
    for step in reversed(steps):
        shown += f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step[:80]!r}]"
    return shown
