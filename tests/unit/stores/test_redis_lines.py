"""A line that another call closes: the client fails in its own way, and it is told as what it is."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions
from redis.asyncio.connection import Connection

from recollect.stores.redis.failures import answered, passes


async def test_a_line_that_was_closed_under_way_may_be_tried_again():
    async def write() -> None:
        await Connection()._send_packed_command([b"PING"])  # never connected: nothing to write to

    with pytest.raises(exceptions.ConnectionError) as failed:
        await answered(write)
    assert passes(failed.value)


async def test_a_mistake_of_our_own_is_not_taken_for_one():
    async def work() -> None:
        nothing: Any = None
        nothing.strip()

    with pytest.raises(AttributeError):
        await answered(work)
