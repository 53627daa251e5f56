"""A program that erases a user from several stores and is killed once at each of many points."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from recollect.durable.failpoints import arm_failpoints
from recollect.erasure import eraser as erasing
from recollect.erasure import ledger
from recollect.stores.chroma.client import ChromaClient
from recollect.stores.redis.client import RedisClient
from tests.crash import erase_worker, mutants

WIPE = "wipe"


def main(arguments: list[str]) -> None:
    """Erase once for each pair of a location and a kill point.

    A kill point is the name of a failpoint, the number of store calls that are still executed, or `wipe`.
    """
    mutants.apply()
    pairs: list[list[str]] = json.loads(arguments[0])
    for place, end in pairs:
        child = os.fork()
        if child == 0:
            _kill_at(end)
            asyncio.run(erase_worker.erase(place))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{end} {'killed' if os.WIFSIGNALED(status) else 'ended'}\n")
        sys.stdout.flush()


def _kill_at(end: str) -> None:
    if end == WIPE:
        _when_redis_has_deleted()
        return
    if not end.isdecimal():
        setattr(erasing, "reach_failpoint", arm_failpoints(f"{end}=kill9@1"))  # noqa: B010
        return
    left = [int(end)]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*args, **kwargs)

        return step

    # Count from the ledger entry on: before it, an erasure cannot be resumed.
    enter = ledger.enter_erasure

    async def enter_and_count(*args: Any) -> None:
        await enter(*args)
        for owner, names in (
            (RedisClient, ("run_script", "execute")),
            (ChromaClient, ("add", "upsert", "delete", "delete_where")),
        ):
            for name in names:
                setattr(owner, name, counted(getattr(owner, name)))

    setattr(ledger, "enter_erasure", enter_and_count)  # noqa: B010


def _when_redis_has_deleted() -> None:
    """Kill this process after Redis has deleted the rows and before the deletion is recorded."""
    script = RedisClient.run_script

    async def last(self: RedisClient, name: str, keys: Sequence[bytes], *args: Any) -> Any:
        answer = await script(self, name, keys, *args)
        if name == "commit" and keys[0].endswith(b":wiped"):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(RedisClient, "run_script", last)  # noqa: B010


if __name__ == "__main__":
    main(sys.argv[1:])
