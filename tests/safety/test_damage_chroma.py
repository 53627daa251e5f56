"""Damaged records in Chroma: every read returns valid values or raises StoreCorrupt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from recollect.stores.chroma import ChromaStore
from recollect.stores.chroma.client import ChromaRecord
from recollect.stores.chroma.records import META, name_items
from recollect.stores.erasure import ErasureSelection
from recollect.stores.writes import Delete
from recollect.testing.factories import (
    EVERYTHING,
    SPACE,
    START,
    find_matching,
    find_nearest,
    make_put,
    make_turn,
    make_vector,
)
from recollect.testing.whole_store import make_erasure, make_receipt
from tests.safety.hostile_inputs import mutate
from tests.safety.shape_checks import classify_read

VALUES: tuple[Any, ...] = (None, True, -1, 10**40, "x", [], {})
PLAIN: tuple[Any, ...] = (True, -1, 1.5, "", "x", "AAAAAA==")
INVALID_JSON = ("", "{", "[1,", "\x00")
SECRET = "heliotrope"
# At most so many damages per kind are tried; `make soak` tries all.
MAX_DAMAGES = 25

Reads = tuple[Callable[[ChromaStore], Awaitable[Any]], ...]


async def _items(store: ChromaStore) -> list[Any]:
    return [put.item for put in await store.get_full(SPACE, "a")]


ITEM_READS: Reads = (
    lambda s: s.get(SPACE, "a"),
    lambda s: s.find(EVERYTHING),
    lambda s: find_nearest(s, EVERYTHING, make_vector(1, 0, 0, 0)),
    lambda s: find_matching(s, EVERYTHING, "apple"),
    lambda s: s.last_turns(SPACE, "s"),
    lambda s: s.spaces(),
    _items,
)
ERASURE_READS: Reads = (lambda s: s.ledger(),)

# For each kind: its collection, a predicate for its record, and the reads of it.
PLACES: dict[str, tuple[str, Callable[[ChromaRecord], bool], Reads]] = {
    "an item": (name_items(SPACE), lambda record: record.text == f"{SECRET} a", ITEM_READS),
    "a path": (META, lambda record: record.metadata["kind"] == "path", (lambda s: s.paths(SPACE),)),
    "a speaker": (META, lambda record: record.metadata["kind"] == "speaker", ITEM_READS[2:3]),
    "a space": (META, lambda record: record.metadata["kind"] == "space", (lambda s: s.spaces(), lambda s: s.tenants())),
    "the model": (META, lambda record: record.id == "active", (lambda s: s.model(),)),
    "the key of the ledger": (META, lambda record: record.id == "salt", (lambda s: s._load_salt(),)),
    "an erasure": (META, lambda record: record.id == "erasure.e2", ERASURE_READS),
    "a receipt": (META, lambda record: record.id == "erasure.e1", ERASURE_READS),
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ChromaStore]:
    """Open a store with items and with erasures in several phases."""
    store = await ChromaStore.open(f"chroma:{tmp_path / 'c'}")
    await store.write(
        make_put(
            "a", [1, 0, 0, 0], "apple", content=f"{SECRET} a", metadata={"a": {"b": 1}}, derived_from=("m",), key="k"
        ),
        make_turn("b", "s", 1, "ada", vector=[0, 1, 0, 0], terms="apple"),
        make_put("c", [0, 0, 1, 0], "apple"),
    )
    await store.add_erasure(make_erasure("e1"))
    await store.wipe("e1", ErasureSelection(writes=(Delete(SPACE, "c"),)))
    await store.mark_deleted("e1", START)
    await store.finish_erasure(make_receipt("e1"), START)
    await store.add_erasure(make_erasure("e2"))
    yield store
    await store.close()


def iterate_damages(record: ChromaRecord) -> Iterator[ChromaRecord]:
    """Yield copies of the record with one damage each. A value of None deletes the key."""
    for name, value in sorted(record.metadata.items()):  # a stable order for the sample
        for other in (None, *PLAIN):
            yield ChromaRecord(record.id, {**record.metadata, name: other}, record.text)
        try:
            parsed = json.loads(str(value))
        except ValueError:
            continue
        if isinstance(parsed, dict | list):
            texts = [*INVALID_JSON, *(json.dumps(changed) for changed in mutate(parsed, VALUES))]
            yield from (ChromaRecord(record.id, {**record.metadata, name: text}, record.text) for text in texts)
    if record.text:
        yield ChromaRecord(record.id, record.metadata, "")


def find_record(store: ChromaStore, kind: str) -> tuple[str, ChromaRecord]:
    name, is_it, _ = PLACES[kind]
    return name, next(record for record in store._client.get(name, store._client.find_ids(name)) if is_it(record))


@pytest.mark.parametrize("kind", PLACES)
async def test_damaged_record_is_read_whole_or_raises_store_corrupt(kind: str, store: ChromaStore):
    """Mutants: a text is accepted as number; a list is accepted as mapping; a decoder passes on its own error."""
    name, record = find_record(store, kind)
    every = list(iterate_damages(record))
    step = 1 if settings().max_examples > 1000 else max(1, len(every) // MAX_DAMAGES)
    refused, faults = 0, set()
    for damaged in islice(every, None, None, step):
        store._client.upsert(name, [damaged])
        for number, read in enumerate(PLACES[kind][2]):
            came = await classify_read(partial(read, store), SECRET)
            refused += came == "refused"
            faults |= set() if came in ("whole", "refused") else {f"{number}: {came}"}
        store._client.upsert(name, [record])
    assert faults == set()
    assert refused > 0


@pytest.mark.parametrize("number", [0, -1, 65, 1 << 40])
async def test_wrong_number_of_passages_raises_store_corrupt(number: int, store: ChromaStore):
    """Mutant: the decoder accepts any number, and reading the vectors exhausts memory."""
    name, record = find_record(store, "an item")
    item = json.loads(record.metadata["item"])
    item["passages"] = dict.fromkeys(item["passages"], number)
    store._client.upsert(name, [ChromaRecord(record.id, {"item": json.dumps(item)}, record.text)])
    for read in ITEM_READS[:4]:
        assert await classify_read(partial(read, store), SECRET) == "refused"


@pytest.mark.parametrize(
    "space", ["", "{", "[]", '["acme"]', '["acme","odd","ada","",""]', '["acme","semantic",1,"",""]']
)
async def test_invalid_space_raises_store_corrupt(space: str, store: ChromaStore):
    name, record = find_record(store, "a space")
    store._client.upsert(name, [ChromaRecord(record.id, {"space": space})])
    for read in (store.spaces, store.tenants):
        assert await classify_read(read, SECRET) == "refused", read
