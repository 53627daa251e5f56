"""Semantic memory: duplicates, keys, validity, filters, scopes and forgetting."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect import AgentMemory, MemoryItem
from recollect.errors import BadInput, StoreClosed
from recollect.testing import ManualClock
from tests.budgets import limit_examples
from tests.embedders import HashEmbedder

DAY = timedelta(days=1)


def contents(hits) -> list[str]:
    return [hit.item.content for hit in hits]


async def search_contents(memory: AgentMemory, query: str, **options) -> list[str]:
    options.setdefault("min_relevance", 0.0)
    return contents(await memory.semantic.search(query, options.pop("n", 50), **options))


class TestDuplicates:
    async def test_remember_same_content_returns_the_same_item(self, memory: AgentMemory, clock: ManualClock):
        first = await memory.remember("Ada prefers metric units.")
        clock.forward(DAY)
        again = await memory.remember("Ada prefers metric units.")
        assert again.id == first.id
        assert again.created_at == first.created_at
        assert (await memory.stats()).items == 1

    async def test_concurrent_remember_of_same_content_creates_one_item(self, memory: AgentMemory):
        items = await asyncio.gather(*(memory.remember("Ada prefers metric units.") for _ in range(50)))
        assert len({item.id for item in items}) == 1
        assert (await memory.stats()).items == 1
        assert await search_contents(memory, "metric units") == ["Ada prefers metric units."]

    async def test_remember_again_updates_given_fields_and_keeps_the_rest(self, memory: AgentMemory):
        await memory.remember("Tea at four.", importance=0.9, source="web", metadata={"room": "blue"})
        plain = await memory.remember("Tea at four.")
        assert (plain.importance, plain.source, plain.trust, dict(plain.metadata)) == (
            0.9,
            "web",
            0.3,
            {"room": "blue"},
        )
        changed = await memory.remember("Tea at four.", importance=0.2, metadata={"room": "red"})
        assert (changed.importance, dict(changed.metadata)) == (0.2, {"room": "red"})

    async def test_metadata_does_not_create_another_item(self, memory: AgentMemory):
        """`name` and `index` could mean a speaker and a position, but an item is a turn only with a session."""
        first = await memory.remember("Tea at four.", metadata={"name": "calendar", "index": 3})
        again = await memory.remember("Tea at four.")
        assert first.id == again.id

    async def test_forget_during_concurrent_remember_does_not_raise(self, memory: AgentMemory):
        item = await memory.remember("Tea at four.")
        await asyncio.gather(*(memory.remember("Tea at four.") for _ in range(10)), memory.forget(item.id))


class TestAddMany:
    async def test_add_many_returns_items_in_input_order(self, memory: AgentMemory):
        texts = [f"fact number {number}" for number in range(700)]  # more than one batch
        items = await memory.semantic.add_many({"content": text} for text in texts)
        assert [item.content for item in items] == texts
        assert (await memory.stats()).items == 700

    async def test_add_many_duplicates_return_the_same_item(self, memory: AgentMemory):
        items = await memory.semantic.add_many([{"content": text} for text in ("a tree", "a bush", "a tree")])
        assert [item.content for item in items] == ["a tree", "a bush", "a tree"]
        assert items[0].id == items[2].id
        assert (await memory.stats()).items == 2

    async def test_add_many_repeated_keys_supersede_in_order(self, memory: AgentMemory):
        values = ["units: feet", "units: yards", "units: metres"]
        items = await memory.semantic.add_many([{"content": value, "key": "units"} for value in values])
        assert [item.content for item in items] == values
        assert await search_contents(memory, "units") == ["units: metres"]
        assert sum(item.superseded_by is None for item in await memory.semantic.history("units")) == 1

    async def test_add_many_with_one_bad_fact_stores_nothing(self, memory: AgentMemory):
        facts = [{"content": f"fact {number}"} for number in range(600)]
        for bad in ({"content": "half \ud800 a character"}, {"content": ""}, {"content": "x", "importance": 7}):
            with pytest.raises(BadInput):
                await memory.semantic.add_many([*facts, bad])
        assert (await memory.stats()).items == 0

    async def test_add_many_empty_returns_nothing(self, memory: AgentMemory):
        assert await memory.semantic.add_many([]) == []


class TestKeys:
    async def test_new_value_supersedes_the_old_one_and_keeps_it_in_history(
        self, memory: AgentMemory, clock: ManualClock
    ):
        old = await memory.remember("The report uses miles.", key="report.units")
        clock.forward(DAY)
        new = await memory.remember("The report uses kilometres.", key="report.units")
        assert await search_contents(memory, "report uses") == ["The report uses kilometres."]
        newest, oldest = await memory.semantic.history("report.units")
        assert (newest.content, newest.superseded_by, newest.valid_to) == (new.content, None, None)
        assert (oldest.id, oldest.superseded_by, oldest.valid_to) == (old.id, new.id, clock.now)

    async def test_as_of_returns_the_value_of_that_time(self, memory: AgentMemory, clock: ManualClock):
        start = clock.now
        for value in ("miles", "kilometres", "miles"):
            await memory.remember(f"The report uses {value}.", key="report.units")
            clock.forward(10 * DAY)
        assert [
            await search_contents(memory, "report uses", as_of=start + timedelta(days=at)) for at in (-1, 5, 15, 25)
        ] == [
            [],
            ["The report uses miles."],
            ["The report uses kilometres."],
            ["The report uses miles."],
        ]
        assert len(await memory.semantic.history("report.units")) == 3

    async def test_remember_current_value_again_changes_nothing(self, memory: AgentMemory, clock: ManualClock):
        items = []
        for value in ("miles", "kilometres", "miles"):
            items.append(await memory.remember(f"The report uses {value}.", key="units"))
            clock.forward(DAY)
        again = await memory.remember("The report uses miles.", key="units")
        assert (again.id, again.version) == (items[-1].id, items[-1].version)
        assert len(await memory.semantic.history("units")) == 3

    async def test_future_value_takes_effect_at_its_valid_from(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("The office is in Oslo.", key="office")
        await memory.remember("The office is in Bergen.", key="office", valid_from=clock.now + 5 * DAY)
        assert await search_contents(memory, "office") == ["The office is in Oslo."]
        clock.forward(6 * DAY)
        assert await search_contents(memory, "office") == ["The office is in Bergen."]

    async def test_new_value_ends_a_value_with_a_later_valid_to(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("The office is in Oslo.", key="office", valid_to=clock.now + 100 * DAY)
        clock.forward(DAY)
        await memory.remember("The office is in Bergen.", key="office")
        assert await search_contents(memory, "office") == ["The office is in Bergen."]

    @pytest.mark.parametrize("before", [[], ["the first"]], ids=["new key", "known key"])
    async def test_concurrent_values_of_a_key_leave_one_current(self, memory: AgentMemory, before: list[str]):
        for value in before:
            await memory.remember(value, key="door")
        values = [f"The door code is {n}." for n in range(25)]
        for value in values:
            await search_contents(memory, value)  # fills the embedding cache, so that all calls write concurrently
        await asyncio.gather(*(memory.remember(value, key="door") for value in values))
        history = await memory.semantic.history("door")
        assert len(history) == 25 + len(before)
        assert sum(item.superseded_by is None for item in history) == 1
        assert len(await search_contents(memory, "door code")) == 1

    async def test_same_content_under_two_keys_is_two_items(self, memory: AgentMemory):
        await memory.remember("Oslo", key="office")
        await memory.remember("Oslo", key="birthplace")
        assert (await memory.stats()).items == 2
        assert await memory.semantic.history("nothing") == []


class TestTime:
    async def test_item_outside_its_validity_is_not_found(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("The pool is closed.", valid_from=clock.now + DAY, valid_to=clock.now + 3 * DAY)
        seen = []
        for _ in range(4):
            seen.append(len(await search_contents(memory, "pool closed")))
            clock.forward(DAY)
        assert seen == [0, 1, 1, 0]

    async def test_as_of_excludes_items_created_later(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("The pool opened.", at=datetime(2020, 5, 1, tzinfo=UTC))
        await memory.remember("The pool closed.", at=datetime(2024, 5, 1, tzinfo=UTC))
        assert await search_contents(memory, "pool", as_of=datetime(2022, 1, 1, tzinfo=UTC)) == ["The pool opened."]
        context = await memory.recall("pool", as_of=datetime(2022, 1, 1, tzinfo=UTC), min_relevance=0.0)
        assert contents(context) == ["The pool opened."]


class TestFilters:
    async def test_where_filters_by_metadata_and_fields(self, memory: AgentMemory):
        for year, kind in ((2020, "note"), (2021, "note"), (2022, "mail")):
            await memory.remember(f"budget of {year}", metadata={"year": year, "doc": {"kind": kind}}, source=kind)
        assert await search_contents(memory, "budget", where={"year": 2021}) == ["budget of 2021"]
        assert set(await search_contents(memory, "budget", where={"year": {"gte": 2021}})) == {
            "budget of 2021",
            "budget of 2022",
        }
        assert await search_contents(memory, "budget", where={"doc.kind": "mail"}) == ["budget of 2022"]
        assert set(await search_contents(memory, "budget", where={"year": [2020, 2022]})) == {
            "budget of 2020",
            "budget of 2022",
        }
        assert await search_contents(memory, "budget", where={"source": "mail"}) == ["budget of 2022"]
        assert await search_contents(memory, "budget", where={"doc.kind": "note", "year": {"lt": 2021}}) == [
            "budget of 2020"
        ]

    async def test_min_importance_filters(self, memory: AgentMemory):
        await memory.remember("budget, roughly", importance=0.2)
        item = await memory.remember("budget, exactly", importance=0.9)
        assert await search_contents(memory, "budget", min_importance=0.5) == ["budget, exactly"]
        assert await memory.semantic.update_importance(item.id, 0.1)
        assert await search_contents(memory, "budget", min_importance=0.5) == []
        assert not await memory.semantic.update_importance("no such item", 0.5)

    @pytest.mark.parametrize("mode", ["hybrid", "dense", "text"])
    async def test_every_search_mode_finds_the_item(self, memory: AgentMemory, mode: str):
        await memory.remember("The cello is in the attic.")
        await memory.remember("Bread is baked on Tuesdays.")
        assert (await search_contents(memory, "cello attic", mode=mode))[0] == "The cello is in the attic."


class TestReading:
    async def test_search_counts_accesses_and_get_does_not(self, memory: AgentMemory, clock: ManualClock):
        item = await memory.remember("The cello is in the attic.")
        assert (item.access_count, item.last_accessed) == (0, None)
        clock.forward(DAY)
        await memory.semantic.search("cello", min_relevance=0.0)
        await memory.recall("cello", min_relevance=0.0)
        read = await memory.semantic.get(item.id)
        assert read is not None
        assert (read.access_count, read.last_accessed, read.version) == (2, clock.now, item.version)

    async def test_forget_removes_the_item_everywhere(self, memory: AgentMemory):
        item = await memory.remember("The cello is in the attic.", key="cello")
        assert await memory.forget(item.id)
        assert await memory.semantic.get(item.id) is None
        assert await memory.semantic.history("cello") == []
        assert [await search_contents(memory, "cello attic", mode=mode) for mode in ("hybrid", "dense", "text")] == [
            [],
            [],
            [],
        ]
        assert (await memory.stats()).items == 0
        assert not await memory.forget(item.id)

    async def test_closed_memory_raises_store_closed(self, memory: AgentMemory):
        await memory.close()
        await memory.close()
        for use in (memory.remember("x"), memory.recall("x"), memory.forget("x"), memory.stats()):
            with pytest.raises(StoreClosed):
                await use


class TestScopes:
    async def test_users_and_tenants_cannot_reach_each_others_items(self, memory: AgentMemory):
        item = await memory.remember("The cello is in the attic.")
        for other in (memory.scoped(user="bob"), memory.scoped(tenant="else"), memory.scoped(user="Ada")):
            assert await search_contents(other, "cello attic") == []
            assert await other.semantic.get(item.id) is None
            assert not await other.forget(item.id)
            assert not await other.semantic.update_importance(item.id, 0.9)
            assert (await other.remember("The cello is in the attic.")).id != item.id
        assert await search_contents(memory.scoped(agent="another", session="s"), "cello") == [item.content]

    async def test_names_with_slashes_do_not_collide(self, memory: AgentMemory):
        first = memory.scoped(tenant="a/b", user="c")
        second = memory.scoped(tenant="a", user="b/c")
        await first.remember("The cello is in the attic.")
        assert await search_contents(second, "cello attic") == []

    @limit_examples(0.25)
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["add", "key", "forget", "importance", "search", "get", "history"]),
                st.sampled_from(["t1", "t2"]),
                st.sampled_from(["ada", "bob"]),
                st.integers(0, 5),
            ),
            max_size=25,
        )
    )
    async def test_random_operations_stay_in_their_scope(self, place: str, steps: list[tuple[str, str, str, int]]):
        async with AgentMemory.open(place, embedder=HashEmbedder(), clock=ManualClock()) as root:
            owners: dict[str, tuple[str, str]] = {}
            for action, tenant, user, number in steps:
                mine = root.scoped(tenant=tenant, user=user)
                ids = sorted(owners)
                some = ids[number % len(ids)] if ids else "none"
                for item in await act(mine, action, number, some):
                    assert (item.scope.tenant, item.scope.user) == (tenant, user)
                    assert owners.setdefault(item.id, (tenant, user)) == (tenant, user)
                stray = await mine.semantic.get(some)
                assert stray is None or owners[some] == (tenant, user)


async def act(memory: AgentMemory, action: str, number: int, id: str) -> list[MemoryItem]:
    match action:
        case "add":
            return [await memory.remember(f"shared fact {number}")]
        case "key":
            return [await memory.remember(f"shared value {number}", key="shared")]
        case "forget":
            await memory.forget(id)
        case "importance":
            await memory.semantic.update_importance(id, number / 5)
        case "search":
            return [hit.item for hit in await memory.semantic.search("shared fact value", 50, min_relevance=0.0)]
        case "history":
            return await memory.semantic.history("shared")
        case _:
            item = await memory.semantic.get(id)
            return [item] if item else []
    return []


class TestPastValues:
    async def test_value_with_a_past_time_is_inserted_into_the_history(self, memory: AgentMemory, clock: ManualClock):
        now = clock()
        porto = await memory.remember("Ada lives in Porto.", key="city")
        await memory.remember("Ada lived in Lisbon.", key="city", at=now - timedelta(days=2000))
        assert (await memory.semantic.get(porto.id)).valid_to is None  # type: ignore[union-attr]
        assert await search_homes(memory, None) == {"Ada lives in Porto."}
        assert await search_homes(memory, now - timedelta(days=1000)) == {"Ada lived in Lisbon."}
        await memory.remember("Ada lived in Faro.", key="city", at=now - timedelta(days=500))
        assert await search_homes(memory, now - timedelta(days=1000)) == {"Ada lived in Lisbon."}
        assert await search_homes(memory, now - timedelta(days=100)) == {"Ada lived in Faro."}
        assert await search_homes(memory, None) == {"Ada lives in Porto."}

    async def test_date_in_metadata_does_not_set_created_at(self, memory: AgentMemory, clock: ManualClock):
        await memory.remember("The gateway is gw1.", key="vpn")
        second = await memory.remember("The gateway is gw2.", key="vpn", metadata={"date": "2030-01-01"})
        assert second.created_at == clock()
        hits = await memory.semantic.search("Which gateway?", min_relevance=0.0)
        assert [hit.item.content for hit in hits] == ["The gateway is gw2."]


async def search_homes(memory: AgentMemory, as_of: datetime | None) -> set[str]:
    hits = await memory.semantic.search("where does Ada live?", as_of=as_of, min_relevance=0.0)
    return {hit.item.content for hit in hits}
