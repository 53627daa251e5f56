"""Contract of `Records` for search: filters, vectors, terms and evidence."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import numpy as np
import pytest

from recollect.errors import BadVector, EmbeddingModelMismatch
from recollect.stores.base import Records
from recollect.stores.filters import Where, parse_where
from recollect.stores.search import EvidenceQuery, EvidenceSummary
from recollect.stores.writes import Delete, Model, Put, Touch
from recollect.testing.factories import (
    ADA_ELSEWHERE,
    BOB,
    EAST,
    EVERYTHING,
    HOSTILE_TEXTS,
    MICROSECOND,
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
    requires,
)
from recollect.types import Turn

SAMPLE_METADATA = {
    "whole": 5,
    "real": 2.5,
    "large": 2**53 + 1,
    "text": "mango",
    "empty": "",
    "digits": "5",
    "yes": True,
    "no": False,
    "nothing": None,
    "list": [1, 2],
    "mixed": ["mango", 2.5, True, None, ["in"], {"in": 1}, "50%_off"],
    "signs": "50%_off",
    "last": "\U0010ffff\U0010ffffx",
    "inner": {"deep": {"er": "x"}, "list": [1]},
    "created_at": "a path of the same name as a field",
}

MATCHING_FILTERS: list[dict[str, Any]] = [
    {},
    {"whole": 5}, {"whole": 5.0}, {"whole": {"ne": 6}}, {"whole": {"ne": "5"}}, {"whole": {"ne": None}},
    {"whole": {"gt": 4}}, {"whole": {"gt": 4.5}}, {"whole": {"gte": 5}}, {"whole": {"lt": 6}}, {"whole": {"lte": 5}},
    {"whole": {"gt": 4, "lt": 6}}, {"whole": [4, 5]}, {"whole": {"in": [5]}}, {"whole": {"$gte": 5}},
    {"whole": {">": 4}},
    {"real": 2.5}, {"real": {"gt": 2}}, {"real": {"lte": 2.5}}, {"real": {"in": [2.5, "x"]}}, {"real": {"ne": 2}},
    {"large": 2**53 + 1}, {"large": {"ne": 2**53}}, {"large": {"gt": 2**53}},
    {"text": "mango"}, {"text": {"ne": "Mango"}}, {"text": {"gt": "ma"}}, {"text": {"gte": "mango"}},
    {"text": {"lt": "n"}}, {"text": {"lte": "mango"}}, {"text": ["apple", "mango"]}, {"text": {"gt": "Z"}},
    {"empty": ""}, {"empty": {"lt": "a"}}, {"empty": {"ne": None}},
    {"digits": "5"}, {"digits": {"ne": 5}},
    {"yes": True}, {"yes": {"ne": False}}, {"yes": {"ne": 1}}, {"yes": [True]}, {"no": False}, {"no": {"ne": None}},
    {"nothing": None}, {"nothing": {"ne": 0}}, {"nothing": {"ne": False}}, {"nothing": [None]},
    {"list": {"ne": 1}}, {"list": {"ne": None}},
    {"inner.deep.er": "x"}, {"inner.deep": {"ne": "x"}}, {"metadata.whole": 5}, {"metadata.created_at": {"gt": "a"}},
    {"importance": 0.5}, {"importance": {"gte": 0.5}}, {"importance": {"lt": 1}}, {"importance": {"ne": True}},
    {"source": "web"}, {"source": {"ne": "user"}}, {"source": {"gt": "wea"}}, {"source": ["web"]},
    {"trust": {"lt": 0.8}}, {"key": "k"}, {"key": {"ne": None}}, {"agent": "helper"},
    {"session": "s"}, {"speaker": None}, {"speaker": {"ne": "Ada"}}, {"position": 2}, {"position": {"lte": 2.0}},
    {"access_count": 2}, {"access_count": {"gt": 1}},
    {"created_at": START}, {"created_at": {"gte": START.isoformat()}}, {"created_at": {"lt": START + SECOND}},
    {"created_at": [START]},
    {"text": {"prefix": "man"}}, {"text": {"prefix": "mango"}}, {"text": {"prefix": ""}}, {"empty": {"prefix": ""}},
    {"signs": {"prefix": "50%_"}}, {"last": {"prefix": "\U0010ffff"}}, {"last": {"prefix": "\U0010ffff" * 2}},
    {"key": {"prefix": "k"}}, {"key": {"prefix": ""}}, {"source": {"prefix": "we"}}, {"session": {"prefix": "s"}},
    {"text": {"prefix": "ma", "ne": "mandarin"}}, {"metadata.created_at": {"prefix": "a path"}},
    {"list": {"has": 1}}, {"list": {"has": 2.0}}, {"mixed": {"has": "mango"}}, {"mixed": {"has": 2.5}},
    {"mixed": {"has": True}}, {"mixed": {"has": None}}, {"mixed": {"has": "50%_off"}}, {"inner.list": {"has": 1}},
    {"whole": 5, "text": "mango", "source": "web"},
]  # fmt: skip

NON_MATCHING_FILTERS: list[dict[str, Any]] = [
    {"whole": 6}, {"whole": "5"}, {"whole": True}, {"whole": None}, {"whole": {"ne": 5}}, {"whole": {"ne": 5.0}},
    {"whole": {"gt": 5}}, {"whole": {"gte": 5.5}}, {"whole": {"lt": 5}}, {"whole": {"lte": 4}}, {"whole": {"gt": "4"}},
    {"whole": {"lt": "x"}}, {"whole": [4, "5"]}, {"whole": []}, {"whole": {"in": []}}, {"whole": {"gt": 4, "lt": 5}},
    {"real": 2}, {"real": {"gt": 2.5}}, {"real": "2.5"}, {"large": 2**53}, {"large": float(2**53)},
    {"text": "Mango"}, {"text": "mang"}, {"text": "mango "}, {"text": {"gt": "mango"}}, {"text": {"gt": 1}},
    {"text": {"lt": 1}}, {"text": ["apple"]}, {"empty": None}, {"digits": 5}, {"digits": {"gt": 4}},
    {"yes": 1}, {"yes": "true"}, {"yes": {"gt": 0}}, {"no": 0}, {"no": None}, {"no": ""},
    {"nothing": 0}, {"nothing": ""}, {"nothing": False}, {"nothing": {"ne": None}}, {"nothing": {"lt": 1}},
    {"list": [1, 2]}, {"list": 1}, {"list": {"gt": 0}}, {"inner.list.x": 1},
    {"inner": "x"}, {"inner.deep.er": "y"}, {"inner.deep.er.more": "x"}, {"deep.er": "x"}, {"text.m": "ango"},
    {"importance": "0.5"}, {"importance": None}, {"importance": {"gt": 0.5}}, {"importance": [True]},
    {"source": "Web"}, {"source": {"gt": 1}}, {"key": None}, {"key": {"ne": "k"}}, {"agent": "other"},
    {"session": None}, {"session": "S"}, {"speaker": "Ada"}, {"speaker": {"gt": ""}}, {"position": {"gt": 2}},
    {"access_count": 1}, {"created_at": {"gt": START}}, {"created_at": {"ne": START}},
    {"whole": 5, "text": "apple"},
    {"text": {"prefix": "ango"}}, {"text": {"prefix": "Man"}}, {"text": {"prefix": "mangos"}},
    {"text": {"prefix": "%"}},
    {"text": {"prefix": "m_n"}}, {"text": {"prefix": "man*"}}, {"signs": {"prefix": "50__"}}, {"whole": {"prefix": ""}},
    {"yes": {"prefix": ""}}, {"nothing": {"prefix": ""}}, {"list": {"prefix": ""}}, {"inner": {"prefix": ""}},
    {"last": {"prefix": "\U0010ffff" * 3}}, {"key": {"prefix": "kk"}}, {"key": {"prefix": "j"}},
    {"speaker": {"prefix": ""}}, {"importance": {"prefix": "0"}},
    {"list": {"has": 3}}, {"list": {"has": "1"}}, {"list": {"has": True}}, {"mixed": {"has": False}},
    {"mixed": {"has": "in"}}, {"mixed": {"has": 1}}, {"mixed": {"has": "mang"}}, {"text": {"has": "mango"}},
    {"text": {"has": "m"}}, {"whole": {"has": 5}}, {"inner": {"has": "x"}}, {"inner.deep": {"has": "x"}},
    {"nothing": {"has": None}},
]  # fmt: skip

TRIED_VALUES: list[Any] = [
                  "x", 1, True, None, ["x", None], {"ne": "x"}, {"ne": None}, {"gt": 0}, {"gt": ""}, {"gte": 0},
                  {"lt": 9}, {"lt": "z"}, {"lte": 9}, {"in": [None]}, {"prefix": ""}, {"has": None},
                  {"has": "x"}]  # fmt: skip


class FiltersContract(AsyncContract):
    """Every operator with every type of value."""

    async def test_matching_filters_find_the_item(self, store: Records) -> None:
        await _write_sample(store)
        missed = [given for given in MATCHING_FILTERS if not await _is_found(store, given)]
        assert missed == []

    async def test_other_filters_do_not_find_the_item(self, store: Records) -> None:
        await _write_sample(store)
        taken = [given for given in NON_MATCHING_FILTERS if await _is_found(store, given)]
        assert taken == []

    async def test_missing_value_never_matches(self, store: Records) -> None:
        await _write_sample(store)
        taken = [
            op
            for op in TRIED_VALUES
            for path in ("gone", "whole.x", "inner.gone")
            if await _is_found(store, {path: op})
        ]
        assert taken == []

    async def test_hostile_value_is_compared_literally(self, store: Records) -> None:
        hostile = ["' or 1=1 --", '"', "$.x", "a\x00b", "%", "\\", "[0]", "👩‍👩‍👧", "\u2028"]
        await store.write(*(make_put(f"i{n}", metadata={"x": text}, key=text) for n, text in enumerate(hostile)))
        for n, text in enumerate(hostile):
            assert list_ids(await store.find(Where(SPACE, conditions=parse_where({"x": text})))) == [f"i{n}"]
            assert list_ids(await store.find(Where(SPACE, key=text))) == [f"i{n}"]

    async def test_live_at_respects_validity_and_expiry(self, store: Records) -> None:
        bounds: dict[str, Any] = {"vector": [1, 0, 0, 0], "terms": "word"}
        await store.write(
            make_put("always", **bounds),
            make_put("from", valid_from=START, **bounds),
            make_put("to", valid_to=START, **bounds),
            make_put("expires", expires_at=START, **bounds),
            make_put("within", valid_from=START - SECOND, valid_to=START + SECOND, **bounds),
        )
        for moment, living in (
            (START - 2 * SECOND, {"always", "to", "expires"}),
            (START - SECOND, {"always", "to", "expires", "within"}),
            (START, {"always", "from", "within"}),
            (START + SECOND, {"always", "from"}),
        ):
            assert {*await find_everywhere(store, Where(SPACE, live_at=moment))} == living
        assert len(await store.find(EVERYTHING)) == 5

    async def test_known_at_excludes_later_items(self, store: Records) -> None:
        await store.write(*(make_put(f"i{n}", [1, 0, 0, 0], "word", created_at=START + n * SECOND) for n in range(4)))
        assert await find_everywhere(store, Where(SPACE, known_at=START + SECOND)) == ["i0", "i1"]

    async def test_open_at_excludes_superseded_items(self, store: Records) -> None:
        await store.write(
            make_put("current", valid_from=START - SECOND),
            make_put("ended", valid_to=START - SECOND),
            make_put("replaced", valid_to=START, superseded_by="current"),
            make_put("replaced without a time", superseded_by="current"),
        )
        every = {"current", "ended", "replaced", "replaced without a time"}
        assert set(list_ids(await store.find(Where(SPACE, open_at=START - SECOND)))) == every
        assert set(list_ids(await store.find(Where(SPACE, open_at=START)))) == every - {"replaced"}

    async def test_key_prefix_is_compared_literally(self, store: Records) -> None:
        bounds: dict[str, Any] = {"vector": [1, 0, 0, 0], "terms": "word"}
        keys = {f"i{n:02}": key for n, key in enumerate(HOSTILE_TEXTS)}
        await store.write(*(make_put(id, key=key, **bounds) for id, key in keys.items()), make_put("none", **bounds))
        # Mutants: the prefix is a pattern of LIKE; an item without a key matches.
        for prefix in (*HOSTILE_TEXTS, "", "missing", "x" * 400):
            expected = [id for id, key in keys.items() if key.startswith(prefix)]
            assert sorted(list_ids(await store.find(Where(SPACE, key_prefix=prefix)))) == expected
        for prefix in ("a", "%", "\x00", "\U0010ffff", ""):
            expected = [id for id, key in keys.items() if key.startswith(prefix)]
            assert await find_everywhere(store, Where(SPACE, key_prefix=prefix)) == expected
        assert list_ids(await store.find(Where(SPACE, key="a", key_prefix="a"))) == ["i00"]
        assert await store.find(Where(SPACE, key="b", key_prefix="a")) == []

    async def test_pages_of_a_key_prefix_cover_all_items_once(self, store: Records) -> None:
        await store.write(
            *(make_put(f"i{n:02}", key="ab"[n % 2] + f"/{n}", created_at=START + (n // 6) * SECOND) for n in range(20))
        )
        where, seen = Where(SPACE, key_prefix="a/"), list[str]()
        page = await store.find(where, limit=3)
        while page:
            seen += list_ids(page)
            page = await store.find(where, limit=3, after=page[-1])
        assert seen == [f"i{n:02}" for n in range(18, -1, -2)]

    async def test_created_bounds_select_a_range(self, store: Records) -> None:
        order = (2, 0, 3, 1, 2)
        await store.write(
            *(make_put(f"i{n}", [1, 0, 0, 0], "word", created_at=START + time * SECOND) for n, time in enumerate(order))
        )
        one, two = START + SECOND, START + 2 * SECOND
        # Mutant: `created_until` is inclusive.
        for start, end, expected in (
            (two, None, ["i0", "i2", "i4"]),
            (None, two, ["i1", "i3"]),
            (one, two, ["i3"]),
            (two, two, []),
            (two, one, []),
            (two - MICROSECOND, two + MICROSECOND, ["i0", "i4"]),
            (two + MICROSECOND, two + SECOND, []),
            (one.astimezone(timezone(timedelta(hours=9))), two.replace(tzinfo=None), ["i3"]),
        ):
            assert await find_everywhere(store, Where(SPACE, created_from=start, created_until=end)) == expected
        page = await store.find(Where(SPACE, created_from=one), limit=3)
        assert list_ids(page) == ["i2", "i4", "i0"]
        assert list_ids(await store.find(Where(SPACE, created_from=one), after=page[-1])) == ["i3"]
        assert list_ids(await store.find(Where(SPACE, created_from=one, known_at=one, key_prefix=None))) == ["i3"]

    async def test_importance_and_key_filter(self, store: Records) -> None:
        await store.write(
            make_put("a", importance=0.2, key="k"),
            make_put("b", importance=0.8, key="k"),
            make_put("c", importance=0.9),
        )
        assert set(list_ids(await store.find(Where(SPACE, min_importance=0.8)))) == {"b", "c"}
        assert set(list_ids(await store.find(Where(SPACE, key="k")))) == {"a", "b"}
        assert list_ids(await store.find(Where(SPACE, key="k", min_importance=0.5))) == ["b"]
        assert await store.find(Where(SPACE, key="K")) == []

    async def test_ids_restrict_a_search(self, store: Records) -> None:
        names = ["a", "b", "c\x00", "é"]
        await store.write(*(make_put(name, [1, 0, 0, 0], "word") for name in names))
        for chosen in ({"a", "é"}, {"c\x00", "missing"}, set()):
            expected = sorted(chosen.intersection(names))
            assert await find_everywhere(store, Where(SPACE, ids=frozenset(chosen))) == expected


async def _write_sample(store: Records) -> None:
    await store.write(
        make_put(
            "a", [1, 0, 0, 0], "word", metadata=SAMPLE_METADATA, source="web", trust=0.75, key="k", turn=Turn("s", 2)
        ),
        make_put("decoy", [0, 1, 0, 0], "another word", created_at=START - 9 * SECOND, source="none"),
    )
    await store.write(Touch(SPACE, ("a",), START), Touch(SPACE, ("a",), START))


async def _is_found(store: Records, given: dict[str, Any]) -> bool:
    return "a" in await find_everywhere(store, Where(SPACE, conditions=parse_where(given)))


class SearchContract(AsyncContract):
    """Searches by vector and by terms, and the evidence of `gather`."""

    @requires("exact_search")
    async def test_nearest_is_exact(self, store: Records) -> None:
        chance = np.random.default_rng(7)
        model = Model("wide", 32, "f")
        rows = chance.normal(size=(400, 32)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        await store.write(
            *(Put(item=make_item(f"i{n:03}"), vectors=row[None], model=model) for n, row in enumerate(rows))
        )
        stored = rows.astype(np.float16).astype(np.float64)
        for query in chance.normal(size=(20, 32)).astype(np.float32):
            found = await find_nearest(store, EVERYTHING, query, limit=10)
            cosines = stored @ (query / np.linalg.norm(query)).astype(np.float64)
            best = np.argsort(-cosines)[:10]
            assert list_ids(found) == [f"i{n:03}" for n in best]
            assert np.allclose([result.score for result in found], cosines[best], atol=1e-4)

    async def test_nearest_uses_the_best_passage(self, store: Records) -> None:
        await store.write(
            make_put("long", [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]),
            make_put("short", [0.8, 0.6, 0, 0]),
            make_put("none"),
        )
        found = await find_nearest(store, EVERYTHING, make_vector(0, 0, 2, 0))
        assert [(result.brief.id, round(result.score, 3)) for result in found] == [("long", 1.0), ("short", 0.0)]
        assert [result.brief.passages for result in found] == [3, 1]
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 0.5, 0, 0), limit=1)) == ["short"]

    async def test_passages_of_one_item_do_not_fill_the_results(self, store: Records) -> None:
        await store.write(*(make_put(f"long{n}", [[1, 0.001 * part, 0, 0] for part in range(64)]) for n in range(3)))
        await store.write(*(make_put(f"short{n}", [1, 1, 0, 0]) for n in range(3)))
        assert list_ids(await find_nearest(store, EVERYTHING, EAST, limit=5)) == [
            "long0", "long1", "long2", "short0", "short1",
        ]  # fmt: skip

    @requires("exact_search")
    async def test_equal_scores_are_ordered_by_id(self, store: Records) -> None:
        names = [f"i{n:03}" for n in range(200)]
        await store.write(*(make_put(name, [3, 1, 2, 0], "same words") for name in reversed(names)))
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1, 1, 1, 0), limit=20)) == names[:20]
        assert list_ids(await find_matching(store, EVERYTHING, "same", limit=20)) == names[:20]
        few = [f"few{n}" for n in range(9)]
        await store.write(*(make_put(name, [0, 0, 0, 1], "rare") for name in reversed(few)))
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(0, 0, 0, 1), limit=4)) == few[:4]
        assert list_ids(await find_matching(store, EVERYTHING, "rare", limit=4)) == few[:4]

    async def test_new_vector_replaces_the_old(self, store: Records) -> None:
        await store.write(make_put("a", [[1, 0, 0, 0], [0, 1, 0, 0]]), make_put("b", [0.6, 0.8, 0, 0]))
        assert list_ids(await find_nearest(store, EVERYTHING, EAST)) == ["a", "b"]
        await store.write(make_put("a", [0, 0, 1, 0]))
        found = await find_nearest(store, EVERYTHING, make_vector(0, 1, 0, 0))
        assert [(result.brief.id, round(result.score, 3)) for result in found] == [("b", 0.8), ("a", 0.0)]

    async def test_write_is_visible_to_the_next_search(self, store: Records) -> None:
        for n in range(30):
            here = [math.cos(n / 10), math.sin(n / 10), 0, 0]
            await store.write(make_put(f"i{n}", here, f"word{n}"))
            assert list_ids(await find_nearest(store, EVERYTHING, make_vector(*here), limit=1)) == [f"i{n}"]
            assert list_ids(await find_matching(store, EVERYTHING, f"word{n}")) == [f"i{n}"]
            if n % 5 == 4:
                there = [0, 0, math.cos(n / 10), math.sin(n / 10)]
                await store.write(Delete(SPACE, f"i{n}"), make_put("moving", there, f"now{n}"))
                [found] = await find_nearest(store, EVERYTHING, make_vector(*there), limit=1)
                assert (found.brief.id, round(found.score, 2)) == ("moving", 1.0)
                assert f"i{n}" not in list_ids(await find_nearest(store, EVERYTHING, make_vector(*here), limit=99))
                assert await find_matching(store, EVERYTHING, f"word{n}", f"now{n - 5}") == []

    async def test_query_vector_of_wrong_length_raises(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]))
        for bad in (make_vector(1, 0, 0), make_vector(1, float("nan"), 0, 0), make_vector()):
            with pytest.raises(BadVector):
                await find_nearest(store, EVERYTHING, bad)

    async def test_zero_vectors_are_accepted(self, store: Records) -> None:
        assert await find_nearest(store, EVERYTHING, EAST) == []
        await store.write(make_put("zero", [0, 0, 0, 0]), make_put("a", [1, 0, 0, 0]))
        assert {result.score for result in await find_nearest(store, EVERYTHING, make_vector(0, 0, 0, 0))} == {0.0}
        assert list_ids(await find_nearest(store, EVERYTHING, make_vector(1e-30, 0, 0, 0))) == ["a", "zero"]

    async def test_result_has_the_fields_for_ranking(self, store: Records) -> None:
        await store.write(
            make_turn(
                "a", "s", 3, "Ada", vector=[1, 0, 0, 0], terms="two words", importance=0.9, trust=0.5, source="web"
            )
        )
        [near] = await find_nearest(store, EVERYTHING, EAST)
        [match] = await find_matching(store, EVERYTHING, "words")
        assert near.brief == match.brief
        assert near.brief == ("a", "s", 3.0, "Ada", 1_767_225_600_000_000, 0.9, 0.5, "web", 2, 1)

    @requires("exact_search")
    async def test_term_weights_follow_bm25(self, store: Records) -> None:
        await store.write(
            make_put("a", terms="apple apple pear"), make_put("b", terms="apple plum"), make_put("c", terms="fig")
        )
        terms = ("apple", "pear", "quince")
        apple, pear, quince = (await gather_evidence(store, vector=None, terms=terms)).weights
        assert (apple, pear) == pytest.approx((math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)))
        assert quince > pear
        first, second = await find_matching(store, EVERYTHING, *terms)
        assert list_ids([first, second]) == ["a", "b"]
        norm = 1.2 * (1 - 0.75 + 0.75 * 3 / 2)
        assert first.parts == pytest.approx((apple * 2 * 2.2 / (2 + norm), pear * 2.2 / (1 + norm), 0.0))
        assert first.score == pytest.approx(sum(first.parts))
        assert second.parts == pytest.approx((apple, 0.0, 0.0))

    async def test_term_statistics_are_per_space(self, store: Records) -> None:
        await store.write(
            make_put("a", terms="apple pear"), make_put("b", terms="apple"), make_put("c", terms="plum fig fig")
        )
        before = await find_matching(store, EVERYTHING, "apple", "plum", "nowhere")
        for scope in (BOB, ADA_ELSEWHERE):
            await store.write(
                *(make_put(f"n{n}", terms="apple nowhere " * 9, scope=scope) for n in range(20)),
                make_put("a", terms="plum plum", scope=scope),
            )
        assert await find_matching(store, EVERYTHING, "apple", "plum", "nowhere") == before

    async def test_filter_does_not_change_term_weights(self, store: Records) -> None:
        await store.write(
            make_put("a", terms="apple", key="k"), make_put("b", terms="apple"), make_put("c", terms="pear")
        )
        everything = await find_matching(store, EVERYTHING, "apple")
        assert await find_matching(store, Where(SPACE, key="k"), "apple") == everything[:1]

    async def test_deleted_and_replaced_terms_are_not_counted(self, store: Records) -> None:
        await store.write(
            make_put("a", terms="apple"), make_put("b", terms="apple pear"), make_put("c", terms="apple apple")
        )
        await store.write(make_put("b", terms="pear pear"), Delete(SPACE, "c"))
        fresh = await find_matching(store, EVERYTHING, "apple", "pear")
        await store.write(make_put("a", terms="apple", scope=BOB), make_put("b", terms="pear pear", scope=BOB))
        assert fresh == await find_matching(store, Where(BOB.space("semantic")), "apple", "pear")

    async def test_any_text_can_be_a_term(self, store: Records) -> None:
        terms = ["AND", "and", "not", '"', "'", "*", "a*", "(", "NEAR", "col:x", "^a", "-x", "é", "E", "漢字", "_",
                 "a_b", "x" * 500, "\x00", "a\x00b", "👩‍👩‍👧", "1_a", "0"]  # fmt: skip
        await store.write(*(Put(item=make_item(f"i{n:02}"), terms=(term, "shared")) for n, term in enumerate(terms)))
        for n, term in enumerate(terms):
            assert list_ids(await find_matching(store, EVERYTHING, term)) == [f"i{n:02}"], term
        assert len(await find_matching(store, EVERYTHING, "shared", limit=99)) == len(terms)
        for query in ("two words", "", " ", "\ud800", "\n"):
            assert await find_matching(store, EVERYTHING, query) == []

    async def test_search_without_terms_or_items_is_empty(self, store: Records) -> None:
        assert await find_matching(store, EVERYTHING, "apple") == []
        await store.write(make_put("a", terms="apple", created_at=START + SECOND))
        assert await find_matching(store, EVERYTHING) == []
        assert await find_matching(store, Where(BOB.space("semantic")), "apple") == []

    async def test_very_long_query_is_answered(self, store: Records) -> None:
        await store.write(make_put("a", terms="apple"), make_put("b", terms="pear"))
        many = (*(f"w{n}" for n in range(2_000)), "pear")
        assert list_ids(await find_matching(store, EVERYTHING, *many)) == ["b"]

    async def test_candidates_have_cosines_and_term_parts(self, store: Records) -> None:
        await store.write(
            make_put("near", [1, 0, 0, 0], terms="plum"),
            make_put("far", [0, 1, 0, 0], terms="apple pear"),
            make_put("neither", [0, 0, 1, 0], terms="fig"),
            make_put("dumb", terms="apple"),
        )
        found = await gather_evidence(store, terms=("apple", "pear"), limit=2)
        assert list_ids(found) == ["dumb", "far", "near"]
        assert np.isnan(found.cosines[0])
        assert found.cosines[1:].tolist() == pytest.approx([0.0, 1.0], abs=1e-3)
        matches = await find_matching(store, EVERYTHING, "apple", "pear")
        parts = {result.brief.id: result.parts for result in matches}
        assert found.parts.T.tolist() == [pytest.approx(parts.get(name, (0.0, 0.0))) for name in list_ids(found)]

    async def test_first_item_of_a_space_is_found(self, store: Records) -> None:
        for _ in range(2):
            assert list_ids(await gather_evidence(store, terms=("apple",))) == []
            assert list_ids(await gather_evidence(store, terms=("apple",))) == []
            await store.write(make_put("new", [1, 0, 0, 0], terms="apple"))
            assert list_ids(await gather_evidence(store, terms=("apple",))) == ["new"]
            await store.write(Delete(SPACE, "new"))

    async def test_evidence_includes_neighboring_turns(self, store: Records) -> None:
        places = [("s", n) for n in range(6)] + [("t", n) for n in range(6)]
        await store.write(
            *(
                make_turn(f"{session}{n}", session, n, "Ada", vector=[0, 1, 0, n], terms="apple" if n == 4 else "fig")
                for session, n in places
            ),
            make_turn("s9", "s", 2, "Bo", vector=[1, 0, 0, 0], terms="fig"),
        )
        found = await gather_evidence(store, limit=1, reach=1)
        assert list_ids(found) == ["s1", "s2", "s9", "s3"]
        assert not np.isnan(found.cosines).any()
        assert found.speakers == {"Ada", "Bo"}

    async def test_neighbors_are_the_turns_within_reach(self, store: Records) -> None:
        await store.write(*(make_turn(f"t{n}", "s", n, f"p{n % 2}", terms=f"word{n}") for n in range(10)))
        await store.write(make_turn("half", "s", 4.5), make_turn("other", "z", 4, terms="word4"), make_put("loose"))
        for terms, reach, expected in (
            (("word4",), 1, ["t3", "t4", "half", "t5", "other"]),
            (("word0", "word1"), 2, ["t0", "t1", "t2", "t3"]),
            (("word7",), 0, ["t7"]),
            (("nowhere",), 1, []),
        ):
            found = await gather_evidence(store, vector=None, terms=terms, reach=reach)
            assert (list_ids(found), sorted(found.speakers)) == (expected, ["p0", "p1"])

    async def test_speakers_disappear_with_their_last_turn(self, store: Records) -> None:
        await store.write(
            make_turn("a", "s", 0, "Ada"), make_turn("b", "t", 1, "Bo"), make_turn("c", "s", 2, "Bo"), make_put("d")
        )
        await store.write(make_turn("e", "s", 1, "Eve", scope=BOB), make_turn("f", "s", 3))
        await store.write(make_turn("g", "s", 1, "Zoe", vector=[1, 0, 0, 0], scope=ADA_ELSEWHERE))
        assert (await gather_evidence(store)).speakers == {"Ada", "Bo"}
        await store.write(Delete(SPACE, "a"), Delete(SPACE, "b"))
        assert (await gather_evidence(store)).speakers == {"Bo"}

    async def test_filter_applies_to_neighboring_turns(self, store: Records) -> None:
        await store.write(
            make_turn("a", "s", 0, vector=[0, 1, 0, 0], importance=0.1),
            make_turn("b", "s", 1, vector=[1, 0, 0, 0], importance=0.9),
            make_turn("c", "s", 2, vector=[0, 1, 0, 0], importance=0.9),
        )
        found = await gather_evidence(store, where=replace(EVERYTHING, min_importance=0.5), limit=1, reach=2)
        assert list_ids(found) == ["b", "c"]

    async def test_empty_space_has_no_evidence(self, store: Records) -> None:
        found = await gather_evidence(store, terms=("apple",))
        assert (len(found), found.parts.shape, found.weights.tolist()) == (0, (1, 0), [0.0])

    async def test_candidates_not_worth_ranking_may_be_omitted(self, store: Records) -> None:
        """The summary describes all candidates, also if the store omits them."""
        await store.write(
            make_put("near", [0.8, 0.6, 0, 0], terms="plum"),
            make_put("far", [0, 1, 0, 0], terms="apple"),
            make_put("dumb", terms="fig"),
        )
        seen: list[EvidenceSummary] = []

        def is_worth_ranking(glance: EvidenceSummary) -> bool:
            seen.append(glance)
            return len(seen) > 1

        terms = ("apple", "fig", "pear")
        every = await gather_evidence(store, terms=terms)
        left = await gather_evidence(store, terms=terms, is_worth_ranking=is_worth_ranking)
        assert list_ids(left) in ([], list_ids(every))
        assert left.speakers == every.speakers
        assert left.weights.tolist() == pytest.approx(every.weights.tolist())
        assert (
            list_ids(await gather_evidence(store, terms=terms, is_worth_ranking=is_worth_ranking))
            == list_ids(every)
            == ["dumb", "far", "near"]
        )
        for glance in (every.summary, *seen):
            assert glance.best_cosine == pytest.approx(0.8, abs=1e-3)
            assert glance.has_terms == [True, True, False]
            assert glance.weights == pytest.approx(every.weights.tolist())

    async def test_query_vector_of_another_model_raises(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0]))
        with pytest.raises(EmbeddingModelMismatch, match="reembed"):
            await gather_evidence(store, vector=make_vector(1, 0, 0), model=OTHER_MODEL)

    async def test_judge_reads_the_same_moment(self, store: Records) -> None:
        await store.write(make_put("a", [1, 0, 0, 0], "fig apple fig"), make_put("b", [1, 0, 0, 0]))
        ask = EvidenceQuery(EVERYTHING, EAST, (), 10, 0, MODEL)
        items, terms = await store.gather(
            ask, lambda found, lookup: (lookup.items(["b", "none", "a"]), lookup.terms(["b", "none", "a"]))
        )
        assert items == {item.id: item for item in await store.get(SPACE, "a", "b")}
        assert terms == {"a": "fig apple fig", "b": ""}
