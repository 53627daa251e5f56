"""A tool's function, called where it holds nobody up: coroutines on the loop, plain functions in a thread."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from recollect.errors import TaskError
from recollect.inference.threads import Threads

# Calls that hang are left behind, but not without number.
_MOST_LEFT_BEHIND = 16


async def called(function: Callable[..., Any], arguments: dict[str, Any], threads: Threads) -> Any:
    """Its answer, awaited where it has to be."""
    if is_async(function):
        return await function(**arguments)
    hanging = threads.hanging
    if hanging >= _MOST_LEFT_BEHIND:
        raise TaskError(
            f"{hanging} calls before this one still hang; it was not called, and can be when one of them has ended"
        )
    answer = await threads.run(functools.partial(function, **arguments))
    return await answer if inspect.isawaitable(answer) else answer


def is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
