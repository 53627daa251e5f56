"""What a store promises of items: batches, versions, scopes, pages and places in a dialogue."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from recollect.errors import BadInput, BadQuery, BadVector, Conflict, EmbeddingModelMismatch, StoreClosed
from recollect.stores.base import Records
from recollect.stores.ops import Delete, Put, Touch
from recollect.stores.where import Where
from recollect.testing.samples import (
    ADA,
    ADA_ELSEWHERE,
    BOB,
    EVERYTHING,
    MODEL,
    OTHER_MODEL,
    SECOND,
    SPACE,
    START,
    ids,
    item,
    put,
    turn,
    vector,
)
from recollect.values import Scope, Turn

WIDE = "nul \x00, quote ' \" ; --, emoji 👩‍👩‍👧, right to left \u202eabc, combining e\u0301, 漢字, \r\n\t end"


class ItemsContract:
    """Kept whole, found by id, and never by a neighbour."""

    pytestmark = pytest.mark.asyncio

    async def test_an_item_comes_back_as_it_was_given(self, store: Records) -> None:
        given = item(
            "a",
            WIDE,
            metadata={"n": 1, "r": 0.5, "t": True, "z": None, "l": [1, "x"], "o": {"p": WIDE}},
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

    async def test_an_item_can_be_pinned_aged_and_let_loose_again(self, store: Records) -> None:
        await store.write(put("a"))
        there = datetime(2026, 1, 1, 9, 30, tzinfo=timezone(timedelta(hours=9)))
        await store.write(put("a", pinned=True, decayed_at=there, learned_at=there))
        [aged] = await store.find(EVERYTHING)
        assert (aged.pinned, aged.decayed_at, aged.learned_at) == (True, there, there)
        assert aged.decayed_at is not None and aged.decayed_at.utcoffset() == timedelta(0)
        await store.write(put("a"))
        [loose] = await store.get(SPACE, "a")
        assert (loose.pinned, loose.decayed_at, loose.learned_at) == (False, None, None)

    async def test_every_tier_keeps_its_own_items(self, store: Records) -> None:
        episode = item("a", tier="episodic", scope=Scope(user="ada", session="s1"))
        await store.write(put("a"), Put(item=episode))
        assert await store.get(episode.scope.space("episodic"), "a") == [episode]
        assert await store.get(SPACE, "a") == [item("a")]

    async def test_times_come_back_in_utc(self, store: Records) -> None:
        there = datetime(2026, 1, 1, 9, 30, tzinfo=timezone(timedelta(hours=9)))
        naive = datetime(2026, 1, 1)  # noqa: DTZ001 - a user may give one; it is taken as UTC
        await store.write(put("east", created_at=there), put("naive", created_at=naive))
        east, plain = await store.get(SPACE, "east", "naive")
        assert (east.created_at, east.created_at.utcoffset()) == (there, timedelta(0))
        assert plain.created_at == START

    async def test_get_answers_in_the_order_asked_for_and_leaves_out_what_is_not_there(self, store: Records) -> None:
        await store.write(put("a"), put("b"), put("c"))
        assert ids(await store.get(SPACE, "c", "nobody", "a", "c")) == ["c", "a"]
        assert await store.get(SPACE) == []
        assert await store.get(BOB.space("semantic"), "a") == []

    async def test_strange_ids_are_ids_like_others(self, store: Records) -> None:
        names = [WIDE, "a\x00", "a", "A", "a ", "%", "*", "null", "1", "é", "e\u0301", "x" * 10_000]
        await store.write(*(put(name) for name in names))
        assert ids(await store.get(SPACE, *names)) == names
        await store.write(Delete(SPACE, "a"))
        assert ids(await store.get(SPACE, *names)) == [name for name in names if name != "a"]

    async def test_a_huge_text_is_kept(self, store: Records) -> None:
        huge = "many words " * 200_000
        await store.write(put("a", content=huge, metadata={"copy": huge}))
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.metadata["copy"]) == (huge, huge)

    async def test_a_batch_lands_whole_or_not_at_all(self, store: Records) -> None:
        await store.write(put("old", [1, 0, 0, 0], "before", metadata={"was": 1}))
        before = await store.get(SPACE, "old")
        refused = Put(item=item("late"), expect=7)
        with pytest.raises(Conflict):
            await store.write(
                put("new", [0, 1, 0, 0], "fresh", metadata={"path": 1}),
                put("old", [0, 0, 1, 0], "after"),
                Touch(SPACE, ("old",), START),
                Delete(SPACE, "old"),
                put("old", [0, 0, 0, 1]),
                refused,
            )
        assert await store.get(SPACE, "old", "new", "late") == before
        assert await store.paths(SPACE) == {"was"}
        assert [(one.brief.id, one.score) for one in await store.nearest(EVERYTHING, vector(1, 0, 0, 0))] == [
            ("old", 1)
        ]
        assert ids((await store.matching(EVERYTHING, ("before", "after", "fresh"))).found) == ["old"]
        [count] = await store.spaces()
        assert count.items == 1

    async def test_later_writes_of_a_batch_see_the_earlier_ones(self, store: Records) -> None:
        await store.write(put("a"), Put(item=item("a", "again"), expect=1), Delete(SPACE, "a"), put("a", content="new"))
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.version) == ("new", 1)

    async def test_a_stale_expect_is_refused(self, store: Records) -> None:
        await store.write(Put(item=item("a"), expect=0))
        await store.write(Put(item=item("a", "second"), expect=1))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(Put(item=item("a", "third"), expect=stale))
        with pytest.raises(Conflict, match="not there"):
            await store.write(Put(item=item("b"), expect=1))
        assert [(one.content, one.version) for one in await store.get(SPACE, "a", "b")] == [("second", 2)]

    async def test_a_delete_may_expect_a_version_too(self, store: Records) -> None:
        await store.write(put("a"), put("b"))
        await store.write(put("a"))
        for stale in (0, 1, 3):
            with pytest.raises(Conflict, match="at version 2"):
                await store.write(Delete(SPACE, "b"), Delete(SPACE, "a", expect=stale))
        with pytest.raises(Conflict, match="not there"):
            await store.write(Delete(SPACE, "b"), Delete(SPACE, "nobody", expect=1))
        assert ids(await store.get(SPACE, "a", "b")) == ["a", "b"]
        await store.write(Delete(SPACE, "a", expect=2))
        assert ids(await store.find(EVERYTHING)) == ["b"]

    async def test_an_item_brings_the_accesses_it_had_elsewhere(self, store: Records) -> None:
        await store.write(put("a", access_count=7, last_accessed=START))
        await store.write(put("a", access_count=99, last_accessed=START + SECOND))  # there already: its own count stays
        [found] = await store.get(SPACE, "a")
        assert (found.access_count, found.last_accessed) == (7, START)

    async def test_a_put_over_an_item_keeps_its_access_its_words_and_its_vectors(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0], "apple"), Touch(SPACE, ("a",), START))
        await store.write(put("a", content="changed"))
        [found] = await store.get(SPACE, "a")
        assert (found.content, found.version, found.access_count, found.last_accessed) == ("changed", 2, 1, START)
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["a"]
        assert ids((await store.matching(EVERYTHING, ("apple",))).found) == ["a"]

    async def test_a_touch_counts_and_does_not_change_the_version(self, store: Records) -> None:
        await store.write(put("a"), put("b"))
        await store.write(Touch(SPACE, ("a", "nobody"), START + SECOND))
        await store.write(Touch(SPACE, ("a",), START))  # arrives late: the last access stays the later one
        a, b = await store.get(SPACE, "a", "b")
        assert (a.version, a.access_count, a.last_accessed) == (1, 2, START + SECOND)
        assert (b.version, b.access_count, b.last_accessed) == (1, 0, None)
        await store.write(Put(item=a, expect=1))

    async def test_an_access_that_nobody_waited_for_is_seen_by_whoever_asks_next(self, store: Records) -> None:
        await store.write(put("a"))
        for round in range(1, 20):
            store.touch(Touch(SPACE, ("a",), START))
            assert (await store.get(SPACE, "a"))[0].access_count == round
            assert (await store.find(EVERYTHING))[0].access_count == round

    async def test_a_speaker_is_known_as_long_as_something_is_kept_of_what_was_said(self, store: Records) -> None:
        await store.write(turn("a", "s", 0, "Ada"), turn("b", "s", 1, "Bo"), turn("c", "s", 2, "Bo"), put("d"))
        assert await store.speakers(SPACE) == {"Ada", "Bo"}
        await store.write(Delete(SPACE, "a"), Delete(SPACE, "b"))
        assert await store.speakers(SPACE) == {"Bo"}

    async def test_a_delete_leaves_nothing_to_be_found(self, store: Records) -> None:
        await store.write(
            turn("a", "s", 1, vector=[1, 0, 0, 0], terms="apple", key="k"),
            turn("b", "s", 2, vector=[1, 0, 0, 0], terms="apple pear"),
        )
        await store.write(Delete(SPACE, "a"), Delete(SPACE, "nobody"))
        assert await store.get(SPACE, "a") == []
        assert ids(await store.find(EVERYTHING)) == ["b"]
        assert await store.find(Where(SPACE, key="k")) == []
        assert ids(await store.nearest(EVERYTHING, vector(1, 0, 0, 0))) == ["b"]
        assert ids((await store.matching(EVERYTHING, ("apple",))).found) == ["b"]
        assert [brief.id for brief in await store.around(EVERYTHING, [("s", 1.0)])] == ["b"]
        assert ids(await store.last_turns(SPACE, "s", limit=9)) == ["b"]
        await store.write(Delete(SPACE, "b"))
        assert await store.spaces() == []

    async def test_a_scope_never_sees_its_neighbour(self, store: Records) -> None:
        neighbours = [
            ADA,
            BOB,
            ADA_ELSEWHERE,
            Scope(tenant="acme", user="ad", agent="ahelper"),
            Scope(tenant="acme", user="ada\\", agent="helper"),
            Scope(tenant="acme/semantic", user="ada", agent="helper"),
        ]
        for index, scope in enumerate(neighbours):
            place = Turn("s", 1)
            await store.write(
                put("same", [1, 0, 0, 0], "word", scope=scope, turn=place, key="k", metadata={f"p{index}": index})
            )
            await store.write(put(f"own{index}", [1, 0, 0, 0], "word", scope=scope, turn=place))
        await store.write(Delete(BOB.space("semantic"), "same"))
        for index, scope in enumerate(neighbours):
            where = Where(scope.space("semantic"))
            mine = [f"own{index}"] if scope == BOB else [f"own{index}", "same"]
            assert ids(await store.get(where.space, *mine, *(f"own{n}" for n in range(6) if n != index))) == mine
            assert sorted(ids(await store.find(where))) == mine
            assert ids(await store.nearest(where, vector(1, 0, 0, 0), limit=100)) == mine
            assert ids((await store.matching(where, ("word",), limit=100)).found) == mine
            assert sorted(brief.id for brief in await store.around(where, [("s", 1.0)])) == mine
            assert sorted(ids(await store.last_turns(where.space, "s", limit=100))) == mine
            assert await store.paths(where.space) == {f"p{index}"}
            assert all(one.scope == scope for one in await store.find(where))

    async def test_pages_follow_one_another_without_gap_or_repeat(self, store: Records) -> None:
        # Some share a moment: there the id decides.
        await store.write(*(put(f"i{n:02}", created_at=START + (n // 3) * SECOND) for n in range(25)))
        seen: list[str] = []
        page = await store.find(EVERYTHING, limit=4)
        while page:
            seen += ids(page)
            page = await store.find(EVERYTHING, limit=4, after=page[-1])
        assert seen == [f"i{n:02}" for n in reversed(range(25))]

    async def test_a_limit_is_kept(self, store: Records) -> None:
        await store.write(*(turn(f"i{n}", "s", n, vector=[1, n, 0, 0], terms="word") for n in range(5)))
        for limit in (0, 1, 5, 10**6, 10**30):
            expected = min(limit, 5)
            assert len(await store.find(EVERYTHING, limit=limit)) == expected
            assert len(await store.nearest(EVERYTHING, vector(1, 0, 0, 0), limit=limit)) == expected
            assert len((await store.matching(EVERYTHING, ("word",), limit=limit)).found) == expected
            assert len(await store.last_turns(SPACE, "s", limit=limit)) == expected
        with pytest.raises(BadQuery):
            await store.find(EVERYTHING, limit=-1)
        with pytest.raises(BadQuery):
            await store.nearest(EVERYTHING, vector(1, 0, 0, 0), limit=-1)

    async def test_turns_around_a_place_are_found(self, store: Records) -> None:
        await store.write(*(turn(f"t{n}", "s", n, speaker=f"p{n % 2}") for n in range(10)))
        await store.write(turn("half", "s", 4.5), turn("other", "z", 4), put("loose"))
        found = await store.around(EVERYTHING, [("s", 4.0)])
        assert [brief.id for brief in found] == ["t3", "t4", "half", "t5"]
        assert (found[0].session, found[0].position, found[0].speaker) == ("s", 3.0, "p1")
        found = await store.around(EVERYTHING, [("s", 0.0), ("z", 4.0), ("s", 1.0), ("nowhere", 1.0)], reach=2)
        assert [brief.id for brief in found] == ["t0", "t1", "t2", "t3", "other"]
        assert [brief.id for brief in await store.around(EVERYTHING, [("s", 7.0)], reach=0)] == ["t7"]
        assert await store.around(EVERYTHING, []) == []

    async def test_the_last_turns_come_highest_first(self, store: Records) -> None:
        await store.write(*(turn(f"t{n}", "s", n) for n in (3, 1, 2)), turn("x", "other", 9), put("loose"))
        assert ids(await store.last_turns(SPACE, "s")) == ["t3"]
        assert ids(await store.last_turns(SPACE, "s", limit=2)) == ["t3", "t2"]
        assert await store.last_turns(SPACE, "nowhere") == []

    async def test_the_paths_are_those_that_were_ever_carried(self, store: Records) -> None:
        await store.write(put("a", metadata={"x": 1, "o": {"p": {"q": 2}}}), put("b", metadata={"y": [{"z": 1}]}))
        await store.write(Delete(SPACE, "b"))
        assert await store.paths(SPACE) == {"x", "o", "o.p", "o.p.q", "y"}

    async def test_the_speakers_are_those_who_speak(self, store: Records) -> None:
        await store.write(turn("a", "s", 1, "Ada"), turn("b", "t", 1, "Bob"), turn("c", "s", 2), put("d"))
        await store.write(turn("e", "s", 1, "Eve", scope=BOB))
        assert await store.speakers(SPACE) == {"Ada", "Bob"}

    async def test_a_store_knows_its_size(self, store: Records) -> None:
        await store.write(put("a", content="x" * 100_000))
        assert await store.size() >= 100_000

    async def test_spaces_are_counted(self, store: Records) -> None:
        await store.write(put("a"), put("b", created_at=START + SECOND), put("c", scope=ADA_ELSEWHERE))
        await store.write(put("a"), Delete(BOB.space("semantic"), "nobody"))
        mine, elsewhere = await store.spaces()
        assert (mine.space, mine.items, mine.newest) == (SPACE, 2, START + SECOND)
        assert (elsewhere.space, elsewhere.items) == (ADA_ELSEWHERE.space("semantic"), 1)
        assert await store.spaces("globex") == [elsewhere]
        assert await store.spaces("nobody") == []

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(lambda: put("a", content="half \ud800"), id="half a character"),
            pytest.param(lambda: put("\udfff"), id="half a character in the id"),
            pytest.param(lambda: put("a", metadata={"x": ["\ud800"]}), id="half a character in the metadata"),
            pytest.param(lambda: put("a", metadata={"x": float("nan")}), id="not a number"),
            pytest.param(lambda: put("a", metadata={"x": {1, 2}}), id="no JSON"),
            pytest.param(lambda: put("a", metadata={"x": b"raw"}), id="bytes"),
            pytest.param(lambda: turn("a", "s", float("nan")), id="a position that is no number"),
            pytest.param(lambda: replace(put("a"), terms=("two words",)), id="a term with a space"),
            pytest.param(lambda: replace(put("a"), terms=("",)), id="an empty term"),
            pytest.param(lambda: put(""), id="an empty id"),
            pytest.param(lambda: replace(put("a", [1, 0, 0, 0]), model=None), id="vectors of no model"),
        ],
    )
    async def test_what_cannot_be_stored_is_refused_with_the_whole_batch(self, store: Records, bad: object) -> None:
        assert callable(bad)
        with pytest.raises(BadInput):
            await store.write(put("good"), bad())
        assert await store.find(EVERYTHING) == []

    @pytest.mark.parametrize(
        "numbers",
        [[1, 2, 3], [1, 2, 3, 4, 5], [1, float("nan"), 0, 0], [float("inf"), 0, 0, 0], [[1, 0, 0, 0]] * 65],
        ids=["short", "long", "nan", "infinite", "too many passages"],
    )
    async def test_a_bad_vector_is_refused(self, store: Records, numbers: list[float]) -> None:
        with pytest.raises(BadVector):
            await store.write(put("good", [1, 0, 0, 0]), put("bad", numbers))
        assert await store.find(EVERYTHING) == []

    async def test_vectors_of_another_model_are_refused(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0]))
        with pytest.raises(EmbeddingModelMismatch, match=r"sample.*another"):
            await store.write(put("b"), Put(item=item("c"), vectors=vector(1, 0, 0)[None], model=OTHER_MODEL))
        assert ids(await store.find(EVERYTHING)) == ["a"]
        assert await store.model() == MODEL

    async def test_a_sound_store_has_no_complaints(self, store: Records) -> None:
        await store.write(put("a", [1, 0, 0, 0], "word"), put("b", [0, 1, 0, 0]))
        await store.write(put("a", [0, 1, 0, 0], "another word"), Delete(SPACE, "b"))
        assert await store.check() == []

    async def test_a_closed_store_says_so(self, store: Records) -> None:
        await store.write(put("a"))
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.write(put("b"))
        with pytest.raises(StoreClosed):
            await store.get(SPACE, "a")
