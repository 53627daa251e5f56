"""`export` and `import_from`: everything of a scope as JSON lines, and back, without a loss and without a surprise."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory, BadInput
from recollect.testing import ManualClock
from tests.flows.conftest import Opener
from tests.flows.export.journey import items


async def test_what_comes_back_is_what_went_out(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    report = await furnished.export(tmp_path / "a.jsonl")
    assert report.lines == {
        "semantic": 7,
        "procedural": 3,
        "episodic": 2 * 86 + 1,
        "conversation": 2 * 93,
        "working": 1,
    }
    for store in ("memory://", str(tmp_path / "fresh.db")):
        fresh = await opener(user="ada", tenant="acme", store=store)
        taken = await fresh.import_from(tmp_path / "a.jsonl")
        assert taken.added["semantic"] == 7
        assert sum(taken.present.values()) == 0
        again = tmp_path / f"again-{len(store)}.jsonl"
        await fresh.export(again)
        assert again.read_bytes() == (tmp_path / "a.jsonl").read_bytes()
        for before, after in zip(await items(furnished), await items(fresh), strict=True):
            assert (after.access_count, after.last_accessed) == (before.access_count, before.last_accessed)
            assert after == before or after.version != before.version
        assert max(item.access_count for item in await items(fresh)) == 2
        assert [one.content for one in await fresh.semantic.history("office")] == [
            "The office is in Bergen.",
            "The office is in Oslo.",
        ] * 2
        for key in ("deploy", "old"):
            assert await fresh.procedural.history(key) == await furnished.procedural.history(key)
        for session in ("s1", "s2"):
            here, there = furnished.scoped(session=session), fresh.scoped(session=session)
            assert await there.conversation.get_messages_for_llm() == await here.conversation.get_messages_for_llm()
            assert await there.episodic.get_recent(1000) == await here.episodic.get_recent(1000)
        assert fresh.working.snapshot() == furnished.working.snapshot()
        found = await fresh.semantic.search("which units does Ada prefer", min_relevance=0.0)
        assert found[0].item.content == "Ada prefers metric units."


async def test_twice_is_once_and_what_is_here_stays(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    same = await furnished.import_from(tmp_path / "a.jsonl")
    assert sum(same.added.values()) == 0
    await furnished.export(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    [item] = [one for one in await items(furnished) if one.content == "Ada prefers metric units."]
    await furnished.semantic.update_importance(item.id, 0.1)
    await furnished.import_from(tmp_path / "a.jsonl")
    after = await furnished.semantic.get(item.id)
    assert after is not None
    assert (after.importance, after.access_count) == (0.1, 2)  # neither set back nor counted again


async def test_an_export_can_go_to_somebody_else(furnished: AgentMemory, opener: Opener, tmp_path: Path):
    """In another scope ids are derived anew, so that what is remembered again is still the same item."""
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", agent="other", tenant="umbrella")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert taken.added["semantic"] == 7
    assert {one.scope.user for one in await items(bob)} == {"bob"}
    assert {one.scope.tenant for one in await items(bob)} == {"umbrella"}
    theirs = {one.id for one in await items(furnished)}
    assert theirs.isdisjoint(one.id for one in await items(bob))
    again = await bob.remember("Ada prefers metric units.")
    assert again.importance == 0.8  # the one that came, not a second one
    await bob.remember("Said in passing.", session="s9", position=3, speaker="Mina")
    assert len(await items(bob)) == 7
    values = await bob.semantic.history("office")
    ids = {one.id for one in values}
    assert [one.superseded_by in ids for one in values] == [False, True, True, True]
    saved = await bob.procedural.save("deploy", "Push a tag and wait longer.")
    assert saved.version == 3
    assert len(await items(furnished)) == 7


async def test_a_newer_value_wins_whichever_side_has_it(opener: Opener, clock: ManualClock, tmp_path: Path):
    ada = await opener(user="ada")
    await ada.remember("Oslo", key="office")
    clock.forward(timedelta(hours=2))
    await ada.remember("Bergen", key="office")
    await ada.export(tmp_path / "a.jsonl")
    bob = ada.scoped(user="bob")
    moments = [clock()]
    clock.now -= timedelta(hours=1)  # between the two
    await bob.remember("Tromsø", key="office")
    clock.now = moments[0] + timedelta(hours=1)
    cleo = ada.scoped(user="cleo")
    await cleo.remember("Bodø", key="office")
    for other, current in ((bob, "Bergen"), (cleo, "Bodø")):
        await other.import_from(tmp_path / "a.jsonl")
        values = await other.semantic.history("office")
        assert [one.content for one in values if one.superseded_by is None] == [current]
        # One history without a gap or an overlap.
        values.reverse()
        assert [one.valid_to for one in values[:-1]] == [one.created_at for one in values[1:]]
    found = await bob.semantic.search("Tromsø office", as_of=moments[0] - timedelta(minutes=30), min_relevance=0.0)
    assert [hit.item.content for hit in found] == ["Tromsø"]


async def test_a_session_with_other_messages_gets_those_it_lacks(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", session="s1")
    await bob.conversation.add_message("user", "I was here first.")
    await bob.import_from(tmp_path / "a.jsonl")
    said = await bob.conversation.get_last_n(1000)
    assert len(said) == 93
    assert said[0].content == "I was here first."
    assert [one.content for one in await bob.conversation.search("here first")][:1] == ["I was here first."]
    await bob.import_from(tmp_path / "a.jsonl")
    assert len(await bob.conversation.get_last_n(1000)) == 93


async def test_a_procedure_with_a_history_here_keeps_to_it(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    other = furnished.scoped(agent="other")
    await other.procedural.save("deploy", "Ask Bob.")
    taken = await other.import_from(tmp_path / "a.jsonl")
    assert (taken.added["procedural"], taken.present["procedural"]) == (1, 2)
    assert [one.body for one in await other.procedural.history("deploy")] == ["Ask Bob."]
    assert await other.procedural.get("old") is not None


async def test_what_has_expired_since_is_left_out(furnished: AgentMemory, clock: ManualClock, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    clock.forward(timedelta(days=2))
    bob = furnished.scoped(user="bob")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert (taken.added.get("episodic", 0), taken.expired) == (0, 173)
    assert await bob.episodic.sessions() == []


@pytest.mark.parametrize("user", ["ada", "bob"])
async def test_what_was_forgotten_stays_forgotten_after_the_journey(
    memory: AgentMemory, opener: Opener, clock: ManualClock, tmp_path: Path, user: str
):
    """The words are still in the conversation, and the lifecycle reads it again: it must know what it made of it."""
    said = memory.scoped(session="s1")
    await said.record_turn("Please remember that my flat is in Lisbon.")
    await said.record_turn("Please remember that my dog is called Rex.")
    await memory.lifecycle.run_once()
    [flat] = [item for item in await items(memory) if "Lisbon" in item.content]
    if user == "ada":  # elsewhere nobody can tell what a fact was once that is gone
        await memory.forget(flat.id)
    await memory.export(tmp_path / "a.jsonl")
    fresh = await opener(user=user, store="memory://")
    await fresh.import_from(tmp_path / "a.jsonl")
    before = await items(fresh)
    assert before
    clock.forward(timedelta(hours=1))
    assert (await fresh.lifecycle.run_once()).counts["promoted"] == 0
    assert {item.id for item in await items(fresh)} == {item.id for item in before}


async def test_how_far_a_log_was_read_is_not_taken_along(memory: AgentMemory, opener: Opener, tmp_path: Path):
    """Places in a log are given anew: what is said after the journey must not count as read."""
    said = memory.scoped(session="s1")
    for n in range(10):
        await said.record_turn(f"message {n} about tea")
    await memory.lifecycle.run_once()
    await said.conversation.clear()
    await said.record_turn("Hello again.")
    await memory.export(tmp_path / "a.jsonl")
    fresh = await opener(user="ada", store="memory://", session="s1")
    await fresh.import_from(tmp_path / "a.jsonl")
    await fresh.conversation.add_message("user", "Please remember that my flat is in Lisbon.")
    assert (await fresh.lifecycle.run_once()).counts["promoted"] == 1


async def test_a_doubtful_file_is_trusted_no_more_than_asked(furnished: AgentMemory, tmp_path: Path):
    await furnished.export(tmp_path / "a.jsonl")
    bob = furnished.scoped(user="bob", agent="x")
    report = await bob.import_from(tmp_path / "a.jsonl", trust=0.3)
    assert max(one.trust for one in await items(bob)) == 0.3
    assert (report.added["semantic"], report.untrusted) == (7, 3)
    assert "procedural" not in report.added
    assert await bob.procedural.all(retired=True) == []
    assert (await bob.import_from(tmp_path / "a.jsonl", trust=0.9)).untrusted == 0
    assert {one.trust for one in await bob.procedural.all(retired=True)} == {0.9}
    for wrong in (-1, 2, True, "much"):
        with pytest.raises(BadInput, match="trust"):
            await bob.import_from(tmp_path / "a.jsonl", trust=wrong)  # type: ignore[arg-type]


async def test_progress_is_told_to_its_end(furnished: AgentMemory, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    report = await furnished.export(tmp_path / "a.jsonl", progress=lambda *told: seen.append(told))
    total = sum(report.lines.values())
    assert seen[-1] == (total, total)
    seen.clear()
    await furnished.scoped(user="bob").import_from(tmp_path / "a.jsonl", progress=lambda *told: seen.append(told))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
