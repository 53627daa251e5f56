"""What comes back from a store in another shape than it was written in: told of as damage, with the way out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from recollect.clock import from_micros
from recollect.errors import StoreCorrupt

P = ParamSpec("P")
T = TypeVar("T")

MISREAD = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What Python says of values that are not what somebody takes them for."""


class Misshapen(TypeError):
    """A value that is of another kind than the one that was written; says which, and nothing of what is in it."""


def damaged(what: str, error: Exception) -> StoreCorrupt:
    """The error that a caller sees. It names the place, and quotes nothing of what is kept there."""
    said = str(error) if isinstance(error, json.JSONDecodeError | Misshapen) else type(error).__name__
    return StoreCorrupt(f"{what} is not as it was written ({said}); restore a backup")


@contextmanager
def as_written(what: str) -> Iterator[None]:
    """Whatever is misread in here is damage; a value that we would not take from a caller is, too."""
    try:
        yield
    except MISREAD as error:
        raise damaged(what, error) from error


def reads(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The same for a whole function that makes a value of a row."""

    def of(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def reading(*row: P.args, **rest: P.kwargs) -> T:
            try:
                return read(*row, **rest)
            except MISREAD as error:
                raise damaged(what, error) from error

        return reading

    return of


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Misshapen(f"{name} is no text")
    return value


def maybe_text(name: str, value: Any) -> str | None:
    return None if value is None else text(name, value)


def whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misshapen(f"{name} is no whole number")
    return value


def number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Misshapen(f"{name} is no number")
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Misshapen(f"{name} is no mapping")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Misshapen(f"{name} is no list")
    return tuple(text(name, one) for one in value)


def named_texts(name: str, value: Any) -> dict[str, str]:
    return {key: text(name, one) for key, one in mapping(name, value).items()}


def counts(name: str, value: Any) -> dict[str, int]:
    return {key: whole(name, one) for key, one in mapping(name, value).items()}


def moment(name: str, micros: Any) -> datetime:
    return from_micros(whole(name, micros))


def maybe_moment(name: str, micros: Any) -> datetime | None:
    return None if micros is None else moment(name, micros)


def maybe_span(name: str, micros: Any) -> timedelta | None:
    return None if micros is None else timedelta(microseconds=whole(name, micros))


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise Misshapen(f"{name} is none of {', '.join(known)}")
    return value
