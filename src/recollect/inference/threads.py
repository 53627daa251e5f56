"""Threads for calls of somebody else's code that may hang: nobody waits longer than they want to."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """Daemon threads, a new one for each call: one that hangs holds up neither the next nor the end of the process.

    A thread cannot be ended from outside. Those that nobody waits for any more are left behind, and counted.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._left_behind: list[threading.Thread] = []

    @property
    def hanging(self) -> int:
        """How many were left behind and are still at work."""
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        return len(self._left_behind)

    async def run(self, work: Callable[[], Any]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=_running(work, done), name=self._name, daemon=True)
        thread.start()
        try:
            return await done
        except asyncio.CancelledError:
            self._left_behind.append(thread)
            raise


def as_failure(error: BaseException) -> Exception:
    """What can be handed to whoever waits: no StopIteration, and nothing that would end their task or the loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _running(work: Callable[[], Any], done: asyncio.Future[Any]) -> Callable[[], None]:
    """What a thread is to do: the work, and to hand over what came of it where that is waited for."""
    loop = done.get_loop()
    context = contextvars.copy_context()

    def settle(answer: Any, error: Exception | None) -> None:
        if done.done():
            if inspect.iscoroutine(answer):
                answer.close()  # nobody waits for it any more
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(answer)

    def run() -> None:
        answer: Any = None
        failure: Exception | None = None
        try:
            answer = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure = as_failure(error)
        with contextlib.suppress(RuntimeError):  # the loop was closed while it was still at work
            loop.call_soon_threadsafe(settle, answer, failure)

    return run
