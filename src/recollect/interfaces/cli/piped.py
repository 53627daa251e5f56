"""What is piped in: a text, or facts line by line, checked whole before any of it is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from recollect.errors import BadInput

_MOMENTS = ("at", "valid_from", "valid_to")


def standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 at byte {error.start}") from error


def facts_in(
    text: str, options: Mapping[str, Any], check: Callable[[Mapping[str, Any]], None], *, as_json: bool
) -> list[dict[str, Any]]:
    """A fact for every line that is not empty, with the options of the command where the line says nothing itself."""
    found = []
    for number, line in _lines(text):
        try:
            fact = {**options, **(_object(line) if as_json else {"content": line})}
            check(fact)
        except BadInput as error:
            raise BadInput(f"line {number}: {error}; nothing was kept") from error
        found.append(fact)
    if not found:
        raise BadInput("standard input has no line to remember")
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): it takes characters for line ends that JSON and people use within a line.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadInput(f'a line is an object such as {{"content": "…"}}, not {type(value).__name__}')
    for name in _MOMENTS:
        if isinstance(value.get(name), str):
            try:
                value[name] = datetime.fromisoformat(value[name])
            except ValueError as error:
                raise BadInput(f"{name} is a moment such as 2026-11-12T09:30Z, not {value[name]!r:.80}") from error
    return value
