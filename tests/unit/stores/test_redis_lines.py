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


async def test_a_line_whose_answer_was_not_waited_for_is_used_by_nobody():
    """Whoever came next would be given the answer of the one before."""
    met: list[asyncio.StreamWriter] = []

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer)

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pool = ConnectionPool.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)
        lines = Lines(pool, most=1, patience=0.02)
        for _ in range(2):
            with pytest.raises(exceptions.TimeoutError) as failed:
                await lines.ask("PING")
            assert passes(failed.value)
        await lines.close()
        for writer in met:
            writer.close()
    assert len(met) == 2
