"""A visit in a process of its own: opens the store at a given time, does what it is told, and is gone.

    python visit.py STORE TIME USER SESSION

reads JSON commands from standard input, a list of lists, and prints what each of them gave.
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
from recollect.inference.minilm import MiniLM
from recollect.testing import ManualClock


async def visit(store: str, time: str, user: str, session: str, commands: list[list[Any]]) -> list[Any]:
    clock = ManualClock(datetime.fromisoformat(time))
    memory = await AgentMemory.open(store, user=user, session=session, clock=clock, embedder=MiniLM(threads=1))
    told: list[Any] = []
    for name, *arguments in commands:
        if name == "wait":
            clock.forward(timedelta(hours=arguments[0]))
            told.append(None)
        elif name == "session":
            memory = memory.scoped(session=arguments[0])
            told.append(None)
        elif name == "behind":  # whatever is done behind this process's back is not done: it dies before
            memory._parts.said._closed = True
            told.append(None)
        elif name == "killed":
            sys.stdout.write(json.dumps(told))
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            told.append(await done(memory, name, arguments))
    await memory.close()
    return told


async def done(memory: AgentMemory, name: str, arguments: list[Any]) -> Any:
    match name, arguments:
        case "say", [user, assistant]:
            await memory.record_turn(user, assistant)
        case "fail", [task, action, error, outcome]:
            await memory.start_task(task)
            await memory.record_step(None, action, error, success=False)
            await memory.end_task(False, outcome)
        case "tidy", []:
            return (await memory.lifecycle.run_once()).counts
        case "ask", [query]:
            context = await memory.recall(query)
            known = [hit.item.content for hit in context if hit.tier == "semantic"]
            return {"text": str(context), "known": known}
        case "episodes", []:
            return sum(
                [len(await memory.episodic.get_recent(1000, session=one)) for one in await memory.episodic.sessions()]
            )
        case _:
            raise ValueError(f"there is nothing called {name!r} to do")
    return None


if __name__ == "__main__":
    store, time, user, session = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(visit(store, time, user, session, json.load(sys.stdin)))))
