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


@pytest.mark.parametrize("command", ["BLPOP", "EVAL"])
async def test_connection_with_an_unread_reply_is_not_reused(server: RedisServer, command: str):
    # The next request would wait behind the abandoned one, or read its reply. EVAL bypasses redis-py's pool.
    # Mutants: `RedisConnections` keeps the connection as it is; the pool of redis-py does.
    client = RedisClient(server.url, RedisTimeouts(response=0.5, total=0.5))
    endless = (b"a list that stays empty", 0) if command == "BLPOP" else (b"while true do end", 0)
    with pytest.raises(StoreUnavailable):
        await client._retry(lambda: (client._execute if command == "BLPOP" else client._send)(command, *endless))
    if command == "EVAL":
        with server.client() as other:
            other.script_kill()
    assert await client.execute("GET", b"a key that does not exist") is None
    assert await client.execute("ECHO", b"text") == b"text"
    await client.close()


async def test_idle_connection_closed_by_the_server_is_reopened(server: RedisServer):
    client = RedisClient(server.url, RedisTimeouts(response=5.0, total=5.0))
    assert await client.execute("ECHO", b"text") == b"text"
    assert await client.execute("GET", b"a key that does not exist") is None
    with server.client() as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert await client.execute("ECHO", b"text") == b"text"
    assert await client.execute("GET", b"a key that does not exist") is None
    await client.close()
