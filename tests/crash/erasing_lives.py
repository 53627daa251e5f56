"""A program that erases somebody over several stores and is killed under way, once in each of many places."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from recollect.lifecycle import erase, ledgers
from recollect.runtime.failpoints import armed
from recollect.stores.chroma.collections import Collections
from recollect.stores.redis.server import Server
from tests.crash import eraser, mutants

WIPE = "wipe"


def main(arguments: list[str]) -> None:
    """Pairs of a place and an end: a phase, a number (the step that a store is asked for last), or `wipe`."""
    mutants.apply()
    pairs: list[list[str]] = json.loads(arguments[0])
    for place, end in pairs:
        child = os.fork()
        if child == 0:
            _until(end)
            asyncio.run(eraser.erase(place))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{end} {'killed' if os.WIFSIGNALED(status) else 'ended'}\n")
        sys.stdout.flush()


def _until(end: str) -> None:
    if end == WIPE:
        _when_redis_has_deleted()
        return
    if not end.isdecimal():
        setattr(erase, "reach", armed(f"{end}=kill9@1"))  # noqa: B010
        return
    left = [int(end)]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*given, **named)

        return step

    # Counted from where the ledger has it on: before that nobody knows of anything.
    entered = ledgers.enter

    async def then(*given: Any) -> None:
        await entered(*given)
        for owner, names in ((Server, ("script", "command")), (Collections, ("add", "delete", "drop"))):
            for name in names:
                setattr(owner, name, counted(getattr(owner, name)))

    setattr(ledgers, "enter", then)  # noqa: B010


def _when_redis_has_deleted() -> None:
    """And nobody has noted it yet."""
    script = Server.script

    async def last(self: Server, name: str, *given: Any) -> Any:
        answer = await script(self, name, *given)
        if name == "wipe":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(Server, "script", last)  # noqa: B010


if __name__ == "__main__":
    main(sys.argv[1:])
