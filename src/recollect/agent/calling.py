"""A tool's function, called where it holds nobody up: coroutines on the loop, plain functions in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from recollect.errors import TaskError

# A thread cannot be ended from outside: calls that hang are left behind, but not without number.
_MOST_LEFT_BEHIND = 16


class Threads:
    """The threads of an agent's tools, those included that nobody waits for any more."""

    def __init__(self) -> None:
        self._left_behind: list[threading.Thread] = []

    async def run(self, work: Callable[[], Any]) -> Any:
        """In a daemon thread: what hangs is left behind, and holds up neither others nor the end of the process."""
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= _MOST_LEFT_BEHIND:
            raise TaskError(
                f"{len(self._left_behind)} calls before this one still hang; it was not called, and can be when one of "
                "them has ended"
            )
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=_running(work, done), name="recollect-tool", daemon=True)
        thread.start()
        try:
            return await done
        except asyncio.CancelledError:
            self._left_behind.append(thread)
            raise


async def called(function: Callable[..., Any], arguments: dict[str, Any], threads: Threads) -> Any:
    """Its answer, awaited where it has to be."""
    if is_async(function):
        return await function(**arguments)
    answer = await threads.run(functools.partial(function, **arguments))
    return await answer if inspect.isawaitable(answer) else answer


def is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


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
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            # A future cannot carry a StopIteration; what is no Exception would end the loop, which is not a tool's to
            # end, and what is not handed over would be waited for in vain.
            failure = error if is_plain else RuntimeError(f"{type(error).__name__}: {error}")  # type: ignore[assignment]
        with contextlib.suppress(RuntimeError):  # the loop was closed while the tool was still at work
            loop.call_soon_threadsafe(settle, answer, failure)

    return run
