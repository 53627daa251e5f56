"""What the flows of tasks share: a watch, waits that take no time, and a trail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from tests.flows.runtime.working import Trail, Waits, Watch


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def trail() -> Trail:
    return Trail()


@pytest.fixture
def agent(memory: AgentMemory, watch: Watch, waits: Waits) -> Callable[..., ResumableAgent]:
    def made(**options: Any) -> ResumableAgent:
        return ResumableAgent(options.pop("memory", memory), on_event=watch, pace=waits.pace, **options)

    return made
