"""An agent that calls six tools and notes every effect and every saved result."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import AgentEvent, journal, loop
from recollect.agent.journal import DurableJournal
from recollect.durable import failpoints, lease
from recollect.durable.checkpoints import LoadedTask
from recollect.errors import FencedOut
from recollect.models.chat import ChatMessage, Reply, TextCallback, ToolCall, ToolSpec
from tests.crash.acknowledgments import note
from tests.crash.forkserver import serve
from tests.embedders import HashEmbedder

MUTANT = "CRASH_TOOL_AGENT"
TASK = "Book the journey to Lisbon."
ANSWER = "booked: quote reserve insure rent pay notify"
TOOLS = ("quote", "reserve", "insure", "rent", "pay", "notify")
_ROUNDS = (("quote",), ("reserve", "insure", "rent"), ("pay",), ("notify",))
_LEASE = 0.4


class Planner:
    """A scripted model that continues from the dialogue; its wording differs in each process."""

    name = "planner"

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Sequence[ToolSpec] = (),
        on_text: TextCallback | None = None,
        may_call: bool = True,
    ) -> Reply:
        done = sum(message.role == "assistant" for message in messages)
        if done == len(_ROUNDS):
            return Reply("booked: " + " ".join(message.content for message in messages if message.role == "tool"))
        wanted = [ToolCall(f"{done}_{name}", name, {"wording": f"by {os.getpid()}"}) for name in _ROUNDS[done]]
        return Reply("", tuple(wanted), "tools")

    async def close(self) -> None:
        return


def make_tools(notes: int) -> list[Callable[..., Any]]:
    """Return the tools; every second one is synchronous and runs in a thread."""

    def make_tool(name: str, place: int) -> Callable[..., Any]:
        def act(wording: str, idempotency_key: str) -> str:
            note(notes, "effect", name, idempotency_key, wording.replace(" ", "_"))
            return name

        async def acting(wording: str, idempotency_key: str) -> str:
            return act(wording, idempotency_key)

        chosen: Callable[..., Any] = acting if place % 2 else act
        chosen.__name__ = name
        return chosen

    return [make_tool(name, place) for place, name in enumerate(TOOLS)]


async def run(path: Path, notes: int) -> None:
    def watch(event: AgentEvent) -> None:
        if event.kind == "tool_finished":
            note(notes, "kept", event.tool)

    async with AgentMemory.open(path, embedder=HashEmbedder()) as memory:
        agent = AgentWithMemory(
            memory, make_tools(notes), Planner(), on_event=watch, lease_ttl=_LEASE, on_conflict="wait"
        )
        answer = ""
        while not answer:
            with suppress(FencedOut):  # the lease expired on a slow machine: resume
                answer = await agent.run(TASK, task_id="journey")
        step_ids = [episode.metadata.get("step") for episode in await memory.episodic.get_recent(50)]
        steps = [step_id for step_id in step_ids if step_id is not None]
        messages_kept = await memory.conversation.get_last_n(10)
        note(notes, "end", answer.replace(" ", "_"), len(steps), len(set(steps)), len(messages_kept))


def forget_results() -> None:
    """Do not reuse the results of tools."""
    _forget_values("tool_")


def forget_replies() -> None:
    """Do not reuse the replies of the model, nor the inputs of started calls, which would show the difference."""
    _forget_values("reply_")
    setattr(DurableJournal, "find_started_inputs", lambda self, prefix: {})  # noqa: B010


def _forget_values(prefix: str) -> None:
    known = journal.read_values

    def read_others(loaded: LoadedTask) -> dict[str, Any]:
        return {name: value for name, value in known(loaded).items() if not name.startswith(prefix)}

    journal.read_values = read_others


def change_keys() -> None:
    """Use another idempotency key in every process."""
    key_of = DurableJournal.make_idempotency_key
    setattr(DurableJournal, "make_idempotency_key", lambda self, name: f"{key_of(self, name)}-{os.getpid()}")  # noqa: B010


def delay_commit() -> None:
    """Save the results of tools together with the next reply."""
    keep = DurableJournal.commit
    waiting: dict[str, Any] = {}

    async def commit_later(self: DurableJournal, done: Any, **more: Any) -> None:
        if done and all(name.startswith("tool_") for name in done):
            waiting.update(done)
            self.values.update(done)
            return
        together = {**waiting, **done}
        waiting.clear()
        await keep(self, together, **more)

    setattr(DurableJournal, "commit", commit_later)  # noqa: B010


MUTANTS = {mutant.__name__: mutant for mutant in (forget_results, forget_replies, change_keys, delay_commit)}


def main(arguments: list[str]) -> None:
    # The fork server has imported the runtime, which reads its failpoints at import.
    reach = failpoints.arm_failpoints(os.environ.get(failpoints.FAILPOINTS_VARIABLE, ""))
    for module in (journal, loop, lease):
        setattr(module, "reach_failpoint", reach)  # noqa: B010 - imported by name, which mypy would not have assigned
    if mutant := os.environ.get(MUTANT):
        MUTANTS[mutant]()
    logging.disable(logging.WARNING)
    path, notes = arguments
    asyncio.run(run(Path(path), int(notes)))


if __name__ == "__main__":
    serve()
