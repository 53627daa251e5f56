"""What a store makes of damaged values: values that are what their types say all the way down, or `StoreCorrupt`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from recollect.errors import StoreCorrupt


async def outcome(read: Callable[[], Awaitable[Any]], secret: str) -> str:
    """`whole`, `refused`, or what is wrong with the answer; an error must not quote what was kept."""
    try:
        wrong = misfits(await read())
    except StoreCorrupt as error:
        said = str(error)
        return "refused" if "restore a backup" in said and secret not in said else f"says {said!r:.120}"
    except Exception as error:  # noqa: BLE001 - all that leaks is told at once
        return f"{type(error).__name__}: {error!s:.120}"
    return wrong[0] if wrong else "whole"


def misfits(value: Any, kind: Any = None, path: str = "") -> list[str]:
    """The paths of what is something else than its type says; lists are looked through."""
    if kind is None:
        if isinstance(value, list | tuple | set | frozenset):
            return [bad for at, one in enumerate(value) for bad in misfits(one, path=f"{path}[{at}]")]
        if not is_dataclass(value) or isinstance(value, type):
            return []
        kinds = get_type_hints(type(value))
        return [
            bad
            for one in fields(value)
            for bad in misfits(getattr(value, one.name), kinds[one.name], f"{path}{type(value).__name__}.{one.name}")
        ]
    return [] if _fits(value, kind, path) else [f"{path} is {value!r:.60}"]


def _fits(value: Any, kind: Any, path: str) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, one, path) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, inner[0], path) for one in value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(name, inner[0], path) and _fits(one, inner[1], path) for name, one in value.items()
        )
    if kind in (None, NoneType):
        return value is None
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if is_dataclass(kind):
        return isinstance(value, kind) and misfits(value) == []  # type: ignore[arg-type]
    return isinstance(value, kind)
