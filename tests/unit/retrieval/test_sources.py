"""Concurrent queries of several sources, duplicate lines, and failed sources."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from recollect.errors import BadQuery, EmbedderFailed, StoreClosed, StoreCorrupt, StoreUnavailable
from recollect.language.recalled_text import KNOWLEDGE_SECTION, RECENT_SECTION
from recollect.retrieval.prompt_block import PromptLine
from recollect.retrieval.sources import RecallSource, SourceResult, dedupe_lines, query_sources
from recollect.types import Hit, MemoryItem, Scope, Why

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(content: str, id: str | None = None, *, precedence: int = 0, worth: float = 0.5, **more) -> PromptLine:
    item = MemoryItem(
        id=id or content,
        content=content,
        scope=Scope(),
        created_at=NOW,
        derived_from=more.pop("derived_from", ()),
    )
    section = KNOWLEDGE_SECTION if precedence else RECENT_SECTION
    return PromptLine(
        hit=Hit(item, "semantic", worth, worth, Why()), section=section, priority=worth, precedence=precedence, **more
    )


def source(name: str, answer: object = None, *, patience: float = 5.0, stored: bool = True) -> RecallSource:
    async def ask() -> SourceResult:
        if isinstance(answer, BaseException):
            raise answer
        return SourceResult([answer]) if isinstance(answer, PromptLine) else SourceResult()

    return RecallSource(name=name, query=ask, timeout=patience, is_stored=stored)


def contents_of(lines) -> list[str]:
    return [one.hit.item.content for one in lines]


class TestConcurrentQueries:
    async def test_sources_run_concurrently_and_results_keep_their_order(self):
        all_started = asyncio.Barrier(3)

        def waiting(name: str) -> RecallSource:
            async def ask() -> SourceResult:
                await all_started.wait()
                return SourceResult([line(name)])

            return RecallSource(name=name, query=ask, timeout=5.0)

        found = await query_sources([waiting("a"), waiting("b"), waiting("c")])
        assert contents_of(found.lines) == ["a", "b", "c"]

    async def test_slow_source_is_started_first_and_listed_in_order(self):
        started: list[str] = []

        def make_recording_source(name: str, *, slow: bool = False) -> RecallSource:
            async def ask() -> SourceResult:
                started.append(name)
                return SourceResult([line(name)])

            return RecallSource(name=name, query=ask, timeout=5.0, is_slow=slow)

        found = await query_sources(
            [make_recording_source("a"), make_recording_source("b"), make_recording_source("c", slow=True)]
        )
        assert (started, contents_of(found.lines)) == (["c", "a", "b"], ["a", "b", "c"])

    async def test_equal_warnings_are_reported_once(self):
        async def warn() -> SourceResult:
            return SourceResult(warnings=["the facts could not be looked up"])

        found = await query_sources([RecallSource(name=name, query=warn, timeout=5.0) for name in ("said", "happened")])
        assert found.warnings == ["the facts could not be looked up"]

    async def test_cancel_cancels_all_sources(self):
        hanging_count, ended = asyncio.Semaphore(0), []

        async def hang() -> SourceResult:
            hanging_count.release()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)
            return SourceResult()

        asking = asyncio.create_task(
            query_sources([RecallSource(name=name, query=hang, timeout=60.0) for name in "abc"])
        )
        for _ in range(3):
            await hanging_count.acquire()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(ended) == 3

    async def test_no_sources_return_an_empty_result(self):
        assert await query_sources([]) == SourceResult([], [], [])


class TestFailure:
    @pytest.mark.parametrize(
        "error",
        [StoreUnavailable("down"), StoreCorrupt("no"), OSError("gone"), ConnectionError("cut"), EmbedderFailed("hm")],
        ids=lambda error: type(error).__name__,
    )
    async def test_failed_source_is_omitted_with_a_warning(self, error: Exception):
        found = await query_sources([source("episodic", error), source("semantic", line("a fact"))])
        assert contents_of(found.lines) == ["a fact"]
        assert list(found.warnings) == [f"episodic memory could not be read: {error}; its part is missing"]

    async def test_timed_out_source_is_omitted_with_a_warning(self):
        async def hang() -> SourceResult:
            await asyncio.Event().wait()
            return SourceResult()

        slow = RecallSource(name="episodic", query=hang, timeout=0.01)
        found = await query_sources([slow, source("semantic", line("a fact"))])
        assert contents_of(found.lines) == ["a fact"]
        assert "no answer within 0.01 s" in found.warnings[0]

    async def test_other_sources_are_served_even_if_empty(self):
        found = await query_sources([source("episodic", StoreUnavailable("down")), source("semantic")])
        assert not found.lines
        assert len(found.warnings) == 1

    async def test_if_all_sources_fail_the_first_error_is_raised(self):
        down = [source("episodic", StoreUnavailable("first")), source("semantic", StoreCorrupt("second"))]
        with pytest.raises(StoreUnavailable, match="first"):
            await query_sources([source("working", stored=False), *down])

    async def test_local_sources_are_served_if_all_stores_fail(self):
        found = await query_sources(
            [source("working", line("the task"), stored=False), source("semantic", StoreUnavailable("down"))]
        )
        assert contents_of(found.lines) == ["the task"]
        assert len(found.warnings) == 1

    @pytest.mark.parametrize(
        "error",
        [BadQuery("n is negative"), StoreClosed("closed"), TypeError("a slip"), KeyError("a slip")],
        ids=lambda error: type(error).__name__,
    )
    async def test_other_errors_are_raised(self, error: Exception):
        with pytest.raises(type(error)) as raised:
            await query_sources([source("episodic", error), source("semantic", line("a fact"))])
        assert raised.value is error


class TestDedupeLines:
    def test_case_spaces_and_punctuation_are_ignored(self):
        kept = dedupe_lines([line("It is  ON the shelf!"), line("it is on the shelf", precedence=1), line("Another.")])
        assert contents_of(kept) == ["it is on the shelf", "Another."]
        assert [twin.content for twin in kept[0].duplicates] == ["It is  ON the shelf!"]

    def test_kept_line_is_chosen_by_precedence_priority_and_order(self):
        assert [
            one.precedence for one in dedupe_lines([line("a", "1", precedence=1), line("A", "2", precedence=2)])
        ] == [2]
        assert [one.priority for one in dedupe_lines([line("a", "1", worth=0.9), line("A", "2", worth=0.1)])] == [0.9]
        assert [one.hit.item.id for one in dedupe_lines([line("a", "1"), line("A", "2")])] == ["2"]

    def test_kept_line_has_the_priority_of_its_best_duplicate(self):
        [kept] = dedupe_lines([line("a", "1", worth=0.9), line("A", "2", worth=0.1, precedence=2)])
        assert (kept.hit.item.id, kept.priority, kept.hit.relevance) == ("2", 0.9, 0.9)

    def test_fact_in_other_words_keeps_its_own_priority(self):
        fact = line("Ada uses metric units.", precedence=4, worth=0.3, derived_from=("e1",))
        [kept] = dedupe_lines([line("metric, please, and the flat is in Lisbon", "e1", worth=0.9), fact])
        assert (kept.priority, kept.hit.relevance) == (0.3, 0.3)

    def test_fact_replaces_its_sources(self):
        fact = line("Ada uses metric units.", precedence=4, derived_from=("e1", "e2"))
        kept = dedupe_lines([line("let us use metric, please", "e1"), line("unrelated", "e3"), fact])
        assert contents_of(kept) == ["unrelated", "Ada uses metric units."]
        assert [twin.id for twin in kept[1].duplicates] == ["e1"]

    def test_line_with_several_texts_replaces_each_of_them(self):
        task = line("Task: count\nGoal: finish", precedence=5, texts=("count", "finish"))
        assert contents_of(dedupe_lines([line("Count."), line("Finish!"), line("Rest."), task])) == [
            "Rest.",
            "Task: count\nGoal: finish",
        ]

    def test_texts_of_only_punctuation_are_kept_apart(self):
        assert contents_of(dedupe_lines([line(":-)"), line("?!")])) == [":-)", "?!"]

    def test_long_texts_with_different_endings_are_kept_apart(self):
        long = "word " * 2000
        assert len(dedupe_lines([line(long, "1"), line(long.upper(), "2"), line(long + "more", "3")])) == 2
