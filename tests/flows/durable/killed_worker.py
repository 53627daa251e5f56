"""A process that runs a task of three steps that store memories, and may be killed between them."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from recollect import AgentMemory, ResumableAgent
from tests.embedders import HashEmbedder


async def learn(state: dict[str, Any], ctx: Any) -> None:
    await ctx.memory.remember(f"{ctx.step} was done.")
    await ctx.memory.record_turn(f"Is {ctx.step} done?", "Yes.")
    ctx.working.add_thought(ctx.step)


async def main(path: str) -> None:
    async with AgentMemory.open(path, embedder=HashEmbedder()) as memory:
        await ResumableAgent(memory, lease_ttl=2, on_conflict="wait").run("t", [learn] * 3)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
