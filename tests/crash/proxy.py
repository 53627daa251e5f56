"""Bad weather between a client and its server: a proxy that loses, cuts and swallows what it should carry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

Fault = Literal["lost", "reset", "truncated", "black hole"]
FAULTS: tuple[Fault, ...] = ("lost", "reset", "truncated", "black hole")


class FaultProxy:
    """Carries bytes to a port and back, and fails at random in one way.

    `lost`: the request never arrives. `reset`: it does, and the line is cut before the reply. `truncated`: half of the
    reply comes. `black hole`: nothing comes, and the line stays open.
    """

    def __init__(self, port: int, fault: Fault, chance: random.Random, *, often: float = 0.1) -> None:
        self._port = port
        self._fault = fault
        self._chance = chance
        self._often = often
        self._lines: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.failures = 0
        self.calm = True

    async def start(self) -> int:
        """Begin to carry; the port that stands for the server's."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for line in tuple(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        try:
            with suppress(OSError):
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is being stopped
        finally:
            self._lines.discard(line)
            writer.close()

    async def _carry(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, forth = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            done, pending = await asyncio.wait(
                (
                    asyncio.create_task(self._pump(client, forth, self._on_request)),
                    asyncio.create_task(self._pump(there, back, self._on_reply)),
                ),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for pump in pending:
                pump.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        finally:
            forth.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, carried: Callable[[bytes], bytes | None]
    ) -> None:
        """Carry until one side is done, or until something happens; None ends the line."""
        while chunk := await source.read(1 << 16):
            passed = carried(chunk)
            sink.write(chunk if passed is None else passed)
            if passed is not None and len(passed) < len(chunk):
                await sink.drain()
                if self._fault == "black hole":
                    await asyncio.Event().wait()
                return
            await sink.drain()

    def _on_request(self, chunk: bytes) -> bytes | None:
        return b"" if self._fault == "lost" and self._strikes() else None

    def _on_reply(self, chunk: bytes) -> bytes | None:
        if self._fault == "lost" or not self._strikes():
            return None
        return chunk[: len(chunk) // 2] if self._fault == "truncated" else b""

    def _strikes(self) -> bool:
        struck = not self.calm and self._chance.random() < self._often
        self.failures += struck
        return struck
