"""A server that is elsewhere: a line to it on which everything takes a while, each way.

Servers of benchmarks run on the machine that asks them, where the way there costs next to nothing. This puts the same
distance between them and whoever asks, in a process of its own, so that it is nobody's work in ours. A thread sleeps
for each direction of each line: an event loop's timers are a millisecond wide.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 18


class Away:
    """Leads to a port of this machine; there and back takes as many milliseconds as were asked for."""

    def __init__(self, port: int, milliseconds: float) -> None:
        command = [sys.executable, __file__, str(port), str(milliseconds / 2000)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def carry(here: socket.socket, there: socket.socket, seconds: float) -> None:
    with suppress(OSError):  # one end has hung up
        while chunk := here.recv(_CHUNK):
            time.sleep(seconds)
            there.sendall(chunk)
    for end in (here, there):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(port: int, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            here, _ = listening.accept()
            there = socket.create_connection(("127.0.0.1", port))
            for end in (here, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((here, there), (there, here)):
                threading.Thread(target=carry, args=(*pair, seconds), daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
