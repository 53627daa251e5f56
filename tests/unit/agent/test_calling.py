"""Execution of tools: exceptions, threads, and hanging calls."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recollect.agent.tools import call_function
from recollect.errors import TaskError
from recollect.models.llm import WorkerThreads


class UncaughtError(BaseException):
    """Exception that no except clause expects."""


@pytest.mark.parametrize(
    "raised", [UncaughtError("boom"), SystemExit("boom"), asyncio.CancelledError("boom"), StopIteration("boom")]
)
async def test_any_exception_of_a_function_is_raised_at_once(raised: BaseException):
    # Mutant: an exception that is not an `Exception` ends the thread, and the call waits for ever.
    def breaks() -> None:
        raise raised

    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match=f"{type(raised).__name__}: boom"):
            await call_function(breaks, {}, WorkerThreads("recollect-tool"))


async def test_hanging_calls_are_limited_to_16_threads():
    # Mutants: a thread for every call; finished threads still count.
    threads, released, started = WorkerThreads("recollect-tool"), threading.Event(), threading.Semaphore(0)

    def hangs() -> str:
        started.release()
        released.wait(30)
        return "at last"

    for _ in range(16):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await call_function(hangs, {}, threads)
    for _ in range(3):
        with pytest.raises(TaskError, match="16 calls before this one still hang"):
            await call_function(hangs, {}, threads)
    assert all(started.acquire(timeout=10) for _ in range(16))
    assert not started.acquire(blocking=False)
    released.set()
    for thread in threading.enumerate():
        if thread.name == "recollect-tool":
            await asyncio.to_thread(thread.join, 5)
    assert await call_function(hangs, {}, threads) == "at last"


async def test_async_function_runs_on_the_loop():
    async def append_thread_name(word: str) -> str:
        return word + threading.current_thread().name

    assert (
        await call_function(append_thread_name, {"word": "in "}, WorkerThreads("recollect-tool"))
        == f"in {threading.current_thread().name}"
    )
