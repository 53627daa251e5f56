"""Who is examined: the settings, the stores as far as they open, the models, and the time."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from recollect.clock import Clock, aware
from recollect.errors import RecollectError, StoreClosed
from recollect.inference.base import Embedding
from recollect.settings import Settings, shown
from recollect.stores.base import Store
from recollect.stores.connect import file_of
from recollect.stores.health import Examined, Soundness, Tell, Vitals, quiet
from recollect.values import Scope, Tier

T = TypeVar("T")


def room_at(path: Path) -> int:
    """The bytes that are free where a file lies."""
    return shutil.disk_usage(path if path.is_dir() else path.parent).free


@dataclass(slots=True, kw_only=True)
class Place:
    """One store: where it is, which tiers live there, and either the store or why it does not open."""

    url: str
    tiers: tuple[Tier, ...]
    store: Store | None = None
    error: RecollectError | None = None
    vitals: Vitals | None = None

    @property
    def name(self) -> str:
        """As it may be shown to anybody."""
        return shown(self.url)

    @property
    def file(self) -> Path | None:
        return file_of(self.url)

    @property
    def where(self) -> str:
        """As it is given to a command."""
        return self.name if self.file is None else str(self.file)

    @property
    def closed(self) -> str:
        """Why nothing was looked at here."""
        told = type(self.error).__name__ if self.error is not None else "it tells nothing of its health"
        return f"{self.name} was not looked at ({told})"


@dataclass(slots=True, kw_only=True)
class Turns:
    """The index of what was said: how far it is behind its logs, and what brings it up to date."""

    behind: Callable[[Scope], Awaitable[int]]
    catch_up: Callable[[Scope], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Patient:
    """What every check looks at. What has been asked for once is remembered, until something was mended."""

    settings: Settings
    clock: Clock
    places: Sequence[Place]
    bad_settings: RecollectError | None = None
    settings_file: Path | None = None
    embedding: Embedding | None = None
    bad_embedding: RecollectError | None = None
    llm: str = ""
    """The language model for cheap work, by name; empty: there is none."""
    turns: Turns | None = None
    room: Callable[[Path], int] = room_at
    tell: Tell = quiet
    """What a long look says while it lasts."""
    _sound: dict[str, Soundness] = field(default_factory=dict)

    @property
    def now(self) -> datetime:
        return aware(self.clock())

    def place_of(self, tier: Tier) -> Place:
        return next(place for place in self.places if tier in place.tiers)

    def stores(self, kind: type[T]) -> list[T]:
        """The stores that answer and can do something, each once."""
        return [place.store for place in self.places if place.error is None and isinstance(place.store, kind)]

    async def examine(self) -> None:
        """Ask every store how it is; one that cannot say so is as good as shut."""
        for place in self.places:
            if isinstance(place.store, Examined):
                try:
                    place.vitals, place.error = await place.store.vitals(), None
                except StoreClosed:  # not an illness: whoever closed it is asking
                    raise
                except RecollectError as error:
                    place.vitals, place.error = None, error
        self._sound.clear()

    async def soundness(self, place: Place) -> Soundness:
        """A look at everything, which is made once."""
        assert isinstance(place.store, Examined)
        if place.url not in self._sound:
            self._sound[place.url] = await place.store.soundness(self.tell)
        return self._sound[place.url]
