"""What a store promises of searching: exact neighbours, and words weighed within one space alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recollect.errors import BadVector
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Model, Put
from recollect.stores.where import Where
from recollect.testing.samples import (
    ADA_ELSEWHERE,
    BOB,
    EVERYTHING,
    SECOND,
    SPACE,
    START,
    ids,
    item,
    put,
    turn,
    vector,
)


class SearchContract:
    """Meaning and words."""

    pytestmark = pytest.mark.asyncio

    async def test_nearest_is_exact(self, store: Records) -> None:
        chance = np.random.default_rng(7)
        model = Model("wide", 32, "f")
        rows = chance.normal(size=(400, 32)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        await store.write(*(Put(item=item(f"i{n:03}"), vectors=row[None], model=model) for n, row in enumerate(rows)))
        stored = rows.astype(np.float16).astype(np.float64)
        for query in chance.normal(size=(20, 32)).astype(np.float32):
            found = await store.nearest(EVERYTHING, query, limit=10)
            cosines = stored @ (query / np.linalg.norm(query)).astype(np.float64)
            best = np.argsort(-cosines)[:10]
            assert ids(found) == [f"i{n:03}" for n in best]
            assert np.allclose([one.score for one in found], cosines[best], atol=1e-4)

    async def test_an_item_is_as_near_as_its_best_passage(self, store: Records) -> None:
        await store.write(
            put("long", [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]),
            put("short", [0.8, 0.6, 0, 0]),
            put("none"),
        )
        found = await store.nearest(EVERYTHING, vector(0, 0, 2, 0))
        assert [(one.brief.id, round(one.score, 3)) for one in found] == [("long", 1.0), ("short", 0.0)]
        assert ids(await store.nearest(EVERYTHING, vector(1, 0.5, 0, 0), limit=1)) == ["short"]

    async def test_passages_of_one_item_do_not_crowd_out_the_others(self, store: Records) -> None:
        await store.write(*(put(f"long{n}", [[1, 0.001 * part, 0, 0] for part in range(64)]) for n in range(3)))
        await store.write(*(put(f"short{n}", [1, 1, 0, 0]) for n in range(3)))
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0), limit=5)) == [
            "long0", "long1", "long2", "short0", "short1",
        ]  # fmt: skip

    async def test_equal_scores_come_in_the_order_of_their_ids(self, store: Records) -> None:
        names = [f"i{n:03}" for n in range(200)]
        await store.write(*(put(name, [3, 1, 2, 0], "same words") for name in reversed(names)))
        assert ids(await store.nearest(EVERYTHING, vector(1, 1, 1, 0), limit=20)) == names[:20]
        assert ids((await store.matching(EVERYTHING, ("same",), limit=20)).found) == names[:20]
        few = [f"few{n}" for n in range(9)]
        await store.write(*(put(name, [0, 0, 0, 1], "rare") for name in reversed(few)))
        assert ids(await store.nearest(EVERYTHING, vector(0, 0, 0, 1), limit=4)) == few[:4]
        assert ids((await store.matching(EVERYTHING, ("rare",), limit=4)).found) == few[:4]

    async def test_a_new_vector_replaces_the_old(self, store: Records) -> None:
        await store.write(put("a", [[1, 0, 0, 0], [0, 1, 0, 0]]), put("b", [0.6, 0.8, 0, 0]))
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["a", "b"]
        await store.write(put("a", [0, 0, 1, 0]))
        found = await store.nearest(EVERYTHING, vector(0, 1, 0, 0))
        assert [(one.brief.id, round(one.score, 3)) for one in found] == [("b", 0.8), ("a", 0.0)]

    async def test_a_write_is_seen_by_the_next_search(self, store: Records) -> None:
        for n in range(30):
            here = [math.cos(n / 10), math.sin(n / 10), 0, 0]
            await store.write(put(f"i{n}", here, f"word{n}"))
            assert ids(await store.nearest(EVERYTHING, vector(*here), limit=1)) == [f"i{n}"]
            assert ids((await store.matching(EVERYTHING, (f"word{n}",))).found) == [f"i{n}"]
            if n % 5 == 4:
                there = [0, 0, math.cos(n / 10), math.sin(n / 10)]
                await store.write(Delete(SPACE, f"i{n}"), put("moving", there, f"now{n}"))
                [found] = await store.nearest(EVERYTHING, vector(*there), limit=1)
                assert (found.brief.id, round(found.score, 2)) == ("moving", 1.0)
                assert f"i{n}" not in ids(await store.nearest(EVERYTHING, vector(*here), limit=99))
                assert (await store.matching(EVERYTHING, (f"word{n}", f"now{n - 5}"))).found == ()

    async def test_a_query_of_the_wrong_length_is_refused(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]))
        for bad in (vector(1, 0, 0), vector(1, float("nan"), 0, 0), vector()):
            with pytest.raises(BadVector):
                await store.nearest(EVERYTHING, bad)

    async def test_a_query_or_an_item_of_nothing_is_no_error(self, store: Records) -> None:
        assert await store.nearest(EVERYTHING, vector(1, 0, 0, 0)) == []
        await store.write(put("zero", [0, 0, 0, 0]), put("a", [1, 0, 0, 0]))
        assert {one.score for one in await store.nearest(EVERYTHING, vector(0, 0, 0, 0))} == {0.0}
        assert ids(await store.nearest(EVERYTHING, vector(1e-30, 0, 0, 0))) == ["a", "zero"]

    async def test_a_hit_tells_what_ranking_needs(self, store: Records) -> None:
        await store.write(
            turn("a", "s", 3, "Ada", vector=[1, 0, 0, 0], terms="two words", importance=0.9, trust=0.5, source="web")
        )
        [near] = await store.nearest(EVERYTHING, vector(1, 0, 0, 0))
        [match] = (await store.matching(EVERYTHING, ("words",))).found
        assert near.brief == match.brief
        assert near.brief == ("a", "s", 3.0, "Ada", 1_767_225_600_000_000, 0.9, 0.5, "web", 2, 1)

    async def test_words_are_weighed_as_bm25_says(self, store: Records) -> None:
        await store.write(put("a", terms="apple apple pear"), put("b", terms="apple plum"), put("c", terms="fig"))
        found = await store.matching(EVERYTHING, ("apple", "pear", "quince"))
        apple, pear, quince = found.weights
        assert (apple, pear) == pytest.approx((math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)))
        assert quince > pear
        assert found.items == 3
        assert ids(found.found) == ["a", "b"]
        first, second = found.found
        norm = 1.2 * (1 - 0.75 + 0.75 * 3 / 2)
        assert first.parts == pytest.approx((apple * 2 * 2.2 / (2 + norm), pear * 2.2 / (1 + norm), 0.0))
        assert first.score == pytest.approx(sum(first.parts))
        assert second.parts == pytest.approx((apple, 0.0, 0.0))

    async def test_words_are_counted_within_one_space_alone(self, store: Records) -> None:
        await store.write(put("a", terms="apple pear"), put("b", terms="apple"), put("c", terms="plum fig fig"))
        before = await store.matching(EVERYTHING, ("apple", "plum", "nowhere"))
        for scope in (BOB, ADA_ELSEWHERE):
            await store.write(
                *(put(f"n{n}", terms="apple nowhere " * 9, scope=scope) for n in range(20)),
                put("a", terms="plum plum", scope=scope),
            )
        assert await store.matching(EVERYTHING, ("apple", "plum", "nowhere")) == before

    async def test_a_filter_does_not_change_what_a_word_weighs(self, store: Records) -> None:
        await store.write(put("a", terms="apple", key="k"), put("b", terms="apple"), put("c", terms="pear"))
        everything = await store.matching(EVERYTHING, ("apple",))
        narrowed = await store.matching(Where(SPACE, key="k"), ("apple",))
        assert narrowed.weights == everything.weights
        assert narrowed.found == everything.found[:1]

    async def test_deleted_and_changed_words_are_counted_no_more(self, store: Records) -> None:
        await store.write(put("a", terms="apple"), put("b", terms="apple pear"), put("c", terms="apple apple"))
        await store.write(put("b", terms="pear pear"), Delete(SPACE, "c"))
        fresh = await store.matching(EVERYTHING, ("apple", "pear"))
        await store.write(put("a", terms="apple", scope=BOB), put("b", terms="pear pear", scope=BOB))
        assert fresh == await store.matching(Where(BOB.space("semantic")), ("apple", "pear"))

    async def test_any_text_can_be_a_term(self, store: Records) -> None:
        terms = ["AND", "and", "not", '"', "'", "*", "a*", "(", "NEAR", "col:x", "^a", "-x", "é", "E", "漢字", "_",
                 "a_b", "x" * 500, "\x00", "a\x00b", "👩‍👩‍👧", "1_a", "0"]  # fmt: skip
        await store.write(*(Put(item=item(f"i{n:02}"), terms=(term, "shared")) for n, term in enumerate(terms)))
        for n, term in enumerate(terms):
            assert ids((await store.matching(EVERYTHING, (term,))).found) == [f"i{n:02}"], term
        assert len((await store.matching(EVERYTHING, ("shared",), limit=99)).found) == len(terms)
        for query in ("two words", "", " ", "\ud800", "\n"):
            assert (await store.matching(EVERYTHING, (query,))).found == ()

    async def test_a_search_for_no_words_or_in_no_space_finds_nothing(self, store: Records) -> None:
        assert (await store.matching(EVERYTHING, ("apple",))).found == ()
        await store.write(put("a", terms="apple", created_at=START + SECOND))
        assert (await store.matching(EVERYTHING, ())).found == ()
        assert (await store.matching(Where(BOB.space("semantic")), ("apple",))).found == ()

    async def test_a_very_long_query_is_answered(self, store: Records) -> None:
        await store.write(put("a", terms="apple"), put("b", terms="pear"))
        many = (*(f"w{n}" for n in range(2_000)), "pear")
        assert ids((await store.matching(EVERYTHING, many)).found) == ["b"]
