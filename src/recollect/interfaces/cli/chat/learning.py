"""What a chat learns when it begins and when it is left, so that what was said before counts."""

from __future__ import annotations

import asyncio

from recollect.errors import RecollectError
from recollect.interfaces.cli.chat.screen import Screen
from recollect.interfaces.cli.counting import told
from recollect.memory import AgentMemory

# Nobody waits longer for a greeting, nor to be let go; what is left over is learned the next time.
_PATIENCE = 10.0


async def learn_what_was_said(memory: AgentMemory, screen: Screen, patience: float = _PATIENCE) -> None:
    """Run the lifecycle for this user. A chat goes on without it: what was said is kept, and can be learned later."""
    try:
        async with asyncio.timeout(patience):
            report = await memory.lifecycle.run_once()
    except TimeoutError:
        screen.hint("not everything that was said is learned yet; `recollect lifecycle` goes on with it")
    except RecollectError as error:
        screen.hint(f"nothing was learned from what was said: {error}")
    else:
        if report.promoted:
            screen.hint(f"learned {told(len(report.promoted), 'fact')} from what was said")
