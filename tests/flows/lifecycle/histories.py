"""Random histories of a memory, as steps that run on any backend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.flows.conftest import indexed

Step = tuple[Any, ...]

_SAID = st.sampled_from(
    [
        "I prefer metric units.",
        "I live in Lisbon.",
        "I live in Porto.",
        "My name is Ada.",
        "Remember that the gate code is 5512.",
        "The staging server runs on port 8080.",
        "We decided to use PostgreSQL.",
        "No, actually it's on Tuesday.",
        "Don't remember this: I hate Mondays.",
        "What time is it?",
        "Thanks!",
    ]
)
_KNOWN = st.sampled_from(
    ["The pot is blue.", "the pot is blue", "The key is old.", "Tea at four.", "I prefer metric units."]
)
_SESSIONS = st.sampled_from(["a", "b", "c"])
_FRACTIONS = st.sampled_from([0.0, 0.1, 0.29, 0.3, 0.5, 0.8, 1.0])

STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("say"), _SESSIONS, _SAID),
        st.tuples(st.just("happen"), _SESSIONS, _SAID, st.sampled_from(["turn", "decision", "outcome", "tool_call"])),
        st.tuples(st.just("know"), _KNOWN, _FRACTIONS, st.sampled_from([None, None, "key"]), st.booleans()),
        st.tuples(st.just("ask"), _KNOWN),
        st.tuples(st.just("forget"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.1, 1.1, 10.0, 45.0, 90.0])),
        st.tuples(st.just("run")),
    ),
    max_size=14,
)


async def apply_steps(memory: AgentMemory, clock: ManualClock, steps: Sequence[Step]) -> None:
    """Apply the steps and wait until every turn is indexed."""
    for step in steps:
        match step:
            case ("say", session, text):
                await memory.scoped(session=session).record_turn(text, "ok")
            case ("happen", session, text, kind):
                await memory.episodic.store(text, kind=kind, session=session)
            case ("know", text, importance, key, pinned):
                await memory.remember(text, importance=importance, key=key, pinned=pinned)
            case ("ask", text):
                await memory.semantic.search(text, 2, min_relevance=0.0)
            case ("forget", number):
                hits = await memory.semantic.search("pot key tea units", 9, min_relevance=0.0)
                if number < len(hits):
                    await memory.forget(hits[number].item.id)
            case ("wait", days):
                clock.forward(timedelta(days=days))
            case ("run",):
                await memory.lifecycle.run_once()
    await indexed(memory)
