"""A visit as a separate process: opens the store at a given time, runs commands and exits.

    python visit_process.py STORE TIME USER SESSION

Reads a JSON list of commands (lists) from standard input and prints their results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import datetime, timedelta
from typing import Any

from recollect import AgentMemory
from recollect.models.minilm import MiniLM
from recollect.testing import ManualClock


async def visit(store: str, time: str, user: str, session: str, commands: list[list[Any]]) -> list[Any]:
    clock = ManualClock(datetime.fromisoformat(time))
    memory = await AgentMemory.open(store, user=user, session=session, clock=clock, embedder=MiniLM(threads=1))
    results: list[Any] = []
    for name, *arguments in commands:
        if name == "wait":
            clock.forward(timedelta(hours=arguments[0]))
            results.append(None)
        elif name == "session":
            memory = memory.scoped(session=arguments[0])
            results.append(None)
        elif name == "behind":  # stops background indexing, as if the process died before it
            memory._engine.turn_index._is_closed = True
            results.append(None)
        elif name == "killed":
            sys.stdout.write(json.dumps(results))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            results.append(await run_command(memory, name, arguments))
    await memory.close()
    return results


async def run_command(memory: AgentMemory, name: str, arguments: list[Any]) -> Any:
    match name, arguments:
        case "say", [user, assistant]:
            await memory.record_turn(user, assistant)
        case "fail", [task, action, error, outcome]:
            await memory.start_task(task)
            await memory.record_step(None, action, error, success=False)
            await memory.end_task(False, outcome)
        case "tidy", []:
            return (await memory.lifecycle.run_once()).counts
        case "ask", [query, *limit]:  # the limit `n` is optional
            context = await memory.recall(query, *limit)
            facts = [hit.item.content for hit in context if hit.tier == "semantic"]
            return {"text": str(context), "known": facts}
        case "episodes", []:
            return sum(
                [len(await memory.episodic.get_recent(1000, session=name)) for name in await memory.episodic.sessions()]
            )
        case _:
            raise ValueError(f"unknown command {name!r}")
    return None


if __name__ == "__main__":
    store, time, user, session = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(visit(store, time, user, session, json.load(sys.stdin)))))
