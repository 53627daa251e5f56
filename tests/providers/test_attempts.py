"""Attempts at an answer: what they cost when they fail, how slow they may be, and servers that do not stream."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from recollect.errors import ModelFailed, SpendLimitReached, StoreClosed
from recollect.inference.access import Access, Named
from recollect.inference.chat import ChatMessage, Reply, ToolCall, ToolSpec, Usage
from recollect.inference.connect import connect_chat
from recollect.inference.ledger import Ledger
from recollect.inference.providers.client import Client
from recollect.inference.retry import Retry
from recollect.settings import Secret, Settings
from recollect.testing import ManualClock
from tests.providers.conftest import Connect
from tests.wire.script import Call, Fail, Hang, Say
from tests.wire.server import Wire

ASKED = [ChatMessage("user", "word " * 300)]
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


class TestWhatFailsIsBooked:
    async def test_a_stream_that_breaks_off(self, connect: Connect, wire: Wire, ledger: Ledger, provider: str):
        """By what it reported, which is Anthropic's way, or else by what was sent and what came."""
        wire.script(Say("one two three four five", read=50_000, breaks_after=4))
        with pytest.raises(ModelFailed, match="broke off"):
            await connect().reply(ASKED, on_text=lambda _: None)
        [spent] = ledger.spent
        assert spent.read == 50_000 if provider == "anthropic" else 300 <= spent.read < 400
        assert spent.written == 4

    async def test_each_attempt_before_the_one_that_succeeds(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.script(Say("lost", read=300, ends_early=True), Say("lost", read=300, resets=True), Say("Now.", read=300))
        assert (await connect().reply(ASKED)).usage == Usage(300, 5)
        [spent] = ledger.spent
        assert spent.calls == 3
        assert 900 <= spent.read < 1100

    async def test_one_that_hangs(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.script(Hang())
        with pytest.raises(ModelFailed, match="no answer"):
            await connect(settings={"llm_timeout": 0.2}, retry=Retry(0)).reply(ASKED)
        assert ledger.spent[0].read >= 300

    async def test_one_that_is_called_off(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.script(Hang())
        task = asyncio.create_task(connect().reply(ASKED))
        assert await asyncio.to_thread(wire.asked.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ledger.spent[0].read >= 300

    async def test_tools_are_part_of_what_was_sent(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.script(Hang())
        long = ToolSpec("add", "Add two numbers. " * 200, {"type": "object"})
        with pytest.raises(ModelFailed):
            await connect(settings={"llm_timeout": 0.2}, retry=Retry(0)).reply(ASKED, tools=[long])
        assert ledger.spent[0].read >= 1000

    async def test_but_not_what_was_refused(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.script(*[Fail(429)] * 2, *[Fail(500)] * 3)
        with pytest.raises(ModelFailed, match="fault of its own"):
            await connect().reply(ASKED)
        assert ledger.spent == ()

    async def test_nor_what_was_never_sent(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.__exit__(None, None, None)
        with pytest.raises(ModelFailed, match="could not be reached"):
            await connect().reply(ASKED)
        assert ledger.spent == ()

    async def test_and_the_limit_holds_before_each_attempt(self, connect: Connect, wire: Wire):
        wire.script(*[Say("lost", read=300, resets=True)] * 9)
        with pytest.raises(SpendLimitReached):
            await connect(ledger=Ledger(tokens=500)).reply(ASKED)
        assert len(wire.requests) == 2


class TestTime:
    async def test_a_long_answer_may_take_longer_than_each_of_its_pieces(self, connect: Connect, wire: Wire):
        wire.script(Say("one two three four five six seven", pause=0.1))
        reply = await connect(settings={"llm_timeout": 0.5}).reply(ASKED)
        assert reply.text == "one two three four five six seven"
        assert len(wire.requests) == 1

    async def test_one_that_began_and_is_too_slow_is_not_paid_for_twice(
        self, connect: Connect, wire: Wire, waits: list[float]
    ):
        wire.script(Say("one two three", stalls_after=1), Say("again"))
        with pytest.raises(ModelFailed, match=r"began its answer, and then nothing came for 0\.3 s"):
            await connect(settings={"llm_timeout": 0.3}).reply(ASKED)
        assert (len(wire.requests), waits) == (1, [])


class TestOneThatDoesNotStream:
    async def test_what_it_answers_in_one_piece_is_its_answer(self, connect: Connect, wire: Wire, ledger: Ledger):
        wire.streams = False
        wire.script(Say("Let me see.", (Call("add", {"a": 1}, "one"),), read=120, written=7))
        heard: list[str] = []
        reply = await connect().reply(ASKED, tools=[ADD], on_text=heard.append)
        assert reply == Reply("Let me see.", (ToolCall("one", "add", {"a": 1}),), "tools", Usage(120, 7))
        assert heard == ["Let me see."]
        assert len(wire.requests) == 1
        assert (ledger.spent[0].read, ledger.spent[0].calls) == (120, 1)

    @pytest.mark.parametrize("provider", ["openai"])
    @pytest.mark.parametrize("param", ["stream", "stream_options"])
    async def test_one_that_refuses_to_is_asked_for_the_whole_from_then_on(
        self, connect: Connect, wire: Wire, param: str, waits: list[float]
    ):
        wire.script(Fail(400, "unsupported_value", param=param), Say("One."), Say("Two."))
        model = connect()
        assert [(await model.reply(ASKED)).text for _ in range(2)] == ["One.", "Two."]
        assert [request.streams for request in wire.requests] == [True, False, False]
        assert waits == []

    @pytest.mark.parametrize("provider", ["openai"])
    async def test_a_whole_answer_that_does_not_come_is_not_paid_for_again(
        self, connect: Connect, wire: Wire, ledger: Ledger, waits: list[float]
    ):
        wire.script(Fail(400, "unsupported_value", param="stream"), Hang())
        with pytest.raises(ModelFailed, match=r"no answer within 0\.3 s"):
            await connect(settings={"llm_timeout": 0.3}).reply(ASKED)
        assert (len(wire.requests), waits) == (2, [])
        assert ledger.spent[0].calls == 1


async def test_a_page_is_no_answer(provider: str, ledger: Ledger, retry: Retry, waits: list[float]):
    """As from a gateway that has another thing at this address, and says that all is well."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<html>Welcome</html>"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        model = connect_chat(f"{provider}:some@http://127.0.0.1:{port}", Settings(), ledger=ledger, retry=retry)
        with pytest.raises(ModelFailed, match="is it the right address"):
            await model.reply(ASKED)
        await model.close()
    assert (ledger.spent, waits) == ((), [])


@pytest.mark.parametrize("provider", ["anthropic"])
class TestWarnings:
    """A client may say that a model will be gone; that is no failure of the model."""

    @pytest.fixture
    def model(self) -> str:
        from anthropic.resources.messages.messages import DEPRECATED_MODELS

        return str(next(iter(DEPRECATED_MODELS)))

    async def test_they_pass(self, connect: Connect, wire: Wire, model: str):
        wire.script(Say("Still here."))
        with pytest.warns(DeprecationWarning, match="end-of-life"):
            assert (await connect(model).reply(ASKED)).text == "Still here."

    async def test_made_errors_they_are_what_they_are(self, connect: Connect, wire: Wire, model: str, ledger: Ledger):
        with pytest.raises(DeprecationWarning, match="end-of-life"):
            await connect(model).reply(ASKED)
        assert (wire.requests, ledger.spent) == ([], ())


class Opened:
    """A client that knows whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_one_that_is_made_while_it_is_closed_is_closed():
    making, go_on = threading.Event(), threading.Event()
    opened = Opened()

    def make() -> tuple[Any, Opened]:
        making.set()
        assert go_on.wait(10)
        return None, opened

    access = Access(Named.parsed("openai:some"), "", Secret("k"), 1.0, Retry(0), Ledger(), ManualClock())
    client = Client(access, make)
    asked = asyncio.create_task(client.get())
    assert await asyncio.to_thread(making.wait, 10)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert opened.closed
    with pytest.raises(StoreClosed):
        await asked
