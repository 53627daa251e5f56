"""Bad input to every public method of the five tiers: a typed error that names it, and nothing is written."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from recollect import AgentMemory, RecollectError
from recollect.errors import BadInput
from recollect.stores.filters import Where
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import EpisodicMemory
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.semantic import SemanticMemory
from recollect.tiers.working import WorkingMemory
from tests.cases import Case
from tests.embedders import HashEmbedder

pytestmark = pytest.mark.asyncio(loop_scope="module")

Bad = list[tuple[Any, str]]

CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
DEEP: Any = "bottom"
for _ in range(80):
    DEEP = {"in": DEEP}
UNFOLDING: Any = ["ha"]
for _ in range(40):
    UNFOLDING = [UNFOLDING, UNFOLDING]
TEN_MEGABYTES = "x" * 10_000_000
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - the point of this case

# (given value, pattern that the error must match)
NO_TEXT: Bad = [(value, "must be a .*string") for value in (None, 5, b"bytes")]
HALF: Bad = [("half \ud800", "surrogate")]
UNWRITABLE: Bad = [("a\x00b", "NUL|control"), *HALF]
EMPTY: Bad = [("", "empty|name|content|id|text"), (" \n", "empty|name|content|id|text")]
LONG: Bad = [(TEN_MEGABYTES, r"\d characters|at most [\d,]+")]
TEXTS = [*NO_TEXT, *UNWRITABLE, *EMPTY, *LONG]
# Tool output may be long, because it is stored as an extract.
OUTPUTS = [*NO_TEXT, *UNWRITABLE, *EMPTY]
QUERIES = [(None, "quer"), (5, "quer"), ("", "quer"), (" \n", "quer"), (TEN_MEGABYTES, "characters")]
QUERIES += [("half \ud800", "surrogate")]
KEYS = [*NO_TEXT, *UNWRITABLE, *EMPTY, *LONG, ("a\nb", "control"), ("a\x7f", "control")]
IDS = [(5, "id"), ("", "id"), ("a\nb", "control"), ("a" * 10_000, "256")]
ROLES: Bad = [(role, "role") for role in ("robot", "", "User", None, 5, ["user"])]
FRACTIONS: Bad = [(x, "0 to 1") for x in (-0.1, 1.1, math.nan, math.inf, True, "high")]
COUNTS: Bad = [(n, "n is how many|whole number|how many") for n in (-1, True, 1.5, "2", None)]
MOMENTS: Bad = [(NAIVE, "time zone"), ("2026-01-01", "datetime"), (5, "datetime")]
METADATA: Bad = [
    (CYCLE, "levels deep|itself"),
    (DEEP, "levels deep"),
    ({"a": UNFOLDING}, "levels deep|values"),
    ({"a": object()}, "JSON"),
    ({"a": {1, 2}}, "JSON"),
    ({"a": math.nan}, "JSON"),
    ({"a": ["\ud800"]}, "surrogate"),
    ({"a": "x\x00y"}, "NUL"),
    (["a"], "metadata must be a dict|mapping"),
]
BLOCKS: Bad = [
    ([], "empty"),
    (["a"], r"content\[0\]"),
    ([{"type": "text", "text": "a\x00b"}], "NUL"),
    ([{"type": "text", "text": TEN_MEGABYTES}], "max_content"),
    ([{"type": "tool_use", "id": "a", "name": "f", "input": CYCLE}], "levels deep|itself"),
]

TIERS = {
    "working": WorkingMemory,
    "conversation": ConversationMemory,
    "episodic": EpisodicMemory,
    "semantic": SemanticMemory,
    "procedural": ProceduralMemory,
}

Call = Callable[[AgentMemory, Any], Any]

CALLS: dict[str, tuple[Call, Bad]] = {
    "semantic.add content": (lambda m, x: m.semantic.add(x), TEXTS),
    "semantic.add key": (lambda m, x: m.semantic.add("good", key=x), [case for case in KEYS if case[0] is not None]),
    "semantic.add importance": (lambda m, x: m.semantic.add("good", importance=x), FRACTIONS),
    "semantic.add trust": (lambda m, x: m.semantic.add("good", trust=x), FRACTIONS),
    "semantic.add metadata": (lambda m, x: m.semantic.add("good", metadata=x), METADATA),
    "semantic.add at": (lambda m, x: m.semantic.add("good", at=x), MOMENTS),
    "semantic.add valid_from": (lambda m, x: m.semantic.add("good", valid_from=x), MOMENTS),
    "semantic.add valid_to": (lambda m, x: m.semantic.add("good", valid_to=x), MOMENTS),
    "semantic.add_many content": (lambda m, x: m.semantic.add_many([{"content": "good"}, {"content": x}]), TEXTS),
    "semantic.get id": (lambda m, x: m.semantic.get(x), NO_TEXT),
    "semantic.forget id": (lambda m, x: m.semantic.forget(x), NO_TEXT),
    "semantic.page limit": (lambda m, x: m.semantic.page(x), COUNTS),
    "semantic.page after": (
        lambda m, x: m.semantic.page(after=x),
        [(5, "id must be a string"), (b"bytes", "id must be a string")],
    ),
    "semantic.history key": (lambda m, x: m.semantic.history(x), NO_TEXT),
    "semantic.update_importance": (lambda m, x: m.semantic.update_importance("there", x), FRACTIONS),
    "semantic.search query": (lambda m, x: m.semantic.search(x), QUERIES),
    "semantic.search n": (lambda m, x: m.semantic.search("good", x), COUNTS),
    "semantic.search min_relevance": (
        lambda m, x: m.semantic.search("good", min_relevance=x),
        [case for case in FRACTIONS if case[0] is not True],
    ),
    "semantic.search as_of": (lambda m, x: m.semantic.search("good", as_of=x), MOMENTS),
    "procedural.save key": (lambda m, x: m.procedural.save(x, "body"), KEYS),
    "procedural.save body": (lambda m, x: m.procedural.save("good", x), TEXTS),
    "procedural.save description": (
        lambda m, x: m.procedural.save("good", "body", description=x),
        [*NO_TEXT, *UNWRITABLE, *LONG],
    ),
    "procedural.save tags": (lambda m, x: m.procedural.save("good", "body", tags=[x]), KEYS),
    "procedural.save trust": (lambda m, x: m.procedural.save("good", "body", trust=x), FRACTIONS),
    "procedural.get key": (lambda m, x: m.procedural.get(x), KEYS),
    "procedural.record_outcome key": (lambda m, x: m.procedural.record_outcome(x, True), KEYS),
    "procedural.record_outcome note": (
        lambda m, x: m.procedural.record_outcome("there", True, note=x),
        [(5, "string"), *UNWRITABLE, *LONG],
    ),
    "procedural.record_outcome seconds": (
        lambda m, x: m.procedural.record_outcome("there", True, seconds=x),
        [(x, "seconds") for x in (-1, math.nan, math.inf, True, "1")],
    ),
    "procedural.success_rate key": (lambda m, x: m.procedural.success_rate(x), KEYS),
    "procedural.history key": (lambda m, x: m.procedural.history(x), KEYS),
    "procedural.retire key": (lambda m, x: m.procedural.retire(x), KEYS),
    "procedural.rollback key": (lambda m, x: m.procedural.rollback(x, 1), KEYS),
    "procedural.rollback version": (
        lambda m, x: m.procedural.rollback("there", x),
        [(x, "version") for x in (0, -1, True, 1.5, "1", None)],
    ),
    "procedural.best n": (lambda m, x: m.procedural.best(n=x), COUNTS),
    "procedural.best tag": (lambda m, x: m.procedural.best(tag=x), [case for case in KEYS if case[0] is not None]),
    "procedural.best prefix": (
        lambda m, x: m.procedural.best(prefix=x),
        [(5, "prefix"), (b"x", "prefix"), ("half \ud800", "surrogate")],
    ),
    "procedural.search query": (lambda m, x: m.procedural.search(x), QUERIES),
    "procedural.search n": (lambda m, x: m.procedural.search("good", x), COUNTS),
    "conversation.add_message role": (lambda m, x: m.conversation.add_message(x, "good"), ROLES),
    "conversation.add_message content": (lambda m, x: m.conversation.add_message("user", x), [*TEXTS, *BLOCKS]),
    "conversation.add_message metadata": (
        lambda m, x: m.conversation.add_message("user", "good", about=x),
        METADATA[:7],
    ),
    "conversation.search query": (lambda m, x: m.conversation.search(x), QUERIES),
    "conversation.search limit": (lambda m, x: m.conversation.search("good", x), COUNTS),
    "conversation.get_last_n": (lambda m, x: m.conversation.get_last_n(x), COUNTS),
    "conversation.import_from role": (
        lambda m, x: m.conversation.import_from({"messages": [{"role": x, "content": "a"}]}),
        ROLES,
    ),
    "conversation.import_from content": (
        lambda m, x: m.conversation.import_from({"messages": [build_message(), {"role": "user", "content": x}]}),
        [*TEXTS, *BLOCKS],
    ),
    "conversation.import_from metadata": (
        lambda m, x: m.conversation.import_from({"messages": [{**build_message(), "metadata": x}]}),
        METADATA,
    ),
    "conversation.import_from timestamp": (
        lambda m, x: m.conversation.import_from({"messages": [{**build_message(), "timestamp": x}]}),
        [("2026-01-01T00:00:00", "time zone"), ("yesterday", "time"), (5, "time")],
    ),
    "conversation.import_from summary": (
        lambda m, x: m.conversation.import_from({"messages": [build_message()], "summary": x}),
        [(5, "string"), *UNWRITABLE, *LONG],
    ),
    "episodic.store content": (lambda m, x: m.episodic.store(x), TEXTS),
    "episodic.store output": (lambda m, x: m.episodic.store(x, kind="tool_call"), OUTPUTS),
    "episodic.store kind": (
        lambda m, x: m.episodic.store("good", kind=x),
        [(kind, "kind") for kind in ("rumour", "", None, 5, ["turn"])],
    ),
    "episodic.store importance": (lambda m, x: m.episodic.store("good", importance=x), FRACTIONS),
    "episodic.store metadata": (lambda m, x: m.episodic.store("good", metadata=x), METADATA),
    "episodic.store at": (lambda m, x: m.episodic.store("good", at=x), MOMENTS),
    "episodic.store id": (lambda m, x: m.episodic.store("good", id=x), IDS),
    "episodic.store session": (
        lambda m, x: m.episodic.store("good", session=x),
        [(" ", "session"), (5, "session"), ("a\x00", "session"), ("x" * 1000, "session")],
    ),
    "episodic.get_recent n": (lambda m, x: m.episodic.get_recent(x), COUNTS),
    "episodic.search query": (lambda m, x: m.episodic.search(x), QUERIES),
    "episodic.search n": (lambda m, x: m.episodic.search("good", x), COUNTS),
    "working.add item": (lambda m, x: m.working.add(x), [*TEXTS, ([], "list"), ({}, "empty")]),
    "working.add content": (
        lambda m, x: m.working.add({"role": "user", "content": x}),
        [*UNWRITABLE, *EMPTY, *LONG, (None, "empty"), ([], "empty"), ([{"type": "text", "text": "\x00"}], "NUL")],
    ),
    "working.add extra": (lambda m, x: m.working.add({"role": "user", "content": "a", "about": x}), METADATA[:7]),
    "working.add tokens": (
        lambda m, x: m.working.add("good", tokens=x),
        [(x, "whole number") for x in (-1, 1.5, "5", True, math.nan)],
    ),
    "working.set_task": (lambda m, x: m.working.set_task(x), TEXTS),
    "working.add_thought": (lambda m, x: m.working.add_thought(x), TEXTS),
    "working.push_subgoal": (lambda m, x: m.working.push_subgoal(x), TEXTS),
    "working.add_result key": (lambda m, x: m.working.add_result(x, 1), KEYS),
    "working.add_result value": (lambda m, x: m.working.add_result("good", x), METADATA[:7]),
    "working.set_variable name": (lambda m, x: m.working.set_variable(x, 1), KEYS),
    "working.set_variable value": (lambda m, x: m.working.set_variable("good", x), METADATA[:7]),
    "working.from_snapshot": (
        lambda m, x: WorkingMemory.from_snapshot(x),
        [
            (None, "snapshot"),
            ({}, "snapshot"),
            ([], "snapshot"),
            ({"format": 1}, "snapshot"),
            ({"format": 2}, "snapshot"),
        ],
    ),
}

# Methods without parameters that can be wrong, or that another method of the table passes on unchanged.
ELSEWHERE = {
    *("conversation.get_messages_for_llm", "conversation.summary", "conversation.clear"),
    *(
        "conversation.export",
        "episodic.sessions",
    ),
    *(
        "procedural.all",
        "procedural.keys",
        "semantic.consolidate",
    ),
    *("working.clear", "working.get_context_block", "working.get_context_string", "working.pop_subgoal"),
    *("working.get_result", "working.get_variable", "working.snapshot"),
}


def build_message() -> dict[str, Any]:
    return {"role": "user", "content": "good"}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AgentMemory]:
    store = "memory://" if request.param == "memory" else tmp_path_factory.mktemp("bad") / "agent.db"
    async with AgentMemory.open(store, user="ada", session="s1", embedder=HashEmbedder()) as opened:
        await opened.semantic.add("The cello is in the attic.", key="cello", at=datetime(2026, 1, 1, tzinfo=UTC))
        await opened.procedural.save("there", "Do it.", tags=["ops"])
        await opened.conversation.add_message("user", "Hello.")
        await opened.episodic.store("It rained.")
        await opened.working.add("good")
        yield opened


async def read_tiers(memory: AgentMemory) -> Any:
    """Read the contents of the five tiers."""
    records = [await tier._store.find(Where(tier._space)) for tier in (memory.semantic, memory.procedural)]
    episodes = [await memory.episodic.get_recent(1000, session=name) for name in await memory.episodic.sessions()]
    return records, await memory.conversation.export(), episodes, memory.working.snapshot()


async def call_and_fail(call: Call, memory: AgentMemory, given: Any) -> None:
    answer = call(memory, given)
    if inspect.isawaitable(answer):
        await answer
    pytest.fail(f"{reprlib.repr(given)} was accepted")


async def test_tier_method_given_bad_input_raises_and_writes_nothing(memory: AgentMemory):
    failures: list[str] = []
    for name, (call, cases) in CALLS.items():
        before = await read_tiers(memory)
        for given, named in cases:
            with Case(failures, name, given):
                with pytest.raises(RecollectError, match=f"(?i){named}") as refused:
                    await call_and_fail(call, memory, given)
                assert isinstance(refused.value, BadInput)
                assert len(str(refused.value)) < 1000
        with Case(failures, name):
            assert await read_tiers(memory) == before
    assert not failures, "\n".join(failures)


async def test_every_tier_method_has_bad_input_cases():
    """A new tier method needs its bad input in `CALLS`, or a place in `ELSEWHERE`."""
    known = {name.split()[0] for name in CALLS} | ELSEWHERE
    found = {
        f"{tier}.{name}"
        for tier, kind in TIERS.items()
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and callable(member)
    }
    assert found == known
