"""What a store tells of its own health, for those who look after it: narrow facts, and never what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from recollect.values import NOTHING

Survives = Literal["power loss", "a crash of its processes", "nothing"]
"""The worst that what was acknowledged as durable outlives."""

Repair = Literal["ballast", "log", "words"]
"""What can be put right without losing anything: the room kept back, the log, the index of words."""


Tell = Callable[[str], None]
"""Called with what is looked at next, perhaps in another thread: a long look says how far it has got."""


def quiet(stage: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Lapse:
    """A setting by which a store may lose what it has acknowledged, and the command that mends it."""

    what: str
    fix: str
    grave: bool = True


@dataclass(frozen=True, slots=True)
class Fill:
    """How much is taken of something that runs out; `most` is 0 where nobody has set an end."""

    what: str
    used: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a store says of itself at one moment, quickly. None: the question does not arise there."""

    engine: str
    versions: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    survives: Survives
    lapses: tuple[Lapse, ...] = ()
    schema: tuple[int, int] | None = None
    """The one it has, and the newest that this release knows."""
    now: datetime | None = None
    """The time by a server's own clock."""
    oldest: datetime | None = None
    newest: datetime | None = None
    """The first and the last moment that anything in it bears."""
    files: tuple[Path, ...] = ()
    """Where content lies on this machine."""
    bytes: int = 0
    items: int = 0
    fresh: int = 0
    """Items of the last seven days."""
    superseded: int = 0
    largest_space: int | None = None
    """Bytes of vectors that the largest space needs in memory."""
    ballast: bool | None = None
    log_bytes: int | None = None
    unused: float | None = None
    """The share of its pages or rows that nothing is in."""
    locked: str | None = None
    """Who holds everybody up; empty: nobody."""
    encrypted: bool | None = None
    backed_up: datetime | None = None
    backs_up: bool = False
    """Whether copies are made by `backup`, and by no tools of its own."""
    fills: tuple[Fill, ...] = ()
    near: tuple[int, int] | None = None
    """How many spaces are large enough for an index by meaning, and of how many it is missing or broken."""
    sees_everybody: bool | None = None
    """Whether whoever we come in as is above the policies that keep tenants apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soundness:
    """What only a look at everything tells, which takes as long as there is much. None: there is no such index."""

    faults: tuple[str, ...] = ()
    """What is wrong with the data itself, a sentence each."""
    lacking_vectors: int | None = None
    stray_vectors: int | None = None
    lacking_words: int | None = None
    stray_words: int | None = None

    @property
    def sentences(self) -> list[str]:
        """As `Store.check` tells it. An item without a vector is no fault of a store: it keeps what it is given."""
        told = list(self.faults)
        if self.stray_vectors:
            told.append(f"{self.stray_vectors} vectors belong to no item")
        if self.lacking_words:
            told.append(f"the words of {self.lacking_words} items are not those that they are found by")
        if self.stray_words:
            told.append(f"words of {self.stray_words} items that are gone are still in the index")
        return told


@runtime_checkable
class Examined(Protocol):
    """A store that tells how it is."""

    async def vitals(self) -> Vitals:
        """What can be told at once."""

    async def soundness(self, tell: Tell = quiet) -> Soundness:
        """What a look at everything tells."""

    async def repair(self, what: Repair) -> None:
        """Put one thing right. Nothing is lost by it; `Unsupported` where there is nothing of the kind."""
