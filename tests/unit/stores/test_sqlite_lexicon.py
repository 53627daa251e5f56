"""Words in memory: the same answers as the file gives, at the moment of whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from recollect.stores.ops import Delete
from recollect.stores.sqlite import SqliteStore, lexicon
from recollect.stores.sqlite.cache import Cache, State
from recollect.stores.sqlite.connection import open_connection
from recollect.stores.sqlite.lexicon import Lexicon
from recollect.testing.samples import EVERYTHING, SPACE, ids, put


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore.open(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture(params=["all words kept", "asked ones kept"], autouse=True)
def few_words(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_FEW_WORDS", 4096 if request.param == "all words kept" else 0)


def at_this_moment(store: SqliteStore) -> tuple[apsw.Connection, State]:
    connection = open_connection(store.path, writes=False)
    connection.execute("begin")
    state = State.read(connection, SPACE)
    assert state is not None
    return connection, state


def asked(words: Cache[Lexicon], connection: apsw.Connection, state: State, *terms: str) -> list[list[tuple[int, int]]]:
    entries = words.fresh(connection, state, lambda copy: copy.entries(connection, state, terms))
    return [list(zip(one.seqs.tolist(), one.counts.astype(int).tolist(), strict=True)) for one in entries.holders]


async def test_what_was_added_since_is_known_without_asking_the_index(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    await store.write(put("a", terms="apple fig apple"), put("b", terms="fig"))
    words: Cache[Lexicon] = Cache(1 << 20, Lexicon)
    connection, state = at_this_moment(store)
    assert asked(words, connection, state, "apple", "fig", "kiwi") == [[(1, 2)], [(1, 1), (2, 1)], []]
    connection.close()
    await store.write(put("c", terms="apple apple apple kiwi"), put("d"))
    monkeypatch.setattr("recollect.stores.sqlite.words.holders", None)
    connection, state = at_this_moment(store)
    assert asked(words, connection, state, "apple", "fig", "kiwi") == [[(1, 2), (3, 3)], [(1, 1), (2, 1)], [(3, 1)]]
    entries = words.fresh(connection, state, lambda copy: copy.entries(connection, state, ()))
    assert entries.lengths[1:5].tolist() == [3, 1, 4, 0]
    connection.close()


@pytest.mark.parametrize("deleted", [False, True])
async def test_each_reader_sees_the_words_of_its_own_moment(store: SqliteStore, deleted: bool):
    await store.write(put("a", terms="apple"), put("b", terms="fig"))
    early, before = at_this_moment(store)
    await store.write(put("c", terms="apple"), put("d", terms="kiwi"))
    if deleted:
        await store.write(Delete(SPACE, "a"))
    late, after = at_this_moment(store)
    words: Cache[Lexicon] = Cache(1 << 20, Lexicon)
    for _ in range(2):  # in turn, each finding the copy as the other left it
        assert asked(words, late, after, "apple") == [[(3, 1)] if deleted else [(1, 1), (3, 1)]]
        assert asked(words, early, before, "apple", "kiwi") == [[(1, 1)], []]
        assert asked(words, late, after, "kiwi") == [[(4, 1)]]
    early.close()
    late.close()


async def test_a_copy_holds_only_so_many_postings(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lexicon, "_FEW_WORDS", 0)
    monkeypatch.setattr(lexicon, "_KEPT_AT_LEAST", 150)
    monkeypatch.setattr(lexicon, "_KEPT_PER_ITEM", 1)
    await store.write(*(put(f"i{n}", terms=f"common w{n}") for n in range(30)))
    connection, state = at_this_moment(store)
    copy = Lexicon()
    copy.refresh(connection, state)
    for n in range(30):
        [common, rare] = copy.entries(connection, state, ("common", f"w{n}")).holders
        assert (len(common.seqs), rare.seqs.tolist()) == (30, [n + 1])
        assert copy.bytes <= lexicon._BYTES_EACH * 150 + copy._lengths.nbytes
    connection.close()


async def test_a_word_asked_for_again_after_a_change_is_looked_up_anew(store: SqliteStore):
    await store.write(put("a", terms="apple"), put("b", terms="apple"))
    assert ids((await store.matching(EVERYTHING, ["apple"])).found) == ["a", "b"]
    await store.write(put("a", terms="fig"))
    assert ids((await store.matching(EVERYTHING, ["apple"])).found) == ["b"]
    assert ids((await store.matching(EVERYTHING, ["fig"])).found) == ["a"]


async def test_what_a_word_adds_is_worked_out_anew_when_the_corpus_has_grown(store: SqliteStore):
    await store.write(put("a", terms="apple"), put("b", terms="fig"))
    [before] = (await store.matching(EVERYTHING, ["apple"])).found
    await store.write(*(put(f"i{n}", terms="fig kiwi") for n in range(8)))
    [after] = (await store.matching(EVERYTHING, ["apple"])).found
    assert after.score > before.score  # it is rarer now, and its text shorter than most


async def test_of_a_space_with_few_words_none_is_looked_for_in_the_index(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lexicon, "_FEW_WORDS", 8)
    await store.write(put("a", terms="apple fig apple"), put("b", terms="fig"))
    words: Cache[Lexicon] = Cache(1 << 20, Lexicon)
    with monkeypatch.context() as no_index:
        no_index.setattr("recollect.stores.sqlite.words.holders", None)
        connection, state = at_this_moment(store)
        assert asked(words, connection, state, "apple", "kiwi", "fig") == [[(1, 2)], [], [(1, 1), (2, 1)]]
        connection.close()
    # It outgrows that: what was known stays complete, and the rest is asked for again.
    await store.write(put("c", terms="apple kiwi plum plum plum"), put("d", terms="pear"))
    connection, state = at_this_moment(store)
    assert asked(words, connection, state, "apple", "kiwi", "pear") == [[(1, 2), (3, 1)], [(3, 1)], [(4, 1)]]
    connection.close()
