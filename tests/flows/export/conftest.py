"""A memory that has something to export."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.flows.conftest import Opener
from tests.flows.export.journey import furnish


@pytest.fixture
async def furnished(opener: Opener, clock: ManualClock) -> AgentMemory:
    memory = await opener(user="ada", tenant="acme")
    await furnish(memory, clock)
    return memory
