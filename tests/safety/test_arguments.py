"""Every argument of every public method, given what it cannot mean: an error of ours, and a store that is as it was."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from recollect import AgentMemory
from recollect.errors import RecollectError
from recollect.testing import ManualClock
from recollect.tiers.episodic import EpisodeOptions
from recollect.tiers.facts import FactOptions
from tests.embedders import HashEmbedder
from tests.safety.doors import CASES, IN_MIND, OF_THE_STORE
from tests.safety.hostile import deep
from tests.servers.postgres import Server

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

ODD: tuple[Any, ...] = (
    None,
    object(),
    b"bytes",
    True,
    -1,
    0,
    2**63,
    10**400,
    math.nan,
    math.inf,
    "",
    " ",
    "half \ud800",
    "nul \x00",
    "\x1b]8;;http://evil\x07click\x1b]8;;\x07",
    "' or 1=1; drop table records; --",
    "x" * 1_100_000,
    [],
    [object()],
    {},
    {"a": 1},
    {1: 2},
    deep(300),
    ENDLESS,
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    datetime(2026, 1, 1),  # noqa: DTZ001 - without a time zone: that is what is tried
    int,
    len,
    Path("/nowhere/at/all"),
)

# A call of each method that is fine, so that one argument at a time can be spoiled.
FINE: dict[str, dict[str, Any]] = {
    "remember": {"content": "I live in Lisbon."},
    "recall": {"query": "Lisbon"},
    "record_turn": {"user": "Hello.", "assistant": "Hi."},
    "start_task": {"task": "plan"},
    "record_step": {"thought": "think", "action": "act()", "result": "done"},
    "end_task": {"success": True, "outcome": "done"},
    "forget": {"id": "x"},
    "forget_source": {"source": "web"},
    "erase": {"session": "gone"},
    "export": {"path": "export.jsonl"},
    "import_from": {"path": "none.jsonl"},
    "semantic.add": {"content": "I live in Lisbon."},
    "semantic.add_many": {"facts": [{"content": "I live in Porto."}]},
    "semantic.forget": {"id": "x"},
    "semantic.get": {"id": "x"},
    "semantic.history": {"key": "units"},
    "semantic.search": {"query": "Lisbon"},
    "semantic.update_importance": {"id": "x", "importance": 0.5},
    "quarantine.get": {"id": "x"},
    "quarantine.approve": {"id": "held"},
    "quarantine.drop": {"id": "x"},
    "conversation.add_message": {"role": "user", "content": "Hello."},
    "conversation.drafted": {"role": "user", "content": "Hello."},
    "conversation.get_last_n": {"n": 3},
    "conversation.import_from": {"data": {"messages": []}},
    "conversation.search": {"query": "Hello"},
    "episodic.drafted": {"content": "It rained."},
    "episodic.matching": {"query": "rained"},
    "episodic.search": {"query": "rained"},
    "episodic.store": {"content": "It rained."},
    "procedural.get": {"key": "deploy"},
    "procedural.history": {"key": "deploy"},
    "procedural.record_outcome": {"key": "deploy", "success": True},
    "procedural.retire": {"key": "none"},
    "procedural.rollback": {"key": "deploy", "version": 1},
    "procedural.save": {"key": "deploy", "body": "Push a tag."},
    "procedural.search": {"query": "tag"},
    "procedural.success_rate": {"key": "deploy"},
    "checkpoints.cancel": {"task_id": "none"},
    "checkpoints.checkpoint": {"task_id": "job", "state": {"a": 1}},
    "checkpoints.delete": {"task_id": "none"},
    "checkpoints.encoded": {"state": {"a": 1}},
    "checkpoints.history": {"task_id": "job"},
    "checkpoints.restore": {"task_id": "job"},
    "checkpoints.retry": {"task_id": "job"},
    "checkpoints.skip": {"task_id": "none"},
    "checkpoints.steps": {"task_id": "job"},
    "checkpoints.task": {"task_id": "job"},
    "working.add": {"item": "some text"},
    "working.add_result": {"key": "k", "value": 1},
    "working.add_thought": {"thought": "hm"},
    "working.from_snapshot": {"snapshot": {}},
    "working.get_result": {"key": "k"},
    "working.get_variable": {"name": "k"},
    "working.push_subgoal": {"goal": "g"},
    "working.set_task": {"task": "t"},
    "working.set_variable": {"name": "k", "value": 1},
    "scoped": {},
    "lifecycle.start": {"interval": 3600.0},
    "backup": {"path": "copy.db"},
}
# Values of ours, or functions of the caller's own, in whose place nothing of somebody else's can come.
OURS = {
    *("progress", "telling", "fact", "said", "hidden", "working", "parts", "receipt", "embedder", "metadata_of_blocks"),
    # Their words go into the process of the caller alone.
    *("default",),
}
OPTIONS = {"remember": FactOptions, "semantic.add": FactOptions, "episodic.store": EpisodeOptions}
NOT_ASKED = {
    *("open", "close", "reembed", "check", "erasures", "verify_erasure", "lifecycle.stop"),
    *("checkpoints.loaded", "checkpoints.newest"),  # of the agent that runs a task: they take a value of ours
    "episodic.retold",  # of whoever records a turn, in the same way
}


def arguments(memory: AgentMemory, name: str) -> list[str]:
    """The names of everything that can be given to a method."""
    found = inspect.signature(method(memory, name)).parameters.values()
    named = [one.name for one in found if one.kind is not inspect.Parameter.VAR_KEYWORD]
    return [one for one in (*named, *getattr(OPTIONS.get(name), "__annotations__", ())) if one not in OURS]


def method(memory: AgentMemory, name: str) -> Callable[..., Any]:
    thing: Any = memory
    for step in name.split("."):
        thing = getattr(thing, step)
    found: Callable[..., Any] = thing
    return found


def names() -> Iterator[str]:
    return (name for name in sorted([*CASES, *IN_MIND, *OF_THE_STORE]) if name not in NOT_ASKED)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def memory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AgentMemory]:
    monkeypatch.chdir(tmp_path)
    server: Server | None = request.getfixturevalue("postgres") if request.param == "postgres" else None
    place = "memory://" if request.param == "memory" else str(tmp_path / "a.db")
    if server is not None:
        place = server.create("arguments")
    async with AgentMemory.open(place, user="ada", session="s", embedder=HashEmbedder(), clock=ManualClock()) as opened:
        await opened.procedural.save("deploy", "Push a tag.")
        await opened.checkpoints.checkpoint("job", {"a": 1}, ttl=None)
        await opened.start_task("plan")
        yield opened
    if server is not None:
        server.drop("arguments")


async def test_no_argument_of_any_method_can_break_it(memory: AgentMemory, request: pytest.FixtureRequest):
    """Mutants: any check of an argument is left out, such as that of an importance, of the kinds of a fact's fields, of
    the id of a task, of a budget, of a path, of a ttl. (Half a character in a text is refused by stores as well.)"""
    few = request.node.callspec.params["memory"] != "memory"
    tried, faults = 0, []
    for name in names():
        for argument in arguments(memory, name):
            # A file or a server costs a journey each: there, one in three.
            for at, value in list(enumerate(ODD))[:: 1 if not few else 3]:
                tried += 1
                try:
                    given = method(memory, name)(**{**FINE.get(name, {}), argument: value})
                    answer = await given if inspect.isawaitable(given) else given
                    if isinstance(answer, AgentMemory):
                        await answer.recall("Lisbon")
                    await memory.lifecycle.stop()
                except RecollectError as error:
                    faults += [f"{name}({argument}=ODD[{at}]) quotes too much"] if len(str(error)) > 2_000 else []
                except BaseException as error:  # noqa: BLE001 - all of them are told at once
                    faults.append(f"{name}({argument}=ODD[{at}]): {type(error).__name__}: {error!s:.100}")
    assert faults == [], "\n" + "\n".join(faults)
    assert tried > (1_500 if few else 5_000)
    assert await memory.check() == []
    assert await memory.recall("Lisbon", min_relevance=0.0)
