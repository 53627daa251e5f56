"""A filled memory to export."""

from __future__ import annotations

import pytest

from recollect import AgentMemory
from recollect.testing import ManualClock
from tests.flows.conftest import Opener
from tests.flows.export.export_file import fill


@pytest.fixture
async def filled(opener: Opener, clock: ManualClock) -> AgentMemory:
    memory = await opener(user="ada", tenant="acme")
    await fill(memory, clock)
    return memory
