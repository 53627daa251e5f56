"""One space on its way from a store to another: what every kind of part can do, and the hash of both ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from recollect.errors import Conflict
from recollect.values import Space

# Large enough that a durable commit is shared by many, small enough that a kill costs next to nothing.
MOST_TOGETHER = 256
_MOST_CHARACTERS = 4_000_000

Tell = Callable[[int], None]
"""Called with how many more are done."""

T = TypeVar("T")


class Part(Protocol):
    """A space of one tier, in the store it comes from and in the one it goes to.

    There is no note of how far a run came: the target itself says it, and what it holds is compared, never trusted.
    """

    @property
    def space(self) -> Space: ...

    async def held(self) -> int:
        """How many there are to be moved."""

    async def check(self) -> None:
        """`Conflict` when the target holds something that the source does not."""

    async def copy(self, tell: Tell) -> int:
        """Write what is missing in the target, in batches that are each whole or not there; how many that were."""

    async def hashes(self, tell: Tell) -> tuple[Sum, Sum]:
        """What the source holds and what the target holds, in their one order."""


class Sum:
    """A running sha256 over values, with how many there were."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, *values: Any) -> None:
        self._hash.update(json.dumps(values, default=plain, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        self.count += 1

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.count, self.hex) == (other.count, other.hex)

    __hash__ = None  # type: ignore[assignment]


def plain(value: Any) -> Any:
    """A value as JSON, for a hash."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value / timedelta(microseconds=1)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value)


def together(values: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """The values in batches: so many at most, and fewer of large ones."""
    batch: list[T] = []
    characters = 0
    for value in values:
        if batch and (len(batch) == MOST_TOGETHER or characters + size(value) > _MOST_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(value)
        characters += size(value)
    if batch:
        yield batch


def elsewhere(space: Space, what: str) -> Conflict:
    return Conflict(
        f"the target holds {what} in {space}, and the source does not hold the same: it is not a copy that was "
        "begun from there, or one of the two has changed since; name an empty target"
    )
