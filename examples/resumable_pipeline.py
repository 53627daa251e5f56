"""A pipeline that goes on where it stopped: read the orders, price them, charge each once, write the report.

    python examples/resumable_pipeline.py DIRECTORY                 all of it, with what is kept in DIRECTORY
    python examples/resumable_pipeline.py DIRECTORY --power-cut 2   the process ends without a word in the second charge
    python examples/resumable_pipeline.py DIRECTORY                 again: completed steps are not repeated

Every charge is a step of its own, under an idempotency key that stays the same however often it is tried: the shop that
takes the money notes the keys in charges.txt, and does nothing for one that it has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent, step

State = dict[str, Any]
ORDERS = {"ada": 3, "bob": 1, "cem": 5}


def take_money(ledger: Path, key: str, line: str) -> None:
    """The shop: a key it knows is an order it has served."""
    known = ledger.read_text("utf-8") if ledger.exists() else ""
    if key not in known:
        with ledger.open("a", encoding="utf-8") as file:
            file.write(f"{key} {line}\n")


async def read(state: State) -> dict[str, int]:
    return dict(ORDERS)


async def price(state: State) -> dict[str, int]:
    return {name: 12 * pieces for name, pieces in state["results"]["step_0_read"].items()}


def charging(name: str, ledger: Path, *, power_cut: bool) -> Callable[..., Any]:
    """A step for one customer. Its function's name is the step's name, by which the state is read afterwards."""

    @step(retries=3, timeout=30)
    async def charge(state: State, ctx: Any) -> int:
        amount = int(state["results"]["step_1_price"][name])
        take_money(ledger, ctx.idempotency_key, f"{name} paid {amount}")
        if power_cut:
            os._exit(1)  # the money is taken, and nobody has noted it yet: the worst moment there is
        return amount

    return charge


async def report(state: State) -> str:
    paid = [amount for done, amount in state["results"].items() if done.endswith("_charge")]
    return f"{len(paid)} orders, {sum(paid)} in all"


async def run(directory: Path, power_cut: int) -> None:
    ledger = directory / "charges.txt"
    charges = [charging(name, ledger, power_cut=at == power_cut) for at, name in enumerate(ORDERS, 1)]
    async with AgentMemory.open(directory / "pipeline.db") as memory:
        # A worker that died holds its lease until that runs out; whoever comes next waits for it.
        agent = ResumableAgent(
            memory,
            lease_ttl=2,
            on_conflict="wait",
            on_event=lambda event: print(f"{event.kind:<10}{event.step or ''}", flush=True),
        )
        state = await agent.run("orders of monday", [read, price, *charges, report])
    print(state["results"][state["completed"][-1]])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--power-cut", type=int, default=0, metavar="N", help="end the process in the Nth charge")
    given = arguments.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(given.directory, given.power_cut))
