"""Attempts at an answer: the usage of failed ones, timeouts, and servers that do not stream."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from recollect.errors import ModelFailed, SpendLimitReached, StoreClosed
from recollect.models.chat import ChatMessage, Reply, ToolCall, ToolSpec, Usage
from recollect.models.endpoint import ModelEndpoint
from recollect.models.factory import open_chat
from recollect.models.providers.sdk_client import SdkClient
from recollect.models.usage import UsageLedger
from recollect.settings import Secret, Settings
from tests.providers.conftest import Connect
from tests.wire.script import Call, Fail, Hang, Say
from tests.wire.server import Wire

ASKED = [ChatMessage("user", "word " * 300)]
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


class TestUsageOfFailedAttempts:
    async def test_interrupted_stream_is_recorded(
        self, connect: Connect, wire: Wire, ledger: UsageLedger, provider: str
    ):
        """Anthropic reports the usage at the start of a stream; for OpenAI it is estimated."""
        wire.script(Say("one two three four five", read=50_000, breaks_after=4))
        with pytest.raises(ModelFailed, match="broke off"):
            await connect().reply(ASKED, on_text=lambda _: None)
        [spent] = ledger.by_model
        assert spent.read == 50_000 if provider == "anthropic" else 300 <= spent.read < 400
        assert spent.written == 4

    async def test_retries_count_as_calls(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(Fail(500), Fail(503), Say("Now.", read=300))
        assert (await connect().reply(ASKED)).usage == Usage(300, 5)
        [spent] = ledger.by_model
        assert (spent.calls, spent.read) == (3, 300)

    async def test_stream_that_ends_early_is_recorded(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(Say("lost", read=300, ends_early=True))
        with pytest.raises(ModelFailed, match="ended early"):
            await connect().reply(ASKED)
        assert 300 <= ledger.by_model[0].read < 400

    async def test_timed_out_call_is_recorded(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(Hang())
        with pytest.raises(ModelFailed, match="no answer"):
            await connect(settings={"llm_timeout": 0.2, "retries": 0}).reply(ASKED)
        assert ledger.by_model[0].read >= 300

    async def test_cancelled_call_is_recorded(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(Hang())
        task = asyncio.create_task(connect().reply(ASKED))
        assert await asyncio.to_thread(wire.asked.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ledger.by_model[0].read >= 300

    async def test_tools_count_as_input_tokens(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(Hang())
        long_tool = ToolSpec("add", "Add two numbers. " * 200, {"type": "object"})
        with pytest.raises(ModelFailed):
            await connect(settings={"llm_timeout": 0.2, "retries": 0}).reply(ASKED, tools=[long_tool])
        assert ledger.by_model[0].read >= 1000

    async def test_rejected_request_is_not_recorded(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.script(*[Fail(429)] * 2, *[Fail(500)] * 3)
        with pytest.raises(ModelFailed, match="internal error"):
            await connect().reply(ASKED)
        assert ledger.by_model == ()

    async def test_unsent_request_is_not_recorded(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.__exit__(None, None, None)
        with pytest.raises(ModelFailed, match="could not be reached"):
            await connect().reply(ASKED)
        assert ledger.by_model == ()

    async def test_spend_limit_is_checked_before_each_call(self, connect: Connect, wire: Wire):
        wire.script(*[Say("lost", read=300, ends_early=True)] * 9)
        model = connect(ledger=UsageLedger(tokens=500))
        for _ in range(2):
            with pytest.raises(ModelFailed, match="ended early"):
                await model.reply(ASKED)
        with pytest.raises(SpendLimitReached):
            await model.reply(ASKED)
        assert len(wire.requests) == 2


class TestTime:
    async def test_timeout_applies_to_each_chunk_of_the_stream(self, connect: Connect, wire: Wire):
        wire.script(Say("one two three four five six seven", pause=0.1))
        reply = await connect(settings={"llm_timeout": 0.5}).reply(ASKED)
        assert reply.text == "one two three four five six seven"
        assert len(wire.requests) == 1

    async def test_stalled_stream_is_not_retried(self, connect: Connect, wire: Wire, waits: list[float]):
        wire.script(Say("one two three", stalls_after=1), Say("again"))
        with pytest.raises(ModelFailed, match=r"began its answer, and then nothing came for 0\.3 s"):
            await connect(settings={"llm_timeout": 0.3}).reply(ASKED)
        assert (len(wire.requests), waits) == (1, [])


class TestNonStreamingServer:
    async def test_non_streamed_response_is_accepted(self, connect: Connect, wire: Wire, ledger: UsageLedger):
        wire.streams = False
        wire.script(Say("Let me see.", (Call("add", {"a": 1}, "one"),), read=120, written=7))
        heard: list[str] = []
        reply = await connect().reply(ASKED, tools=[ADD], on_text=heard.append)
        assert reply == Reply("Let me see.", (ToolCall("one", "add", {"a": 1}),), "tools", Usage(120, 7))
        assert heard == ["Let me see."]
        assert len(wire.requests) == 1
        assert (ledger.by_model[0].read, ledger.by_model[0].calls) == (120, 1)

    @pytest.mark.parametrize("provider", ["openai"])
    @pytest.mark.parametrize("param", ["stream", "stream_options"])
    async def test_server_rejecting_streams_is_asked_without_stream(
        self, connect: Connect, wire: Wire, param: str, waits: list[float]
    ):
        wire.script(Fail(400, "unsupported_value", param=param), Say("One."), Say("Two."))
        model = connect()
        assert [(await model.reply(ASKED)).text for _ in range(2)] == ["One.", "Two."]
        assert [request.streams for request in wire.requests] == [True, False, False]
        assert waits == []

    @pytest.mark.parametrize("provider", ["openai"])
    async def test_non_streamed_timeout_is_not_retried(
        self, connect: Connect, wire: Wire, ledger: UsageLedger, waits: list[float]
    ):
        wire.script(Fail(400, "unsupported_value", param="stream"), Hang())
        with pytest.raises(ModelFailed, match=r"no answer within 0\.3 s"):
            await connect(settings={"llm_timeout": 0.3}).reply(ASKED)
        assert (len(wire.requests), waits) == (2, [])
        assert ledger.by_model[0].calls == 1


async def test_html_response_raises_model_failed(provider: str, ledger: UsageLedger, waits: list[float]):
    """A gateway may answer with status 200 and an HTML page if the address is wrong."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Welcome</html>"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        model = open_chat(f"{provider}:some@http://127.0.0.1:{port}", Settings(), ledger=ledger)
        with pytest.raises(ModelFailed, match="check the address"):
            await model.reply(ASKED)
        await model.close()
    assert (ledger.by_model, waits) == ((), [])


@pytest.mark.parametrize("provider", ["anthropic"])
class TestWarnings:
    """The SDK warns about deprecated models, which is not a failure of the model."""

    @pytest.fixture
    def model(self) -> str:
        from anthropic.resources.messages.messages import DEPRECATED_MODELS

        return str(next(iter(DEPRECATED_MODELS)))

    async def test_deprecation_warning_passes_through(self, connect: Connect, wire: Wire, model: str):
        wire.script(Say("Still here."))
        with pytest.warns(DeprecationWarning, match="end-of-life"):
            assert (await connect(model).reply(ASKED)).text == "Still here."

    async def test_deprecation_warning_as_error_is_raised(
        self, connect: Connect, wire: Wire, model: str, ledger: UsageLedger
    ):
        with pytest.raises(DeprecationWarning, match="end-of-life"):
            await connect(model).reply(ASKED)
        assert (wire.requests, ledger.by_model) == ([], ())


class ClosableClient:
    """A client that records whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_client_created_during_close_is_closed():
    making, go_on = threading.Event(), threading.Event()
    opened = ClosableClient()

    def make() -> tuple[Any, ClosableClient]:
        making.set()
        assert go_on.wait(10)
        return None, opened

    endpoint = ModelEndpoint("openai:some", "", Secret("k"), 1.0, 0, UsageLedger())
    client = SdkClient(endpoint, make)
    asked = asyncio.create_task(client.get())
    assert await asyncio.to_thread(making.wait, 10)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert opened.closed
    with pytest.raises(StoreClosed):
        await asked
