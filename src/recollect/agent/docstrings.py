"""What a function's docstring tells a model: what it does, and what each parameter means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from recollect.values import NOTHING

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields?|Examples?|Notes?|Attributes):\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Told:
    """A docstring read: its opening words, and what stands under `Args:`."""

    description: str = ""
    parameters: Mapping[str, str] = field(default_factory=lambda: NOTHING)


def told(function: Callable[..., Any]) -> Told:
    """What the docstring says, in Google's style; sections that are for programmers are left out."""
    opening: list[str] = []
    parameters: dict[str, str] = {}
    section, indent, last = "", 0, ""
    for line in (inspect.getdoc(function) or "").splitlines():
        heading = _SECTION.match(line)
        if heading is not None:
            section, indent, last = heading[1], 0, ""
        elif not section:
            opening.append(line)
        elif section in _ARGUMENTS and line.strip():
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            named = _PARAMETER.match(line.strip()) if depth <= indent else None
            if named is not None:
                last = named[1]
                parameters[last] = named[2].strip()
            elif last:
                parameters[last] = f"{parameters[last]} {line.strip()}".strip()
    return Told("\n".join(opening).strip(), parameters)
