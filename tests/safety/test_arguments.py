"""Invalid values for every argument of every public method: they raise RecollectError and damage nothing."""

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
from tests.embedders import HashEmbedder
from tests.safety.hostile_inputs import nest
from tests.safety.method_cases import CASES, STORE_METHODS, WORKING_CASES
from tests.servers.postgres import Server

CYCLIC: list[Any] = []
CYCLIC.append(CYCLIC)

INVALID_VALUES: tuple[Any, ...] = (
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
    nest(300),
    CYCLIC,
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    datetime(2026, 1, 1),  # noqa: DTZ001 - a naive time is one of the cases
    int,
    len,
    Path("/nowhere/at/all"),
)

# A valid call of each method, in which one argument at a time is replaced.
VALID_CALLS: dict[str, dict[str, Any]] = {
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
    "conversation.get_last_n": {"n": 3},
    "conversation.import_from": {"data": {"messages": []}},
    "conversation.search": {"query": "Hello"},
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
# Arguments that take internal values or functions of the caller, and never external input.
INTERNAL_ARGUMENTS = {
    *("progress", "telling", "fact", "said", "hidden", "working", "parts", "receipt", "embedder", "metadata_of_blocks"),
    # Returned to the caller only.
    *("default",),
}
SKIPPED = {
    *("open", "close", "reembed", "check", "erasures", "verify_erasure", "lifecycle.stop"),
}


def list_arguments(memory: AgentMemory, name: str) -> list[str]:
    """Return the names of the arguments of a method."""
    found = inspect.signature(get_method(memory, name)).parameters.values()
    return [p.name for p in found if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name not in INTERNAL_ARGUMENTS]


def get_method(memory: AgentMemory, name: str) -> Callable[..., Any]:
    thing: Any = memory
    for step in name.split("."):
        thing = getattr(thing, step)
    found: Callable[..., Any] = thing
    return found


def list_methods() -> Iterator[str]:
    return (name for name in sorted([*CASES, *WORKING_CASES, *STORE_METHODS]) if name not in SKIPPED)


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


async def test_invalid_arguments_raise_only_recollect_errors(memory: AgentMemory, request: pytest.FixtureRequest):
    """Mutants: one argument check is removed, such as that of an importance, a field of a fact, a task id, a budget, a
    path or a ttl. (Stores reject lone surrogates in a text too.)"""
    few = request.node.callspec.params["memory"] != "memory"
    tried, faults = 0, []
    for name in list_methods():
        for argument in list_arguments(memory, name):
            # On a file or a server, every third value is tried, because calls are slower.
            for at, value in list(enumerate(INVALID_VALUES))[:: 1 if not few else 3]:
                tried += 1
                try:
                    given = get_method(memory, name)(**{**VALID_CALLS.get(name, {}), argument: value})
                    answer = await given if inspect.isawaitable(given) else given
                    if isinstance(answer, AgentMemory):
                        await answer.recall("Lisbon")
                    await memory.lifecycle.stop()
                except RecollectError as error:
                    faults += (
                        [f"{name}({argument}=INVALID_VALUES[{at}]) quotes too much"] if len(str(error)) > 2_000 else []
                    )
                except BaseException as error:  # noqa: BLE001 - the test reports all faults together
                    faults.append(f"{name}({argument}=INVALID_VALUES[{at}]): {type(error).__name__}: {error!s:.100}")
    assert faults == [], "\n" + "\n".join(faults)
    assert tried > (1_500 if few else 4_500)
    assert await memory.check() == []
    assert await memory.recall("Lisbon", min_relevance=0.0)
