"""What a store promises of filters: the same items from every backend, and missing never matches."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.stores.base import Records
from recollect.stores.ops import Touch
from recollect.stores.where import Where, parse_where
from recollect.testing.samples import EVERYTHING, SECOND, SPACE, START, ids, put, turn, vector
from recollect.values import Turn

METADATA = {
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

MATCH: list[dict[str, Any]] = [
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

NO_MATCH: list[dict[str, Any]] = [
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

OPS: list[Any] = ["x", 1, True, None, ["x", None], {"ne": "x"}, {"ne": None}, {"gt": 0}, {"gt": ""}, {"gte": 0},
                  {"lt": 9}, {"lt": "z"}, {"lte": 9}, {"in": [None]}, {"prefix": ""}, {"has": None},
                  {"has": "x"}]  # fmt: skip


class FiltersContract:
    """Every comparison with every kind of value."""

    pytestmark = pytest.mark.asyncio

    async def test_a_filter_takes_what_it_says(self, store: Records) -> None:
        await _write_sample(store)
        missed = [given for given in MATCH if not await _found_everywhere(store, given)]
        assert missed == []

    async def test_a_filter_leaves_the_rest(self, store: Records) -> None:
        await _write_sample(store)
        taken = [given for given in NO_MATCH if await _found_everywhere(store, given)]
        assert taken == []

    async def test_missing_never_matches(self, store: Records) -> None:
        await _write_sample(store)
        taken = [
            op for op in OPS for path in ("gone", "whole.x", "inner.gone") if await _found_everywhere(store, {path: op})
        ]
        assert taken == []

    async def test_a_hostile_value_is_a_value(self, store: Records) -> None:
        hostile = ["' or 1=1 --", '"', "$.x", "a\x00b", "%", "\\", "[0]", "👩‍👩‍👧", "\u2028"]
        await store.write(*(put(f"i{n}", metadata={"x": text}, key=text) for n, text in enumerate(hostile)))
        for n, text in enumerate(hostile):
            assert ids(await store.find(Where(SPACE, conditions=parse_where({"x": text})))) == [f"i{n}"]
            assert ids(await store.find(Where(SPACE, key=text))) == [f"i{n}"]

    async def test_an_item_lives_between_its_bounds(self, store: Records) -> None:
        bounds: dict[str, Any] = {"vector": [1, 0, 0, 0], "terms": "word"}
        await store.write(
            put("always", **bounds),
            put("from", valid_from=START, **bounds),
            put("to", valid_to=START, **bounds),
            put("expires", expires_at=START, **bounds),
            put("within", valid_from=START - SECOND, valid_to=START + SECOND, **bounds),
        )
        for moment, living in (
            (START - 2 * SECOND, {"always", "to", "expires"}),
            (START - SECOND, {"always", "to", "expires", "within"}),
            (START, {"always", "from", "within"}),
            (START + SECOND, {"always", "from"}),
        ):
            where = Where(SPACE, live_at=moment)
            assert set(ids(await store.find(where))) == living
            assert set(ids(await store.nearest(where, vector(1, 0, 0, 0)))) == living
            assert set(ids((await store.matching(where, ("word",))).found)) == living
        assert len(await store.find(EVERYTHING)) == 5

    async def test_what_was_known_at_a_moment_is_what_had_been_written(self, store: Records) -> None:
        await store.write(*(put(f"i{n}", [1, 0, 0, 0], "word", created_at=START + n * SECOND) for n in range(4)))
        where = Where(SPACE, known_at=START + SECOND)
        assert ids(await store.find(where)) == ["i1", "i0"]
        assert ids(await store.nearest(where, vector(1, 0, 0, 0))) == ["i0", "i1"]
        assert ids((await store.matching(where, ("word",))).found) == ["i0", "i1"]

    async def test_what_was_open_at_a_moment_had_not_been_replaced_by_then(self, store: Records) -> None:
        await store.write(
            put("current", valid_from=START - SECOND),
            put("ended", valid_to=START - SECOND),
            put("replaced", valid_to=START, superseded_by="current"),
            put("replaced without a time", superseded_by="current"),
        )
        every = {"current", "ended", "replaced", "replaced without a time"}
        assert set(ids(await store.find(Where(SPACE, open_at=START - SECOND)))) == every
        assert set(ids(await store.find(Where(SPACE, open_at=START)))) == every - {"replaced"}

    async def test_importance_and_key_narrow(self, store: Records) -> None:
        await store.write(
            put("a", importance=0.2, key="k"), put("b", importance=0.8, key="k"), put("c", importance=0.9)
        )
        assert set(ids(await store.find(Where(SPACE, min_importance=0.8)))) == {"b", "c"}
        assert set(ids(await store.find(Where(SPACE, key="k")))) == {"a", "b"}
        assert ids(await store.find(Where(SPACE, key="k", min_importance=0.5))) == ["b"]
        assert await store.find(Where(SPACE, key="K")) == []

    async def test_a_search_may_be_kept_to_some_items(self, store: Records) -> None:
        names = ["a", "b", "c\x00", "é"]
        await store.write(*(put(name, [1, 0, 0, 0], "word") for name in names))
        for chosen in ({"a", "é"}, {"c\x00", "nobody"}, set()):
            where = Where(SPACE, ids=frozenset(chosen))
            expected = sorted(chosen.intersection(names))
            assert sorted(ids(await store.find(where))) == expected
            assert ids(await store.nearest(where, vector(1, 0, 0, 0))) == expected
            assert ids((await store.matching(where, ("word",))).found) == expected

    async def test_a_filter_narrows_the_turns_around_a_place(self, store: Records) -> None:
        await store.write(*(turn(f"t{n}", "s", n, importance=n / 10) for n in range(6)))
        found = await store.around(Where(SPACE, min_importance=0.3), [("s", 3.0)], reach=2)
        assert [brief.id for brief in found] == ["t3", "t4", "t5"]


async def _write_sample(store: Records) -> None:
    await store.write(
        put("a", [1, 0, 0, 0], "word", metadata=METADATA, source="web", trust=0.75, key="k", turn=Turn("s", 2)),
        put("decoy", [0, 1, 0, 0], "another", created_at=START - 9 * SECOND, source="none"),
    )
    await store.write(Touch(SPACE, ("a",), START), Touch(SPACE, ("a",), START))


async def _found_everywhere(store: Records, given: dict[str, Any]) -> bool:
    """Whether the filter takes the sample; the three ways of searching have to be of one opinion."""
    where = Where(SPACE, conditions=parse_where(given))
    opinions = {
        "a" in ids(await store.find(where)),
        "a" in ids(await store.nearest(where, vector(1, 0, 0, 0))),
        "a" in ids((await store.matching(where, ("word",))).found),
    }
    assert len(opinions) == 1, given
    return opinions.pop()
