"""Deadlines: a call that is late is called off and told so, and no other is; all of them share one timer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from recollect.deadline import within

SHORT, LONG = 0.01, 60.0


async def for_ever() -> None:
    await asyncio.Event().wait()


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_what_is_over_in_time_is_left_alone():
    with within(LONG):
        await asyncio.sleep(0)
    assert cancelling() == 0


async def test_what_is_late_is_called_off_and_its_task_goes_on():
    """Mutants: without `uncancel`; the timer is never set."""
    with pytest.raises(TimeoutError), within(SHORT):
        await for_ever()
    assert cancelling() == 0
    await asyncio.sleep(0)


async def test_who_was_in_time_is_not_called_off_later():
    """Mutant: a call stays on the watch's list when it is over."""
    with within(SHORT):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), within(3 * SHORT):
        await for_ever()


async def test_an_error_of_its_own_is_told_even_when_it_is_late():
    async def fails() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("of its own") from None

    with pytest.raises(ValueError, match="of its own"), within(SHORT):
        await fails()
    assert cancelling() == 0


async def test_an_answer_that_comes_although_it_was_called_off_is_an_answer():
    answer = 0
    with within(SHORT):
        try:
            await for_ever()
        except asyncio.CancelledError:
            answer = 7
    assert (answer, cancelling()) == (7, 0)


async def test_who_is_cancelled_by_somebody_else_is_cancelled():
    """Mutant: every `CancelledError` becomes a `TimeoutError`."""

    async def work() -> None:
        with within(LONG):
            await for_ever()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_cancelled():
    """Mutant: whoever is late is told so, and the other who wants an end of it is not heard."""

    async def work() -> None:
        with within(SHORT):
            try:
                await for_ever()
            finally:
                task.cancel()  # before the deadline has been told

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(("outer", "inner"), [(SHORT, LONG), (LONG, SHORT)])
async def test_one_within_another(outer: float, inner: float):
    """Mutant: the timer stays where the first call has put it."""
    came = []
    try:
        with within(outer):
            try:
                with within(inner):
                    await for_ever()
            except TimeoutError:
                came.append("inner")
    except TimeoutError:
        came.append("outer")
    assert came == ["inner" if inner < outer else "outer"]
    assert cancelling() == 0


async def test_only_those_who_are_late():
    """Mutants: all are called off with the first; nobody looks again after the first."""

    async def one(seconds: float) -> str:
        try:
            with within(seconds):
                await gate.wait()
        except TimeoutError:
            return "late"
        return "in time"

    gate = asyncio.Event()
    calls = [asyncio.create_task(one(seconds)) for seconds in (SHORT, LONG, 3 * SHORT, LONG)]
    await asyncio.wait([calls[0], calls[2]])
    gate.set()
    assert await asyncio.gather(*calls) == ["late", "in time", "late", "in time"]


async def test_many_calls_share_one_timer(monkeypatch: pytest.MonkeyPatch):
    """Mutant: a timer for each."""
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def counted(when: float, *rest: Any, **options: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *rest, **options)

    monkeypatch.setattr(loop, "call_at", counted)
    for _ in range(1000):
        with within(LONG):
            pass
    assert len(timers) <= 1


def test_every_loop_has_its_own():
    """Mutant: the first loop of a thread watches for all that come after it."""

    async def late() -> str:
        try:
            with within(SHORT):
                await for_ever()
        except TimeoutError:
            return "late"
        return "never"

    assert [asyncio.run(late()) for _ in range(2)] == ["late", "late"]


def test_without_a_task_there_is_nothing_to_call_off():
    with pytest.raises(RuntimeError), within(SHORT):
        pass
