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


async def called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Its answer, awaited where it has to be."""
    if is_async(function):
        return await function(**arguments)
    answer = await _in_thread(functools.partial(function, **arguments))
    return await answer if inspect.isawaitable(answer) else answer


def is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def _in_thread(work: Callable[[], Any]) -> Any:
    """In a daemon thread: a tool that hangs is left behind, and holds up neither others nor the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
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
        except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # A future cannot carry the first; the others would end the loop, which is not a tool's to end.
            failure = RuntimeError(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed while the tool was still at work
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=run, name="recollect-tool", daemon=True).start()
    return await done
