"""Lines to a server: what is sent, what is read, and what happens to one that is closed or given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from recollect.stores.redis.failures import answered, passes
from recollect.stores.redis.lines import Lines, packed
from tests.servers.redis import RedisServer


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


def test_a_command_is_packed_part_by_part():
    assert packed(b"GET", b"", "\u00e4\r\n".encode()) == b"*3\r\n$3\r\nGET\r\n$0\r\n\r\n$4\r\n\xc3\xa4\r\n\r\n"


async def test_a_line_whose_answer_was_not_waited_for_is_used_by_nobody(server: RedisServer):
    """Whoever came next would wait behind what was given up, or be given its answer."""
    # Mutant: a line that is put back as it is.
    pool = ConnectionPool.from_url(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
    lines = Lines(pool, most=1, patience=0.5)
    with pytest.raises(exceptions.TimeoutError) as failed:
        await lines.ask("BLPOP", b"a list that stays empty", b"0")
    assert passes(failed.value)
    assert await lines.ask("PING") == b"PONG"
    with pytest.raises(exceptions.ResponseError):  # which is an answer, and the line is as good as before
        await lines.ask("GET")
    assert await lines.ask("PING") == b"PONG"
    await lines.close()


async def test_a_line_that_was_hung_up_while_nobody_used_it_is_made_anew(server: RedisServer):
    # Mutant: it is used as it is, since it was open once.
    pool = ConnectionPool.from_url(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
    lines = Lines(pool, most=1, patience=5.0)
    assert await lines.ask("PING") == b"PONG"
    [line] = lines._idle
    with server.client() as another:
        another.client_kill_filter(_type="normal", skipme=True)
    async with asyncio.timeout(10):
        while not await line.can_read():  # noqa: ASYNC110 - the client tells of it in no other way
            await asyncio.sleep(0)
    assert await lines.ask("PING") == b"PONG"
    await lines.close()
