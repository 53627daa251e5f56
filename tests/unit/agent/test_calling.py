"""Where tools run: what they raise is handed over, and those that hang are counted."""

from __future__ import annotations

import asyncio
import threading

import pytest

from recollect.agent.calling import called
from recollect.errors import TaskError
from recollect.inference.threads import Threads


class Odd(BaseException):
    """What no except clause expects."""


@pytest.mark.parametrize(
    "raised", [Odd("boom"), SystemExit("boom"), asyncio.CancelledError("boom"), StopIteration("boom")]
)
async def test_whatever_a_function_raises_is_told_at_once(raised: BaseException):
    # Mutant: what is no Exception ends the thread, and is waited for in vain.
    def breaks() -> None:
        raise raised

    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match=f"{type(raised).__name__}: boom"):
            await called(breaks, {}, Threads("recollect-tool"))


async def test_threads_are_left_behind_but_not_without_number():
    # Mutant: as many as there are calls. Mutant: those that have ended count on.
    threads, released, begun = Threads("recollect-tool"), threading.Event(), threading.Semaphore(0)

    def hangs() -> str:
        begun.release()
        released.wait(30)
        return "at last"

    for _ in range(16):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await called(hangs, {}, threads)
    for _ in range(3):
        with pytest.raises(TaskError, match="16 calls before this one still hang"):
            await called(hangs, {}, threads)
    assert all(begun.acquire(timeout=10) for _ in range(16))
    assert not begun.acquire(blocking=False)
    released.set()
    for thread in threading.enumerate():
        if thread.name == "recollect-tool":
            await asyncio.to_thread(thread.join, 5)
    assert await called(hangs, {}, threads) == "at last"


async def test_what_runs_on_the_loop_needs_no_thread():
    async def here(word: str) -> str:
        return word + threading.current_thread().name

    assert await called(here, {"word": "in "}, Threads("recollect-tool")) == f"in {threading.current_thread().name}"
