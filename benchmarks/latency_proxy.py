"""TCP proxy that adds latency in each direction, so that a local server behaves like one on another machine.

The proxy runs in its own process, so that its work does not count as the client's. One thread serves each direction of
each connection, because the timers of an event loop have a resolution of about 1 ms.

    python latency_proxy.py PORT SECONDS     listen on a free port, print it, and delay each chunk by SECONDS
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

_CHUNK_BYTES = 1 << 18


class LatencyProxy:
    """Proxy process for a local port, with the given round-trip time in milliseconds."""

    def __init__(self, port: int, round_trip_ms: float) -> None:
        command = [sys.executable, __file__, str(port), str(round_trip_ms / 2000)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def forward(source: socket.socket, target: socket.socket, seconds: float) -> None:
    """Copy one direction of a connection until it ends, with a delay before each chunk."""
    with suppress(OSError):  # one end has closed the connection
        while chunk := source.recv(_CHUNK_BYTES):
            time.sleep(seconds)
            target.sendall(chunk)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(port: int, seconds: float) -> None:
    """Accept connections on a free port, print that port, and forward them to `port`; never return."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=forward, args=(*pair, seconds), daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
