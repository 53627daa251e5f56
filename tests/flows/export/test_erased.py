"""An import leaves out what this store erased after it was recorded."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.flows.conftest import Opener


async def record(memory: AgentMemory, word: str) -> None:
    await memory.remember(f"The {word} is in the attic.")
    await memory.record_turn(f"Where is the {word}?", f"The {word} is in the attic.")


async def test_export_does_not_restore_an_erased_user(opener: Opener, tmp_path: Path, clock: ManualClock):
    # Mutants: nothing is left out; an erasure of another user counts.
    ada = await opener(user="ada", session="s1")
    await record(ada, "cello")
    await ada.export(tmp_path / "ada.jsonl")
    bob = ada.scoped(user="bob", session="s1")
    await record(bob, "oboe")
    await bob.export(tmp_path / "bob.jsonl")
    clock.forward(timedelta(hours=1))
    await ada.erase(user="ada")
    report = await ada.import_from(tmp_path / "ada.jsonl")
    assert (sum(report.added.values()), report.erased) == (0, 5)
    assert not await ada.recall("Where is the cello?", min_relevance=0.0)
    assert await ada.conversation.get_last_n(10) == []
    copy = ada.scoped(user="carl", session="s1")
    assert (await copy.import_from(tmp_path / "bob.jsonl")).erased == 0
    assert len(await copy.conversation.get_last_n(10)) == 2


async def test_include_erased_imports_everything(opener: Opener, tmp_path: Path):
    ada = await opener(user="ada", session="s1")
    await record(ada, "cello")
    await ada.export(tmp_path / "ada.jsonl")
    await ada.erase(user="ada")
    report = await ada.import_from(tmp_path / "ada.jsonl", include_erased=True)
    assert (sum(report.added.values()), report.erased) == (5, 0)


async def test_data_of_a_returning_user_is_imported(opener: Opener, tmp_path: Path, clock: ManualClock):
    # Mutant: every line of a user who was ever erased is left out.
    ada = await opener(user="ada", session="s1")
    await record(ada, "cello")
    await ada.erase(user="ada")
    clock.forward(timedelta(hours=1))
    await record(ada, "oboe")
    await ada.export(tmp_path / "later.jsonl")
    await ada.forget((await ada.semantic.search("oboe", min_relevance=0.0))[0].item.id)
    report = await ada.import_from(tmp_path / "later.jsonl")
    assert (report.added["semantic"], report.erased) == (1, 0)


async def test_erasure_of_a_session_leaves_out_its_messages_and_facts(
    opener: Opener, tmp_path: Path, clock: ManualClock
):
    # Mutant: only the user is matched.
    ada = await opener(user="ada", session="s1")
    for session, words in (("s1", "My name is Ada."), ("s2", "I live in Lisbon.")):
        await ada.scoped(session=session).record_turn(words)
    clock.forward(timedelta(hours=1))
    await ada.lifecycle.run_once()
    await ada.export(tmp_path / "ada.jsonl")
    clock.forward(timedelta(hours=1))
    await ada.erase(session="s1")
    other = await opener(user="ada", session="s1", store=str(tmp_path / "other.db"))
    assert (await other.import_from(tmp_path / "ada.jsonl")).erased == 0
    report = await ada.import_from(tmp_path / "ada.jsonl")
    assert report.erased >= 2
    assert await ada.scoped(session="s1").conversation.get_last_n(10) == []
    facts = [hit.item.content for hit in await ada.semantic.search("Ada Lisbon name", n=50, min_relevance=0.0)]
    assert any("Lisbon" in fact for fact in facts)
    assert not any("name" in fact for fact in facts)


async def test_ids_that_repeat_in_another_session_are_imported(opener: Opener, tmp_path: Path, clock: ManualClock):
    # Mutant: erased lines are matched by their id alone.
    ada = await opener(user="ada", session="s1")
    here, there = [(await ada.scoped(session=name).record_turn("Hello.")).id for name in ("s1", "s2")]
    await ada.export(tmp_path / "ada.jsonl")
    text = (tmp_path / "ada.jsonl").read_text("utf-8")
    (tmp_path / "repeated.jsonl").write_text(text.replace(there, here), "utf-8")
    clock.forward(timedelta(hours=1))
    await ada.erase(session="s1")
    await ada.scoped(session="s2").conversation.clear()
    await ada.import_from(tmp_path / "repeated.jsonl")
    assert await ada.scoped(session="s1").conversation.get_last_n(10) == []
    assert len(await ada.scoped(session="s2").conversation.get_last_n(10)) == 1
