"""Many sources at once: what each has, each text once, and what happens when one of them is down."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from recollect.errors import BadQuery, EmbedderFailed, StoreClosed, StoreCorrupt, StoreUnavailable
from recollect.recall.across import Found, Source, across, each_once
from recollect.recall.lines import KNOWLEDGE, RECENT, Line
from recollect.values import Hit, MemoryItem, Scope, Why

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(content: str, id: str | None = None, *, lasts: int = 0, worth: float = 0.5, **more) -> Line:
    item = MemoryItem(
        id=id or content,
        content=content,
        scope=Scope(),
        created_at=NOW,
        derived_from=more.pop("derived_from", ()),
    )
    section = KNOWLEDGE if lasts else RECENT
    return Line(hit=Hit(item, "semantic", worth, worth, Why()), section=section, worth=worth, lasts=lasts, **more)


def source(name: str, answer: object = None, *, patience: float = 5.0, stored: bool = True) -> Source:
    async def ask() -> Found:
        if isinstance(answer, BaseException):
            raise answer
        return Found([answer]) if isinstance(answer, Line) else Found()

    return Source(name=name, ask=ask, patience=patience, stored=stored)


def told(lines) -> list[str]:
    return [one.hit.item.content for one in lines]


class TestTogether:
    async def test_all_are_asked_at_the_same_time_and_told_in_their_order(self):
        everybody_is_there = asyncio.Barrier(3)

        def waiting(name: str) -> Source:
            async def ask() -> Found:
                await everybody_is_there.wait()
                return Found([line(name)])

            return Source(name=name, ask=ask, patience=5.0)

        found = await across([waiting("a"), waiting("b"), waiting("c")])
        assert told(found.lines) == ["a", "b", "c"]

    async def test_who_takes_long_is_asked_first_and_told_in_turn(self):
        asked: list[str] = []

        def noted(name: str, *, slow: bool = False) -> Source:
            async def ask() -> Found:
                asked.append(name)
                return Found([line(name)])

            return Source(name=name, ask=ask, patience=5.0, slow=slow)

        found = await across([noted("a"), noted("b"), noted("c", slow=True)])
        assert (asked, told(found.lines)) == (["c", "a", "b"], ["a", "b", "c"])

    async def test_what_several_were_told_is_told_once(self):
        async def warned() -> Found:
            return Found(warnings=["the facts could not be looked up"])

        found = await across([Source(name=name, ask=warned, patience=5.0) for name in ("said", "happened")])
        assert found.warnings == ["the facts could not be looked up"]

    async def test_cancelling_cancels_all(self):
        begun, ended = asyncio.Semaphore(0), []

        async def hang() -> Found:
            begun.release()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)
            return Found()

        asking = asyncio.create_task(across([Source(name=name, ask=hang, patience=60.0) for name in "abc"]))
        for _ in range(3):
            await begun.acquire()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(ended) == 3

    async def test_nobody_to_ask_has_nothing_to_say(self):
        assert await across([]) == Found([], [], [])


class TestFailure:
    @pytest.mark.parametrize(
        "error",
        [StoreUnavailable("down"), StoreCorrupt("no"), OSError("gone"), ConnectionError("cut"), EmbedderFailed("hm")],
        ids=lambda error: type(error).__name__,
    )
    async def test_a_source_that_is_down_is_left_out_with_a_warning(self, error: Exception):
        found = await across([source("episodic", error), source("semantic", line("a fact"))])
        assert told(found.lines) == ["a fact"]
        assert list(found.warnings) == [f"episodic memory could not be read: {error}; its part is missing"]

    async def test_one_that_takes_too_long_is_left_out(self):
        async def hang() -> Found:
            await asyncio.Event().wait()
            return Found()

        slow = Source(name="episodic", ask=hang, patience=0.01)
        found = await across([slow, source("semantic", line("a fact"))])
        assert told(found.lines) == ["a fact"]
        assert "no answer within 0.01 s" in found.warnings[0]

    async def test_the_rest_is_served_even_if_it_has_nothing(self):
        found = await across([source("episodic", StoreUnavailable("down")), source("semantic")])
        assert not found.lines
        assert len(found.warnings) == 1

    async def test_when_all_are_down_the_first_error_is_raised(self):
        down = [source("episodic", StoreUnavailable("first")), source("semantic", StoreCorrupt("second"))]
        with pytest.raises(StoreUnavailable, match="first"):
            await across([source("working", stored=False), *down])

    async def test_what_is_in_this_process_is_served_when_every_store_is_down(self):
        found = await across(
            [source("working", line("the task"), stored=False), source("semantic", StoreUnavailable("down"))]
        )
        assert told(found.lines) == ["the task"]
        assert len(found.warnings) == 1

    @pytest.mark.parametrize(
        "error",
        [BadQuery("n is negative"), StoreClosed("closed"), TypeError("a slip"), KeyError("a slip")],
        ids=lambda error: type(error).__name__,
    )
    async def test_every_other_error_is_the_callers_to_see(self, error: Exception):
        with pytest.raises(type(error)) as raised:
            await across([source("episodic", error), source("semantic", line("a fact"))])
        assert raised.value is error


class TestEachOnce:
    def test_case_spaces_and_punctuation_make_no_difference(self):
        kept = each_once([line("It is  ON the shelf!"), line("it is on the shelf", lasts=1), line("Another.")])
        assert told(kept) == ["it is on the shelf", "Another."]
        assert [twin.content for twin in kept[0].twins] == ["It is  ON the shelf!"]

    def test_what_lasts_longest_stays_then_what_is_worth_most_then_the_later(self):
        assert [one.lasts for one in each_once([line("a", "1", lasts=1), line("A", "2", lasts=2)])] == [2]
        assert [one.worth for one in each_once([line("a", "1", worth=0.9), line("A", "2", worth=0.1)])] == [0.9]
        assert [one.hit.item.id for one in each_once([line("a", "1"), line("A", "2")])] == ["2"]

    def test_the_one_that_stays_is_worth_as_much_as_the_best_that_says_the_same(self):
        [kept] = each_once([line("a", "1", worth=0.9), line("A", "2", worth=0.1, lasts=2)])
        assert (kept.hit.item.id, kept.worth, kept.hit.relevance) == ("2", 0.9, 0.9)

    def test_a_fact_in_other_words_is_worth_what_it_says(self):
        fact = line("Ada uses metric units.", lasts=4, worth=0.3, derived_from=("e1",))
        [kept] = each_once([line("metric, please, and the flat is in Lisbon", "e1", worth=0.9), fact])
        assert (kept.worth, kept.hit.relevance) == (0.3, 0.3)

    def test_a_fact_stands_for_what_it_was_made_from(self):
        fact = line("Ada uses metric units.", lasts=4, derived_from=("e1", "e2"))
        kept = each_once([line("let us use metric, please", "e1"), line("unrelated", "e3"), fact])
        assert told(kept) == ["unrelated", "Ada uses metric units."]
        assert [twin.id for twin in kept[1].twins] == ["e1"]

    def test_a_line_of_several_texts_stands_for_each_of_them(self):
        task = line("Task: count\nGoal: finish", lasts=5, says=("count", "finish"))
        assert told(each_once([line("Count."), line("Finish!"), line("Rest."), task])) == [
            "Rest.",
            "Task: count\nGoal: finish",
        ]

    def test_texts_of_signs_alone_are_told_apart(self):
        assert told(each_once([line(":-)"), line("?!")])) == [":-)", "?!"]

    def test_long_texts_are_the_same_only_when_they_are_as_long(self):
        long = "word " * 2000
        assert len(each_once([line(long, "1"), line(long.upper(), "2"), line(long + "more", "3")])) == 2
