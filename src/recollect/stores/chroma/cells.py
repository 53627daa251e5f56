"""An item as Chroma keeps it: a cell that is written once, and named after the batch that wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from recollect.clock import aware, to_micros
from recollect.stores.chroma.collections import Record
from recollect.stores.damage import (
    Misshapen,
    mapping,
    maybe_moment,
    maybe_text,
    moment,
    number,
    one_of,
    text,
    texts,
    whole,
)
from recollect.stores.vectors import MOST_PASSAGES
from recollect.values import NOTHING, MemoryItem, Scope, Space, Tier, Turn

PREFIX = "recollect."
ITEMS = f"{PREFIX}items."
VECTORS = f"{PREFIX}vectors."

# The cell that lists the metadata paths of a space; no item's handle looks like this.
PATHS = "paths"


class Ref(NamedTuple):
    """Which vectors an item has: the batch that brought them, and how many passages there are."""

    batch: int
    passages: int


@dataclass(frozen=True, slots=True)
class Kept:
    """An item with its words, and its vectors by generation: of the model that answers, and of one being prepared."""

    item: MemoryItem
    at: int
    terms: tuple[str, ...] = ()
    refs: Mapping[int, Ref] = field(default_factory=lambda: MappingProxyType({}))

    def record(self) -> Record:
        """The cell. The text stands where Chroma's own tools look for it; all else is one line of JSON."""
        of = handle(self.item.id)
        return Record(cell_id(of, self.at), {"of": of, "n": self.at, "cell": dumped(self.cell())}, self.item.content)

    def cell(self) -> dict[str, Any]:
        item = self.item
        return {
            "id": item.id,
            "scope": [item.scope.tenant, item.scope.user, item.scope.agent, item.scope.session],
            "tier": item.tier,
            "times": [_micros(getattr(item, name)) for name in _TIMES],
            "rest": [getattr(item, name) for name in _REST],
            "metadata": dict(item.metadata),
            "turn": [item.turn.session, item.turn.position, item.turn.speaker] if item.turn else None,
            "derived_from": list(item.derived_from),
            "terms": " ".join(self.terms),
            "refs": {str(generation): list(ref) for generation, ref in self.refs.items()},
        }


_TIMES = ("created_at", "last_accessed", "valid_from", "valid_to", "expires_at", "decayed_at", "learned_at")
_REST = ("version", "importance", "access_count", "superseded_by", "source", "trust", "key", "pinned")


def kept_of(content: Any, cell: Mapping[str, Any], at: int) -> Kept:
    """The item of a cell; `MISREAD` where it is not of the shape in which it was written."""
    created_at, *others = cell["times"]
    times = {name: maybe_moment(name, micros) for name, micros in zip(_TIMES[1:], others, strict=True)}
    version, importance, access_count, superseded_by, source, trust, key, pinned = cell["rest"]
    metadata = mapping("metadata", cell["metadata"])
    item = MemoryItem(
        id=text("id", cell["id"]),
        content=text("content", content),
        scope=_scope(*cell["scope"]),
        tier=one_of("tier", cell["tier"], get_args(Tier)),
        metadata=MappingProxyType(metadata) if metadata else NOTHING,
        turn=None if cell["turn"] is None else _turn(*cell["turn"]),
        derived_from=texts("derived_from", cell["derived_from"]),
        created_at=moment("created_at", created_at),
        **times,
        version=whole("version", version),
        importance=number("importance", importance),
        access_count=whole("access_count", access_count),
        superseded_by=maybe_text("superseded_by", superseded_by),
        source=text("source", source),
        trust=number("trust", trust),
        key=maybe_text("key", key),
        pinned=one_of("pinned", pinned, (True, False)),
    )
    refs = {int(generation): _ref(*ref) for generation, ref in mapping("refs", cell["refs"]).items()}
    return Kept(item, at, tuple(text("terms", cell["terms"]).split()), MappingProxyType(refs))


def as_stored(item: MemoryItem, held: MemoryItem | None) -> MemoryItem:
    """The item as another process would read it: plain metadata, UTC, and the store's own version and counts."""
    times: dict[str, Any] = {name: aware(moment) for name in _TIMES if (moment := getattr(item, name)) is not None}
    if held is not None:
        times["last_accessed"] = held.last_accessed
    return replace(
        item,
        version=held.version + 1 if held else 1,
        access_count=(held or item).access_count,
        metadata=MappingProxyType(dict(item.metadata)) if item.metadata else NOTHING,
        turn=replace(item.turn, position=float(item.turn.position)) if item.turn else None,
        derived_from=tuple(item.derived_from),
        **times,
    )


@lru_cache(maxsize=65_536)
def handle(id: str) -> str:
    """A name for an item that every Chroma takes, whatever signs its id is made of; a grave bears it alone."""
    return hashlib.blake2b(id.encode(), digest_size=16).hexdigest()


def cell_id(of: str, batch: int) -> str:
    return f"{of}@{batch}"


def vector_id(of: str, batch: int, part: int) -> str:
    return f"{of}@{batch}.{part}"


def batch_of(id: str) -> int:
    """The batch that brought a record, by the record's name."""
    return int(id.partition("@")[2].partition(".")[0])


def items_of(space: Space) -> str:
    return f"{ITEMS}{_space_handle(space)}"


def vectors_of(space: Space, generation: int) -> str:
    return f"{VECTORS}{_space_handle(space)}.{generation}"


def about(space: Space) -> dict[str, str]:
    """What a collection says of itself: whose it is."""
    return {"space": dumped(names_of(space))}


def names_of(space: Space) -> list[str]:
    return [space.tenant, space.tier, space.user, space.agent, space.session]


def dumped(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


@lru_cache(maxsize=4096)
def _space_handle(space: Space) -> str:
    return hashlib.blake2b(dumped(names_of(space)).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def _scope(tenant: str, user: str, agent: str, session: str | None) -> Scope:
    """Scopes are checked when they are made, and the cells of one space nearly always share theirs."""
    return Scope(tenant, user, agent, session)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def _turn(session: Any, position: Any, speaker: Any) -> Turn:
    return Turn(text("session", session), number("position", position), maybe_text("speaker", speaker))


def _ref(batch: Any, passages: Any) -> Ref:
    # Whoever meets a reference walks through its passages: a number that nobody wrote would never end.
    if not 1 <= whole("passages", passages) <= MOST_PASSAGES:
        raise Misshapen("passages are none, or more than an item has")
    return Ref(whole("batch", batch), passages)
