"""Ports for the servers of tests: free, nobody else's, and below those that connections are given."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import suppress

# Connections are given ports from 32 768 on. A server there would find its port taken when it is started again, and a
# client that asks for a server that is down could be connected with itself.
_FIRST, _LAST = 15_000, 22_000
# The node of a cluster talks to the others on a second one, so much higher.
_BUS = 10_000
# Processes that share the tests have ports of their own: between looking at one and listening there time passes.
_SHARES = 16
_mine = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", "0")))) % _SHARES
# The same goes for servers of one process: those of a cluster are all named before the first is started.
_given: deque[int] = deque(maxlen=100)
# Not the module's own randomness: hypothesis has that begin anew with every test.
_chance = random.SystemRandom()


def free_port() -> int:
    """A port that nobody uses now, nor will before a server does; and so is its bus port."""
    while True:
        port = _chance.randrange(_FIRST, _LAST, _SHARES) + _mine
        if port in _given:
            continue
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            _given.append(port)
            return port
