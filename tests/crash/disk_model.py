"""Model of a disk that may lose power: synced bytes, unsynced writes, and the states that a power loss can leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SECTOR = 512


class Opened(NamedTuple):
    """A file was opened under this descriptor; it is created if it does not exist."""

    descriptor: int
    name: str
    emptied: bool


class Wrote(NamedTuple):
    descriptor: int
    offset: int
    data: bytes


class Cut(NamedTuple):
    descriptor: int
    size: int


class SyncBegan(NamedTuple):
    """The start of a sync: only writes before it are safe when the sync ends."""

    call: int
    descriptor: int


class SyncEnded(NamedTuple):
    call: int


class FolderSynced(NamedTuple):
    pass


class Removed(NamedTuple):
    name: str


class Noted(NamedTuple):
    """A line on the acknowledgment pipe."""

    words: list[str]


Event = Opened | Wrote | Cut | SyncBegan | SyncEnded | FolderSynced | Removed | Noted
Files = dict[str, bytes]


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    written: list[Wrote | Cut] = field(default_factory=list)


class Disk:
    """The files of one folder. A directory entry is volatile until the folder is synced, like a file's bytes."""

    def __init__(self) -> None:
        self._files: list[_File] = []
        self._by_descriptor: dict[int, _File] = {}
        self._names: dict[str, _File] = {}
        self._synced_names: dict[str, _File] = {}
        self._renamed: list[tuple[str, _File | None]] = []
        self._syncing: dict[int, tuple[_File, int]] = {}

    def apply(self, event: Event) -> None:
        match event:
            case Opened(descriptor, name, emptied):
                self._open(descriptor, name, emptied)
            case Wrote(descriptor) | Cut(descriptor):
                self._by_descriptor[descriptor].written.append(event)
            case SyncBegan(call, descriptor):
                file = self._by_descriptor[descriptor]
                self._syncing[call] = (file, len(file.written))
            case SyncEnded(call):
                file, many = self._syncing.pop(call)
                for change in file.written[:many]:
                    _make(file.synced, change)
                del file.written[:many]
            case FolderSynced():
                self._synced_names = dict(self._names)
                self._renamed.clear()
            case Removed(name):
                self._names.pop(name, None)
                self._renamed.append((name, None))

    def _open(self, descriptor: int, name: str, emptied: bool) -> None:
        if name not in self._names:
            self._names[name] = _File()
            self._renamed.append((name, self._names[name]))
        file = self._names[name]
        self._by_descriptor[descriptor] = file
        if emptied:
            file.written.append(Cut(descriptor, 0))

    @property
    def at_risk(self) -> int:
        """Return how many changes a power loss could still undo."""
        return len(self._renamed) + sum(len(file.written) for file in self._everywhere())

    def with_all(self) -> Files:
        """Return the files with every write, as after a crash of the process alone."""
        return {name: _content(file, file.written) for name, file in self._names.items()}

    def with_nothing_unsynced(self) -> Files:
        return {name: bytes(file.synced) for name, file in self._synced_names.items()}

    def with_some(self, rng: random.Random) -> Files:
        """Return the files with a random part of the unsynced sectors and a random prefix of the folder's changes."""
        names = dict(self._synced_names)
        for name, file in self._renamed[: rng.randint(0, len(self._renamed))]:
            names.pop(name, None)
            if file is not None:
                names[name] = file
        share = rng.choice((0.1, 0.5, 0.9))
        return {name: _content(file, list(_some(file.written, share, rng))) for name, file in names.items()}

    def _everywhere(self) -> Iterator[_File]:
        files = [*self._names.values(), *self._synced_names.values()]
        yield from {id(file): file for file in files}.values()


def _some(written: list[Wrote | Cut], share: float, rng: random.Random) -> Iterator[Wrote | Cut]:
    torn = rng.randrange(len(written)) if written and rng.random() < 0.7 else -1
    for place, change in enumerate(written):
        if place == torn and isinstance(change, Wrote):
            yield from _torn(change, rng)
        elif rng.random() < share:
            yield change


def _torn(change: Wrote, rng: random.Random) -> Iterator[Wrote]:
    """Yield a part of a write: a prefix of its sectors, or a random selection of them."""
    first = -change.offset % SECTOR
    cuts = [0, *range(first or SECTOR, len(change.data), SECTOR), len(change.data)]
    pieces = list(pairwise(cuts))
    if rng.random() < 0.5:
        pieces = pieces[: rng.randint(0, len(pieces))]
    else:
        pieces = [piece for piece in pieces if rng.random() < 0.5]
    for start, end in pieces:
        yield Wrote(change.descriptor, change.offset + start, change.data[start:end])


def _content(file: _File, changes: list[Wrote | Cut]) -> bytes:
    if not changes:
        return bytes(file.synced)
    content = bytearray(file.synced)
    for change in changes:
        _make(content, change)
    return bytes(content)


def _make(content: bytearray, change: Wrote | Cut) -> None:
    size = change.size if isinstance(change, Cut) else change.offset + len(change.data)
    if size > len(content):
        content.extend(bytes(size - len(content)))
    if isinstance(change, Cut):
        del content[size:]
    else:
        content[change.offset : size] = change.data
