"""A model's arguments, made into what a tool's types ask for, or refused in words that the model can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

from recollect.agent.schema import LISTS, OBJECTS, UNIONS, Parameter, fields_of

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class Unfit(Exception):
    """An argument is not what the tool takes; the text is for the model."""


def fitted_all(arguments: Mapping[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The arguments by name, each as its type; what was left out is left to the defaults."""
    names = [one.name for one in parameters]
    unknown = [name for name in arguments if name not in names]
    if unknown:
        raise Unfit(f"there is no parameter {unknown[0]!r}; the parameters are {', '.join(names) or 'none'}")
    missing = [one.name for one in parameters if one.required and one.name not in arguments]
    if missing:
        raise Unfit(f"the parameter {missing[0]!r} is missing")
    return {
        one.name: fitted(arguments[one.name], one.annotation, one.name) for one in parameters if one.name in arguments
    }


def fitted(value: Any, annotation: Any, path: str) -> Any:
    """The value as its type, leniently where nothing is lost: "5" is a 5 where a number is asked for."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Required, NotRequired):
        return fitted(value, inner[0], path)
    if origin is Literal:
        return _chosen(value, {one: one for one in inner}, path)
    if origin in UNIONS:
        return _first_fit(value, inner, path)
    if annotation in (str, int, float, bool, None, type(None)):
        return _plain(value, annotation, path)
    if (origin or annotation) in LISTS:
        return _list(value, origin or annotation, inner, path)
    if (origin or annotation) in OBJECTS:
        values = _object(value, path)
        return {name: fitted(one, inner[1], f"{path}.{name}") for name, one in values.items()} if inner else values
    return _made(value, annotation, path)


def _made(value: Any, annotation: Any, path: str) -> Any:
    """A value of an Enum, a dataclass or a TypedDict; of a type that says nothing, the value as it is."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _chosen(value, {one.value: one for one in annotation}, path)
    fields = fields_of(annotation)
    if fields is None:
        return value
    try:
        made = fitted_all(_object(value, path), fields)
    except Unfit as unfit:
        raise Unfit(f"in {path}: {unfit}") from None
    return annotation(**made)


def _plain(value: Any, kind: Any, path: str) -> Any:
    if kind in (None, type(None)):
        if value is not None:
            raise Unfit(f"{path} is null, not {_said(value)}")
        return None
    made: Any = None
    if kind is str:
        # A number where a text is asked for is its digits; anything larger was meant otherwise.
        made = value if isinstance(value, str) else str(value) if _is_number(value) else None
    elif kind is bool:
        word = value.strip().lower() if isinstance(value, str) else ""
        made = value if isinstance(value, bool) else True if word in _TRUE else False if word in _FALSE else None
    elif isinstance(value, str) or _is_number(value):
        made = _number(value, kind)
    if made is None:
        called = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise Unfit(f"{path} is {called}, not {_said(value)}")
    return made


def _number(value: Any, kind: type) -> Any:
    try:
        number = float(value)
        if kind is float:
            return number
        return int(value) if isinstance(value, int | str) and "." not in str(value) else _whole(number)
    except (ValueError, OverflowError):
        return None


def _whole(number: float) -> int | None:
    return int(number) if number.is_integer() else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _chosen(value: Any, choices: Mapping[Any, Any], path: str) -> Any:
    for one, chosen in choices.items():
        if value == one and isinstance(value, bool) == isinstance(one, bool):
            return chosen
    for one, chosen in choices.items():  # models write numbers as texts, and the other way round
        if not isinstance(value, bool | None) and str(value) == str(one):
            return chosen
    raise Unfit(
        f"{path} is one of {', '.join(json.dumps(one, ensure_ascii=False) for one in choices)}, not {_said(value)}"
    )


def _first_fit(value: Any, kinds: Sequence[Any], path: str) -> Any:
    exact = [one for one in kinds if isinstance(one, type) and type(value) is one]
    failed: Unfit | None = None
    for one in (*exact, *kinds):
        try:
            return fitted(value, one, path)
        except Unfit as unfit:
            failed = failed or unfit
    raise failed or Unfit(f"{path} is not {_said(value)}")


def _list(value: Any, kind: Any, inner: tuple[Any, ...], path: str) -> Any:
    values = _parsed(value, path) if isinstance(value, str) else value
    if not isinstance(values, list | tuple):
        raise Unfit(f"{path} is a list, not {_said(value)}")
    kinds = [one for one in inner if one is not Ellipsis]
    if len(kinds) > 1 and len(kinds) != len(values):
        raise Unfit(f"{path} is a list of {len(kinds)}, not of {len(values)}")
    each = kinds if len(kinds) > 1 else (kinds or [Any]) * len(values)
    made = [fitted(one, each[at], f"{path}[{at}]") for at, one in enumerate(values)]
    return kind(made) if kind in (tuple, set, frozenset) else made


def _object(value: Any, path: str) -> dict[str, Any]:
    given = _parsed(value, path) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise Unfit(f"{path} is an object, not {_said(value)}")
    return dict(given)


def _parsed(text: str, path: str) -> Any:
    """Some models write what is nested as a text of JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Unfit(f"{path} is not the text {_said(text)}") from None


def _said(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False, default=str):.80}"
