"""Model providers through their official SDKs, against a local server, with retries that do not wait."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
import tenacity

from recollect.models.chat import ChatModel
from recollect.models.factory import open_chat
from recollect.models.usage import UsageLedger
from recollect.settings import Settings
from recollect.testing import ManualClock
from tests.wire.server import Wire

KEY = "sk-a-key-that-nobody-may-see-4711"
VARIABLES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "VOYAGE_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")
Connect = Callable[..., ChatModel]


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove API keys from the environment, and set an unreachable proxy that local servers must bypass."""
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


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of seconds that the SDKs would wait before each retry; they do not wait."""
    seconds: list[float] = []
    for module in ("anthropic._base_client", "openai._base_client"):
        client = importlib.import_module(module).BaseClient
        calculate = client._calculate_retry_timeout

        def record(self: Any, *args: Any, calculate: Callable[..., float] = calculate, **kwargs: Any) -> float:
            seconds.append(calculate(self, *args, **kwargs))
            return 0.0

        monkeypatch.setattr(client, "_calculate_retry_timeout", record)
    monkeypatch.setattr("voyageai.client_async.wait_exponential_jitter", lambda **_: tenacity.wait_none())
    return seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger() -> UsageLedger:
    return UsageLedger()


@pytest.fixture(params=["anthropic", "openai"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def connect(provider: str, wire: Wire, clock: ManualClock, ledger: UsageLedger) -> AsyncIterator[Connect]:
    """Return a function that connects models of one provider to the server; they are closed after the test."""
    opened: list[ChatModel] = []

    def open_model(model: str = "some-model", **options: Any) -> ChatModel:
        settings = Settings(anthropic_api_key=KEY, openai_api_key=KEY, **options.pop("settings", {}))
        options = {"ledger": ledger, "clock": clock, **options}
        chat = open_chat(f"{provider}:{model}@{getattr(wire, provider)}", settings, **options)
        opened.append(chat)
        return chat

    yield open_model
    for chat in opened:
        await chat.close()
