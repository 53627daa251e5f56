"""The rules of `phrases.toml`, read once and compiled when they are needed first."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

_NAMED = re.compile("«([a-z]+)»")


@dataclass(frozen=True)
class Rule:
    """A turn of phrase. It is looked for in a text that has one of the words `needs`, and one of the signs `has`."""

    reason: str
    weight: float
    pattern: str
    needs: frozenset[str]
    has: tuple[str, ...]

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        # Some of these take longer to compile than a hundred texts take to be looked through.
        return re.compile(self.pattern, re.DOTALL)

    def may_be_in(self, text: str, words: set[str]) -> bool:
        """Whether it is worth looking for."""
        return (not self.needs or not words.isdisjoint(self.needs)) and (
            not self.has or any(sign in text for sign in self.has)
        )


@cache
def rules() -> tuple[Rule, ...]:
    """All of them, those in English first."""
    told = tomllib.loads(files("recollect.guard").joinpath("phrases.toml").read_text("utf-8"))
    words = {name: _joined(pattern) for name, pattern in told["words"].items()}
    return tuple(_rule(one, words) for one in (*told["rule"], *told["foreign"]))


def _rule(told: dict[str, Any], words: dict[str, str]) -> Rule:
    pattern = _joined(told["pattern"])
    while _NAMED.search(pattern):
        pattern = _NAMED.sub(lambda found: words[found[1]], pattern)
    needs, has = frozenset(told.get("needs", "").split()), tuple(told.get("has", "").split())
    return Rule(told["reason"], told["weight"], pattern, needs, has)


def _joined(pattern: str) -> str:
    return "".join(line.strip() for line in pattern.splitlines())
