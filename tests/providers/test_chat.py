"""Behavior that all chat providers share: replies, streams, tool calls, failures and retries."""

from __future__ import annotations

import asyncio
import logging
import traceback

import pytest

from recollect.errors import ModelFailed, StoreClosed
from recollect.models.chat import ChatMessage, Reply, ToolCall, ToolSpec, Usage
from tests.providers.conftest import KEY, Connect
from tests.wire.script import Call, Fail, Hang, Reset, Say
from tests.wire.server import Wire

PROMPT = "a prompt that is nobody's business"
ASKED = [ChatMessage("user", PROMPT)]
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
WITH_AND_WITHOUT_CALLBACK = pytest.mark.parametrize(
    "with_callback", [False, True], ids=["without-callback", "with-callback"]
)


class StreamRecorder:
    """A callback that records the streamed text."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __call__(self, piece: str) -> None:
        self.pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@WITH_AND_WITHOUT_CALLBACK
async def test_reply_returns_text_and_usage(connect: Connect, wire: Wire, with_callback: bool):
    wire.script(Say("Metric units, please.", read=120, written=7, cached=100))
    recorder = StreamRecorder() if with_callback else None
    reply = await connect().reply(ASKED, on_text=recorder)
    assert reply == Reply("Metric units, please.", usage=Usage(read=120, written=7, cached=100))
    assert recorder is None or recorder.pieces == ["Metric", " units,", " please."]
    assert wire.requests[0].streams


@WITH_AND_WITHOUT_CALLBACK
async def test_reply_returns_parallel_tool_calls(connect: Connect, wire: Wire, with_callback: bool):
    calls = (Call("add", {"a": 1, "note": "é 🎈"}, "one"), Call("add", {"a": 2}, "two"), Call("now", {}, "three"))
    wire.script(Say("Let me see.", calls))
    recorder = StreamRecorder() if with_callback else None
    reply = await connect().reply(ASKED, tools=[ADD], on_text=recorder)
    assert reply.stop == "tools"
    assert reply.text == "Let me see."
    assert reply.tool_calls == (
        ToolCall("one", "add", {"a": 1, "note": "é 🎈"}),
        ToolCall("two", "add", {"a": 2}),
        ToolCall("three", "now"),
    )
    assert recorder is None or recorder.text == "Let me see."


@WITH_AND_WITHOUT_CALLBACK
@pytest.mark.parametrize("written", ['{"a": 1', "[1, 2]", '"add"'], ids=["cut", "list", "text"])
async def test_malformed_tool_arguments_are_marked(connect: Connect, wire: Wire, with_callback: bool, written: str):
    wire.script(Say("", (Call("add", written, "bad"), Call("add", {"a": 2}, "good"))))
    reply = await connect().reply(ASKED, tools=[ADD], on_text=StreamRecorder() if with_callback else None)
    bad, good = reply.tool_calls
    assert (bad.id, bad.name, bad.arguments) == ("bad", "add", {})
    assert bad.malformed is not None
    assert "arguments" in bad.malformed
    assert good == ToolCall("good", "add", {"a": 2})
    assert reply.stop == "tools"


@WITH_AND_WITHOUT_CALLBACK
@pytest.mark.parametrize("written", ["", "{}", '{"a": 1'], ids=["nothing", "empty", "half"])
async def test_last_tool_call_of_truncated_reply_is_malformed(
    connect: Connect, wire: Wire, with_callback: bool, written: str
):
    # Mutant: missing arguments are treated as a call without arguments.
    wire.script(Say("", (Call("add", {"a": 2}, "whole"), Call("add", written, "half")), stop="length"))
    reply = await connect().reply(ASKED, tools=[ADD], on_text=StreamRecorder() if with_callback else None)
    assert reply.stop == "length"
    whole, half = reply.tool_calls
    assert whole == ToolCall("whole", "add", {"a": 2})
    assert half.arguments == {}
    assert half.malformed is not None


@WITH_AND_WITHOUT_CALLBACK
@pytest.mark.parametrize(("stop", "seen"), [("length", "length"), ("refusal", "refusal"), ("filter", "refusal")])
async def test_reply_returns_stop_reason(connect: Connect, wire: Wire, with_callback: bool, stop: str, seen: str):
    wire.script(Say("I would rather not", stop=stop))  # type: ignore[arg-type]
    recorder = StreamRecorder() if with_callback else None
    reply = await connect().reply(ASKED, on_text=recorder)
    assert (reply.stop, reply.text) == (seen, "I would rather not")
    assert recorder is None or recorder.text == reply.text


@WITH_AND_WITHOUT_CALLBACK
async def test_rate_limit_is_retried_after_retry_after(
    connect: Connect, wire: Wire, waits: list[float], with_callback: bool
):
    wire.script(Fail(429, "rate_limit_error", headers={"retry-after": "7"}), Say("Now."))
    assert (await connect().reply(ASKED, on_text=StreamRecorder() if with_callback else None)).text == "Now."
    assert waits == [7.0]
    assert wire.requests[0].body == wire.requests[1].body


@pytest.mark.parametrize("trouble", [Fail(529, "overloaded_error"), Fail(500), Fail(503), Fail(408), Reset()], ids=str)
@WITH_AND_WITHOUT_CALLBACK
async def test_transient_error_is_retried_with_backoff(
    connect: Connect, wire: Wire, waits: list[float], trouble: Fail | Reset, with_callback: bool
):
    wire.script(trouble, trouble, Say("Now."))
    assert (await connect().reply(ASKED, on_text=StreamRecorder() if with_callback else None)).text == "Now."
    assert len(waits) == 2
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] * 1.01 <= 1.02


@pytest.mark.parametrize(
    ("status", "said"), [(529, "overloaded"), (500, "internal error"), (429, "too often")], ids=str
)
async def test_persistent_error_raises_after_five_attempts(
    connect: Connect, wire: Wire, waits: list[float], status: int, said: str
):
    wire.script(*[Fail(status, "some_error")] * 9)
    with pytest.raises(ModelFailed, match=f"{said} \\({status} some_error\\)"):
        await connect().reply(ASKED)
    assert len(wire.requests) == 5
    assert len(waits) == 4


async def test_retry_after_of_an_hour_is_bounded_by_timeout(
    connect: Connect, wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()  # the SDKs wait
    wire.script(*[Fail(429, headers={"retry-after": "3600"})] * 9)
    with pytest.raises(ModelFailed, match=r"too often|no answer within 0\.1 s"):
        await connect(settings={"llm_timeout": 0.1, "retries": 1}).reply(ASKED)


@pytest.mark.parametrize(
    ("fail", "advice"),
    [
        (Fail(400, "invalid_request_error"), "refused the request .400 invalid_request_error."),
        (Fail(401, "authentication_error"), "refused the key"),
        (Fail(403, "permission_error"), "refused the key"),
        (Fail(404, "not_found_error"), "check the model's name"),
        (Fail(413, "request_too_large"), "send less"),
    ],
    ids=str,
)
async def test_non_retryable_status_is_not_retried(
    connect: Connect, wire: Wire, waits: list[float], fail: Fail, advice: str
):
    wire.script(fail)
    with pytest.raises(ModelFailed, match=advice):
        await connect().reply(ASKED)
    assert waits == []


@WITH_AND_WITHOUT_CALLBACK
async def test_hanging_request_times_out_and_is_retried(connect: Connect, wire: Wire, with_callback: bool):
    wire.script(Hang(), Say("Awake."))
    model = connect(settings={"llm_timeout": 0.3})
    assert (await model.reply(ASKED, on_text=StreamRecorder() if with_callback else None)).text == "Awake."
    wire.script(*[Hang()] * 5)
    with pytest.raises(ModelFailed, match=r"gave no answer within 0\.3 s"):
        await model.reply(ASKED, on_text=StreamRecorder() if with_callback else None)


async def test_stream_that_ends_early_raises_and_returns_no_tool_call(connect: Connect, wire: Wire, waits: list[float]):
    wire.script(Say("", (Call("add", {}),), ends_early=True), Say("Found words."))
    model, recorder = connect(), StreamRecorder()
    with pytest.raises(ModelFailed, match="could not be reached"):
        await model.reply(ASKED, tools=[ADD], on_text=recorder)
    assert (len(wire.requests), waits, recorder.text) == (1, [], "")
    assert (await model.reply(ASKED)).text == "Found words."


@pytest.mark.parametrize("provider", ["openai"])
async def test_exhausted_quota_is_named(connect: Connect, wire: Wire):
    wire.script(*[Fail(429, "insufficient_quota")] * 9)
    with pytest.raises(ModelFailed, match="no money left"):
        await connect().reply(ASKED)


async def test_interrupted_stream_is_not_retried(connect: Connect, wire: Wire, waits: list[float]):
    wire.script(Say("one two three", breaks_after=2), Say("one two three"))
    recorder = StreamRecorder()
    with pytest.raises(ModelFailed, match="broke off in the middle"):
        await connect().reply(ASKED, on_text=recorder)
    assert recorder.text == "one two"
    assert (len(wire.requests), waits) == (1, [])


async def test_exception_of_the_callback_is_raised_unchanged(connect: Connect, wire: Wire):
    wire.script(Say("one two three"), Say("fine"))
    model = connect()

    def raise_key_error(piece: str) -> None:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        await model.reply(ASKED, on_text=raise_key_error)
    assert (await model.reply(ASKED)).text == "fine"


async def test_unreachable_server_raises_model_failed(connect: Connect, wire: Wire, waits: list[float]):
    model = connect()
    wire.__exit__(None, None, None)
    with pytest.raises(ModelFailed, match=r"could not be reached: \w+; check the network"):
        await model.reply(ASKED)
    assert len(waits) == 4


async def test_request_can_be_cancelled(connect: Connect, wire: Wire):
    wire.script(Hang(), Say("still well"))
    model = connect()
    task = asyncio.create_task(model.reply(ASKED))
    assert await asyncio.to_thread(wire.asked.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await model.reply(ASKED)).text == "still well"


async def test_reply_after_close_raises_store_closed(connect: Connect, wire: Wire):
    wire.script(Say("once"))
    model = connect()
    await model.reply(ASKED)
    await model.close()
    await model.close()
    with pytest.raises(StoreClosed):
        await model.reply(ASKED)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_key_and_prompt_are_not_in_errors_or_logs(
    connect: Connect, wire: Wire, caplog: pytest.LogCaptureFixture, status: int
):
    """The server quotes both; they must not be in chained errors or in logs at DEBUG."""
    caplog.set_level(logging.DEBUG)
    wire.script(*[Fail(status, "some_error", f"no: {KEY} may not ask '{PROMPT}'")] * 5)
    with pytest.raises(ModelFailed) as caught:
        await connect().reply(ASKED)
    printed = "".join(traceback.format_exception(caught.value))
    assert KEY not in printed
    assert PROMPT not in str(caught.value)
    assert all(KEY not in record.getMessage() for record in caplog.records)
    ours = [record for record in caplog.records if record.name.startswith("recollect")]
    assert all(PROMPT not in record.getMessage() for record in ours)
    sent = wire.requests[0].headers
    assert KEY in (sent.get("x-api-key") or sent["authorization"])


async def test_retries_setting_of_zero_disables_retries(connect: Connect, wire: Wire, waits: list[float]):
    wire.script(Fail(500), Say("too late"))
    with pytest.raises(ModelFailed):
        await connect(settings={"retries": 0}).reply(ASKED)
    assert (len(wire.requests), waits) == (1, [])
