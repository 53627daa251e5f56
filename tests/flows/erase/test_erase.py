"""`erase` deletes all data of its subject and everything derived from it, and nothing of others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from recollect.erasure import Eraser, ErasureSubject
from recollect.errors import BadInput, FencedOut, Unsupported
from recollect.stores.base import Records
from recollect.stores.filters import Where
from recollect.stores.writes import Append, Entry
from recollect.testing import ManualClock
from recollect.types import MemoryItem, Scope
from tests.flows.conftest import Opener


async def load_items(memory: AgentMemory, space_of: Scope, tier: Any) -> list[MemoryItem]:
    records = memory._engine.stores.records("semantic")
    return await records.find(Where(space_of.space(tier)))


async def spaces_of(memory: AgentMemory, user: str) -> list[str]:
    """Return the spaces of a user in all stores, whatever their tier."""
    return [
        str(space)
        for store in memory._engine.stores.all_stores
        for space in await store.list_traced_spaces()  # type: ignore[attr-defined]
        if space.user == user
    ]


class TestEraseUser:
    async def test_erase_user_leaves_nothing_in_any_tier(self, opener: Opener):
        memory = await opener(user="ada", session="s1")
        await memory.remember("Ada lives in Lisbon.", key="home", metadata={"of_ada": 1})
        await memory.remember("Ada lives in Boston.", key="home")
        await memory.record_turn("I like metric units.", "Noted.")
        await memory.start_task("find a flat")
        await memory.record_step("look around", "search", "nothing")
        await memory.procedural.save("find_flat", "Ask Ada's friends first.")
        await memory.checkpoints.checkpoint("t1", {"for": "ada"})
        bob = memory.scoped(user="bob")
        await bob.remember("Bob lives in Porto.")
        await bob.checkpoints.checkpoint("t2", {"for": "bob"})
        receipt = await memory.erase(user="ada")
        assert receipt.complete
        counts = {"semantic": 2, "episodic": 4, "working": 1, "procedural": 1, "checkpoints": 1}
        assert {tier: receipt.erased[tier] for tier in counts} == counts
        assert receipt.erased["conversation"] >= 3  # the messages, and the index items written so far
        assert await spaces_of(memory, "ada") == []
        assert not await memory.recall("Where does Ada live?")
        assert (memory.working.task, await memory.procedural.keys()) == ("", [])
        assert [task.id for task in await memory.checkpoints.tasks()] == ["t2"]
        assert await bob.recall("Where does Bob live?")
        assert await memory.check() == []

    async def test_erase_user_fences_out_running_worker(self, opener: Opener):
        memory = await opener(user="ada")

        async def erase_ada(state: dict[str, Any]) -> None:
            await memory.erase(user="ada")

        with pytest.raises(FencedOut):
            await ResumableAgent(memory).run("t", [erase_ada, erase_ada])
        assert await memory.checkpoints.tasks() == []

    async def test_erase_user_restores_previous_procedure_version(self, opener: Opener):
        bob = await opener(user="bob")
        ada = bob.scoped(user="ada")
        await bob.procedural.save("deploy", "Push, then watch.")
        await ada.procedural.save("deploy", "Push as Ada told me to.")
        await bob.procedural.record_outcome("deploy", False, note="Bob saw it fail.")
        await bob.procedural.save("test", "Run all.")
        await ada.procedural.record_outcome("test", False, note="Ada's secret log.")
        await bob.procedural.record_outcome("test", False, note="Bob saw it too.")
        receipt = await bob.erase(user="ada")
        [left] = await bob.procedural.history("deploy")
        assert (left.body, left.current) == ("Push, then watch.", True)
        found = await bob.procedural.get("test")
        assert found is not None
        assert [note.text for note in found.outcomes.notes] == ["Bob saw it too."]
        assert found.outcomes.trials == 2
        assert (receipt.erased["procedural"], receipt.rederived) == (1, 2)

    async def test_erase_user_keeps_same_user_of_other_tenant(self, opener: Opener):
        memory = await opener(tenant="acme", user="ada")
        await memory.remember("Ada of Acme.")
        other = memory.scoped(tenant="globex")
        await other.remember("Ada of Globex.")
        await memory.erase(user="ada")
        assert not await memory.recall("Ada of Acme.")
        assert await other.recall("Ada of Globex.")
        await memory.erase(tenant="globex")
        assert not await other.recall("Ada of Globex.")

    async def test_returning_user_is_remembered_after_erasure(self, opener: Opener):
        memory = await opener(user="ada")
        await memory.remember("Ada lives in Lisbon.")
        first = await memory.erase(user="ada")
        await memory.remember("Ada lives in Lisbon.")
        await memory.lifecycle.run_once()
        assert await memory.recall("Where does Ada live?")
        second = await memory.erase(user="ada")
        assert (second.previous, second.erased["semantic"]) == (first.sha256, 1)
        assert [receipt.id for receipt in await memory.erasures()] == [first.id, second.id]

    async def test_verify_erasure_without_receipt_raises_bad_input(self, opener: Opener):
        """Mutant: the type of the argument is not checked."""
        memory = await opener(user="ada")
        receipt = await memory.erase(user="ada")
        wrong: list[Any] = [receipt.id, receipt.as_json(), None]
        for value in wrong:
            with pytest.raises(BadInput, match="must be an ErasureReceipt"):
                await memory.verify_erasure(value)

    async def test_erase_without_subject_raises_bad_input(self, opener: Opener):
        memory = await opener()
        with pytest.raises(BadInput, match="needs a user, a session"):
            await memory.erase()
        with pytest.raises(BadInput):
            await memory.erase(user="")


class TestEraseSession:
    async def test_fact_also_stated_in_another_session_is_kept(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="monday")
        await memory.conversation.add_message("user", "Remember that I am allergic to peanuts.")
        await memory.conversation.add_message("user", "I prefer tea to coffee.")
        clock.forward(timedelta(hours=2))
        tuesday = memory.scoped(session="tuesday")
        await tuesday.conversation.add_message("user", "I prefer tea to coffee.")
        await tuesday.remember("Ada's cat is called Tom.")
        await memory.lifecycle.run_once()
        before = {item.content: item for item in await load_items(memory, memory.scope, "semantic")}
        receipt = await memory.erase(session="monday")
        after = {item.content: item for item in await load_items(memory, memory.scope, "semantic")}
        assert receipt.complete
        assert "allergic to peanuts" in str([*before])
        assert "allergic to peanuts" not in str([*after])
        assert "Ada's cat is called Tom." in after
        assert not any("monday" in str(item) for item in after.values())
        assert not any(
            "monday" in str(item) for item in await load_items(memory, drop_session(memory.scope), "lifecycle")
        )
        assert [message.content for message in await tuesday.conversation.get_last_n(5)] == ["I prefer tea to coffee."]
        await memory.lifecycle.run_once()
        [tea] = [item for item in await load_items(memory, memory.scope, "semantic") if "tea" in item.content]
        assert tea.scope.session == "tuesday"

    async def test_erase_session_restores_superseded_value(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="monday")
        await memory.remember("Ada lives in Lisbon.", key="home")
        clock.forward(timedelta(hours=1))
        await memory.scoped(session="tuesday").remember("Ada lives in Boston.", key="home")
        clock.forward(timedelta(hours=1))
        await memory.scoped(session="friday").remember("Ada lives in Porto.", key="home")
        await memory.erase(session="tuesday")
        newest, oldest = await memory.semantic.history("home")
        assert (newest.content, oldest.superseded_by, oldest.valid_to) == (
            "Ada lives in Porto.",
            newest.id,
            newest.created_at,
        )
        await memory.erase(session="friday")
        [left] = await memory.semantic.history("home")
        assert (left.content, left.superseded_by, left.valid_to) == ("Ada lives in Lisbon.", None, None)

    async def test_erase_session_deletes_lesson_of_its_task(self, opener: Opener):
        memory = await opener(user="ada", session="monday")
        await memory.start_task("renew the certificate")
        await memory.record_step("try the script", "run renew.sh", "permission denied", success=False)
        outcome = await memory.end_task(False, "the script needs root")
        assert outcome.learned.derived_from
        await memory.erase(session="monday")
        assert await load_items(memory, memory.scope, "semantic") == []


class TestEraseAgent:
    async def test_erase_agent_deletes_its_facts_and_procedures_only(self, opener: Opener):
        memory = await opener(user="ada", agent="cook")
        await memory.remember("Ada likes bread.")
        await memory.procedural.save("bake", "Knead, wait, bake.")
        other = memory.scoped(agent="driver")
        await other.remember("Ada's car is green.")
        await other.checkpoints.checkpoint("trip", {})
        receipt = await memory.erase(agent="cook")
        assert (receipt.erased["semantic"], receipt.erased["procedural"]) == (1, 1)
        assert [item.content for item in await load_items(memory, memory.scope, "semantic")] == ["Ada's car is green."]
        assert [task.id for task in await other.checkpoints.tasks()] == ["trip"]


async def test_erase_deletes_every_space_of_the_user(opener: Opener):
    """Erasure selects spaces by owner, not by a list of tiers, so that it covers tiers added later."""
    memory = await opener(user="ada")
    records: Records = memory._engine.stores.records("semantic")
    log = memory._engine.stores.log("conversation")
    at = memory._engine.clock()
    for tier in ("working", "conversation", "episodic", "lifecycle"):
        scope = Scope(user="ada", session="s")
        item = MemoryItem(id=tier, content=f"of {tier}", scope=scope, created_at=at, tier=tier)
        await records.write(_put(item))
        await log.write(Append(space=scope.space(tier), entry=Entry(id="e", kind="note", content="x", at=at)))
    assert len(await spaces_of(memory, "ada")) == 4
    receipt = await memory.erase(user="ada")
    assert (sum(receipt.erased.values()), await spaces_of(memory, "ada")) == (8, [])


async def test_store_without_erasure_support_is_rejected_first(opener: Opener):
    memory = await opener(user="ada")
    await memory.remember("Ada lives in Lisbon.")

    class StoreWithoutErasure:
        pass

    erasures = Eraser([*memory._engine.stores.all_stores, StoreWithoutErasure()], memory._engine.clock)  # type: ignore[list-item]
    with pytest.raises(Unsupported, match="StoreWithoutErasure cannot prove"):
        await erasures.erase(ErasureSubject("default", user="ada"))
    assert await memory.recall("Where does Ada live?")


def drop_session(scope: Scope) -> Scope:
    return Scope(scope.tenant, scope.user, scope.agent)


def _put(item: MemoryItem) -> Any:
    from recollect.stores.writes import Put

    return Put(item=item)
