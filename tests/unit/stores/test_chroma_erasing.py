"""Chroma has no transaction over clients: what one of them is late with does not undo an erasure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from recollect.stores.admission import admitted
from recollect.stores.chroma import ChromaStore, ledger
from recollect.stores.chroma.address import Address
from recollect.stores.chroma.batch import Batch, Models
from recollect.stores.chroma.cells import ITEMS, VECTORS, items_of
from recollect.stores.chroma.collections import Collections
from recollect.stores.chroma.engine import Engine
from recollect.stores.chroma.wiping import holdings, wipe
from recollect.stores.erasing import Doomed
from recollect.stores.ops import Delete
from recollect.testing.erasing import erasure
from recollect.testing.samples import EVERYTHING, SPACE, ids, put


def index_files(path: Path) -> list[Path]:
    return list(path.glob("c/*/header.bin"))


@pytest.mark.parametrize("whole", [True, False], ids=["a space", "an item"])
def test_what_a_late_client_puts_back_is_taken_away_again(tmp_path: Path, whole: bool):
    # Mutants: a settling that does not look whether others were faster; a `clear_up` that knows no ends.
    collections = Collections.open(Address.parse(f"chroma:{tmp_path / 'c'}"), patience=5)
    key = ledger.salt(collections)
    early, late = (Engine(collections, alone=False, cache_bytes=1 << 20, settle_after=100) for _ in range(2))
    early.write([admitted(put("a", [1, 0, 0, 0], "word")), admitted(put("b", [0, 1, 0, 0], "word"))])
    late.follow()
    put_there = late.places.put

    def slowly(batches: Sequence[Batch], models: Models) -> None:
        ledger.enter(collections, erasure())
        wipe(early, key, "e1", [SPACE] if whole else [], [] if whole else [Delete(SPACE, "a")])
        put_there(batches, models)

    setattr(late.places, "put", slowly)  # noqa: B010
    late.settle()
    texts = [record.text for record in collections.read(items_of(SPACE)) if record.text]
    if whole:
        assert (holdings(early), collections.names(ITEMS), collections.names(VECTORS)) == ([], {}, {})
    else:
        assert texts == ["content of b"]
        [vectors] = collections.names(VECTORS)
        assert len(collections.ids(vectors)) == 1
    assert ledger.rows(collections, [])[0].erased["semantic"] == (2 if whole else 1)
    collections.close()


async def test_a_directory_that_was_written_anew_goes_on_counting(tmp_path: Path):
    # An empty log begins at one again, below what is in its place, and every later write is lost without a word.
    store = await ChromaStore.open(f"chroma:{tmp_path / 'c'}", settle_after=3)
    await store.write(put("a", [1, 0, 0, 0], "word"))
    await store.enter(erasure())
    await store.wipe("e1", Doomed((SPACE,)))
    assert await store.settle()
    for n in range(8):
        await store.write(put(f"n{n}", [1, n, 0, 0], "word"))
    await store.close()
    again = await ChromaStore.open(f"chroma:{tmp_path / 'c'}")
    assert sorted(ids(await again.find(EVERYTHING))) == [f"n{n}" for n in range(8)]
    assert (await again.check(), len(await again.ledger())) == ([], 1)
    await again.close()
    assert index_files(tmp_path) == []
