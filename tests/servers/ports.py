"""Free ports for test servers, outside the ephemeral range and disjoint between parallel test processes."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from contextlib import suppress

# Outgoing connections use ports from 32,768 on. A server there could find its port taken after a restart, and a client
# of a stopped server could connect to itself.
_FIRST, _LAST = 15_000, 22_000
# The offset of the cluster bus port of a node.
_BUS = 10_000
# Each parallel test process has its own share of the ports, because another one could take a port after the check.
_SHARES = 16
_mine = int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", "0")))) % _SHARES
# Ports given out recently: those of a cluster are all chosen before the first server starts.
_given: deque[int] = deque(maxlen=100)
# Not the `random` module's generator: hypothesis reseeds it for every test.
_rng = random.SystemRandom()


def free_port() -> int:
    """Return a port that is free, as is its bus port, and that no other test process uses."""
    while True:
        port = _rng.randrange(_FIRST, _LAST, _SHARES) + _mine
        if port in _given:
            continue
        with socket.socket() as probe, socket.socket() as bus, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            _given.append(port)
            return port
