"""Fixtures of the durable task flows: recorded events, instant waits and a trail of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recollect import AgentMemory, ResumableAgent
from tests.flows.durable.working import Trail, Waits, Watch


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
        return ResumableAgent(options.pop("memory", memory), on_event=watch, _timing=waits.pace, **options)

    return made
