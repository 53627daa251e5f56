"""A process that writes to a memory with several stores and may be killed between any two of them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent
from recollect.durable import task_runner
from recollect.durable.step_memory import StoreWrites, append_in_order, write_in_order
from recollect.errors import FencedOut
from recollect.recording import task as task_recording
from recollect.recording import turn as turn_recording
from tests.embedders import HashEmbedder

TASK = "Move the site to the new host"


async def turn(memory: AgentMemory) -> None:
    await memory.record_turn("My cat is called Miso.", "I will remember that.", id="turn")


async def task(memory: AgentMemory) -> None:
    """Record a failed task, like an application that first checks what was recorded before it was killed."""
    await memory.recall(TASK, 1, tiers=("working",))
    if not memory.working.task:
        if any(episode.kind == "outcome" for episode in await memory.episodic.get_recent(50)):
            return
        await memory.start_task(TASK)
    if not memory.working.results:
        await memory.record_step("By the book.", "deploy", "pushed", procedure="deploy")
    await memory.end_task(False, "The new host does not answer.")


async def step(memory: AgentMemory) -> None:
    """Record turns, a fact, a task and an episode in one step of a durable task."""

    async def migrate(state: dict[str, Any], ctx: Any) -> None:
        await ctx.memory.record_turn("Is it moved?", "Not yet.")
        await ctx.memory.remember("The new host is called Willow.")
        await ctx.memory.start_task(TASK)
        await ctx.memory.record_step("By the book.", "deploy", "pushed", procedure="deploy")
        await ctx.memory.record_step("And look.", "look", "nothing there")
        await ctx.memory.end_task(True, "It is there.")
        await ctx.memory.episodic.store("We had a party.")

    agent, done = ResumableAgent(memory, lease_ttl=0.5, max_attempts=50, on_conflict="wait"), False
    while not done:
        with suppress(FencedOut):  # the lease expired on a slow machine: resume
            await agent.run("t", [migrate])
            done = True


ACTS = {"turn": turn, "task": task, "step": step}


async def backwards(*shares: StoreWrites) -> None:
    """Write derived data first and its source last (the mutant)."""
    await write_in_order(*reversed(shares))


async def append_backwards(*shares: Any) -> Any:
    """Append the entries of a turn in reverse order (the mutant)."""
    return (await append_in_order(*reversed(shares)))[::-1]


async def run_act(locations: str, user: str, act: str, mutant: str) -> None:
    if mutant:
        turn_recording.append_in_order = append_backwards  # type: ignore[attr-defined]
        for module in (task_recording, task_runner):
            module.write_in_order = backwards  # type: ignore[attr-defined]
    async with AgentMemory.open(
        json.loads(locations), user=user, agent=user, session="s", embedder=HashEmbedder()
    ) as memory:
        if await memory.procedural.get("deploy") is None:
            await memory.procedural.save("deploy", "Push a tag.")
        await ACTS[act](memory)


def main(arguments: list[str]) -> None:
    """Run with the arguments: store URLs by tier, user, name of the act, file to create at the end, mutant."""
    locations, user, act, done_file, mutant = arguments
    logging.disable(logging.WARNING)  # lost leases are expected here
    asyncio.run(run_act(locations, user, act, mutant))
    Path(done_file).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
