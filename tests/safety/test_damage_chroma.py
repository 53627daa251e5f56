"""Every kind of record that Chroma keeps for us, damaged in every way: told of as damage, never as something else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings

from recollect.clock import system_clock
from recollect.stores.chroma import ChromaStore, chain, ledger
from recollect.stores.chroma.address import Address
from recollect.stores.chroma.cells import items_of, vectors_of
from recollect.stores.chroma.collections import Collections, Record
from recollect.stores.chroma.engine import Engine
from recollect.stores.erasing import Doomed
from recollect.stores.ops import Delete
from recollect.testing.erasing import erasure, receipt
from recollect.testing.samples import EVERYTHING, SPACE, put, turn, vector
from tests.safety.hostile import confused
from tests.safety.shaped import outcome

VALUES: tuple[Any, ...] = (None, True, -1, 10**40, "x", [], {})
PLAIN: tuple[Any, ...] = (True, -1, 1.5, "", "x", "AAAAAA==")
NO_JSON = ("", "{", "[1,", "\x00")
SECRET = "heliotrope"
# Of all that can be wrong with a record, so many are tried each time, and all of it in `make soak`.
MOST = 25

Reads = tuple[Callable[[ChromaStore], Awaitable[Any]], ...]


async def _items(store: ChromaStore) -> list[Any]:
    return [put.item for put in await store.whole(SPACE, "a")]


OF_ITEMS: Reads = (
    lambda s: s.get(SPACE, "a"),
    lambda s: s.find(EVERYTHING),
    lambda s: s.nearest(EVERYTHING, vector(1, 0, 0, 0)),
    lambda s: s.matching(EVERYTHING, ("apple",)),
    lambda s: s.last_turns(SPACE, "s"),
    lambda s: s.paths(SPACE),
    lambda s: s.spaces(),
    _items,
)
OF_VECTORS: Reads = (OF_ITEMS[2], _items)
OF_BATCHES: Reads = (lambda s: s.model(), OF_ITEMS[1])
OF_ERASURES: Reads = (lambda s: s.ledger(),)


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collections]:
    address = Address.parse(f"chroma:{tmp_path_factory.mktemp('damage') / 'c'}")
    opened = Collections.open(address, patience=5)
    yield opened
    opened.close()


def store_of(collections: Collections) -> ChromaStore:
    """As another process would open it, with nothing in memory."""
    engine = Engine(collections, alone=True, cache_bytes=1 << 20)
    return ChromaStore("chroma:./elsewhere", engine, None, b"", system_clock)


async def filled(collections: Collections) -> None:
    """Something of every kind: items, one of them only in the chain, and erasures in every phase."""
    for name in collections.names(""):
        collections.drop(name)
    store = store_of(collections)
    await store.write(
        put("a", [1, 0, 0, 0], "apple", content=f"{SECRET} a", metadata={"a": {"b": 1}}, derived_from=("m",), key="k"),
        turn("b", "s", 1, "ada", vector=[0, 1, 0, 0], terms="apple"),
        put("c", [0, 0, 1, 0], "apple"),
    )
    await store.enter(erasure("e1"))
    await store.wipe("e1", Doomed(writes=(Delete(SPACE, "c"),)))
    await store.deleted("e1")
    await store.finish(receipt("e1"))
    await store.enter(erasure("e2"))
    await store.write(put("d", [0, 0, 0, 1], "apple", metadata={"z": 1}))
    store._worker.shutdown()


def is_item(record: Record) -> bool:
    return record.text == f"{SECRET} a"


# Each kind: the collection it lies in, which of its records it is, and who reads it.
PLACES: dict[str, tuple[Callable[[Collections], str], Callable[[Record], bool], Reads]] = {
    "an item": (lambda _: items_of(SPACE), is_item, OF_ITEMS),
    "the paths of a space": (lambda _: items_of(SPACE), lambda one: "paths" in one.meta, OF_ITEMS[5:6]),
    "a vector": (lambda c: next(iter(c.names(vectors_of(SPACE, 0).removesuffix("0")))), lambda one: True, OF_VECTORS),
    "a batch": (
        lambda _: chain.NAME,
        lambda one: SECRET not in str(one.meta) and "d" in str(one.meta.get("batch")),
        OF_BATCHES,
    ),
    "the key of the ledger": (lambda _: ledger.NAME, lambda one: one.meta["kind"] == "salt", OF_ERASURES),
    "an erasure": (lambda _: ledger.NAME, lambda one: one.id == "e2", OF_ERASURES),
    "what a batch erased": (lambda _: ledger.NAME, lambda one: one.meta["kind"] == "wiped", OF_ERASURES),
    "when it was deleted": (lambda _: ledger.NAME, lambda one: one.meta["kind"] == "deleted", OF_ERASURES),
    "a receipt": (lambda _: ledger.NAME, lambda one: one.meta["kind"] == "link", OF_ERASURES),
}


def damages(record: Record) -> Iterator[Record]:
    """The record with something else in it, each in its turn."""
    for name, value in sorted(record.meta.items()):  # each reading has its own order, and some are tried of all
        rest = {key: one for key, one in record.meta.items() if key != name}
        yield Record(record.id, rest, record.text)
        for other in PLAIN:
            yield Record(record.id, {**rest, name: other}, record.text)
        try:
            told = json.loads(str(value))
        except ValueError:
            continue
        if isinstance(told, dict | list):
            texts = [*NO_JSON, *(json.dumps(one) for one in confused(told, VALUES))]
            yield from (Record(record.id, {**rest, name: text}, record.text) for text in texts)
    if record.text:
        yield Record(record.id, record.meta, "")


@pytest.mark.parametrize("kind", PLACES)
async def test_whatever_is_read_of_it_is_whole_or_called_damaged(kind: str, collections: Collections):
    """Mutants: a number that is a text; a mapping that is a list; any one decoder whose error is let through."""
    await filled(collections)
    named, is_it, reads = PLACES[kind]
    name = named(collections)
    record = next(one for one in collections.read(name) if is_it(one))
    every = list(damages(record))
    step = 1 if settings().max_examples > 1000 else max(1, len(every) // MOST)
    refused, faults = 0, set()
    for damaged in islice(every, None, None, step):
        collections.delete(name, [record.id])
        collections.add(name, [damaged])
        store = store_of(collections)
        for number, read in enumerate(reads):
            came = await outcome(partial(read, store), SECRET)
            refused += came == "refused"
            faults |= set() if came in ("whole", "refused") else {f"{number}: {came}"}
        store._worker.shutdown()
    assert faults == set()
    assert refused > 3


@pytest.mark.parametrize("number", [0, -1, 65, 1 << 40])
async def test_a_number_of_passages_that_nobody_wrote(number: int, collections: Collections):
    """Mutant: `_ref` believes any number; who reads the vectors then takes all memory there is."""
    await filled(collections)
    name = items_of(SPACE)
    record = next(one for one in collections.read(name) if is_item(one))
    cell = json.loads(str(record.meta["cell"]))
    [generation] = cell["refs"]
    cell["refs"][generation][1] = number
    collections.delete(name, [record.id])
    collections.add(name, [Record(record.id, {**record.meta, "cell": json.dumps(cell)}, record.text)])
    store = store_of(collections)
    for read in OF_ITEMS[:4]:
        assert await outcome(partial(read, store), SECRET) == "refused"
    store._worker.shutdown()


@pytest.mark.parametrize("number", [1, 65, 1 << 40])
async def test_a_number_of_pieces_that_nobody_wrote(number: int, collections: Collections):
    """Mutant: the pieces are asked for by their names, as many as the batch says that there are."""
    await filled(collections)
    record = max(collections.read(chain.NAME), key=lambda one: int(str(one.meta["n"])))
    collections.delete(chain.NAME, [record.id])
    collections.add(chain.NAME, [Record(record.id, {**record.meta, "parts": number}, record.text)])
    store = store_of(collections)
    for read in OF_BATCHES:
        assert await outcome(partial(read, store), SECRET) == "refused"
    store._worker.shutdown()


@pytest.mark.parametrize(
    "space", ["", "{", "[]", '["acme"]', '["acme","odd","ada","",""]', '["acme","semantic",1,"",""]']
)
async def test_a_collection_that_does_not_say_whose_it_is(space: str, collections: Collections):
    await filled(collections)
    collections._client.get_collection(items_of(SPACE)).modify(metadata={"space": space})
    store = store_of(collections)
    for read in (store.spaces, store.tenants, store.check):
        assert await outcome(read, SECRET) == "refused", read
    store._worker.shutdown()
