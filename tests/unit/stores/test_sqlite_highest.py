"""The highest of many numbers are the same as if all had been sorted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.cache import State
from recollect.stores.sqlite.highest import nth_highest
from recollect.stores.sqlite.lexicon import Entries, Holders
from recollect.stores.sqlite.matrix import Allowed
from recollect.stores.sqlite.postings import Postings
from recollect.testing.gathering import evidence, names
from recollect.testing.samples import put


@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(1, 1500),
    different=st.sampled_from([1, 2, 5, 40, 10_000]),
    n=st.integers(1, 60),
)
def test_the_lowest_of_the_highest_is_found_among_any_number_and_any_ties(seed: int, size: int, different: int, n: int):
    numbers = np.random.default_rng(seed).integers(0, different, size).astype(np.float32)
    n = min(n, size)
    assert nth_highest(numbers, n) == np.sort(numbers)[-n]


@given(seed=st.integers(0, 1 << 32), items=st.integers(1, 1200), limit=st.integers(0, 40))
def test_no_item_is_missing_that_may_be_among_the_best_by_words(seed: int, items: int, limit: int):
    chance = np.random.default_rng(seed)
    lengths = np.append(0.0, chance.integers(1, 6, items))
    holders = [
        Holders(seqs, chance.integers(1, 3, len(seqs)).astype(np.float64))
        for share in (0.02, 0.5)
        for seqs in [1 + np.flatnonzero(chance.random(items) < share)]
    ]
    postings = Postings.of(State(7, items, 0, items, int(lengths.sum()), "a", None), Entries(holders, lengths))
    best, scores = postings.best(Allowed(), limit)
    every, all_scores = postings.best(Allowed(np.empty(0, np.int64), excluded=True), len(lengths))
    assert sorted(all_scores)[-limit:] == sorted(scores)[-limit:]
    if 0 < limit <= len(every):
        last = round(float(np.sort(all_scores)[-limit]), 6)
        tied = every[np.round(all_scores, 6) >= last]
        assert set(tied.tolist()) <= set(best.tolist())


async def test_of_candidates_that_tie_the_first_by_id_are_taken(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    # So few tie that their ids are compared; where many do, the ids are gone through in order.
    await store.write(*(put(id, [1, 0, 0, 0], terms="apple") for id in "dbca"))
    await store.write(*(put(id, [0, 1, 0, 0], terms="fig") for id in "efgh"))
    assert names(await evidence(store, terms=("apple",), limit=3)) == ["a", "b", "c"]
    await store.close()
