"""Connections to a server that are closed or given up during a request."""

from __future__ import annotations

import pytest
from redis import exceptions
from redis.asyncio.connection import Connection

from recollect.errors import StoreUnavailable
from recollect.stores.redis.client import RedisClient, RedisTimeouts, is_transient, run_request
from tests.servers.redis import RedisServer


async def test_error_of_a_closed_connection_is_transient():
    async def write() -> None:
        await Connection()._send_packed_command([b"PING"])  # never connected: nothing to write to

    with pytest.raises(exceptions.ConnectionError) as failed:
        await run_request(write)
    assert is_transient(failed.value)


async def test_connection_with_an_unread_reply_is_not_reused(server: RedisServer):
    # The next request would wait behind the abandoned one, or read its reply.
    # Mutant: the connection goes back to the pool as it is.
    client = RedisClient(server.url, RedisTimeouts(response=0.5, total=0.5))
    with pytest.raises(StoreUnavailable):
        await client.execute("BLPOP", b"a list that stays empty", 0)
    assert await client.execute("GET", b"a key that does not exist") is None
    assert await client.execute("ECHO", b"text") == b"text"
    await client.close()


async def test_idle_connection_closed_by_the_server_is_reopened(server: RedisServer):
    client = RedisClient(server.url, RedisTimeouts(response=5.0, total=5.0))
    assert await client.execute("ECHO", b"text") == b"text"
    with server.client() as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert await client.execute("ECHO", b"text") == b"text"
    await client.close()
