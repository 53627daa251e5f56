"""Selection of the best scores without sorting all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.stores.sqlite import SqliteStore
from recollect.stores.sqlite.search_cache import (
    AllowedPlaces,
    SpaceState,
    TermPostings,
    TermScores,
    find_nth_highest,
)
from recollect.testing.factories import gather_evidence, list_ids, make_put


@given(
    seed=st.integers(0, 1 << 32),
    size=st.integers(1, 1500),
    different=st.sampled_from([1, 2, 5, 40, 10_000]),
    n=st.integers(1, 60),
)
def test_find_nth_highest_equals_sorting(seed: int, size: int, different: int, n: int):
    numbers = np.random.default_rng(seed).integers(0, different, size).astype(np.float32)
    n = min(n, size)
    assert find_nth_highest(numbers, n) == np.sort(numbers)[-n]


@given(seed=st.integers(0, 1 << 32), items=st.integers(1, 1200), limit=st.integers(0, 40))
def test_find_best_includes_all_ties_of_the_last_score(seed: int, items: int, limit: int):
    chance = np.random.default_rng(seed)
    lengths = np.append(0.0, chance.integers(1, 6, items))
    holders = [
        TermPostings(seqs, chance.integers(1, 3, len(seqs)).astype(np.float64))
        for share in (0.02, 0.5)
        for seqs in [1 + np.flatnonzero(chance.random(items) < share)]
    ]
    postings = TermScores.compute(SpaceState(7, items, 0, items, int(lengths.sum()), "a", None), holders, lengths)
    best, scores = postings.find_best(AllowedPlaces(), limit)
    every, all_scores = postings.find_best(AllowedPlaces(np.empty(0, np.int64), excluded=True), len(lengths))
    assert sorted(all_scores)[-limit:] == sorted(scores)[-limit:]
    if 0 < limit <= len(every):
        last = round(float(np.sort(all_scores)[-limit]), 6)
        tied = every[np.round(all_scores, 6) >= last]
        assert set(tied.tolist()) <= set(best.tolist())


async def test_tied_candidates_are_taken_by_id(tmp_path: Path):
    store = SqliteStore.open(tmp_path / "store.db")
    # Few ties are sorted by id; with many ties the ids are read in order.
    await store.write(*(make_put(id, [1, 0, 0, 0], terms="apple") for id in "dbca"))
    await store.write(*(make_put(id, [0, 1, 0, 0], terms="fig") for id in "efgh"))
    assert list_ids(await gather_evidence(store, terms=("apple",), limit=3)) == ["a", "b", "c"]
    await store.close()
