"""Texts as PostgreSQL takes them: it has no NUL, which ours may hold, and no long text in an index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

_NUL, MARK = "\x00", "\x01"
_MOST_IN_AN_INDEX = 200


def kept(text: str) -> str:
    """The text without NUL, in the same order among others: NUL becomes a mark and one, a mark becomes a mark and two.

    Nothing else is changed, so that an administrator reads what was written.
    """
    if _NUL not in text and MARK not in text:
        return text
    return text.replace(MARK, "\x01\x02").replace(_NUL, "\x01\x01")


def maybe_kept(text: str | None) -> str | None:
    return None if text is None else kept(text)


def given(text: str) -> str:
    """The text as it was before `kept`."""
    if MARK not in text:
        return text
    return text.replace("\x01\x01", _NUL).replace("\x01\x02", MARK)


def maybe_given(text: str | None) -> str | None:
    return None if text is None else given(text)


def kept_json(value: Any) -> Any:
    """A JSON value with every text in it kept."""
    match value:
        case str():
            return kept(value)
        case dict():
            return {kept(name): kept_json(inner) for name, inner in value.items()}
        case list() | tuple():
            return [kept_json(inner) for inner in value]
        case _:
            return value


def given_json(value: Any) -> Any:
    match value:
        case str():
            return given(value)
        case dict():
            return {given(name): given_json(inner) for name, inner in value.items()}
        case list():
            return [given_json(inner) for inner in value]
        case _:
            return value


def handle(text: str) -> str:
    """A name of bounded length that stands for a text: itself if it is short."""
    text = kept(text)
    if len(text) <= _MOST_IN_AN_INDEX:
        return text
    # Longer than any text that stands for itself, so that the two kinds are never taken for each other.
    return text[:_MOST_IN_AN_INDEX] + hashlib.sha256(text.encode()).hexdigest()


def handles(texts: Iterable[str]) -> list[str]:
    """What stands for some texts that are asked for; half a character is in no text, so it is not asked for."""
    return [handle(text) for text in texts if sayable(text)]


def sayable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def maybe_handle(text: str | None) -> str | None:
    return None if text is None else handle(text)
