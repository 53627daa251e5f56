"""Providers as a user connects them: their official clients, against a server of ours, without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from recollect.inference.chat import ChatModel
from recollect.inference.connect import connect_chat
from recollect.inference.ledger import Ledger
from recollect.inference.retry import Retry
from recollect.settings import Settings
from recollect.testing import ManualClock
from tests.wire.server import Wire

KEY = "sk-a-key-that-nobody-may-see-4711"
VARIABLES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "VOYAGE_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")
Connect = Callable[..., ChatModel]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys of whoever runs the tests, and a proxy that leads nowhere: a local server is reached without it."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as server:
        yield server


@pytest.fixture
def waits() -> list[float]:
    """How long was waited before each new try."""
    return []


@pytest.fixture
def retry(waits: list[float]) -> Retry:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return Retry(4, sleep=sleep, random=Random(1))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def connect(
    provider: str, wire: Wire, retry: Retry, clock: ManualClock, ledger: Ledger
) -> AsyncIterator[Connect]:
    """Connects models of one provider to the server, and closes them."""
    opened: list[ChatModel] = []

    def connected(model: str = "some-model", **options: Any) -> ChatModel:
        settings = Settings(anthropic_api_key=KEY, openai_api_key=KEY, **options.pop("settings", {}))
        options = {"ledger": ledger, "clock": clock, "retry": retry, **options}
        chat = connect_chat(f"{provider}:{model}@{getattr(wire, provider)}", settings, **options)
        opened.append(chat)
        return chat

    yield connected
    for chat in opened:
        await chat.close()
