"""Checks of reads from damaged stores: all values have their declared types, or `StoreCorrupt` is raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from recollect.errors import StoreCorrupt


async def classify_read(read: Callable[[], Awaitable[Any]], secret: str) -> str:
    """Return `whole`, `refused`, or a description of the fault; an error must not quote stored content."""
    try:
        wrong = find_type_errors(await read())
    except StoreCorrupt as error:
        said = str(error)
        return "refused" if "restore a backup" in said and secret not in said else f"says {said!r:.120}"
    except Exception as error:  # noqa: BLE001 - the test reports all faults together
        return f"{type(error).__name__}: {error!s:.120}"
    return wrong[0] if wrong else "whole"


def find_type_errors(value: Any, kind: Any = None, path: str = "") -> list[str]:
    """Return the paths of values that do not have their declared type, in dataclasses and lists."""
    if kind is None:
        if isinstance(value, list | tuple | set | frozenset):
            return [bad for at, part in enumerate(value) for bad in find_type_errors(part, path=f"{path}[{at}]")]
        if not is_dataclass(value) or isinstance(value, type):
            return []
        kinds = get_type_hints(type(value))
        return [
            bad
            for part in fields(value)
            for bad in find_type_errors(
                getattr(value, part.name), kinds[part.name], f"{path}{type(value).__name__}.{part.name}"
            )
        ]
    return [] if _has_type(value, kind, path) else [f"{path} is {value!r:.60}"]


def _has_type(value: Any, kind: Any, path: str) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_has_type(value, part, path) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(part, inner[0], path) for part in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _has_type(name, inner[0], path) and _has_type(part, inner[1], path) for name, part in value.items()
        )
    if kind in (None, NoneType):
        return value is None
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if is_dataclass(kind):
        return isinstance(value, kind) and find_type_errors(value) == []  # type: ignore[arg-type]
    return isinstance(value, kind)
