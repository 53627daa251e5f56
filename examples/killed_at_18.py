"""Killed at step 18 of 25: the process dies by SIGKILL, and the next one goes on with step 18.

    python examples/killed_at_18.py            both runs, and what came of them
    python examples/killed_at_18.py DIRECTORY  the same, keeping agent.db and effects.txt there

STORE=postgresql://USER:PASSWORD@HOST/DATABASE or STORE=redis://HOST before it keeps the checkpoints on that server.

Every step does something in the outside world: it adds a line to effects.txt, under its idempotency key, as a payment
service would note the keys it has seen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recollect import AgentMemory, ResumableAgent

STEPS = 25
DEADLY = 18


class NoModel:
    """Nothing is searched for here, so no model has to be loaded."""

    name = "none"
    dim = 1

    def embed_batch(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]


def act(effects: Path, key: str, line: str) -> None:
    """The outside world: what it has seen under this key it does not do again."""
    seen = effects.read_text("utf-8") if effects.exists() else ""
    if key not in seen:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{key} {line}\n")


def plan(effects: Path, *, deadly: bool) -> list[Any]:
    def made(number: int) -> Any:
        def work(state: dict[str, Any], ctx: Any) -> str:
            print(f"step {number}, attempt {ctx.attempt}", flush=True)
            act(effects, ctx.idempotency_key, f"effect of step {number}")
            if deadly and number == DEADLY:
                os.kill(os.getpid(), signal.SIGKILL)  # after the effect, and before anybody could note it
            return f"result {number}"

        return work

    return [made(number) for number in range(1, STEPS + 1)]


async def run(directory: Path, *, deadly: bool) -> None:
    file = str(directory / "agent.db")
    store = {"default": file, "checkpoints": os.environ.get("STORE", file)}
    async with AgentMemory.open(store, embedder=NoModel()) as memory:
        # Long enough for any step: a worker that is killed leaves its lease to run out, so the next one waits for that.
        agent = ResumableAgent(memory, lease_ttl=2, on_conflict="wait")
        state = await agent.run("killed-at-18", plan(directory / "effects.txt", deadly=deadly))
        print(f"completed {len(state['completed'])} of {STEPS}", flush=True)


def both(directory: Path) -> None:
    for title, kind in (("first run", "deadly"), ("second run", "resume")):
        print(f"-- {title}", flush=True)
        done = subprocess.run([sys.executable, __file__, str(directory), kind], check=False)
        print(f"-- ended with {done.returncode}", flush=True)
    lines = (directory / "effects.txt").read_text("utf-8").splitlines()
    print(f"{len(lines)} effects, {len(set(lines))} distinct")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(run(Path(sys.argv[1]), deadly=sys.argv[2] == "deadly"))
    elif len(sys.argv) == 2:
        both(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            both(Path(temporary))
