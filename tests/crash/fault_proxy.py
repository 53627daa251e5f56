"""A TCP proxy between a client and its server that drops, truncates and resets connections at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

Fault = Literal["lost", "reset", "truncated", "black hole"]
FAULTS: tuple[Fault, ...] = ("lost", "reset", "truncated", "black hole")


class FaultProxy:
    """A proxy to a local port that fails at random in one way while it is `active`.

    `lost`: the request is dropped. `reset`: the request arrives and the connection closes before the reply.
    `truncated`: half of the reply arrives. `black hole`: no reply arrives and the connection stays open.
    """

    def __init__(self, port: int, fault: Fault, rng: random.Random, *, rate: float = 0.1) -> None:
        self._port = port
        self._fault = fault
        self._rng = rng
        self._rate = rate
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.failures = 0
        self.active = False

    async def start(self) -> int:
        """Start the proxy and return its port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            with suppress(OSError):
                await self._relay(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is being stopped
        finally:
            self._connections.discard(connection)
            writer.close()

    async def _relay(self, client: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            done, pending = await asyncio.wait(
                (
                    asyncio.create_task(self._pump(client, server_writer, self._on_request)),
                    asyncio.create_task(self._pump(server_reader, client_writer, self._on_reply)),
                ),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for pump in pending:
                pump.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        finally:
            server_writer.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, filter_chunk: Callable[[bytes], bytes | None]
    ) -> None:
        """Copy bytes until a side closes or a fault happens; `carried` returns None for an unchanged chunk."""
        while chunk := await source.read(1 << 16):
            replaced = filter_chunk(chunk)
            sink.write(chunk if replaced is None else replaced)
            if replaced is not None and len(replaced) < len(chunk):
                await sink.drain()
                if self._fault == "black hole":
                    await asyncio.Event().wait()
                return
            await sink.drain()

    def _on_request(self, chunk: bytes) -> bytes | None:
        return b"" if self._fault == "lost" and self._should_fail() else None

    def _on_reply(self, chunk: bytes) -> bytes | None:
        if self._fault == "lost" or not self._should_fail():
            return None
        return chunk[: len(chunk) // 2] if self._fault == "truncated" else b""

    def _should_fail(self) -> bool:
        failed = self.active and self._rng.random() < self._rate
        self.failures += failed
        return failed
