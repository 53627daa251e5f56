"""An agent that calls six tools, and tells the oracle of every effect and of every result it was told is kept."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import AgentEvent, journal, rounds
from recollect.agent.journal import Kept
from recollect.errors import FencedOut
from recollect.inference.chat import ChatMessage, OnText, Reply, ToolCall, ToolSpec
from recollect.runtime import failpoints, lease
from tests.crash.ledger import note
from tests.crash.nursery import raise_children
from tests.embedders import HashEmbedder

MUTANT = "CRASH_TOOL_AGENT"
TASK = "Book the journey to Lisbon."
ANSWER = "booked: quote reserve insure rent pay notify"
TOOLS = ("quote", "reserve", "insure", "rent", "pay", "notify")
_ROUNDS = (("quote",), ("reserve", "insure", "rent"), ("pay",), ("notify",))
_LEASE = 0.4


class Planner:
    """A model that knows from the dialogue how far the work is. Asked twice, it words its wishes in another way."""

    name = "planner"

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: OnText | None = None,
        may_call: bool = True,
    ) -> Reply:
        done = sum(one.role == "assistant" for one in messages)
        if done == len(_ROUNDS):
            return Reply("booked: " + " ".join(one.content for one in messages if one.role == "tool"))
        wanted = [ToolCall(f"{done}_{one}", one, {"wording": f"by {os.getpid()}"}) for one in _ROUNDS[done]]
        return Reply("", tuple(wanted), "tools")

    async def close(self) -> None:
        return


def tools_of(notes: int) -> list[Callable[..., Any]]:
    """Every second one runs in a thread."""

    def made(name: str, place: int) -> Callable[..., Any]:
        def act(wording: str, idempotency_key: str) -> str:
            note(notes, "effect", name, idempotency_key, wording.replace(" ", "_"))
            return name

        async def acting(wording: str, idempotency_key: str) -> str:
            return act(wording, idempotency_key)

        chosen: Callable[..., Any] = acting if place % 2 else act
        chosen.__name__ = name
        return chosen

    return [made(name, place) for place, name in enumerate(TOOLS)]


async def run(path: Path, notes: int) -> None:
    def watch(event: AgentEvent) -> None:
        if event.kind == "tool_finished":
            note(notes, "kept", event.tool)

    async with AgentMemory.open(path, embedder=HashEmbedder()) as memory:
        agent = AgentWithMemory(
            memory, tools_of(notes), Planner(), on_event=watch, lease_ttl=_LEASE, on_conflict="wait"
        )
        answer = ""
        while not answer:
            with suppress(FencedOut):  # on a machine so slow that the lease ran out: it goes on where it stopped
                answer = await agent.run(TASK, task_id="journey")
        told = [one.metadata.get("step") for one in await memory.episodic.get_recent(50)]
        steps = [one for one in told if one is not None]
        said = await memory.conversation.get_last_n(10)
        note(notes, "end", answer.replace(" ", "_"), len(steps), len(set(steps)), len(said))


def forgetful() -> None:
    """What tools returned is not kept."""
    has = Kept.has
    setattr(Kept, "has", lambda self, name: has(self, name) and not name.startswith("tool_"))  # noqa: B010


def unsure() -> None:
    """What the model answered is not kept, nor what its calls were given, by which a run would notice."""
    known = Kept.known
    setattr(Kept, "known", lambda self, name: None if name.startswith("reply_") else known(self, name))  # noqa: B010
    setattr(Kept, "inputs", lambda self, prefix: {})  # noqa: B010


def fickle() -> None:
    """A call has another key in every process."""
    key_of = Kept.key_of
    setattr(Kept, "key_of", lambda self, name: f"{key_of(self, name)}-{os.getpid()}")  # noqa: B010


def late() -> None:
    """Results are kept together, when the next reply comes."""
    keep = Kept.keep
    waiting: dict[str, Any] = {}

    async def kept_later(self: Kept, done: Any, **more: Any) -> None:
        if done and all(name.startswith("tool_") for name in done):
            waiting.update(done)
            self._values.update(done)
            return
        together = {**waiting, **done}
        waiting.clear()
        await keep(self, together, **more)

    setattr(Kept, "keep", kept_later)  # noqa: B010


MUTANTS = {one.__name__: one for one in (forgetful, unsure, fickle, late)}


def main(arguments: list[str]) -> None:
    # The mother has loaded everything, and fail points are read when the runtime is loaded.
    reach = failpoints.armed(os.environ.get(failpoints.VARIABLE, ""))
    for module in (journal, rounds, lease):
        setattr(module, "reach", reach)  # noqa: B010 - imported by name, which mypy would not have assigned
    if mutant := os.environ.get(MUTANT):
        MUTANTS[mutant]()
    logging.disable(logging.WARNING)
    path, notes = arguments
    asyncio.run(run(Path(path), int(notes)))


if __name__ == "__main__":
    raise_children()
