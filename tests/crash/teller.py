"""A process that tells its memory something which concerns several stores, and may be killed between any two."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent
from recollect.errors import FencedOut
from recollect.memory import task_life, turn_record
from recollect.runtime import running
from recollect.runtime.in_order import Share, append_in_order, write_in_order
from tests.embedders import HashEmbedder

TASK = "Move the site to the new host"


async def turn(memory: AgentMemory) -> None:
    await memory.record_turn("My cat is called Miso.", "I will remember that.", id="turn")


async def task(memory: AgentMemory) -> None:
    """A task that fails, told as an application tells it that looks first how far it came before it was killed."""
    await memory.recall(TASK, 1, tiers=("working",))
    if not memory.working.task:
        if any(episode.kind == "outcome" for episode in await memory.episodic.get_recent(50)):
            return
        await memory.start_task(TASK)
    if not memory.working.results:
        await memory.record_step("By the book.", "deploy", "pushed", procedure="deploy")
    await memory.end_task(False, "The new host does not answer.")


async def step(memory: AgentMemory) -> None:
    """Everything at once, by a step of a task that survives."""

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
        with suppress(FencedOut):  # on a machine so slow that the lease ran out: it goes on where it stopped
            await agent.run("t", [migrate])
            done = True


ACTS = {"turn": turn, "task": task, "step": step}


async def backwards(*shares: Share) -> None:
    """The mutant: what is derived first, and its source last."""
    await write_in_order(*reversed(shares))


async def told_backwards(*shares: Any) -> Any:
    """The same for the entries of a turn."""
    return (await append_in_order(*reversed(shares)))[::-1]


async def tell(places: str, who: str, act: str, mutant: str) -> None:
    if mutant:
        turn_record.append_in_order = told_backwards  # type: ignore[attr-defined]
        for module in (task_life, running):
            module.write_in_order = backwards  # type: ignore[attr-defined]
    async with AgentMemory.open(
        json.loads(places), user=who, agent=who, session="s", embedder=HashEmbedder()
    ) as memory:
        if await memory.procedural.get("deploy") is None:
            await memory.procedural.save("deploy", "Push a tag.")
        await ACTS[act](memory)


def main(arguments: list[str]) -> None:
    """Where the tiers live, whose they are, what is told, where to say that it was, and whether by the mutant."""
    places, who, act, told, mutant = arguments
    logging.disable(logging.WARNING)  # that leases are lost is what this is for
    asyncio.run(tell(places, who, act, mutant))
    Path(told).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
