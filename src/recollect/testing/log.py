"""Contract of `Log`: order, unique ids, caps, hidden expired entries, and copies with their sequence numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from recollect.errors import BadInput, BadQuery, Conflict
from recollect.stores.base import Log, TailLimits
from recollect.stores.writes import Clear, Drop
from recollect.testing.factories import (
    ADA,
    ADA_ELSEWHERE,
    BOB,
    LOG,
    MICROSECOND,
    SECOND,
    START,
    AsyncContract,
    ManualClock,
    list_ids,
    make_append,
)


class LogContract(AsyncContract):
    """Entries, tails and sequences."""

    async def test_read_returns_every_field(self, store: Log) -> None:
        given = make_append(
            "a", content="nul \x00 👩‍👩‍👧", metadata={"o": {"l": [1, None]}}, importance=0.9, expires_at=START + SECOND
        )
        await store.write(given)
        assert await store.recent(LOG) == [replace(given.entry, seq=1)]

    async def test_entries_are_in_append_order(self, store: Log) -> None:
        # Their own times are in another order.
        await store.write(*(make_append(f"e{n}", at=START - n * SECOND) for n in range(5)))
        entries = await store.read(LOG)
        assert list_ids(entries) == ["e0", "e1", "e2", "e3", "e4"]
        assert [entry.seq for entry in entries] == sorted({entry.seq for entry in entries})

    async def test_recent_is_newest_last(self, store: Log) -> None:
        await store.write(*(make_append(f"e{n}", kind="ab"[n % 2]) for n in range(6)))
        assert list_ids(await store.recent(LOG, limit=2)) == ["e4", "e5"]
        assert list_ids(await store.recent(LOG, limit=2, kinds=["a"])) == ["e2", "e4"]
        assert list_ids(await store.recent(LOG, limit=99, kinds=["a", "b"])) == [f"e{n}" for n in range(6)]
        assert await store.recent(LOG, limit=0) == []
        assert await store.recent(LOG, kinds=["c"]) == []
        with pytest.raises(BadQuery):
            await store.recent(LOG, limit=-1)

    async def test_tails_equal_recent_entries_of_each_log(self, store: Log) -> None:
        sessions = [replace(ADA, session=name).space("conversation") for name in ("c", "a", "b", "d")]
        for later, space in enumerate(sessions):
            await store.write(*(make_append(f"e{n}", space=space, kind="ab"[n % 2]) for n in range(3)))
            await store.write(make_append("last", space=space, at=START + later * SECOND, metadata={"n": later}))
        here = sessions[1]
        tails = await store.read_tails(here, TailLimits(own_entries=3, other_logs=2, entries_per_log=2))
        assert [tail.space for tail in tails] == [here, sessions[2], sessions[3]]
        for tail, limit in zip(tails, (3, 2, 2), strict=True):
            assert list(tail) == await store.recent(tail.space, limit=limit)
            assert list(tail.texts) == [entry.content for entry in tail]
            assert list(tail.kinds) == [entry.kind for entry in tail]
        everything = await store.read_tails(here, TailLimits(own_entries=99, other_logs=99, entries_per_log=99))
        assert [tail.space for tail in everything] == [here, sessions[0], sessions[2], sessions[3]]
        assert [list_ids(tail) for tail in everything] == [["e0", "e1", "e2", "last"]] * 4

    async def test_tails_start_with_the_log_itself(self, store: Log) -> None:
        old, new, newer = (replace(ADA, session=name).space("conversation") for name in ("old", "new", "newer"))
        for later, space in enumerate((old, new, newer)):
            await store.write(make_append("a", space=space, at=START + later * SECOND))
        assert [tail.space for tail in await store.read_tails(old, TailLimits(1, 1, 1))] == [old, newer]
        assert [tail.space for tail in await store.read_tails(newer, TailLimits(1, 1, 1))] == [newer, new]
        await store.write(Clear(old))
        for space in (old, LOG):
            first, *others = await store.read_tails(space, TailLimits(5, 5, 5))
            assert (first.space, list(first)) == (space, [])
            assert [tail.space for tail in others] == [new, newer]
        unknown = replace(LOG, user="missing")
        assert [(tail.space, list(tail)) for tail in await store.read_tails(unknown, TailLimits(5, 5, 5))] == [
            (unknown, [])
        ]

    async def test_tails_respect_their_limits(self, store: Log) -> None:
        other = replace(ADA, session="s").space("conversation")
        await store.write(*(make_append(f"e{n}", space=space) for space in (LOG, other) for n in range(3)))
        assert [list_ids(tail) for tail in await store.read_tails(LOG, TailLimits(2, 0, 2))] == [["e1", "e2"]]
        assert [list_ids(tail) for tail in await store.read_tails(LOG, TailLimits(0, 1, 1))] == [[], ["e2"]]
        assert [list_ids(tail) for tail in await store.read_tails(LOG, TailLimits(1, 1, 0))] == [["e2"], []]
        for reach in (TailLimits(-1, 1, 1), TailLimits(1, -1, 1), TailLimits(1, 1, -1)):
            with pytest.raises(BadQuery):
                await store.read_tails(LOG, reach)

    async def test_tails_hide_expired_entries(self, store: Log, clock: ManualClock) -> None:
        brief, other = (replace(ADA, session=name).space("conversation") for name in ("brief", "other"))
        for space in (LOG, other):
            await store.write(
                make_append("stays", space=space), make_append("goes", space=space, expires_at=clock.now + SECOND)
            )
        await store.write(make_append("goes", space=brief, at=START + SECOND, expires_at=clock.now + SECOND))
        assert [list_ids(tail) for tail in await store.read_tails(LOG, TailLimits(1, 1, 1))] == [["goes"], ["goes"]]
        clock.forward(SECOND)
        tails = await store.read_tails(LOG, TailLimits(1, 1, 1))
        assert [(tail.space, list_ids(tail)) for tail in tails] == [(LOG, ["stays"]), (other, ["stays"])]

    async def test_tails_are_limited_to_owner_and_tier(self, store: Log) -> None:
        mine = replace(ADA, session="s").space("conversation")
        strangers = [
            replace(BOB, session="s").space("conversation"),
            replace(ADA_ELSEWHERE, session="s").space("conversation"),
            replace(ADA, session="s", agent="other").space("conversation"),
            replace(ADA, session="s").space("episodic"),
        ]
        for space in (LOG, mine, *strangers):
            await store.write(make_append("a", space=space))
        assert [tail.space for tail in await store.read_tails(LOG, TailLimits(9, 9, 9))] == [LOG, mine]

    async def test_read_continues_after_a_seq(self, store: Log) -> None:
        await store.write(*(make_append(f"e{n}") for n in range(7)))
        seen: list[str] = []
        after = 0
        while page := await store.read(LOG, after=after, limit=3):
            seen += list_ids(page)
            after = page[-1].seq
        assert seen == [f"e{n}" for n in range(7)]
        assert await store.read(LOG, after=10**12) == []

    async def test_read_selects_a_range_of_times(self, store: Log, clock: ManualClock) -> None:
        # Appended in another order than that of their times.
        order = (2, 0, 3, 1, 2)
        await store.write(*(make_append(f"e{n}", at=START + time * SECOND) for n, time in enumerate(order)))
        one, two = START + SECOND, START + 2 * SECOND
        # Mutant: `until` is inclusive.
        for since, until, expected in (
            (None, None, ["e0", "e1", "e2", "e3", "e4"]),
            (two, None, ["e0", "e2", "e4"]),
            (None, two, ["e1", "e3"]),
            (one, two, ["e3"]),
            (two, two, []),
            (two, one, []),
            (two - MICROSECOND, two + MICROSECOND, ["e0", "e4"]),
            (two + MICROSECOND, two + SECOND, []),
        ):
            assert list_ids(await store.read(LOG, since=since, until=until)) == expected
        tokyo, naive = timezone(timedelta(hours=9)), two.replace(tzinfo=None)
        assert list_ids(await store.read(LOG, since=one.astimezone(tokyo), until=naive)) == ["e3"]
        assert list_ids(await store.read(LOG, since=two, limit=2)) == ["e0", "e2"]
        assert list_ids(await store.read(LOG, since=two, after=1, limit=1)) == ["e2"]
        assert list_ids(await store.read(LOG, until=two, after=2)) == ["e3"]
        early = datetime(1, 1, 1, tzinfo=UTC)
        await store.write(make_append("early", at=early, expires_at=clock.now))
        assert list_ids(await store.read(LOG, since=early, until=one)) == ["e1"]
        assert list_ids(await store.read(LOG, since=early, until=one, hidden=True)) == ["e1", "early"]

    async def test_read_finds_rare_times_in_a_long_log(self, store: Log) -> None:
        await store.write(*(make_append(f"e{n}", at=START + (n % 150) * SECOND) for n in range(450)))
        found = await store.read(LOG, since=START + 149 * SECOND, limit=2)
        assert list_ids(found) == ["e149", "e299"]
        assert list_ids(await store.read(LOG, since=START + 149 * SECOND, after=found[-1].seq)) == ["e449"]

    async def test_expired_entries_do_not_count_toward_the_limit(self, store: Log, clock: ManualClock) -> None:
        brief = clock.now + SECOND
        await store.write(*(make_append(f"e{n}", expires_at=brief if n % 3 else None) for n in range(9)))
        clock.forward(SECOND)
        assert list_ids(await store.recent(LOG, limit=2)) == ["e3", "e6"]
        assert list_ids(await store.read(LOG, limit=2)) == ["e0", "e3"]
        assert list_ids(await store.read(LOG, after=4, limit=2)) == ["e6"]

    async def test_entries_are_found_by_id(self, store: Log, clock: ManualClock) -> None:
        elsewhere = replace(ADA, session="s").space("conversation")
        await store.write(
            *(make_append(f"e{n}") for n in range(4)), make_append("brief", expires_at=clock.now + SECOND)
        )
        await store.write(make_append("theirs", space=elsewhere))
        everything = {entry.id: entry for entry in await store.read(LOG)}
        assert await store.entries(LOG, "e3", "gone", "e1", "e3") == [everything["e3"], everything["e1"]]
        assert list_ids(await store.entries(LOG, "brief", "theirs")) == ["brief"]
        assert list_ids(await store.entries(elsewhere, "e1", "theirs")) == ["theirs"]
        assert await store.entries(LOG) == await store.entries(replace(LOG, user="missing"), "e1") == []
        assert list_ids(await store.entries(LOG, *(f"e{n}" for n in range(5000)))) == ["e0", "e1", "e2", "e3"]
        clock.forward(SECOND)
        assert await store.entries(LOG, "brief", "' or 1=1 --", "\x00", "\ud800") == []
        await store.write(Clear(LOG))
        assert await store.entries(LOG, "e1") == []

    async def test_append_returns_the_stored_entries(self, store: Log, clock: ManualClock) -> None:
        other = replace(ADA, session="s").space("episodic")
        first = make_append("a", metadata={"o": {"l": [1, None]}}, importance=0.9, at=START - SECOND)
        told = await store.append(first, make_append("b", space=other, expires_at=clock.now + SECOND), make_append("c"))
        assert [(entry.id, entry.seq) for entry in told if entry is not None] == [("a", 1), ("b", 1), ("c", 2)]
        [a, c], [b] = await store.entries(LOG, "a", "c"), await store.entries(other, "b")
        assert told == [a, b, c]
        # The existing entry stays and is returned.
        again = await store.append(
            make_append("c", content="again"), make_append("d"), make_append("d", content="twice")
        )
        assert again == [told[2], *await store.entries(LOG, "d", "d") * 2]
        assert again[1] == replace(make_append("d").entry, seq=3)
        assert await store.append() == []

    async def test_append_returns_none_for_invisible_entries(self, store: Log, clock: ManualClock) -> None:
        told = await store.append(*(make_append(f"e{n}", cap=2) for n in range(3)))
        assert told == [None, *await store.entries(LOG, "e1", "e2")]
        assert await store.append(make_append("over", expires_at=clock.now)) == [None]
        with pytest.raises(BadInput):
            await store.append(make_append("f"), make_append("g", cap=0))
        assert list_ids(await store.read(LOG)) == ["e1", "e2"]

    async def test_same_id_is_appended_once(self, store: Log) -> None:
        await store.write(make_append("a"), make_append("b"), make_append("a", content="again"))
        await store.write(make_append("a", content="and again"))
        assert [entry.content for entry in await store.read(LOG)] == ["content of a", "content of b"]

    async def test_concurrent_appends_of_an_id_add_one_entry(self, store: Log) -> None:
        await asyncio.gather(*(store.write(make_append(f"e{n % 5}")) for n in range(50)))
        assert sorted(list_ids(await store.read(LOG))) == [f"e{n}" for n in range(5)]

    async def test_concurrent_appends_after_a_seq_have_one_winner(self, store: Log) -> None:
        # Mutant: a backend ignores `expect_last`.
        [first] = await store.append(make_append("first", expect_last=0))
        assert first is not None
        results = await asyncio.gather(
            *(store.append(make_append(f"e{n}", expect_last=first.seq)) for n in range(20)), return_exceptions=True
        )
        [won] = [result for result in results if isinstance(result, list)]
        assert sum(type(result) is Conflict for result in results) == 19
        assert await store.read(LOG) == [first, *won]
        assert await store.last_seqs() == {LOG: 2}

    async def test_unexpected_last_seq_rejects_the_batch(self, store: Log) -> None:
        other = replace(ADA, session="s").space("conversation")
        with pytest.raises(Conflict, match="at seq 0"):
            await store.write(make_append("a", space=other), make_append("a", expect_last=1))
        assert await store.last_seqs() == {}
        await store.write(make_append("a", expect_last=0), make_append("b"), Drop(LOG, (2,)))
        for stale in (0, 1, 3, 2**70):
            # Mutant: the writes before the stale one are kept.
            with pytest.raises(Conflict, match="at seq 2"):
                await store.write(make_append("a", space=other), make_append("c", expect_last=stale))
        for wrong in (-1, True, 1.5, "2"):
            with pytest.raises(BadInput, match="expect_last"):
                await store.write(make_append("c", expect_last=wrong))  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="first write of a batch"):
            await store.write(make_append("c", expect_last=2), make_append("d", expect_last=3))
        assert list_ids(await store.read(LOG)) == ["a"]
        assert await store.last_seqs() == {LOG: 2}

    async def test_retried_append_with_expected_last_seq_is_idempotent(self, store: Log, clock: ManualClock) -> None:
        first = make_append("a", expect_last=0, expires_at=clock.now + SECOND)
        batch = (first, make_append("b"))
        stored = await store.append(*batch)
        # Mutant: an entry that the log has raises `Conflict`.
        assert await store.append(*batch) == stored
        await store.write(make_append("c", expect_last=2))
        assert await store.append(*batch) == stored
        clock.forward(SECOND)
        await store.write(first)
        assert [(entry.id, entry.seq) for entry in await store.read(LOG)] == [("b", 2), ("c", 3)]

    async def test_cap_keeps_the_newest_entries(self, store: Log) -> None:
        for n in range(10):
            await store.write(make_append(f"e{n}", cap=3))
        assert list_ids(await store.read(LOG)) == ["e7", "e8", "e9"]
        await store.write(make_append("e10", cap=1))
        assert list_ids(await store.read(LOG)) == ["e10"]
        await store.write(make_append("e11"))
        assert list_ids(await store.read(LOG)) == ["e10", "e11"]

    async def test_expired_entries_do_not_count_toward_the_cap(self, store: Log, clock: ManualClock) -> None:
        await store.write(make_append("old"), make_append("brief", expires_at=clock.now + SECOND), make_append("new"))
        clock.forward(SECOND)
        await store.write(make_append("newest", cap=3))
        assert list_ids(await store.read(LOG)) == ["old", "new", "newest"]

    async def test_seq_grows_after_cap_clear_and_drop(self, store: Log, clock: ManualClock) -> None:
        await store.write(
            make_append("a", cap=1), make_append("b", cap=1), make_append("c", expires_at=clock.now + SECOND)
        )
        last = (await store.read(LOG))[-1].seq
        clock.forward(SECOND)
        await store.write(Drop(LOG, (last,)))
        await store.write(Clear(LOG))
        assert await store.read(LOG) == []
        await store.write(make_append("a"))
        [entry] = await store.read(LOG)
        assert entry.seq > last

    async def test_expired_entry_is_hidden(self, store: Log, clock: ManualClock) -> None:
        await store.write(make_append("stays"), make_append("goes", expires_at=clock.now + SECOND))
        assert list_ids(await store.recent(LOG)) == ["stays", "goes"]
        clock.forward(SECOND)
        assert list_ids(await store.recent(LOG)) == ["stays"]
        assert list_ids(await store.recent(LOG, kinds=["user"])) == ["stays"]
        assert list_ids(await store.read(LOG)) == ["stays"]

    async def test_id_of_an_expired_entry_can_be_reused(self, store: Log, clock: ManualClock) -> None:
        await store.write(make_append("a", expires_at=clock.now + SECOND))
        clock.forward(SECOND)
        await store.write(make_append("a", content="reborn"))
        assert [entry.content for entry in await store.read(LOG)] == ["reborn"]

    async def test_hidden_entries_are_readable_until_dropped(self, store: Log, clock: ManualClock) -> None:
        other = replace(ADA, session="late").space("conversation")
        await store.write(
            make_append("stays"), make_append("brief", expires_at=clock.now + SECOND), make_append("last")
        )
        await store.write(make_append("gone", space=other, expires_at=clock.now + SECOND))
        clock.forward(SECOND)
        assert list_ids(await store.read(LOG, hidden=True)) == ["stays", "brief", "last"]
        assert list_ids(await store.read(LOG, after=1, limit=1, hidden=True)) == ["brief"]
        assert await store.logs(LOG) == [LOG]
        assert await store.logs(LOG, hidden=True) == [LOG, other]
        await store.write(Drop(LOG, (2,)), Drop(other, (1,)))
        assert list_ids(await store.read(LOG, hidden=True)) == ["stays", "last"]
        assert await store.logs(LOG, hidden=True) == [LOG]

    async def test_drop_by_seq_does_not_reuse_seqs(self, store: Log) -> None:
        other = replace(ADA, session="s").space("conversation")
        await store.write(
            *(make_append(f"e{n}") for n in range(4)), *(make_append(f"e{n}", space=other) for n in range(2))
        )
        last = (await store.read(LOG))[-1].seq
        await store.write(Drop(LOG, (2, last, 10**6)))
        assert list_ids(await store.read(LOG)) == ["e0", "e2"]
        assert list_ids(await store.read(other)) == ["e0", "e1"]
        await store.write(make_append("e3"))
        assert (await store.read(LOG))[-1].seq > last

    async def test_owners_lists_each_owner_once(self, store: Log, clock: ManualClock) -> None:
        mine = [replace(ADA, session=name).space("conversation") for name in ("s1", "s2")]
        await store.write(
            *(make_append("a", space=space) for space in mine), make_append("a", space=ADA.space("episodic"))
        )
        await store.write(make_append("a", space=BOB.space("conversation"), expires_at=clock.now))
        await store.write(make_append("a", space=ADA_ELSEWHERE.space("conversation")))
        await store.write(Clear(mine[1]))
        assert await store.owners(ADA.tenant) == [
            ADA.space("conversation"),
            BOB.space("conversation"),
            ADA.space("episodic"),
        ]
        assert await store.owners("missing") == []

    async def test_logs_are_isolated(self, store: Log) -> None:
        spaces = [
            scope.space("conversation")
            for scope in (ADA, BOB, ADA_ELSEWHERE, replace(ADA, session="s"), replace(ADA, agent="other"))
        ]
        spaces.append(ADA.space("working"))
        for n, space in enumerate(spaces):
            await store.write(make_append("same", space=space), make_append(f"own{n}", space=space))
        await store.write(Clear(spaces[1]))
        await store.write(make_append("last", cap=1, space=spaces[2]))
        for n, space in enumerate(spaces):
            expected = [] if n == 1 else ["last"] if n == 2 else ["same", f"own{n}"]
            assert list_ids(await store.read(space)) == expected
            assert list_ids(await store.recent(space)) == expected

    async def test_logs_lists_the_sessions_of_an_owner(self, store: Log, clock: ManualClock) -> None:
        sessions = [replace(ADA, session=name).space("conversation") for name in ("s2", "s1", "gone", "hidden")]
        await store.write(*(make_append("a", space=space) for space in sessions[:3]), make_append("a"))
        await store.write(make_append("a", space=sessions[3], expires_at=clock.now))
        await store.write(Clear(sessions[2]))
        await store.write(make_append("a", space=replace(BOB, session="s3").space("conversation")))
        assert [space.session for space in await store.logs(LOG)] == ["", "s1", "s2"]
        await store.write(make_append("late", space=sessions[1], at=START + SECOND))
        assert [space.session for space in await store.logs(LOG)] == ["", "s2", "s1"]
        await store.write(make_append("later", at=START + 2 * SECOND), make_append("told late", space=sessions[0]))
        assert [space.session for space in await store.logs(LOG)] == ["s2", "s1", ""]
        assert await store.logs(replace(ADA, user="missing").space("conversation")) == []

    async def test_refused_batch_appends_nothing(self, store: Log) -> None:
        await store.write(make_append("a", cap=5))
        with pytest.raises(BadInput):
            await store.write(make_append("b"), Clear(LOG), make_append("c", cap=0))
        with pytest.raises(BadInput):
            await store.write(make_append("b"), make_append("c", metadata={"x": object()}))
        assert list_ids(await store.read(LOG)) == ["a"]

    async def test_append_with_seq_keeps_it(self, store: Log) -> None:
        await store.write(*(replace(make_append(f"e{seq}"), seq=seq) for seq in (3, 4, 9)))
        await store.write(make_append("next"))
        assert {entry.id: entry.seq for entry in await store.read(LOG)} == {"e3": 3, "e4": 4, "e9": 9, "next": 10}
        await store.write(replace(make_append("e9"), seq=20))
        await store.write(replace(make_append("late"), seq=2))
        assert [(entry.id, entry.seq) for entry in await store.read(LOG, after=9)] == [("next", 10), ("late", 11)]

    async def test_seq_exceeds_32_bits(self, store: Log) -> None:
        for seq in (1, 40_000, 5_000_000):
            await store.write(replace(make_append(f"e{seq}"), seq=seq))
            await store.write(replace(make_append("passing"), seq=seq + 1))
            await store.write(Drop(LOG, (seq + 1,)))
        assert [entry.seq for entry in await store.read(LOG)] == [1, 40_000, 5_000_000]

    async def test_last_seqs_include_empty_logs(self, store: Log) -> None:
        other = replace(ADA, session="s/1").space("episodic")
        assert await store.last_seqs("acme") == {}
        await store.write(make_append("a"), make_append("b"), make_append("c"))
        await store.write(make_append("a", space=other))
        await store.write(make_append("a", space=ADA_ELSEWHERE.space("conversation")))
        await store.write(Drop(LOG, (2, 3)), Clear(other))
        assert await store.last_seqs("acme") == {LOG: 3, other: 1}
        assert await store.last_seqs() == {LOG: 3, other: 1, ADA_ELSEWHERE.space("conversation"): 1}
        # Migration sets the counter with an entry that has expired.
        await store.write(replace(make_append("mark", space=other), seq=7), Drop(other, (7,)))
        assert await store.last_seqs("acme") == {LOG: 3, other: 7}
        assert await store.logs(other, hidden=True) == []
        await store.write(make_append("b", space=other))
        assert [entry.seq for entry in await store.read(other)] == [8]

    async def test_expired_entry_is_stored_hidden(self, store: Log, clock: ManualClock) -> None:
        await store.write(replace(make_append("old", expires_at=clock.now - SECOND), seq=5))
        assert await store.read(LOG) == []
        assert [(entry.id, entry.seq) for entry in await store.read(LOG, hidden=True)] == [("old", 5)]

    async def test_tenants_with_entries_are_listed(self, store: Log, clock: ManualClock) -> None:
        elsewhere = ADA_ELSEWHERE.space("conversation")
        await store.write(make_append("a"))
        await store.write(make_append("a", space=elsewhere, expires_at=clock.now - SECOND))
        assert await store.tenants() == ["acme", "globex"]
