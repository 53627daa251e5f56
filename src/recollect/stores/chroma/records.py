"""Chroma records: names of collections, ids, metadata for Chroma's filters, and the whole item as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from recollect.clock import to_micros
from recollect.stores import codec
from recollect.stores.chroma.client import ChromaRecord
from recollect.stores.codec import decode_text, detect_corruption, pack_vectors
from recollect.stores.erasure import ErasurePhase, ErasureRecord
from recollect.stores.filters import Where
from recollect.stores.search import ItemBrief, build_brief
from recollect.types import EMPTY_MAPPING, MemoryItem, Scope, Space, Tier, Turn

META = "recollect.meta"
"""Collection of the models, the erasures, and the names of spaces, metadata paths and speakers."""
ITEMS_PREFIX = "recollect.records."
VECTORS_PREFIX = "recollect.vectors."
OLD_FORMAT = "recollect.chain"
"""Collection of an older format, which cannot be read."""

# Chroma evaluates a filter on all records of a collection. With 100,000 items of 1,000 spaces in one collection a
# search takes 160 ms, in 16 collections about 10 ms. A collection for each space takes 2 MB of memory for each.
_BUCKETS = 16
# Chroma stores each metadata value in an index.
_MAX_FILTER_CHARS = 256
_TEXT_FIELDS = frozenset({"source", "key", "session", "speaker"})


@lru_cache(maxsize=1024)
def _build_scope(tenant: str, user: str, agent: str, session: str | None) -> Scope:
    # Cached, because a Scope validates its names, and items of one space mostly share it.
    return Scope(tenant, user, agent, session)


def _decode_metadata(name: str, value: Any) -> Mapping[str, Any]:
    metadata = codec.decode_mapping(name, value)
    return MappingProxyType(metadata) if metadata else EMPTY_MAPPING


def _decode_turn(name: str, value: Any) -> Turn | None:
    if value is None:
        return None
    session, position, speaker = value
    place = decode_text("session", session), codec.decode_float("position", position)
    return Turn(*place, codec.decode_optional_text("speaker", speaker))


# The fields of an item in JSON. The text and the accesses are next to it.
_FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "id": decode_text,
    "scope": lambda name, value: _build_scope(*value),
    "tier": lambda name, value: codec.decode_choice(name, value, get_args(Tier)),
    "metadata": _decode_metadata,
    "turn": _decode_turn,
    "derived_from": codec.decode_texts,
    "created_at": codec.decode_time,
    "valid_from": codec.decode_optional_time,
    "valid_to": codec.decode_optional_time,
    "expires_at": codec.decode_optional_time,
    "decayed_at": codec.decode_optional_time,
    "learned_at": codec.decode_optional_time,
    "version": codec.decode_int,
    "importance": codec.decode_float,
    "superseded_by": codec.decode_optional_text,
    "source": decode_text,
    "trust": codec.decode_float,
    "key": codec.decode_optional_text,
    "pinned": lambda name, value: codec.decode_choice(name, value, (True, False)),
}


@dataclass(frozen=True, slots=True)
class ChromaItem:
    """An item with its terms and the number of its passages by generation of vectors."""

    item: MemoryItem
    terms: tuple[str, ...] = ()
    passages: Mapping[str, int] = field(default_factory=lambda: EMPTY_MAPPING)
    prepared: str = ""
    """The generation in preparation that the item has vectors of."""
    new_vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=lambda: EMPTY_MAPPING)
    """Vectors to write with the item, by generation."""

    @property
    def space(self) -> Space:
        return self.item.scope.space(self.item.tier)

    @property
    def record_id(self) -> str:
        return build_record_id(self.space, "item", self.item.id)

    @property
    def speaker(self) -> str | None:
        return self.item.turn.speaker if self.item.turn else None

    def list_passages(self, generation: str) -> list[str]:
        """Return the record ids of the vectors of one generation."""
        return [f"{self.record_id}.{part}" for part in range(self.passages.get(generation, 0))]

    def build_brief(self, generation: str) -> ItemBrief:
        return build_brief(self.item, length=len(self.terms), passages=self.passages.get(generation, 1))

    def with_vectors(
        self, generation: str, vectors: NDArray[np.float32], *, prepared: str, others: Mapping[str, int]
    ) -> ChromaItem:
        """Return the item with new vectors of a generation, and the number of its `others`."""
        rounded = pack_vectors(vectors).astype(np.float32)
        new = {name: rows for name, rows in self.new_vectors.items() if name in others} | {generation: rounded}
        return replace(self, passages={**others, generation: len(rounded)}, prepared=prepared, new_vectors=new)

    @property
    def access_metadata(self) -> dict[str, Any]:
        """The metadata that an access changes."""
        last = self.item.last_accessed
        return {"accesses": self.item.access_count, "accessed": None if last is None else to_micros(last)}

    def to_record(self, before: ChromaItem | None) -> ChromaRecord:
        """Return the record. Keys of the metadata that only the item before has are deleted."""
        item, turn = self.item, self.item.turn
        fields = {name: getattr(item, name) for name in _FIELDS}
        fields |= {"terms": " ".join(self.terms), "passages": self.passages}
        metadata = {
            **({} if before is None else dict.fromkeys(_list_filter_values(before.item.metadata))),
            **_list_filter_values(item.metadata),
            "space": encode_space(self.space),
            "item": json.dumps(fields, default=_encode_value, allow_nan=False, separators=(",", ":")),
            "terms": list(dict.fromkeys(self.terms)) or None,
            "prepared": self.prepared,
            "created": to_micros(item.created_at),
            "importance": float(item.importance),
            "source": item.source,
            "key": item.key,
            "session": turn.session if turn else None,
            "speaker": self.speaker,
            "place": name_place(turn.session, turn.position) if turn else None,
            **self.access_metadata,
        }
        return ChromaRecord(self.record_id, metadata, item.content)


def decode_item(record: ChromaRecord) -> ChromaItem:
    """Return the item of a record; raise `StoreCorrupt` if it is damaged."""
    with detect_corruption(describe_record(record)):
        meta = record.metadata
        data = codec.decode_mapping("item", json.loads(decode_text("item", meta["item"])))
        passages = codec.decode_counts("passages", data["passages"])
        # Readers loop over the passages, so a damaged number must not be huge.
        if not all(0 < count <= codec.MAX_PASSAGES for count in passages.values()):
            raise codec.DecodeError(f"passages must be from 1 to {codec.MAX_PASSAGES}")
        item = MemoryItem(
            content=decode_text("content", record.text),
            last_accessed=codec.decode_optional_time("accessed", meta.get("accessed")),
            access_count=codec.decode_int("accesses", meta["accesses"]),
            **{name: decode(name, data[name]) for name, decode in _FIELDS.items()},
        )
        terms = tuple(decode_text("terms", data["terms"]).split())
        return ChromaItem(item, terms, passages, decode_text("prepared", meta["prepared"]))


def encode_erasure(erasure: ErasureRecord) -> ChromaRecord:
    """Return the record of an erasure in the ledger."""
    columns = {
        "id": erasure.id,
        "subject": erasure.subject,
        "parts": json.dumps(erasure.parts),
        "elsewhere": json.dumps(dict(erasure.elsewhere)),
        "phase": erasure.phase,
        "erased": json.dumps(dict(erasure.erased)),
        "rederived": erasure.rederived,
        "requested": to_micros(erasure.requested_at),
        **({} if erasure.deleted_at is None else {"deleted": to_micros(erasure.deleted_at)}),
        **({} if erasure.receipt is None else {"receipt": json.dumps(erasure.receipt.as_json())}),
    }
    return ChromaRecord(f"erasure.{erasure.id}", {"kind": "erasure", **columns})


def decode_erasure(record: ChromaRecord) -> ErasureRecord:
    """Return the erasure of a record; it has evidence as soon as something may have been deleted."""
    with detect_corruption(describe_record(record)):
        texts = {name: decode_text(name, record.metadata[name]) for name in ("id", "subject", "parts", "elsewhere")}
        erased = decode_text("erased", record.metadata["erased"])
        return ErasureRecord.from_json_columns(
            **texts,
            erased=erased,
            receipt=codec.decode_optional_text("receipt", record.metadata.get("receipt")),
            phase=codec.decode_choice("phase", record.metadata["phase"], get_args(ErasurePhase)),
            requested_at=codec.decode_time("requested", record.metadata["requested"]),
            deleted_at=codec.decode_optional_time("deleted", record.metadata.get("deleted")),
            rederived=codec.decode_int("rederived", record.metadata["rederived"]),
            evidence=b"" if erased == "{}" else b"deleted",
        )


def build_filter(where: Where, *clauses: dict[str, Any]) -> dict[str, Any]:
    """Return Chroma's filter for the conditions that it can test. It finds every match, and possibly more."""
    wanted = [*clauses, *_list_text_conditions(where)]
    if where.created_from is not None:
        wanted.append({"created": {"$gte": to_micros(where.created_from)}})
    if where.created_until is not None:
        wanted.append({"created": {"$lt": to_micros(where.created_until)}})
    if where.min_importance > 0.0:
        wanted.append({"importance": {"$gte": float(where.min_importance)}})
    return within(where.space, *wanted)


def _list_text_conditions(where: Where) -> Iterator[dict[str, Any]]:
    """Yield the conditions on texts. Chroma compares 1 with 1.0 and True in its own way."""
    if where.key is not None and _is_filterable(where.key):
        yield {"key": where.key}
    for condition in where.conditions:
        values = condition.value if condition.op == "in" else (condition.value,)
        is_plain = condition.path in _TEXT_FIELDS if condition.is_field else len(condition.keys) == 1
        if condition.op in ("eq", "in") and is_plain and isinstance(values, tuple) and values:
            name = condition.path if condition.is_field else name_path(condition.keys[0])
            if all(map(_is_filterable, values)):
                yield {name: {"$in": list(values)}}


def within(space: Space, *clauses: dict[str, Any]) -> dict[str, Any]:
    """Return Chroma's filter for records of a space."""
    only: dict[str, Any] = {"space": encode_space(space)}
    return {"$and": [only, *clauses]} if clauses else only


def name_items(space: Space) -> str:
    """Return the collection of the items of a space."""
    return f"{ITEMS_PREFIX}{_get_bucket(space):02}"


def name_vectors(generation: str, space: Space) -> str:
    """Return the collection of the vectors of a space for one model."""
    return f"{VECTORS_PREFIX}{generation}.{_get_bucket(space):02}"


def name_place(session: str, position: float) -> str:
    """Return the metadata value that turns between two whole positions share."""
    return f"{session}\0{math.floor(position)}"


def name_path(key: str) -> str:
    return f"metadata.{key}"


def describe_record(record: ChromaRecord) -> str:
    return f"the Chroma record {record.id!r:.80}"


@lru_cache(maxsize=65_536)
def build_record_id(space: Space, *names: str) -> str:
    """Return a valid record id for an item, or for a kind of name and the name."""
    return hashlib.blake2b(json.dumps([encode_space(space), *names]).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=4096)
def encode_space(space: Space) -> str:
    """Return the metadata value that all records of a space share."""
    return json.dumps([space.tenant, space.tier, space.user, space.agent, space.session], separators=(",", ":"))


def decode_space(record: ChromaRecord) -> Space:
    """Return the space of a record; raise `StoreCorrupt` if it is damaged."""
    with detect_corruption(describe_record(record)):
        names = json.loads(decode_text("space", record.metadata["space"]))
        tenant, tier, user, agent, session = codec.decode_texts("space", names)
        return Space(tenant, codec.decode_choice("tier", tier, get_args(Tier)), user, agent, session)


def is_valid_text(text: str) -> bool:
    """Return False for a text with a lone surrogate, which no record contains and Chroma cannot be asked for."""
    return text.isascii() or text.encode(errors="replace").decode() == text


@lru_cache(maxsize=4096)
def _get_bucket(space: Space) -> int:
    return int(build_record_id(space)[:2], 16) % _BUCKETS


def _is_filterable(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_FILTER_CHARS and is_valid_text(value)


def _list_filter_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the metadata that Chroma can compare, also for its own tools."""
    return {
        name_path(key): value
        for key, value in metadata.items()
        if isinstance(value, bool | float) or _is_filterable(value) or (isinstance(value, int) and abs(value) < 2**63)
    }


def _encode_value(value: object) -> object:
    """Return the JSON of a value of an item."""
    match value:
        case datetime():
            return to_micros(value)
        case Scope():
            return value.tenant, value.user, value.agent, value.session
        case Turn():
            return value.session, value.position, value.speaker
        case Mapping():
            return dict(value)
        case _:
            raise TypeError(f"an item cannot have a {type(value).__name__}")
