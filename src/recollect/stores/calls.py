"""Whether a call has been called off, also where a driver keeps that to itself."""

from __future__ import annotations

import asyncio


def calls_off() -> int:
    """How often somebody has asked for what runs here to be given up.

    A driver that is called off may wait for its server's last word, and then tell of that alone: an error of the line,
    or even an answer. Whoever compares before and after knows better, and lets the caller go.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
