"""Episodic memory: the events of a session, kept for a day, newest last, searchable by terms."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from recollect.errors import BadInput, BadQuery
from recollect.settings import TIERS, Settings
from recollect.stores.factory import TierStores, open_stores
from recollect.testing import ManualClock
from recollect.tiers.episodic import EPISODE_KINDS, EpisodicMemory
from recollect.types import Scope
from tests.cases import Case

ADA = Scope(tenant="acme", user="ada", agent="helper", session="s1")
HOUR = timedelta(hours=1)

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
DEEP: Any = "bottom"
for _ in range(80):
    DEEP = {"in": DEEP}

Maker = Callable[..., EpisodicMemory]


def with_tier(**changes: Any) -> Settings:
    return Settings(tiers=tuple(replace(tier, **changes) if tier.name == "episodic" else tier for tier in TIERS))


@pytest_asyncio.fixture
async def stores(place: str, clock: ManualClock) -> AsyncIterator[TierStores]:
    opened = await open_stores(place, Settings(), clock)
    yield opened
    await opened.close()


@pytest.fixture
def make(stores: TierStores, clock: ManualClock) -> Maker:
    def make_one(scope: Scope = ADA, settings: Settings | None = None) -> EpisodicMemory:
        return EpisodicMemory(stores.log("episodic"), scope=scope, settings=settings or Settings(), clock=clock)

    return make_one


@pytest.fixture
def episodic(make: Maker) -> EpisodicMemory:
    return make()


async def list_contents(episodic: EpisodicMemory, n: int = 10_000, **options: Any) -> list[str]:
    return [episode.content for episode in await episodic.get_recent(n, **options)]


class TestStore:
    async def test_stored_episode_is_returned_unchanged(self, episodic: EpisodicMemory, clock: ManualClock):
        at = datetime(2025, 12, 31, 23, tzinfo=UTC)
        kept = await episodic.store(
            "Chose the aisle seat.", kind="decision", importance=0.9, metadata={"whole": {"a": [1, None]}}, at=at
        )
        assert (kept.content, kept.kind, kept.importance, kept.at) == ("Chose the aisle seat.", "decision", 0.9, at)
        assert (kept.metadata, kept.session, kept.whole) == ({"whole": {"a": [1, None]}}, "s1", None)
        assert kept.expires_at == clock.now + 24 * HOUR
        assert await episodic.get_recent() == [kept]

    async def test_get_recent_returns_newest_last(self, episodic: EpisodicMemory):
        for n in range(20):
            await episodic.store(f"episode {n}")
        assert await list_contents(episodic, 3) == ["episode 17", "episode 18", "episode 19"]
        assert len(await episodic.get_recent()) == 10
        assert await episodic.get_recent(0) == []

    async def test_store_same_content_twice_creates_two_episodes(self, episodic: EpisodicMemory):
        await episodic.store("ok")
        await episodic.store("ok")
        assert await list_contents(episodic) == ["ok", "ok"]

    async def test_store_same_id_twice_returns_the_first_episode(self, episodic: EpisodicMemory, clock: ManualClock):
        first = await episodic.store("as first told", id="turn-1")
        clock.forward(HOUR)
        for n in range(50):
            await episodic.store(f"episode {n}")
        again = await episodic.store("told otherwise", id="turn-1", kind="error")
        assert again == first
        assert (await list_contents(episodic)).count("as first told") == 1
        assert "told otherwise" not in await list_contents(episodic)

    async def test_importance_depends_on_content_and_kind(self, episodic: EpisodicMemory):
        plain = await episodic.store("The page was empty.")
        asked = await episodic.store("Remember that I prefer metric units.")
        errors = [await episodic.store("The page was empty.", kind=kind) for kind in ("error", "decision", "outcome")]
        assert asked.importance > plain.importance
        assert all(episode.importance > plain.importance for episode in errors)

    async def test_concurrent_stores_keep_every_episode(self, episodic: EpisodicMemory, make: Maker):
        others = [make(), make()]
        await asyncio.gather(*(others[n % 2].store(f"episode {n}") for n in range(60)))
        assert sorted(await list_contents(episodic)) == sorted(f"episode {n}" for n in range(60))


class TestLimits:
    async def test_episode_older_than_a_day_is_hidden(self, episodic: EpisodicMemory, clock: ManualClock):
        await episodic.store("yesterday's cello")
        clock.forward(23 * HOUR)
        await episodic.store("today's cello")
        assert await list_contents(episodic) == ["yesterday's cello", "today's cello"]
        clock.forward(HOUR)
        assert await list_contents(episodic) == ["today's cello"]
        assert [episode.content for episode in await episodic.search("cello")] == ["today's cello"]
        clock.forward(23 * HOUR)
        assert await list_contents(episodic) == []
        assert await episodic.sessions() == []

    async def test_episode_with_past_time_expires_a_day_after_it_is_stored(
        self, episodic: EpisodicMemory, clock: ManualClock
    ):
        await episodic.store("three days ago", at=clock.now - 72 * HOUR)
        assert await list_contents(episodic) == ["three days ago"]

    async def test_session_keeps_the_newest_thousand_episodes(self, episodic: EpisodicMemory, stores: TierStores):
        drafts = [await episodic._build_append(f"episode {n}") for n in range(1005)]
        await stores.log("episodic").write(*drafts)
        await episodic.store("elsewhere", session="s2")
        assert await list_contents(episodic) == [f"episode {n}" for n in range(5, 1005)]
        assert await list_contents(episodic, session="s2") == ["elsewhere"]

    async def test_item_limit_and_ttl_come_from_settings(self, make: Maker, clock: ManualClock):
        brief = make(settings=with_tier(max_items=2, ttl_seconds=60))
        for n in range(4):
            await brief.store(f"episode {n}")
        assert await list_contents(brief) == ["episode 2", "episode 3"]
        clock.forward(timedelta(seconds=60))
        assert await list_contents(brief) == []

    async def test_episodes_without_limits_are_kept(self, make: Maker, clock: ManualClock):
        lasting = make(settings=with_tier(max_items=None, ttl_seconds=None))
        first = await lasting.store("first")
        assert first.expires_at is None
        clock.forward(timedelta(days=4000))
        assert await list_contents(lasting) == ["first"]
        assert (await make(settings=with_tier(ttl_seconds=10**18)).store("x")).expires_at is None


class TestSearch:
    async def test_search_ranks_rare_terms_first(self, episodic: EpisodicMemory):
        for text in ("The cello is in the attic.", "The attic is cold.", "We baked bread.", "The bread was cold."):
            await episodic.store(text)
        assert [episode.content for episode in await episodic.search("Where is the cello? In the attic?", 2)] == [
            "The cello is in the attic.",
            "The attic is cold.",
        ]
        assert await episodic.search("zebra") == []
        assert await episodic.search("cello", 0) == []

    async def test_search_matches_inflected_terms(self, episodic: EpisodicMemory):
        await episodic.store("She was running the migrations.")
        assert len(await episodic.search("migration run")) == 1

    async def test_search_ranks_newer_of_equal_matches_first(self, episodic: EpisodicMemory):
        for n in range(3):
            await episodic.store(f"The deploy went well, run {n}.")
        assert [episode.content[-2] for episode in await episodic.search("deploy")] == ["2", "1", "0"]

    async def test_search_ranks_newer_of_close_matches_first(self, episodic: EpisodicMemory, clock: ManualClock):
        await episodic.store("The deploy went well.")
        clock.forward(20 * HOUR)
        for text in ("The deploy went well too.", "We had soup.", "We had bread."):
            await episodic.store(text)
        assert [episode.content for episode in await episodic.search("deploy")] == [
            "The deploy went well too.",
            "The deploy went well.",
        ]

    async def test_search_ranks_better_match_before_newer_episodes(self, episodic: EpisodicMemory, clock: ManualClock):
        await episodic.store("The password of the printer is on a note.")
        clock.forward(20 * HOUR)
        for n in range(10):
            await episodic.store(f"We baked bread, {n}.")
        for n in range(2):
            await episodic.store(f"The printer hummed, {n}.")
        assert "password" in (await episodic.search("printer password"))[0].content

    async def test_search_with_stop_words_only_matches_the_phrase(self, episodic: EpisodicMemory):
        await episodic.store("We listened to The Who all night.")
        await episodic.store("Who is there?")
        assert [episode.content for episode in await episodic.search("the who")] == [
            "We listened to The Who all night."
        ]


class TestSessions:
    async def test_episodes_are_separate_per_session(self, episodic: EpisodicMemory, make: Maker):
        await episodic.store("in one")
        await episodic.store("in two", session="s2")
        nameless = make(replace(ADA, session=None))
        await nameless.store("in none")
        assert await list_contents(episodic) == ["in one"]
        assert await list_contents(episodic, session="s2") == ["in two"]
        assert [episode.content for episode in await episodic.search("two", session="s2")] == ["in two"]
        assert await episodic.search("two") == []
        assert await episodic.sessions() == ["", "s1", "s2"]
        assert [await list_contents(nameless, session=name) for name in await nameless.sessions()] == [
            ["in none"],
            ["in one"],
            ["in two"],
        ]

    @pytest.mark.parametrize("part", ["tenant", "user", "agent"])
    async def test_episodes_are_hidden_from_other_scopes(self, part: str, episodic: EpisodicMemory, make: Maker):
        await episodic.store("a secret", id="same")
        other = make(replace(ADA, **{part: "other"}))
        assert await other.get_recent() == []
        assert await other.search("secret") == []
        assert await other.sessions() == []
        assert (await other.store("mine", id="same")).content == "mine"
        assert await list_contents(episodic) == ["a secret"]


class TestToolOutput:
    LOG = "\n".join(
        [
            "building 412 modules",
            *(f"compiled module {n} in {n % 7} ms" for n in range(2000)),
            *(f"linked {chr(97 + n % 26) * (n // 26 + 1)}" for n in range(500)),
            "ValueError: bad magic number in header.bin",
            *(f"compiled module {n} in {n % 7} ms" for n in range(2000, 4000)),
            "exit status 1",
        ]
    )

    @pytest.mark.parametrize("kind", ["tool_call", "error"])
    async def test_long_tool_output_is_stored_as_an_extract(self, episodic: EpisodicMemory, kind: Any):
        kept = await episodic.store(self.LOG, kind=kind)
        assert len(kept.content) < 3000
        for line in ("building 412 modules", "ValueError: bad magic number in header.bin", "exit status 1"):
            assert line in kept.content
        assert kept.whole is not None
        assert f"[extract of {len(self.LOG):,} characters, sha256 {kept.whole.sha256[:16]}" in kept.content
        assert kept.whole.size == len(self.LOG.encode())
        assert kept.whole.sha256 == hashlib.sha256(self.LOG.encode()).hexdigest()
        assert await episodic.get_recent() == [kept]

    async def test_short_tool_output_is_stored_whole(self, episodic: EpisodicMemory):
        kept = await episodic.store("exit status 0", kind="tool_call")
        assert (kept.content, kept.whole) == ("exit status 0", None)

    async def test_long_turn_is_stored_word_for_word(self, episodic: EpisodicMemory):
        assert (await episodic.store(self.LOG)).content == self.LOG

    async def test_long_single_line_output_is_stored_as_an_extract(self, episodic: EpisodicMemory):
        text = "{" + '"k": 1, ' * 5000 + '"error": "disk full"' + ', "k": 2' * 5000 + "}"
        kept = await episodic.store(text, kind="tool_call")
        assert len(kept.content) < 3000
        assert "disk full" in kept.content

    async def test_tool_output_beyond_max_content_is_stored_as_an_extract(self, make: Maker):
        episodic = make(settings=Settings(max_content=1000))
        assert (await episodic.store(self.LOG, kind="tool_call")).whole is not None
        with pytest.raises(BadInput, match="1,000"):
            await episodic.store(self.LOG)


class TestBadInput:
    async def test_store_bad_input_raises_and_writes_nothing(self, make: Maker):
        cases: list[tuple[Any, dict[str, Any]]] = [
            ("", {}),
            (" \n", {}),
            (None, {}),
            ("a\x00b", {}),
            ("half \ud800", {}),
            ("x" * 10_000_000, {}),
            ("x", {"kind": "rumour"}),
            ("x", {"kind": ["turn"]}),
            ("x", {"importance": 1.1}),
            ("x", {"importance": float("nan")}),
            ("x", {"importance": True}),
            ("x", {"importance": "high"}),
            ("x", {"metadata": CYCLE}),
            ("x", {"metadata": DEEP}),
            ("x", {"metadata": {"a": object()}}),
            ("x", {"metadata": {"a": ["\ud800"]}}),
            ("x", {"metadata": {"a\x00": 1}}),
            ("x", {"metadata": ["a"]}),
            ("x", {"at": datetime(2026, 1, 1)}),  # noqa: DTZ001 - the point of this case
            ("x", {"at": "2026-01-01"}),
            ("x", {"id": ""}),
            ("x", {"id": 7}),
            ("x", {"id": "a\nb"}),
            ("x", {"id": "a" * 257}),
            ("x", {"session": " "}),
        ]
        failures: list[str] = []
        for number, (content, options) in enumerate(cases):
            episodic = make(replace(ADA, user=f"user {number}"))
            with Case(failures, content, options), pytest.raises(BadInput):
                await episodic.store(content, **options)
            with Case(failures, content, options):
                assert await episodic.sessions() == []
        assert not failures, "\n".join(failures)

    async def test_bad_number_of_results_raises_bad_query(self, episodic: EpisodicMemory):
        numbers: list[Any] = [-1, True, 1.5, "2", None]
        failures: list[str] = []
        for n in numbers:
            with Case(failures, "get_recent", n), pytest.raises(BadQuery):
                await episodic.get_recent(n)
            with Case(failures, "search", n), pytest.raises(BadQuery):
                await episodic.search("x", n)
        assert not failures, "\n".join(failures)

    async def test_search_bad_query_raises_bad_input(self, episodic: EpisodicMemory):
        queries: list[Any] = ["", " ", None, "\ud800"]
        failures: list[str] = []
        for query in queries:
            with Case(failures, query), pytest.raises(BadInput):
                await episodic.search(query)
        assert not failures, "\n".join(failures)


async def test_episodes_persist_after_reopening_the_store(tmp_path: Path, clock: ManualClock):
    for n in range(2):
        stores = await open_stores(tmp_path / "agent.db", Settings(), clock)
        episodic = EpisodicMemory(stores.log("episodic"), scope=ADA, settings=Settings(), clock=clock)
        await episodic.store(f"life {n}", kind=EPISODE_KINDS[n], metadata={"n": n})
        assert await list_contents(episodic) == [f"life {m}" for m in range(n + 1)]
        await stores.close()
