"""Contract of `Records` for items: batches, versions, spaces, pages, turns, copies and embedding models."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from recollect.errors import BadInput, BadQuery, BadVector, Conflict, EmbeddingModelMismatch, StoreClosed
from recollect.stores.base import Records
from recollect.stores.filters import Where
from recollect.stores.writes import Delete, Embed, Model, Put, Touch
from recollect.testing.factories import (
    ADA,
    ADA_ELSEWHERE,
    BOB,
    EAST,
    EVERYTHING,
    MODEL,
    OTHER_MODEL,
    SECOND,
    SPACE,
    START,
    AsyncContract,
    find_everywhere,
    find_matching,
    find_nearest,
    gather_evidence,
    list_ids,
    make_item,
    make_put,
    make_turn,
    make_vector,
)
from recollect.types import MemoryItem, Scope, Turn

UNUSUAL_TEXT = "nul \x00, quote ' \" ; --, emoji 👩‍👩‍👧, right to left \u202eabc, combining e\u0301, 漢字, \r\n\t end"


class ItemsContract(AsyncContract):
    """Items, their versions and their isolation."""

    async def test_get_returns_every_field(self, store: Records) -> None:
        given = make_item(
            "a",
            UNUSUAL_TEXT,
            metadata={"n": 1, "r": 0.5, "t": True, "z": None, "l": [1, "x"], "o": {"p": UNUSUAL_TEXT}},
            importance=0.25,
            valid_from=START - SECOND,
            valid_to=START + SECOND,
            superseded_by="b",
            expires_at=START + 2 * SECOND,
            source="web",
            trust=0.75,
            key="k",
            turn=Turn("s", 2.5, "Ada"),
            derived_from=("x", "y"),
            pinned=True,
            decayed_at=START + 3 * SECOND,
            learned_at=START + 4 * SECOND,
            scope=replace(ADA, session="today"),
        )
        await store.write(Put(item=given))
        assert await store.get(SPACE, "a") == [given]

    async def test_put_sets_and_clears_optional_fields(self, store: Records) -> None:
        await store.write(make_put("a"))
        there = datetime(2026, 1, 1, 9, 30, tzinfo=timezone(timedelta(hours=9)))
        await store.write(make_put("a", pinned=True, decayed_at=there, learned_at=there))
        [aged] = await store.find(EVERYTHING)
        assert (aged.pinned, aged.decayed_at, aged.learned_at) == (True, there, there)
        assert aged.decayed_at is not None and aged.decayed_at.utcoffset() == timedelta(0)
        await store.write(make_put("a"))
        [loose] = await store.get(SPACE, "a")
        assert (loose.pinned, loose.decayed_at, loose.learned_at) == (False, None, None)

    async def test_tiers_are_separate(self, store: Records) -> None:
        episode = make_item("a", tier="episodic", scope=Scope(user="ada", session="s1"))
        await store.write(make_put("a"), Put(item=episode))
        assert await store.get(episode.scope.space("episodic"), "a") == [episode]
        assert await store.get(SPACE, "a") == [make_item("a")]

    async def test_times_are_returned_in_utc(self, store: Records) -> None:
        there = datetime(2026, 1, 1, 9, 30, tzinfo=timezone(timedelta(hours=9)))
        naive = datetime(2026, 1, 1)  # noqa: DTZ001 - naive times are taken as UTC
        await store.write(make_put("east", created_at=there), make_put("naive", created_at=naive))
        east, plain = await store.get(SPACE, "east", "naive")
        assert (east.created_at, east.created_at.utcoffset()) == (there, timedelta(0))
        assert plain.created_at == START

    async def test_get_keeps_the_order_and_skips_missing_ids(self, store: Records) -> None:
        await store.write(make_put("a"), make_put("b"), make_put("c"))
        assert list_ids(await store.get(SPACE, "c", "missing", "a", "c")) == ["c", "a"]
        assert await store.get(SPACE) == []
        assert await store.get(BOB.space("semantic"), "a") == []

    async def test_unusual_ids_are_distinct(self, store: Records) -> None:
        names = [UNUSUAL_TEXT, "a\x00", "a", "A", "a ", "%", "*", "null", "1", "é", "e\u0301", "x" * 10_000]
        await store.write(*(make_put(name) for name in names))
        assert list_ids(await store.get(SPACE, *names)) == names
        await store.write(Delete(SPACE, "a"))
        assert list_ids(await store.get(SPACE, *names)) == [name for name in names if name != "a"]

    async def test_large_text_is_stored(self, store: Records) -> None:
        huge = "many words " * 200_000
        await store.write(make_put("a", content=huge, metadata={"copy": huge}))
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.metadata["copy"]) == (huge, huge)

    async def test_batch_is_atomic(self, store: Records) -> None:
        await store.write(make_put("old", [1, 0, 0, 0], "before", metadata={"was": 1}))
        before = await store.get(SPACE, "old")
        refused = Put(item=make_item("late"), expect=7)
        with pytest.raises(Conflict):
            await store.write(
                make_put("new", [0, 1, 0, 0], "fresh", metadata={"path": 1}),
                make_put("old", [0, 0, 1, 0], "after"),
                Touch(SPACE, ("old",), START),
                Delete(SPACE, "old"),
                make_put("old", [0, 0, 0, 1]),
                refused,
            )
        assert await store.get(SPACE, "old", "new", "late") == before
        assert await store.paths(SPACE) == {"was"}
        assert [(result.brief.id, result.score) for result in await find_nearest(store, EVERYTHING, EAST)] == [
            ("old", 1)
        ]
        assert list_ids(await find_matching(store, EVERYTHING, "before", "after", "fresh")) == ["old"]
        [count] = await store.spaces()
        assert count.items == 1

    async def test_writes_of_a_batch_apply_in_order(self, store: Records) -> None:
        await store.write(
            make_put("a"), Put(item=make_item("a", "again"), expect=1), Delete(SPACE, "a"), make_put("a", content="new")
        )
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.version) == ("new", 1)

    async def test_stale_version_raises_conflict(self, store: Records) -> None:
        await store.write(Put(item=make_item("a"), expect=0))
        await store.write(Put(item=make_item("a", "second"), expect=1))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(Put(item=make_item("a", "third"), expect=stale))
        with pytest.raises(Conflict, match="not there"):
            await store.write(Put(item=make_item("b"), expect=1))
        assert [(item.content, item.version) for item in await store.get(SPACE, "a", "b")] == [("second", 2)]

    async def test_delete_of_a_stale_version_raises_conflict(self, store: Records) -> None:
        await store.write(make_put("a"), make_put("b"))
        await store.write(make_put("a"))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(Delete(SPACE, "b"), Delete(SPACE, "a", expect=stale))
        with pytest.raises(Conflict, match="not there"):
            await store.write(Delete(SPACE, "b"), Delete(SPACE, "missing", expect=1))
        assert list_ids(await store.get(SPACE, "a", "b")) == ["a", "b"]
        await store.write(Delete(SPACE, "a", expect=2))
        assert list_ids(await store.find(EVERYTHING)) == ["b"]

    async def test_new_item_keeps_its_given_access_count(self, store: Records) -> None:
        await store.write(make_put("a", access_count=7, last_accessed=START))
        await store.write(make_put("a", access_count=99, last_accessed=START + SECOND))  # the stored count stays
        [found] = await store.get(SPACE, "a")
        assert (found.access_count, found.last_accessed) == (7, START)

    async def test_replacement_keeps_accesses_terms_and_vectors(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0], "apple"), Touch(SPACE, ("a",), START))
        await store.write(make_put("a", content="changed"))
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.version, found.access_count, found.last_accessed) == ("changed", 2, 1, START)
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["a"]
        assert list_ids(await find_matching(store, EVERYTHING, "apple")) == ["a"]

    async def test_touch_counts_without_a_new_version(self, store: Records) -> None:
        await store.write(make_put("a"), make_put("b"))
        await store.write(Touch(SPACE, ("a", "missing"), START + SECOND))
        await store.write(Touch(SPACE, ("a",), START))  # out of order: the later access stays
        a, b = await store.get(SPACE, "a", "b")
        assert (a.version, a.access_count, a.last_accessed) == (1, 2, START + SECOND)
        assert (b.version, b.access_count, b.last_accessed) == (1, 0, None)
        await store.write(Put(item=a, expect=1))

    async def test_touch_without_waiting_is_visible_at_once(self, store: Records) -> None:
        await store.write(make_put("a"))
        for round in range(1, 20):
            store.touch(Touch(SPACE, ("a",), START))
            assert (await store.get(SPACE, "a"))[0].access_count == round
            assert (await store.find(EVERYTHING))[0].access_count == round

    async def test_deleted_item_is_not_found(self, store: Records) -> None:
        await store.write(
            make_turn("a", "s", 1, vector=[1, 0, 0, 0], terms="apple", key="k"),
            make_turn("b", "s", 2, vector=[1, 0, 0, 0], terms="apple pear"),
        )
        await store.write(Delete(SPACE, "a"), Delete(SPACE, "missing"))
        assert await store.get(SPACE, "a") == []
        assert list_ids(await store.find(EVERYTHING)) == ["b"]
        assert await store.find(Where(SPACE, key="k")) == []
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["b"]
        assert list_ids(await find_matching(store, EVERYTHING, "apple")) == ["b"]
        assert list_ids(await gather_evidence(store, vector=None, terms=("pear",), reach=1)) == ["b"]
        assert list_ids(await store.last_turns(SPACE, "s", limit=9)) == ["b"]
        await store.write(Delete(SPACE, "b"))
        assert await store.spaces() == []

    async def test_spaces_are_isolated(self, store: Records) -> None:
        scopes = [
            ADA,
            BOB,
            ADA_ELSEWHERE,
            Scope(tenant="acme", user="ad", agent="ahelper"),
            Scope(tenant="acme", user="ada\\", agent="helper"),
            Scope(tenant="acme/semantic", user="ada", agent="helper"),
        ]
        for index, scope in enumerate(scopes):
            place = Turn("s", 1)
            await store.write(
                make_put("same", [1, 0, 0, 0], "word", scope=scope, turn=place, key="k", metadata={f"p{index}": index})
            )
            await store.write(make_put(f"own{index}", [1, 0, 0, 0], "word", scope=scope, turn=place))
        await store.write(Delete(BOB.space("semantic"), "same"))
        for index, scope in enumerate(scopes):
            where = Where(scope.space("semantic"))
            mine = [f"own{index}"] if scope == BOB else [f"own{index}", "same"]
            assert list_ids(await store.get(where.space, *mine, *(f"own{n}" for n in range(6) if n != index))) == mine
            assert await find_everywhere(store, where) == mine
            assert list_ids(await gather_evidence(store, where=where, limit=1, reach=1)) == mine
            assert sorted(list_ids(await store.last_turns(where.space, "s", limit=100))) == mine
            assert await store.paths(where.space) == {f"p{index}"}
            assert all(item.scope == scope for item in await store.find(where))

    async def test_pages_cover_all_items_once(self, store: Records) -> None:
        # Items with the same time are ordered by id.
        await store.write(*(make_put(f"i{n:02}", created_at=START + (n // 3) * SECOND) for n in range(25)))
        seen: list[str] = []
        page = await store.find(EVERYTHING, limit=4)
        while page:
            seen += list_ids(page)
            page = await store.find(EVERYTHING, limit=4, after=page[-1])
        assert seen == [f"i{n:02}" for n in reversed(range(25))]

    async def test_limit_bounds_the_results(self, store: Records) -> None:
        await store.write(*(make_turn(f"i{n}", "s", n, vector=[1, n, 0, 0], terms="word") for n in range(5)))
        for limit in (0, 1, 5, 10**6, 10**30):
            found = [await store.find(EVERYTHING, limit=limit), await store.last_turns(SPACE, "s", limit=limit)]
            assert [len(items) for items in found] == [min(limit, 5)] * 2
        for limit in (0, 1, 5, 10**6):
            for asked in ({"vector": EAST}, {"vector": None, "terms": ("word",)}):
                assert len(await gather_evidence(store, limit=limit, **asked)) == min(limit, 5)
        with pytest.raises(BadQuery):
            await store.find(EVERYTHING, limit=-1)

    async def test_last_turns_are_highest_first(self, store: Records) -> None:
        await store.write(
            *(make_turn(f"t{n}", "s", n) for n in (3, 1, 2)), make_turn("x", "other", 9), make_put("loose")
        )
        assert list_ids(await store.last_turns(SPACE, "s")) == ["t3"]
        assert list_ids(await store.last_turns(SPACE, "s", limit=2)) == ["t3", "t2"]
        assert await store.last_turns(SPACE, "nowhere") == []

    async def test_paths_include_those_of_deleted_items(self, store: Records) -> None:
        await store.write(
            make_put("a", metadata={"x": 1, "o": {"p": {"q": 2}}}), make_put("b", metadata={"y": [{"z": 1}]})
        )
        await store.write(Delete(SPACE, "b"))
        assert await store.paths(SPACE) == {"x", "o", "o.p", "o.p.q", "y"}

    async def test_size_is_positive(self, store: Records) -> None:
        await store.write(make_put("a", content="x" * 100_000))
        assert await store.size() >= 100_000

    async def test_spaces_have_their_item_counts(self, store: Records) -> None:
        await store.write(make_put("a"), make_put("b", created_at=START + SECOND), make_put("c", scope=ADA_ELSEWHERE))
        await store.write(make_put("a"), Delete(BOB.space("semantic"), "missing"))
        mine, elsewhere = await store.spaces()
        assert (mine.space, mine.items, mine.newest) == (SPACE, 2, START + SECOND)
        assert (elsewhere.space, elsewhere.items) == (ADA_ELSEWHERE.space("semantic"), 1)
        assert await store.spaces("globex") == [elsewhere]
        assert await store.spaces("missing") == []

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(lambda: make_put("a", content="half \ud800"), id="half a character"),
            pytest.param(lambda: make_put("\udfff"), id="half a character in the id"),
            pytest.param(lambda: make_put("a", metadata={"x": ["\ud800"]}), id="half a character in the metadata"),
            pytest.param(lambda: make_put("a", metadata={"x": float("nan")}), id="not a number"),
            pytest.param(lambda: make_put("a", metadata={"x": {1, 2}}), id="no JSON"),
            pytest.param(lambda: make_put("a", metadata={"x": b"raw"}), id="bytes"),
            pytest.param(lambda: make_turn("a", "s", float("nan")), id="a position that is no number"),
            pytest.param(lambda: replace(make_put("a"), terms=("two words",)), id="a term with a space"),
            pytest.param(lambda: replace(make_put("a"), terms=("",)), id="an empty term"),
            pytest.param(lambda: make_put(""), id="an empty id"),
            pytest.param(lambda: replace(make_put("a", [1, 0, 0, 0]), model=None), id="vectors of no model"),
        ],
    )
    async def test_invalid_item_rejects_the_batch(self, store: Records, bad: object) -> None:
        assert callable(bad)
        with pytest.raises(BadInput):
            await store.write(make_put("good"), bad())
        assert await store.find(EVERYTHING) == []

    @pytest.mark.parametrize(
        "numbers",
        [[1, 2, 3], [1, 2, 3, 4, 5], [1, float("nan"), 0, 0], [float("inf"), 0, 0, 0], [[1, 0, 0, 0]] * 65],
        ids=["short", "long", "nan", "infinite", "too many passages"],
    )
    async def test_invalid_vector_raises_bad_vector(self, store: Records, numbers: list[float]) -> None:
        with pytest.raises(BadVector):
            await store.write(make_put("good", [1, 0, 0, 0]), make_put("bad", numbers))
        assert await store.find(EVERYTHING) == []

    async def test_vectors_of_another_model_raise_mismatch(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]))
        with pytest.raises(EmbeddingModelMismatch, match=r"sample.*another"):
            await store.write(
                make_put("b"), Put(item=make_item("c"), vectors=make_vector(1, 0, 0)[None], model=OTHER_MODEL)
            )
        assert list_ids(await store.find(EVERYTHING)) == ["a"]
        assert await store.model() == MODEL

    async def test_check_of_a_valid_store_is_empty(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0], "word"), make_put("b", [0, 1, 0, 0]))
        await store.write(make_put("a", [0, 1, 0, 0], "another word"), Delete(SPACE, "b"))
        assert await store.check() == []

    async def test_closed_store_raises_store_closed(self, store: Records) -> None:
        await store.write(make_put("a"))
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.write(make_put("b"))
        with pytest.raises(StoreClosed):
            await store.get(SPACE, "a")

    async def test_get_full_round_trip_is_exact(self, store: Records) -> None:
        # With three dimensions, a second rounding changes one row in ten.
        rows = np.random.default_rng(0).integers(-3, 4, (60, 4)).astype(np.float32)
        first = Put(item=make_item("a"), vectors=rows, terms=("two", "one", "two"), model=MODEL)
        await store.write(first, make_put("bare"), make_put("worded", terms="only words", scope=BOB))
        await store.write(Touch(SPACE, ("a",), START + SECOND))
        [given, bare] = await store.get_full(SPACE, "a", "none", "bare", "a")
        assert (given.item.id, given.item.access_count, given.model) == ("a", 1, MODEL)
        assert sorted(given.terms or ()) == ["one", "two", "two"]
        assert given.vectors is not None
        assert given.vectors.shape == (60, 4)
        assert (bare.vectors, bare.model, bare.terms) == (None, None, ())
        moved = Put(
            item=replace(given.item, scope=ADA_ELSEWHERE), vectors=given.vectors, terms=given.terms, model=given.model
        )
        await store.write(moved)
        [again] = await store.get_full(moved.space, "a")
        assert again.vectors is not None
        assert again.vectors.tobytes() == given.vectors.tobytes()
        assert (again.item.access_count, again.item.last_accessed) == (1, START + SECOND)

    async def test_tenants_with_items_are_listed(self, store: Records) -> None:
        assert await store.tenants() == []
        await store.write(make_put("a"), make_put("b", scope=BOB))
        await store.write(make_put("a", scope=ADA_ELSEWHERE))
        assert await store.tenants() == ["acme", "globex"]
        await store.write(Delete(ADA_ELSEWHERE.space("semantic"), "a"))
        assert await store.tenants() == ["acme"]


class ModelsContract(AsyncContract):
    """Binding, preparation and activation of an embedding model."""

    async def test_bind_model_accepts_only_the_first(self, store: Records) -> None:
        assert await store.model() is None
        await store.bind_model(MODEL)
        await store.bind_model(MODEL)
        assert await store.model() == MODEL
        for other in (OTHER_MODEL, Model(MODEL.name, MODEL.dim, "other weights")):
            with pytest.raises(EmbeddingModelMismatch, match="reembed"):
                await store.bind_model(other)
        assert await store.model() == MODEL

    async def test_first_vectors_bind_the_model(self, store: Records) -> None:
        await store.write(make_put("words", terms="only"))
        assert await store.model() is None
        await store.write(make_put("a", [1, 0, 0, 0]))
        assert await store.model() == MODEL

    async def test_active_model_answers_until_activation(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]), make_put("b", [0, 1, 0, 0], scope=BOB), make_put("bare"))
        assert sorted(list_ids(await store.find_unembedded(OTHER_MODEL))) == ["a", "b", "bare"]
        assert len(await store.find_unembedded(OTHER_MODEL, limit=2)) == 2
        with pytest.raises(Conflict, match="go on embedding"):
            await store.activate_model(OTHER_MODEL)
        await _embed(store, await store.find_unembedded(OTHER_MODEL))
        assert await store.find_unembedded(OTHER_MODEL) == []
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["a"]
        assert await store.model() == MODEL
        await store.activate_model(OTHER_MODEL)
        assert await store.model() == OTHER_MODEL
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(0, 0, 1))) == ["a", "bare"]
        with pytest.raises(BadVector):
            await find_nearest(store, EVERYTHING, EAST)
        with pytest.raises(EmbeddingModelMismatch):
            await store.write(make_put("late", [1, 0, 0, 0]))
        await store.write(Put(item=make_item("new"), vectors=make_vector(1, 0, 0)[None], model=OTHER_MODEL))
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 0, 0), limit=1)) == ["new"]

    async def test_writes_during_preparation_are_kept(self, store: Records) -> None:
        await store.write(*(make_put(name, [1, 0, 0, 0]) for name in ("kept", "changed", "deleted")))
        listed = await store.find_unembedded(OTHER_MODEL)
        await store.write(make_put("added", [0, 1, 0, 0]), make_put("changed", [0, 0, 1, 0], content="other text"))
        await store.write(Delete(SPACE, "deleted"))
        await _embed(store, listed)  # vectors of older versions are skipped
        assert sorted(list_ids(await store.find_unembedded(OTHER_MODEL))) == ["added", "changed"]
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(0, 1, 0, 0), limit=1)) == ["added"]
        with pytest.raises(Conflict):
            await store.activate_model(OTHER_MODEL)
        await _embed(store, await store.find_unembedded(OTHER_MODEL))
        await store.activate_model(OTHER_MODEL)
        found = await find_nearest(store, EVERYTHING, make_vector(0, 0, 1))
        assert sorted(list_ids(found)) == ["added", "changed", "kept"]

    async def test_third_model_restarts_preparation(self, store: Records) -> None:
        third = Model("third", 3, "9")
        await store.write(make_put("a", [1, 0, 0, 0]))
        listed = await store.find_unembedded(OTHER_MODEL)
        await _embed(store, listed)
        assert list_ids(await store.find_unembedded(third)) == ["a"]
        with pytest.raises(Conflict, match="not being prepared"):
            await _embed(store, listed)
        await _embed(store, await store.find_unembedded(third), third)
        await store.activate_model(third)
        assert await store.model() == third

    async def test_late_vectors_of_the_old_model_are_refused(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]))
        listed = await store.find_unembedded(OTHER_MODEL)
        await _embed(store, listed)
        await store.activate_model(OTHER_MODEL)
        await store.activate_model(OTHER_MODEL)  # idempotent
        with pytest.raises(Conflict, match="not being prepared"):
            await _embed(store, listed)
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(0, 0, 1))) == ["a"]

    async def test_activation_and_back_uses_the_newest_vectors(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]), make_put("b", [0, 1, 0, 0]))
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["a", "b"]
        await _embed(store, await store.find_unembedded(OTHER_MODEL))
        await store.activate_model(OTHER_MODEL)
        rows = {"a": make_vector(0, 0, 0, 1), "b": EAST}
        for item in await store.find_unembedded(MODEL):
            await store.write(Embed(SPACE, item.id, rows[item.id][None], MODEL, item.version))
        await store.activate_model(MODEL)
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["b", "a"]

    async def test_fewer_passages_replace_all_old_ones(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]))
        [item] = await store.find_unembedded(OTHER_MODEL)
        await store.write(Embed(SPACE, "a", np.eye(3, dtype=np.float32), OTHER_MODEL, item.version))
        await store.write(Embed(SPACE, "a", make_vector(1, 0, 0)[None], OTHER_MODEL, item.version))
        await store.activate_model(OTHER_MODEL)
        [found] = await find_nearest(store, EVERYTHING, make_vector(0, 1, 0))
        assert found.score == 0.0


async def _embed(store: Records, items: list[MemoryItem], model: Model = OTHER_MODEL) -> None:
    for item in items:
        space = item.scope.space(item.tier)
        await store.write(Embed(space, item.id, make_vector(0, 0, 1)[None], model, item.version))
