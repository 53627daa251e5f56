"""Lines to one server: a request is sent and its answer read, with as little around it as the client lets us."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import exceptions
from redis.asyncio import ConnectionPool

from recollect.deadline import within


class Lines:
    """Connections as the client makes them, of which the one that was used last is used first.

    The client's own way to an answer leads through a pool, retries and measurements, and takes longer than a server
    next door does. What is tried again is decided above, so that nothing of this is needed.
    """

    def __init__(self, pool: ConnectionPool, most: int, patience: float) -> None:
        self._pool = pool
        self._patience = patience
        self._free = asyncio.Semaphore(most)
        self._idle: list[Any] = []
        self._busy: set[Any] = set()

    async def ask(self, command: str, *parts: bytes) -> Any:
        """What the server answers to a command, as bytes; an answer that takes too long is none."""
        async with self._free:
            line = self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
            self._busy.add(line)
            try:
                with within(self._patience):
                    return await self._asked(line, packed(command.encode(), *parts))
            except TimeoutError as error:
                raise exceptions.TimeoutError(f"no answer within {self._patience:g} seconds") from error
            finally:
                self._busy.discard(line)
                self._idle.append(line)

    async def _asked(self, line: Any, request: bytes) -> Any:
        try:
            # One that has something to say before it is asked was hung up, or is not ours alone.
            if line.is_connected and await line.can_read():
                await line.disconnect(nowait=True)
            if not line.is_connected:
                await line.connect()
            await line.send_packed_command(request)
            return await line.read_response(disable_decoding=True, disconnect_on_error=False)
        except exceptions.ResponseError:
            raise  # which is an answer
        except BaseException:
            # Whoever uses it next must not be given the answer that was not waited for.
            await line.disconnect(nowait=True)
            raise

    async def close(self) -> None:
        """Hang up, also on those who still wait for an answer."""
        for line in (*self._idle, *self._busy):
            await line.disconnect()


def packed(*parts: bytes) -> bytes:
    """A command as it goes over the line."""
    return b"*%d\r\n%b" % (len(parts), b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]))
