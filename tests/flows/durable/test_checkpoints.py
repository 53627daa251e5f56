"""`memory.checkpoints`: versioned states, errors with the path of a bad value, damage and expiry."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
from datetime import timedelta
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import BadInput, Conflict, LeaseHeld, SchemaTooNew, StoreCorrupt
from recollect.settings import Settings
from recollect.stores.writes import Save
from recollect.testing import ManualClock
from tests.cases import Case
from tests.flows.durable.damage import damage
from tests.flows.durable.working import Killed, Trail, Watch, kill

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


async def test_state_is_restored_unchanged(memory: AgentMemory):
    state = {"text": "漢字 👩‍👩‍👧 \x00", "list": [1, 2.5, None, True, {"deep": []}], "big": 2**80, "": ""}
    assert await memory.checkpoints.checkpoint("t", state) == 1
    assert await memory.checkpoints.checkpoint("t", {**state, "n": 2}) == 2
    assert await memory.checkpoints.restore("t") == {**state, "n": 2}
    assert await memory.checkpoints.restore("t", version=1) == state
    assert await memory.checkpoints.restore("t", version=9) is None
    assert await memory.checkpoints.restore("unknown") is None


async def test_history_keeps_the_last_three_versions(memory: AgentMemory):
    for n in range(5):
        await memory.checkpoints.checkpoint("t", {"n": n})
    history = await memory.checkpoints.history("t")
    assert [(entry.version, entry.intact, dict(entry.state or {})) for entry in history] == [
        (5, True, {"n": 4}),
        (4, True, {"n": 3}),
        (3, True, {"n": 2}),
    ]
    assert await memory.checkpoints.history("unknown") == []


async def test_last_writer_wins_unless_expected_version_is_given(memory: AgentMemory):
    # Mutant: `expected_version` is not passed on.
    first = await memory.checkpoints.checkpoint("t", {"n": 1}, expected_version=0)
    await memory.checkpoints.checkpoint("t", {"n": 2})
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await memory.checkpoints.checkpoint("t", {"n": 3}, expected_version=first)
    assert await memory.checkpoints.restore("t") == {"n": 2}
    versions = await asyncio.gather(*(memory.checkpoints.checkpoint("t", {"n": n}) for n in range(30)))
    assert max(versions) == 32


async def test_checkpoint_while_a_run_holds_the_lease_raises(memory: AgentMemory, agent):
    async def meddle(state):
        with pytest.raises(LeaseHeld):
            await memory.checkpoints.checkpoint("t", {"mine": True})
        with pytest.raises(LeaseHeld):
            await memory.checkpoints.retry("t")
        return "fine"

    state = await agent().run("t", [meddle])
    assert state["results"] == {"step_0_meddle": "fine"}
    await memory.checkpoints.checkpoint("t", {"mine": True})


class Weird:
    pass


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {"a": [1, {}]}
    state["a"][1]["back"] = state["a"]
    return state


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


BAD: list[tuple[Any, str]] = [
    (cyclic(), r"state\.a\[1\]\.back refers to itself"),
    ({"a": [1, float("nan")]}, r"state\.a\[1\] is nan"),
    ({"a": float("-inf")}, r"state\.a is -inf"),
    ({"a": {"b": {1, 2}}}, r"state\.a\.b is a set"),
    ({"a": b"bytes"}, r"state\.a is a bytes"),
    ({"when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, r"state\.when is a datetime"),
    ({"a b": [Weird()]}, r"state\['a b'\]\[0\] is a Weird"),
    ({"a": {1: "one"}}, r"state\.a has the key 1, a int; keys must be strings"),
    ({None: 1}, r"state has the key None"),
    ({"a": "half \ud83d"}, r"state\.a has a lone surrogate"),
    ({"\ud83d": 1}, r"state has a lone surrogate"),
    ({"a": nested(300)}, r"nested more than 200 levels deep"),
    ({"a": 10**5000}, r"state\.a is a number with too many digits"),
    ({"a": "x" * 10_000_001}, r"takes 10,000,\d\d\d bytes, and max_state is 10,000,000"),
    ([1], r"the state of a task must be a dict; got list"),
]


async def test_unserializable_state_raises_with_its_path_and_writes_nothing(memory: AgentMemory, agent):
    # Mutant: keys are not checked (the key 1 becomes "1"). Mutant: `allow_nan` is left at its default.
    failures: list[str] = []
    for number, (state, message) in enumerate(BAD):
        task, trail = f"t{number}", Trail()
        with Case(failures, message), pytest.raises(BadInput, match=message):
            await memory.checkpoints.checkpoint(task, state)
        with Case(failures, message), pytest.raises(BadInput):
            await agent().run(task, trail.steps("a"), state)
        with Case(failures, message):
            assert await memory.checkpoints.task(task) is None
            assert trail.ran == []
    assert not failures, "\n".join(failures)


async def test_unserializable_result_fails_its_step_and_writes_nothing(memory: AgentMemory, agent):
    failures: list[str] = []
    for number, (state, message) in enumerate(BAD[:-1]):
        task, trail = f"t{number}", Trail()
        with Case(failures, message):
            await check_failed_result(memory, agent, trail, task, state, message)
    assert not failures, "\n".join(failures)


async def check_failed_result(memory: AgentMemory, agent, trail: Trail, task: str, state: Any, message: str) -> None:
    where = message.replace("state", r"state\.results\.step_1_bad", 1) if message.startswith("state") else message
    with pytest.raises(BadInput, match=where):
        await agent().run(task, [trail.step("a"), trail.step("bad", lambda *_: state), trail.step("c")])
    assert trail.ran == ["a", "bad"]  # a retry would fail the same way
    assert await memory.checkpoints.restore(task) == {"completed": ["step_0_a"], "results": {"step_0_a": "A"}}
    notes = {note.key: note.status for note in await memory.checkpoints.steps(task)}
    assert notes == {"step_0_a": "completed", "step_1_bad": "failed"}
    assert (await agent().run(task, trail.steps("a bad c")))["completed"] == ["step_0_a", "step_1_bad", "step_2_c"]


async def test_max_state_limits_the_size(opener):
    memory = await opener(settings=Settings(max_state=1000))
    with pytest.raises(BadInput, match="max_state is 1,000"):
        await memory.checkpoints.checkpoint("t", {"a": "x" * 1000})


async def test_damaged_version_falls_back_to_the_previous_one(memory: AgentMemory, caplog):
    # Mutant: `_load_newest` ignores `intact`.
    watch = Watch()
    memory.checkpoints.on_event = watch
    for n in range(3):
        await memory.checkpoints.checkpoint("t", {"n": n, "e": "e"})
    damage(memory, "t", 3)
    with caplog.at_level(logging.WARNING, "recollect.durable"):
        assert await memory.checkpoints.restore("t") == {"n": 1, "e": "e"}
    assert [(event.kind, event.detail) for event in watch.events] == [
        ("corrupt", "version 3 is damaged; 2 is used instead")
    ]
    assert "corrupt" in caplog.text
    assert [entry.intact for entry in await memory.checkpoints.history("t")] == [False, True, True]
    with pytest.raises(StoreCorrupt, match="version 3"):
        await memory.checkpoints.restore("t", version=3)
    damage(memory, "t", 1, 2, 3)
    with pytest.raises(StoreCorrupt, match="all stored versions"):
        await memory.checkpoints.restore("t")


async def test_run_resumes_from_the_version_before_a_damaged_one(memory: AgentMemory, agent, trail, watch):
    with pytest.raises(Killed):
        await agent().run("t", [trail.step("a"), trail.step("b"), trail.step("c", kill)])
    damage(memory, "t", 3)
    state = await agent().run("t", trail.steps("a b c"))
    assert trail.ran == ["a", "b", "c", "b", "c"]  # b was done, but its changes to the state are lost
    assert trail.keys[1] == trail.keys[3]
    assert state["completed"] == ["step_0_a", "step_1_b", "step_2_c"]
    assert watch.select("corrupt") == [("corrupt", None)]
    assert ("unknown", "step_1_b") in watch.select("unknown")


async def test_checkpoint_of_a_newer_format_raises(memory: AgentMemory):
    await memory.checkpoints._store.write(
        Save(space=memory.checkpoints._space, task="t", state='{"state":{}}', schema=99)
    )
    with pytest.raises(SchemaTooNew):
        await memory.checkpoints.restore("t")


async def test_invalid_checkpoint_text_raises_store_corrupt(memory: AgentMemory):
    failures: list[str] = []
    for number, text in enumerate(("", "{}", "[]", '"x"', '{"state":[]}', '{"state":{},"working":3}', "{", "NaN")):
        task = f"t{number}"
        with Case(failures, text):
            await memory.checkpoints._store.write(Save(space=memory.checkpoints._space, task=task, state=text))
            with pytest.raises(StoreCorrupt):
                await memory.checkpoints.restore(task)
    assert not failures, "\n".join(failures)


async def test_every_write_extends_the_ttl(memory: AgentMemory, clock: ManualClock):
    await memory.checkpoints.checkpoint("t", {"n": 1}, ttl=3600)
    await memory.checkpoints.checkpoint("forever", {"n": 1}, ttl=math.inf)
    clock.forward(HOUR - SECOND)
    await memory.checkpoints.checkpoint("t", {"n": 2}, ttl=3600)
    clock.forward(HOUR - SECOND)
    assert await memory.checkpoints.restore("t") == {"n": 2}
    clock.forward(SECOND)
    assert await memory.checkpoints.restore("t") is None
    assert [task.id for task in await memory.checkpoints.tasks()] == ["forever"]


@pytest.mark.parametrize(("settings", "seconds"), [({}, 604_800), ({"checkpoint_ttl": 60}, 60)])
async def test_checkpoint_without_ttl_expires_after_the_setting(
    opener, clock: ManualClock, settings: dict[str, Any], seconds: int
):
    memory = await opener(settings=Settings(**settings))
    await memory.checkpoints.checkpoint("t", {"n": 1})
    clock.forward(timedelta(seconds=seconds) - SECOND)
    assert await memory.checkpoints.restore("t") == {"n": 1}
    clock.forward(SECOND)
    assert await memory.checkpoints.restore("t") is None


async def test_infinite_ttl_replaces_a_shorter_one(memory: AgentMemory, clock: ManualClock):
    await memory.checkpoints.checkpoint("t", {"n": 1}, ttl=60)
    await memory.checkpoints.checkpoint("t", {"n": 2}, ttl=math.inf)
    clock.forward(timedelta(days=36_000))
    assert await memory.checkpoints.restore("t") == {"n": 2}


async def test_task_without_ttl_is_resumed_after_any_time(memory: AgentMemory, agent, trail, clock):
    # Mutant: agents have a default ttl of an hour.
    with pytest.raises(Killed):
        await agent().run("t", [trail.step("a"), trail.step("b", kill)])
    clock.forward(timedelta(days=400))
    await agent().run("t", trail.steps("a b"))
    assert trail.ran == ["a", "b", "b"]


async def test_task_with_ttl_does_not_expire_while_it_runs(memory: AgentMemory, agent, clock: ManualClock, waits):
    async def long(state):
        clock.forward(timedelta(seconds=25))  # longer than the ttl, shorter than the lease
        assert await memory.checkpoints.task("t") is not None
        await waits.beaten()
        clock.forward(timedelta(seconds=25))  # longer than the lease as claimed
        assert await memory.checkpoints.task("t") is not None

    await agent(ttl=10).run("t", [long])
    clock.forward(timedelta(seconds=9))
    assert await memory.checkpoints.task("t") is not None
    clock.forward(SECOND)
    assert await memory.checkpoints.task("t") is None


async def test_invalid_ttl_raises(memory: AgentMemory):
    invalid: list[Any] = [0, -1, float("nan"), float("-inf"), "x", True, 1e300]
    failures: list[str] = []
    for number, ttl in enumerate(invalid):
        before = await memory.checkpoints.tasks()
        with Case(failures, ttl), pytest.raises(BadInput):
            await memory.checkpoints.checkpoint(f"t{number}", {}, ttl=ttl)
        with Case(failures, ttl):
            assert await memory.checkpoints.tasks() == before
    assert not failures, "\n".join(failures)


async def test_tasks_are_listed_by_status_and_page(memory: AgentMemory, agent, trail):
    for n in range(5):
        await memory.checkpoints.checkpoint(f"t{n}", {})
    await agent().run("t3", trail.steps("a"))
    assert [task.id for task in await memory.checkpoints.tasks()] == ["t0", "t1", "t2", "t3", "t4"]
    assert [task.id for task in await memory.checkpoints.tasks("done")] == ["t3"]
    assert [task.id for task in await memory.checkpoints.tasks(limit=2, after="t1")] == ["t2", "t3"]
    with pytest.raises(BadInput, match="compensating"):
        await memory.checkpoints.tasks("unheard of")  # type: ignore[arg-type]


async def test_deleted_task_starts_from_the_beginning(memory: AgentMemory, agent, trail):
    await agent().run("t", trail.steps("a"))
    assert await memory.checkpoints.delete("t")
    assert not await memory.checkpoints.delete("t")
    assert await memory.checkpoints.restore("t") is None
    assert await memory.checkpoints.steps("t") == []
    await agent().run("t", trail.steps("a"))
    assert trail.ran == ["a", "a"]


async def test_tasks_are_separate_per_tenant_and_agent(memory: AgentMemory, agent, trail):
    elsewhere = memory.scoped(agent="another")
    await agent().run("t", trail.steps("a"))
    assert await elsewhere.checkpoints.restore("t") is None
    await agent(memory=elsewhere).run("t", trail.steps("a"))
    assert len(set(trail.keys)) == 2  # tasks with the same id in two agents do not share keys
    assert await memory.scoped(user="bob", session="s").checkpoints.restore("t") is not None
