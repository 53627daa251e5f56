"""An agent with tools: it recalls how much is needed, counts what is there, orders the rest, and goes on after a crash.

    python examples/tool_agent.py DIRECTORY                  offline: a few rules stand in for the model
    python examples/tool_agent.py DIRECTORY --power-cut 2    the process ends without a word in the second order
    python examples/tool_agent.py DIRECTORY                  again: what was ordered is not ordered twice
    python examples/tool_agent.py DIRECTORY --model anthropic:claude-sonnet-5     the same with a model

How much is needed stands in no prompt and in no code of the agent: it is remembered, and recalled for the task.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import AgentEvent, tool
from recollect.models.chat import ChatMessage, Reply, ToolCall

SHELF = {"beans": 3, "filters": 2}
TASK = "Restock the coffee corner."


@tool(source="system")  # our own shelf: what it says is trusted like what the user says
def count(item: str) -> int:
    """How many of an item are on the shelf.

    Args:
        item: Its name, such as "beans".
    """
    return SHELF.get(item, 0)


class Shop:
    """Where things are ordered: it notes the keys it has seen in a file, and does nothing for one that it knows."""

    def __init__(self, orders: Path, power_cut: int) -> None:
        self._orders = orders
        self._power_cut = power_cut
        self._called = 0

    def order(self, item: str, pieces: int, idempotency_key: str) -> str:
        """Order something.

        Args:
            item: What.
            pieces: How many.
        """
        known = self._orders.read_text("utf-8") if self._orders.exists() else ""
        if idempotency_key not in known:
            with self._orders.open("a", encoding="utf-8") as file:
                file.write(f"{idempotency_key} {pieces} {item}\n")
        self._called += 1
        if self._called == self._power_cut:
            os._exit(1)  # it is ordered, and nobody has noted that yet: the worst moment there is
        return f"{pieces} {item} ordered"


class Clerk:
    """Stands in for a model, so that this runs without one: what is needed it reads in the prompt, like a model."""

    name = "a few rules"

    async def reply(
        self,
        messages: Sequence[ChatMessage],
        *,
        system: str = "",
        tools: Any = (),
        on_text: Any = None,
        may_call: bool = True,
    ) -> Reply:
        needed = {item: int(number) for number, item in re.findall(r"(\d+) (beans|filters)", system)}
        results = [message.content for message in messages if message.role == "tool"]
        if not needed:
            return Reply("Nobody has told me how much the coffee corner needs.")
        if not results:
            calls = [ToolCall(f"count-{item}", "count", {"item": item}) for item in needed]
            return Reply("First I count.", tuple(calls), "tools")
        if len(results) == len(needed):
            missing = {item: needed[item] - int(there) for item, there in zip(needed, results, strict=True)}
            calls = [ToolCall(f"order-{item}", "order", {"item": item, "pieces": n}) for item, n in missing.items()]
            return Reply("Then I order the rest.", tuple(calls), "tools")
        return Reply(f"Done: {', '.join(results[len(needed) :])}.")

    async def close(self) -> None:
        return


def show(event: AgentEvent) -> None:
    if event.kind == "resumed":
        print("(goes on where it stopped)", flush=True)
    elif event.kind == "tool_finished":
        print(f"[{event.tool}] {event.text}", flush=True)


async def main(directory: Path, model: Any, power_cut: int) -> None:
    async with AgentMemory.open(directory / "agent.db") as memory:
        await memory.remember("The coffee corner is to have 12 beans and 6 filters.", key="coffee corner")
        shop = Shop(directory / "orders.txt", power_cut)
        # A process that died holds its lease until that runs out; whoever comes next waits for it.
        async with AgentWithMemory(
            memory, [count, shop.order], model, on_event=show, lease_ttl=2, on_conflict="wait"
        ) as agent:
            print(await agent.run(TASK, task_id="restock-1"))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--model", help="as in anthropic:claude-sonnet-5; without it a few rules answer")
    arguments.add_argument("--power-cut", type=int, default=0, metavar="N", help="end the process in the Nth order")
    given = arguments.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(given.directory, given.model or Clerk(), given.power_cut))
