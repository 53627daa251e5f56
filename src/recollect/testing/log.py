"""What a store promises of logs: in order, once each, capped, and expired entries hidden at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from recollect.errors import BadInput, BadQuery
from recollect.stores.base import Log
from recollect.stores.ops import Clear, Drop
from recollect.stores.tails import Reach
from recollect.testing.clock import ManualClock
from recollect.testing.samples import ADA, ADA_ELSEWHERE, BOB, LOG, SECOND, START, append, ids


class EntriesContract:
    """Entries."""

    pytestmark = pytest.mark.asyncio

    async def test_an_entry_comes_back_as_it_was_given(self, store: Log) -> None:
        given = append(
            "a", content="nul \x00 👩‍👩‍👧", metadata={"o": {"l": [1, None]}}, importance=0.9, expires_at=START + SECOND
        )
        await store.write(given)
        assert await store.recent(LOG) == [replace(given.entry, seq=1)]

    async def test_entries_come_in_the_order_they_were_appended(self, store: Log) -> None:
        # Whatever their own times say.
        await store.write(*(append(f"e{n}", at=START - n * SECOND) for n in range(5)))
        entries = await store.read(LOG)
        assert ids(entries) == ["e0", "e1", "e2", "e3", "e4"]
        assert [entry.seq for entry in entries] == sorted({entry.seq for entry in entries})

    async def test_recent_is_the_tail_newest_last(self, store: Log) -> None:
        await store.write(*(append(f"e{n}", kind="ab"[n % 2]) for n in range(6)))
        assert ids(await store.recent(LOG, limit=2)) == ["e4", "e5"]
        assert ids(await store.recent(LOG, limit=2, kinds=["a"])) == ["e2", "e4"]
        assert ids(await store.recent(LOG, limit=99, kinds=["a", "b"])) == [f"e{n}" for n in range(6)]
        assert await store.recent(LOG, limit=0) == []
        assert await store.recent(LOG, kinds=["c"]) == []
        with pytest.raises(BadQuery):
            await store.recent(LOG, limit=-1)

    async def test_tails_are_what_recent_says_of_a_log_and_of_the_newest_others(self, store: Log) -> None:
        sessions = [replace(ADA, session=name).space("conversation") for name in ("c", "a", "b", "d")]
        for later, space in enumerate(sessions):
            await store.write(*(append(f"e{n}", space=space, kind="ab"[n % 2]) for n in range(3)))
            await store.write(append("last", space=space, at=START + later * SECOND, metadata={"n": later}))
        here = sessions[1]
        tails = await store.tails(here, Reach(own=3, others=2, of_each=2))
        assert [tail.space for tail in tails] == [here, sessions[2], sessions[3]]
        assert [list(tail) for tail in tails] == [
            await store.recent(here, limit=3),
            await store.recent(sessions[2], limit=2),
            await store.recent(sessions[3], limit=2),
        ]
        for tail in tails:
            assert list(tail.texts) == [entry.content for entry in tail]
            assert list(tail.kinds) == [entry.kind for entry in tail]
        everything = await store.tails(here, Reach(own=99, others=99, of_each=99))
        assert [tail.space for tail in everything] == [here, sessions[0], sessions[2], sessions[3]]
        assert [ids(tail) for tail in everything] == [["e0", "e1", "e2", "last"]] * 4

    async def test_of_tails_the_log_itself_comes_first_even_when_it_is_old_empty_or_unknown(self, store: Log) -> None:
        old, new, newer = (replace(ADA, session=name).space("conversation") for name in ("old", "new", "newer"))
        for later, space in enumerate((old, new, newer)):
            await store.write(append("a", space=space, at=START + later * SECOND))
        assert [tail.space for tail in await store.tails(old, Reach(1, 1, 1))] == [old, newer]
        assert [tail.space for tail in await store.tails(newer, Reach(1, 1, 1))] == [newer, new]
        await store.write(Clear(old))
        for space in (old, LOG):
            first, *others = await store.tails(space, Reach(5, 5, 5))
            assert (first.space, list(first)) == (space, [])
            assert [tail.space for tail in others] == [new, newer]
        nobody = replace(LOG, user="nobody")
        assert [(tail.space, list(tail)) for tail in await store.tails(nobody, Reach(5, 5, 5))] == [(nobody, [])]

    async def test_tails_reach_no_further_than_asked(self, store: Log) -> None:
        other = replace(ADA, session="s").space("conversation")
        await store.write(*(append(f"e{n}", space=space) for space in (LOG, other) for n in range(3)))
        assert [ids(tail) for tail in await store.tails(LOG, Reach(2, 0, 2))] == [["e1", "e2"]]
        assert [ids(tail) for tail in await store.tails(LOG, Reach(0, 1, 1))] == [[], ["e2"]]
        assert [ids(tail) for tail in await store.tails(LOG, Reach(1, 1, 0))] == [["e2"], []]
        for reach in (Reach(-1, 1, 1), Reach(1, -1, 1), Reach(1, 1, -1)):
            with pytest.raises(BadQuery):
                await store.tails(LOG, reach)

    async def test_tails_hide_what_has_expired(self, store: Log, clock: ManualClock) -> None:
        brief, other = (replace(ADA, session=name).space("conversation") for name in ("brief", "other"))
        for space in (LOG, other):
            await store.write(append("stays", space=space), append("goes", space=space, expires_at=clock.now + SECOND))
        await store.write(append("goes", space=brief, at=START + SECOND, expires_at=clock.now + SECOND))
        assert [ids(tail) for tail in await store.tails(LOG, Reach(1, 1, 1))] == [["goes"], ["goes"]]
        clock.forward(SECOND)
        tails = await store.tails(LOG, Reach(1, 1, 1))
        assert [(tail.space, ids(tail)) for tail in tails] == [(LOG, ["stays"]), (other, ["stays"])]

    async def test_tails_are_of_one_owner_and_tier(self, store: Log) -> None:
        mine = replace(ADA, session="s").space("conversation")
        strangers = [
            replace(BOB, session="s").space("conversation"),
            replace(ADA_ELSEWHERE, session="s").space("conversation"),
            replace(ADA, session="s", agent="other").space("conversation"),
            replace(ADA, session="s").space("episodic"),
        ]
        for space in (LOG, mine, *strangers):
            await store.write(append("a", space=space))
        assert [tail.space for tail in await store.tails(LOG, Reach(9, 9, 9))] == [LOG, mine]

    async def test_reading_goes_on_after_the_last_entry_seen(self, store: Log) -> None:
        await store.write(*(append(f"e{n}") for n in range(7)))
        seen: list[str] = []
        after = 0
        while page := await store.read(LOG, after=after, limit=3):
            seen += ids(page)
            after = page[-1].seq
        assert seen == [f"e{n}" for n in range(7)]
        assert await store.read(LOG, after=10**12) == []

    async def test_what_has_expired_takes_no_place_of_what_is_asked_for(self, store: Log, clock: ManualClock) -> None:
        brief = clock.now + SECOND
        await store.write(*(append(f"e{n}", expires_at=brief if n % 3 else None) for n in range(9)))
        clock.forward(SECOND)
        assert ids(await store.recent(LOG, limit=2)) == ["e3", "e6"]
        assert ids(await store.read(LOG, limit=2)) == ["e0", "e3"]
        assert ids(await store.read(LOG, after=4, limit=2)) == ["e6"]

    async def test_entries_are_had_by_their_ids(self, store: Log, clock: ManualClock) -> None:
        elsewhere = replace(ADA, session="s").space("conversation")
        await store.write(*(append(f"e{n}") for n in range(4)), append("brief", expires_at=clock.now + SECOND))
        await store.write(append("theirs", space=elsewhere))
        everything = {entry.id: entry for entry in await store.read(LOG)}
        assert await store.entries(LOG, "e3", "gone", "e1", "e3") == [everything["e3"], everything["e1"]]
        assert ids(await store.entries(LOG, "brief", "theirs")) == ["brief"]
        assert ids(await store.entries(elsewhere, "e1", "theirs")) == ["theirs"]
        assert await store.entries(LOG) == await store.entries(replace(LOG, user="nobody"), "e1") == []
        assert ids(await store.entries(LOG, *(f"e{n}" for n in range(5000)))) == ["e0", "e1", "e2", "e3"]
        clock.forward(SECOND)
        assert await store.entries(LOG, "brief", "' or 1=1 --", "\x00", "\ud800") == []
        await store.write(Clear(LOG))
        assert await store.entries(LOG, "e1") == []

    async def test_appending_tells_what_the_logs_hold(self, store: Log, clock: ManualClock) -> None:
        other = replace(ADA, session="s").space("episodic")
        first = append("a", metadata={"o": {"l": [1, None]}}, importance=0.9, at=START - SECOND)
        told = await store.append(first, append("b", space=other, expires_at=clock.now + SECOND), append("c"))
        assert [(one.id, one.seq) for one in told if one is not None] == [("a", 1), ("b", 1), ("c", 2)]
        assert told == [
            *await store.entries(LOG, "a"),
            *await store.entries(other, "b"),
            *await store.entries(LOG, "c"),
        ]
        # What was there before stays, and is what is told.
        again = await store.append(append("c", content="again"), append("d"), append("d", content="twice"))
        assert again == [told[2], *await store.entries(LOG, "d", "d") * 2]
        assert again[1] == replace(append("d").entry, seq=3)
        assert await store.append() == []

    async def test_appending_tells_nothing_of_what_nobody_can_see(self, store: Log, clock: ManualClock) -> None:
        told = await store.append(*(append(f"e{n}", cap=2) for n in range(3)))
        assert told == [None, *await store.entries(LOG, "e1", "e2")]
        assert await store.append(append("over", expires_at=clock.now)) == [None]
        with pytest.raises(BadInput):
            await store.append(append("f"), append("g", cap=0))
        assert ids(await store.read(LOG)) == ["e1", "e2"]

    async def test_the_same_id_twice_is_one_entry(self, store: Log) -> None:
        await store.write(append("a"), append("b"), append("a", content="again"))
        await store.write(append("a", content="and again"))
        assert [(entry.id, entry.content) for entry in await store.read(LOG)] == [
            ("a", "content of a"),
            ("b", "content of b"),
        ]

    async def test_many_who_append_the_same_entry_append_one(self, store: Log) -> None:
        await asyncio.gather(*(store.write(append(f"e{n % 5}")) for n in range(50)))
        assert sorted(ids(await store.read(LOG))) == [f"e{n}" for n in range(5)]

    async def test_a_cap_keeps_the_newest(self, store: Log) -> None:
        for n in range(10):
            await store.write(append(f"e{n}", cap=3))
        assert ids(await store.read(LOG)) == ["e7", "e8", "e9"]
        await store.write(append("e10", cap=1))
        assert ids(await store.read(LOG)) == ["e10"]
        await store.write(append("e11"))
        assert ids(await store.read(LOG)) == ["e10", "e11"]

    async def test_hidden_entries_take_no_room_under_a_cap(self, store: Log, clock: ManualClock) -> None:
        await store.write(append("old"), append("brief", expires_at=clock.now + SECOND), append("new"))
        clock.forward(SECOND)
        await store.write(append("newest", cap=3))
        assert ids(await store.read(LOG)) == ["old", "new", "newest"]

    async def test_the_sequence_goes_on_after_a_cap_a_clear_and_a_drop(self, store: Log, clock: ManualClock) -> None:
        await store.write(append("a", cap=1), append("b", cap=1), append("c", expires_at=clock.now + SECOND))
        last = (await store.read(LOG))[-1].seq
        clock.forward(SECOND)
        await store.write(Drop(LOG, (last,)))
        await store.write(Clear(LOG))
        assert await store.read(LOG) == []
        await store.write(append("a"))
        [entry] = await store.read(LOG)
        assert entry.seq > last

    async def test_an_expired_entry_is_hidden_at_once(self, store: Log, clock: ManualClock) -> None:
        await store.write(append("stays"), append("goes", expires_at=clock.now + SECOND))
        assert ids(await store.recent(LOG)) == ["stays", "goes"]
        clock.forward(SECOND)
        assert ids(await store.recent(LOG)) == ["stays"]
        assert ids(await store.recent(LOG, kinds=["user"])) == ["stays"]
        assert ids(await store.read(LOG)) == ["stays"]

    async def test_the_id_of_an_expired_entry_is_free_again(self, store: Log, clock: ManualClock) -> None:
        await store.write(append("a", expires_at=clock.now + SECOND))
        clock.forward(SECOND)
        await store.write(append("a", content="reborn"))
        assert [entry.content for entry in await store.read(LOG)] == ["reborn"]

    async def test_hidden_entries_can_be_read_until_they_are_dropped(self, store: Log, clock: ManualClock) -> None:
        other = replace(ADA, session="late").space("conversation")
        await store.write(append("stays"), append("brief", expires_at=clock.now + SECOND), append("last"))
        await store.write(append("gone", space=other, expires_at=clock.now + SECOND))
        clock.forward(SECOND)
        assert ids(await store.read(LOG, hidden=True)) == ["stays", "brief", "last"]
        assert ids(await store.read(LOG, after=1, limit=1, hidden=True)) == ["brief"]
        assert await store.logs(LOG) == [LOG]
        assert await store.logs(LOG, hidden=True) == [LOG, other]
        await store.write(Drop(LOG, (2,)), Drop(other, (1,)))
        assert ids(await store.read(LOG, hidden=True)) == ["stays", "last"]
        assert await store.logs(LOG, hidden=True) == [LOG]

    async def test_entries_are_dropped_by_their_place_and_no_place_is_given_twice(self, store: Log) -> None:
        other = replace(ADA, session="s").space("conversation")
        await store.write(*(append(f"e{n}") for n in range(4)), *(append(f"e{n}", space=other) for n in range(2)))
        last = (await store.read(LOG))[-1].seq
        await store.write(Drop(LOG, (2, last, 10**6)))
        assert ids(await store.read(LOG)) == ["e0", "e2"]
        assert ids(await store.read(other)) == ["e0", "e1"]
        await store.write(append("e3"))
        assert (await store.read(LOG))[-1].seq > last

    async def test_the_owners_of_logs_are_listed(self, store: Log, clock: ManualClock) -> None:
        mine = [replace(ADA, session=name).space("conversation") for name in ("s1", "s2")]
        await store.write(*(append("a", space=space) for space in mine), append("a", space=ADA.space("episodic")))
        await store.write(append("a", space=BOB.space("conversation"), expires_at=clock.now))
        await store.write(append("a", space=ADA_ELSEWHERE.space("conversation")))
        await store.write(Clear(mine[1]))
        assert await store.owners(ADA.tenant) == [
            ADA.space("conversation"),
            BOB.space("conversation"),
            ADA.space("episodic"),
        ]
        assert await store.owners("nobody") == []

    async def test_a_log_never_sees_its_neighbour(self, store: Log) -> None:
        spaces = [
            scope.space("conversation")
            for scope in (ADA, BOB, ADA_ELSEWHERE, replace(ADA, session="s"), replace(ADA, agent="other"))
        ]
        spaces.append(ADA.space("working"))
        for n, space in enumerate(spaces):
            await store.write(append("same", space=space), append(f"own{n}", space=space))
        await store.write(Clear(spaces[1]))
        await store.write(append("last", cap=1, space=spaces[2]))
        for n, space in enumerate(spaces):
            expected = [] if n == 1 else ["last"] if n == 2 else ["same", f"own{n}"]
            assert ids(await store.read(space)) == expected
            assert ids(await store.recent(space)) == expected

    async def test_the_logs_of_an_owner_are_listed(self, store: Log, clock: ManualClock) -> None:
        sessions = [replace(ADA, session=name).space("conversation") for name in ("s2", "s1", "gone", "hidden")]
        await store.write(*(append("a", space=space) for space in sessions[:3]), append("a"))
        await store.write(append("a", space=sessions[3], expires_at=clock.now))
        await store.write(Clear(sessions[2]))
        await store.write(append("a", space=replace(BOB, session="s3").space("conversation")))
        assert [space.session for space in await store.logs(LOG)] == ["", "s1", "s2"]
        await store.write(append("late", space=sessions[1], at=START + SECOND))
        assert [space.session for space in await store.logs(LOG)] == ["", "s2", "s1"]
        await store.write(append("later", at=START + 2 * SECOND), append("told late", space=sessions[0]))
        assert [space.session for space in await store.logs(LOG)] == ["s2", "s1", ""]
        assert await store.logs(replace(ADA, user="nobody").space("conversation")) == []

    async def test_a_refused_batch_appends_nothing(self, store: Log) -> None:
        await store.write(append("a", cap=5))
        with pytest.raises(BadInput):
            await store.write(append("b"), Clear(LOG), append("c", cap=0))
        with pytest.raises(BadInput):
            await store.write(append("b"), append("c", metadata={"x": object()}))
        assert ids(await store.read(LOG)) == ["a"]
