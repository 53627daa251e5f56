"""Asking again: how often, how long in between, and when not at all."""

from __future__ import annotations

from random import Random

import pytest

from recollect.inference.failures import Trouble
from recollect.inference.retry import Retry


class Provider:
    """Fails as it is told, then answers."""

    def __init__(self, *troubles: Trouble) -> None:
        self.troubles = list(troubles)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self.troubles:
            raise self.troubles.pop(0)
        return "answer"


class Waits(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def busy(wait: float | None = None) -> Trouble:
    return Trouble("is busy", again=True, wait=wait)


async def test_what_succeeds_is_asked_once():
    provider, waits = Provider(), Waits()
    assert await Retry(4, sleep=waits).persist(provider) == "answer"
    assert (provider.asked, waits) == (1, [])


async def test_it_waits_twice_as_long_each_time_less_a_random_part():
    provider, waits = Provider(*[busy()] * 7), Waits()
    await Retry(7, first=1.0, most=16.0, sleep=waits, random=Random(7)).persist(provider)
    for waited, grown in zip(waits, (1, 2, 4, 8, 16, 16, 16), strict=True):
        assert grown / 2 <= waited <= grown
    assert len({waited / grown for waited, grown in zip(waits, (1, 2, 4, 8, 16, 16, 16), strict=True)}) == 7


async def test_two_callers_do_not_come_back_together():
    one, two = Waits(), Waits()
    await Retry(3, sleep=one, random=Random(1)).persist(Provider(busy(), busy(), busy()))
    await Retry(3, sleep=two, random=Random(2)).persist(Provider(busy(), busy(), busy()))
    assert not set(one) & set(two)


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_it_gives_up_after_its_tries_with_what_was_said_last(times: int):
    troubles = [Trouble(f"trouble {n}", again=True) for n in range(9)]
    provider = Provider(*troubles)
    with pytest.raises(Trouble, match=f"trouble {times}$"):
        await Retry(times, sleep=Waits()).persist(provider)
    assert provider.asked == times + 1


async def test_what_waiting_does_not_mend_is_not_asked_again():
    provider, waits = Provider(Trouble("refused")), Waits()
    with pytest.raises(Trouble):
        await Retry(4, sleep=waits).persist(provider)
    assert (provider.asked, waits) == (1, [])


async def test_a_provider_that_says_how_long_is_believed_up_to_a_point():
    waits = Waits()
    await Retry(4, longest=60.0, sleep=waits).persist(Provider(busy(20.0), busy(60.0)))
    assert waits == [20.0, 60.0]
    with pytest.raises(Trouble):
        await Retry(4, longest=60.0, sleep=waits).persist(Provider(busy(61.0)))


async def test_one_that_says_at_once_is_not_hammered():
    waits = Waits()
    await Retry(4, first=1.0, sleep=waits).persist(Provider(busy(0.0), busy(0.0)))
    assert waits[0] >= 0.5
    assert waits[1] >= 1.0


async def test_other_errors_are_not_its_business():
    async def call() -> str:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Retry(4, sleep=Waits()).persist(call)
