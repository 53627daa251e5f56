"""`export` and `import_from`: all data of a scope as JSON lines and back, without loss."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput
from recollect.testing import ManualClock
from recollect.types import Progress
from tests.flows.conftest import Opener
from tests.flows.export.export_file import list_facts


async def test_round_trip_preserves_every_tier(filled: AgentMemory, opener: Opener, tmp_path: Path):
    report = await filled.export(tmp_path / "a.jsonl")
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
        for before, after in zip(await list_facts(filled), await list_facts(fresh), strict=True):
            assert (after.access_count, after.last_accessed) == (before.access_count, before.last_accessed)
            assert after == before or after.version != before.version
        assert max(item.access_count for item in await list_facts(fresh)) == 2
        assert [item.content for item in await fresh.semantic.history("office")] == [
            "The office is in Bergen.",
            "The office is in Oslo.",
        ] * 2
        for key in ("deploy", "old"):
            assert await fresh.procedural.history(key) == await filled.procedural.history(key)
        for session in ("s1", "s2"):
            here, there = filled.scoped(session=session), fresh.scoped(session=session)
            assert await there.conversation.get_messages_for_llm() == await here.conversation.get_messages_for_llm()
            assert await there.episodic.get_recent(1000) == await here.episodic.get_recent(1000)
        assert fresh.working.snapshot() == filled.working.snapshot()
        found = await fresh.semantic.search("which units does Ada prefer", min_relevance=0.0)
        assert found[0].item.content == "Ada prefers metric units."


async def test_import_is_idempotent_and_keeps_local_changes(filled: AgentMemory, opener: Opener, tmp_path: Path):
    await filled.export(tmp_path / "a.jsonl")
    same = await filled.import_from(tmp_path / "a.jsonl")
    assert sum(same.added.values()) == 0
    await filled.export(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    [item] = [item for item in await list_facts(filled) if item.content == "Ada prefers metric units."]
    await filled.semantic.update_importance(item.id, 0.1)
    await filled.import_from(tmp_path / "a.jsonl")
    after = await filled.semantic.get(item.id)
    assert after is not None
    assert (after.importance, after.access_count) == (0.1, 2)  # neither set back nor counted again


async def test_import_into_another_scope_derives_new_ids(filled: AgentMemory, opener: Opener, tmp_path: Path):
    """Ids are derived from the new scope, so that remembering the same text again updates the imported item."""
    await filled.export(tmp_path / "a.jsonl")
    bob = filled.scoped(user="bob", agent="other", tenant="umbrella")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert taken.added["semantic"] == 7
    assert {item.scope.user for item in await list_facts(bob)} == {"bob"}
    assert {item.scope.tenant for item in await list_facts(bob)} == {"umbrella"}
    theirs = {item.id for item in await list_facts(filled)}
    assert theirs.isdisjoint(item.id for item in await list_facts(bob))
    again = await bob.remember("Ada prefers metric units.")
    assert again.importance == 0.8  # the imported item, not a new one
    await bob.remember("Said in passing.", session="s9", position=3, speaker="Mina")
    assert len(await list_facts(bob)) == 7
    values = await bob.semantic.history("office")
    ids = {item.id for item in values}
    assert [item.superseded_by in ids for item in values] == [False, True, True, True]
    saved = await bob.procedural.save("deploy", "Push a tag and wait longer.")
    assert saved.version == 3
    assert len(await list_facts(filled)) == 7


async def test_import_of_keyed_fact_keeps_the_newer_value(opener: Opener, clock: ManualClock, tmp_path: Path):
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
        assert [item.content for item in values if item.superseded_by is None] == [current]
        # The history has no gap and no overlap.
        values.reverse()
        assert [item.valid_to for item in values[:-1]] == [item.created_at for item in values[1:]]
    found = await bob.semantic.search("Tromsø office", as_of=moments[0] - timedelta(minutes=30), min_relevance=0.0)
    assert [hit.item.content for hit in found] == ["Tromsø"]


async def test_import_into_session_adds_missing_messages(filled: AgentMemory, tmp_path: Path):
    await filled.export(tmp_path / "a.jsonl")
    bob = filled.scoped(user="bob", session="s1")
    await bob.conversation.add_message("user", "I was here first.")
    await bob.import_from(tmp_path / "a.jsonl")
    said = await bob.conversation.get_last_n(1000)
    assert len(said) == 93
    assert said[0].content == "I was here first."
    assert [item.content for item in await bob.conversation.search("here first")][:1] == ["I was here first."]
    await bob.import_from(tmp_path / "a.jsonl")
    assert len(await bob.conversation.get_last_n(1000)) == 93


async def test_import_keeps_existing_procedure_history(filled: AgentMemory, tmp_path: Path):
    await filled.export(tmp_path / "a.jsonl")
    other = filled.scoped(agent="other")
    await other.procedural.save("deploy", "Ask Bob.")
    taken = await other.import_from(tmp_path / "a.jsonl")
    assert (taken.added["procedural"], taken.present["procedural"]) == (1, 2)
    assert [item.body for item in await other.procedural.history("deploy")] == ["Ask Bob."]
    assert await other.procedural.get("old") is not None


async def test_import_skips_expired_lines(filled: AgentMemory, clock: ManualClock, tmp_path: Path):
    await filled.export(tmp_path / "a.jsonl")
    clock.forward(timedelta(days=2))
    bob = filled.scoped(user="bob")
    taken = await bob.import_from(tmp_path / "a.jsonl")
    assert (taken.added.get("episodic", 0), taken.expired) == (0, 173)
    assert await bob.episodic.sessions() == []


@pytest.mark.parametrize("user", ["ada", "bob"])
async def test_forgotten_fact_is_not_learned_again_after_import(
    memory: AgentMemory, opener: Opener, clock: ManualClock, tmp_path: Path, user: str
):
    """The conversation still contains the statement, and the lifecycle of the new store reads it again."""
    said = memory.scoped(session="s1")
    await said.record_turn("Please remember that my flat is in Lisbon.")
    await said.record_turn("Please remember that my dog is called Rex.")
    await memory.lifecycle.run_once()
    [flat] = [item for item in await list_facts(memory) if "Lisbon" in item.content]
    if user == "ada":  # notes about forgotten facts do not apply to another user
        await memory.forget(flat.id)
    await memory.export(tmp_path / "a.jsonl")
    fresh = await opener(user=user, store="memory://")
    await fresh.import_from(tmp_path / "a.jsonl")
    before = await list_facts(fresh)
    assert before
    clock.forward(timedelta(hours=1))
    assert (await fresh.lifecycle.run_once()).counts["promoted"] == 0
    assert {item.id for item in await list_facts(fresh)} == {item.id for item in before}


async def test_log_read_position_is_not_exported(memory: AgentMemory, opener: Opener, tmp_path: Path):
    """Import assigns new sequence numbers, so a later message must not count as read."""
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


async def test_import_with_trust_caps_trust(filled: AgentMemory, tmp_path: Path):
    await filled.export(tmp_path / "a.jsonl")
    bob = filled.scoped(user="bob", agent="x")
    report = await bob.import_from(tmp_path / "a.jsonl", trust=0.3)
    assert max(item.trust for item in await list_facts(bob)) == 0.3
    assert (report.added["semantic"], report.untrusted) == (7, 3)
    assert "procedural" not in report.added
    assert await bob.procedural.all(retired=True) == []
    assert (await bob.import_from(tmp_path / "a.jsonl", trust=0.9)).untrusted == 0
    assert {item.trust for item in await bob.procedural.all(retired=True)} == {0.9}
    for wrong in (-1, 2, True, "much"):
        with pytest.raises(BadInput, match="trust"):
            await bob.import_from(tmp_path / "a.jsonl", trust=wrong)  # type: ignore[arg-type]


async def test_progress_reaches_the_total(filled: AgentMemory, tmp_path: Path):
    seen: list[Progress] = []
    report = await filled.export(tmp_path / "a.jsonl", progress=seen.append)
    total = sum(report.lines.values())
    assert seen[-1] == Progress("export", total, total)
    seen.clear()
    await filled.scoped(user="bob").import_from(tmp_path / "a.jsonl", progress=seen.append)
    assert seen[-1] == Progress("import", total, total)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
