"""`erase` takes everything of somebody, what follows from it too, and nothing of anybody else's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory, BadInput, ResumableAgent
from recollect.errors import FencedOut, Unsupported
from recollect.lifecycle import Erasures, Subject
from recollect.stores.base import Records
from recollect.stores.ops import Append, Entry
from recollect.stores.where import Where
from recollect.testing import ManualClock
from recollect.values import MemoryItem, Scope
from tests.flows.conftest import Opener


async def told(memory: AgentMemory, space_of: Scope, tier: Any) -> list[MemoryItem]:
    records = memory._parts.stores.records("semantic")
    return await records.find(Where(space_of.space(tier)))


async def spaces_of(memory: AgentMemory, user: str) -> list[str]:
    """Every space that a store still knows of somebody: whichever tiers there will be."""
    return [
        str(space)
        for store in memory._parts.stores.every
        for space in await store.holdings()  # type: ignore[attr-defined]
        if space.user == user
    ]


class TestAUser:
    async def test_nothing_of_them_is_left_in_any_tier(self, opener: Opener):
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
        assert receipt.erased["conversation"] >= 3  # what was said, and as much of it as is indexed by now
        assert await spaces_of(memory, "ada") == []
        assert not await memory.recall("Where does Ada live?")
        assert (memory.working.task, await memory.procedural.keys()) == ("", [])
        assert [task.id for task in await memory.checkpoints.tasks()] == ["t2"]
        assert await bob.recall("Where does Bob live?")
        assert await memory.check() == []

    async def test_a_worker_at_work_for_them_is_fenced_out(self, opener: Opener):
        memory = await opener(user="ada")

        async def erased(state: dict[str, Any]) -> None:
            await memory.erase(user="ada")

        with pytest.raises(FencedOut):
            await ResumableAgent(memory).run("t", [erased, erased])
        assert await memory.checkpoints.tasks() == []

    async def test_their_procedure_goes_and_the_version_before_it_is_in_use_again(self, opener: Opener):
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

    async def test_the_same_names_of_another_tenant_are_somebody_else(self, opener: Opener):
        memory = await opener(tenant="acme", user="ada")
        await memory.remember("Ada of Acme.")
        other = memory.scoped(tenant="globex")
        await other.remember("Ada of Globex.")
        await memory.erase(user="ada")
        assert not await memory.recall("Ada of Acme.")
        assert await other.recall("Ada of Globex.")
        await memory.erase(tenant="globex")
        assert not await other.recall("Ada of Globex.")

    async def test_who_comes_back_is_remembered_anew(self, opener: Opener):
        memory = await opener(user="ada")
        await memory.remember("Ada lives in Lisbon.")
        first = await memory.erase(user="ada")
        await memory.remember("Ada lives in Lisbon.")
        await memory.lifecycle.run_once()
        assert await memory.recall("Where does Ada live?")
        second = await memory.erase(user="ada")
        assert (second.previous, second.erased["semantic"]) == (first.sha256, 1)
        assert [one.id for one in await memory.erasures()] == [first.id, second.id]

    async def test_only_a_receipt_can_be_verified(self, opener: Opener):
        """Mutant: whatever is given is asked for what a receipt has."""
        memory = await opener(user="ada")
        receipt = await memory.erase(user="ada")
        wrong: list[Any] = [receipt.id, receipt.as_json(), None]
        for one in wrong:
            with pytest.raises(BadInput, match="what erase or erasures gives"):
                await memory.verify_erasure(one)

    async def test_a_caller_who_names_nobody_erases_nothing(self, opener: Opener):
        memory = await opener()
        with pytest.raises(BadInput, match="whom"):
            await memory.erase()
        with pytest.raises(BadInput):
            await memory.erase(user="")


class TestASession:
    async def test_what_others_said_too_stays_and_is_theirs(self, opener: Opener, clock: ManualClock):
        memory = await opener(user="ada", session="monday")
        await memory.conversation.add_message("user", "Remember that I am allergic to peanuts.")
        await memory.conversation.add_message("user", "I prefer tea to coffee.")
        clock.forward(timedelta(hours=2))
        tuesday = memory.scoped(session="tuesday")
        await tuesday.conversation.add_message("user", "I prefer tea to coffee.")
        await tuesday.remember("Ada's cat is called Tom.")
        await memory.lifecycle.run_once()
        before = {item.content: item for item in await told(memory, memory.scope, "semantic")}
        receipt = await memory.erase(session="monday")
        after = {item.content: item for item in await told(memory, memory.scope, "semantic")}
        assert receipt.complete
        assert "allergic to peanuts" in str([*before])
        assert "allergic to peanuts" not in str([*after])
        assert "Ada's cat is called Tom." in after
        assert not any("monday" in str(item) for item in after.values())
        assert not any("monday" in str(item) for item in await told(memory, replace_session(memory.scope), "lifecycle"))
        assert [message.content for message in await tuesday.conversation.get_last_n(5)] == ["I prefer tea to coffee."]
        await memory.lifecycle.run_once()
        [tea] = [item for item in await told(memory, memory.scope, "semantic") if "tea" in item.content]
        assert tea.scope.session == "tuesday"

    async def test_what_it_had_ended_holds_again(self, opener: Opener, clock: ManualClock):
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

    async def test_a_lesson_goes_with_the_task_it_was_learned_from(self, opener: Opener):
        memory = await opener(user="ada", session="monday")
        await memory.start_task("renew the certificate")
        await memory.record_step("try the script", "run renew.sh", "permission denied", success=False)
        outcome = await memory.end_task(False, "the script needs root")
        assert outcome.learned.derived_from
        await memory.erase(session="monday")
        assert await told(memory, memory.scope, "semantic") == []


class TestAnAgent:
    async def test_what_it_learned_and_did_goes_and_the_users_other_facts_stay(self, opener: Opener):
        memory = await opener(user="ada", agent="cook")
        await memory.remember("Ada likes bread.")
        await memory.procedural.save("bake", "Knead, wait, bake.")
        other = memory.scoped(agent="driver")
        await other.remember("Ada's car is green.")
        await other.checkpoints.checkpoint("trip", {})
        receipt = await memory.erase(agent="cook")
        assert (receipt.erased["semantic"], receipt.erased["procedural"]) == (1, 1)
        assert [item.content for item in await told(memory, memory.scope, "semantic")] == ["Ada's car is green."]
        assert [task.id for task in await other.checkpoints.tasks()] == ["trip"]


async def test_items_of_any_tier_go_by_their_space_or_by_whose_they_are(opener: Opener):
    """A tier that nobody has thought of here: erasing goes by spaces, never by a list of tiers."""
    memory = await opener(user="ada")
    records: Records = memory._parts.stores.records("semantic")
    log = memory._parts.stores.log("conversation")
    at = memory._parts.clock()
    for tier in ("working", "conversation", "episodic", "lifecycle"):
        scope = Scope(user="ada", session="s")
        item = MemoryItem(id=tier, content=f"of {tier}", scope=scope, created_at=at, tier=tier)
        await records.write(_put(item))
        await log.write(Append(space=scope.space(tier), entry=Entry(id="e", kind="note", content="x", at=at)))
    assert len(await spaces_of(memory, "ada")) == 4
    receipt = await memory.erase(user="ada")
    assert (sum(receipt.erased.values()), await spaces_of(memory, "ada")) == (8, [])


async def test_a_store_that_cannot_prove_it_is_refused_before_anything_is_erased(opener: Opener):
    memory = await opener(user="ada")
    await memory.remember("Ada lives in Lisbon.")

    class Unable:
        pass

    erasures = Erasures([*memory._parts.stores.every, Unable()], memory._parts.clock)  # type: ignore[list-item]
    with pytest.raises(Unsupported, match="Unable cannot prove"):
        await erasures.erase(Subject("default", user="ada"))
    assert await memory.recall("Where does Ada live?")


def replace_session(scope: Scope) -> Scope:
    return Scope(scope.tenant, scope.user, scope.agent)


def _put(item: MemoryItem) -> Any:
    from recollect.stores.ops import Put

    return Put(item=item)
