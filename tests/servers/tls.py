"""A TLS proxy for servers without TLS, with self-signed certificates."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate and its key."""

    file: Path
    key: Path

    @classmethod
    def made(cls, directory: Path, name: str = "IP:127.0.0.1") -> Certificate:
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory / "certificate.pem", directory / "key.pem")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
                *("-days", "2", "-subj", "/CN=recollect tests", "-addext", f"subjectAltName={name}"),
                *("-keyout", str(made.key), "-out", str(made.file)),
            ],
            check=True,
            capture_output=True,
        )
        return made


class TlsFront:
    """A proxy that terminates TLS and forwards the bytes to a local port."""

    def __init__(self, port: int, certificate: Certificate) -> None:
        self._port = port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate.file, certificate.key)
        self._lines: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        """Start the proxy and return its port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in tuple(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        there, forth = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with suppress(OSError, asyncio.CancelledError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, forth))
                    group.create_task(_pump(there, writer))
        finally:
            self._lines.discard(line)
            writer.close()
            forth.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(1 << 16):
        sink.write(chunk)
        await sink.drain()
    sink.close()
