"""What every provider of language models does alike: speak, stream, call tools, fail, and be asked again."""

from __future__ import annotations

import asyncio
import logging
import traceback

import pytest

from recollect.errors import ModelFailed, StoreClosed
from recollect.inference.chat import ChatMessage, Reply, ToolCall, ToolSpec, Usage
from recollect.inference.retry import Retry
from tests.providers.conftest import KEY, Connect
from tests.wire.script import Call, Fail, Hang, Reset, Say
from tests.wire.server import Wire

PROMPT = "a prompt that is nobody's business"
ASKED = [ChatMessage("user", PROMPT)]
ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
BOTH_WAYS = pytest.mark.parametrize("listened", [False, True], ids=["unheard", "heard"])


class Heard:
    """Somebody who listens while the model speaks."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __call__(self, piece: str) -> None:
        self.pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@BOTH_WAYS
async def test_it_answers(connect: Connect, wire: Wire, listened: bool):
    wire.script(Say("Metric units, please.", read=120, written=7, cached=100))
    heard = Heard() if listened else None
    reply = await connect().reply(ASKED, on_text=heard)
    assert reply == Reply("Metric units, please.", usage=Usage(read=120, written=7, cached=100))
    assert heard is None or heard.pieces == ["Metric", " units,", " please."]
    assert wire.requests[0].streams


@BOTH_WAYS
async def test_tools_may_be_called_side_by_side(connect: Connect, wire: Wire, listened: bool):
    calls = (Call("add", {"a": 1, "note": "é 🎈"}, "one"), Call("add", {"a": 2}, "two"), Call("now", {}, "three"))
    wire.script(Say("Let me see.", calls))
    heard = Heard() if listened else None
    reply = await connect().reply(ASKED, tools=[ADD], on_text=heard)
    assert reply.stop == "tools"
    assert reply.text == "Let me see."
    assert reply.tool_calls == (
        ToolCall("one", "add", {"a": 1, "note": "é 🎈"}),
        ToolCall("two", "add", {"a": 2}),
        ToolCall("three", "now"),
    )
    assert heard is None or heard.text == "Let me see."


@BOTH_WAYS
@pytest.mark.parametrize("written", ['{"a": 1', "[1, 2]", '"add"'], ids=["cut", "list", "text"])
async def test_arguments_that_cannot_be_read_are_marked_and_the_others_kept(
    connect: Connect, wire: Wire, listened: bool, written: str
):
    wire.script(Say("", (Call("add", written, "bad"), Call("add", {"a": 2}, "good"))))
    reply = await connect().reply(ASKED, tools=[ADD], on_text=Heard() if listened else None)
    bad, good = reply.tool_calls
    assert (bad.id, bad.name, bad.arguments) == ("bad", "add", {})
    assert bad.malformed is not None
    assert "arguments" in bad.malformed
    assert good == ToolCall("good", "add", {"a": 2})
    assert reply.stop == "tools"


@BOTH_WAYS
@pytest.mark.parametrize("written", ["", "{}", '{"a": 1'], ids=["nothing", "empty", "half"])
async def test_the_last_call_of_a_reply_that_was_cut_off_is_marked(
    connect: Connect, wire: Wire, listened: bool, written: str
):
    # Mutant: what was never written down is taken for a call without arguments.
    wire.script(Say("", (Call("add", {"a": 2}, "whole"), Call("add", written, "half")), stop="length"))
    reply = await connect().reply(ASKED, tools=[ADD], on_text=Heard() if listened else None)
    assert reply.stop == "length"
    whole, half = reply.tool_calls
    assert whole == ToolCall("whole", "add", {"a": 2})
    assert half.arguments == {}
    assert half.malformed is not None


@BOTH_WAYS
@pytest.mark.parametrize(("stop", "seen"), [("length", "length"), ("refusal", "refusal"), ("filter", "refusal")])
async def test_it_says_why_it_stopped(connect: Connect, wire: Wire, listened: bool, stop: str, seen: str):
    wire.script(Say("I would rather not", stop=stop))  # type: ignore[arg-type]
    heard = Heard() if listened else None
    reply = await connect().reply(ASKED, on_text=heard)
    assert (reply.stop, reply.text) == (seen, "I would rather not")
    assert heard is None or heard.text == reply.text


@BOTH_WAYS
async def test_one_that_is_asked_too_often_is_asked_again_when_it_says(
    connect: Connect, wire: Wire, waits: list[float], listened: bool
):
    wire.script(Fail(429, "rate_limit_error", headers={"retry-after": "7"}), Say("Now."))
    assert (await connect().reply(ASKED, on_text=Heard() if listened else None)).text == "Now."
    assert waits == [7.0]
    assert wire.requests[0].body == wire.requests[1].body


@pytest.mark.parametrize("trouble", [Fail(529, "overloaded_error"), Fail(500), Fail(503), Fail(408), Reset()], ids=str)
@BOTH_WAYS
async def test_what_passes_is_waited_for(
    connect: Connect, wire: Wire, waits: list[float], trouble: Fail | Reset, listened: bool
):
    wire.script(trouble, trouble, Say("Now."))
    assert (await connect().reply(ASKED, on_text=Heard() if listened else None)).text == "Now."
    assert len(waits) == 2
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0


@pytest.mark.parametrize(
    ("status", "said"), [(529, "overloaded"), (500, "fault of its own"), (429, "too often")], ids=str
)
async def test_what_does_not_pass_is_given_up(connect: Connect, wire: Wire, waits: list[float], status: int, said: str):
    wire.script(*[Fail(status, "some_error")] * 9)
    with pytest.raises(ModelFailed, match=f"{said} \\({status} some_error\\)"):
        await connect().reply(ASKED)
    assert len(wire.requests) == 5
    assert len(waits) == 4


async def test_a_wait_of_an_hour_is_not_waited_for(connect: Connect, wire: Wire, waits: list[float]):
    wire.script(Fail(429, headers={"retry-after": "3600"}))
    with pytest.raises(ModelFailed, match="too often"):
        await connect().reply(ASKED)
    assert waits == []


@pytest.mark.parametrize(
    ("fail", "advice"),
    [
        (Fail(400, "invalid_request_error"), "refused the request .400 invalid_request_error."),
        (Fail(401, "authentication_error"), "refused the key"),
        (Fail(403, "permission_error"), "refused the key"),
        (Fail(404, "not_found_error"), "check the model's name"),
        (Fail(413, "request_too_large"), "send less"),
        (Fail(429, "insufficient_quota"), "no money left"),
    ],
    ids=str,
)
async def test_what_waiting_does_not_mend_is_told_at_once(
    connect: Connect, wire: Wire, waits: list[float], fail: Fail, advice: str
):
    wire.script(fail)
    with pytest.raises(ModelFailed, match=advice):
        await connect().reply(ASKED)
    assert waits == []


@BOTH_WAYS
async def test_one_that_hangs_is_given_up_in_its_time(connect: Connect, wire: Wire, listened: bool):
    wire.script(Hang(), Say("Awake."))
    model = connect(settings={"llm_timeout": 0.3})
    assert (await model.reply(ASKED, on_text=Heard() if listened else None)).text == "Awake."
    wire.script(*[Hang()] * 5)
    with pytest.raises(ModelFailed, match=r"gave no answer within 0\.3 s"):
        await model.reply(ASKED, on_text=Heard() if listened else None)


async def test_a_stream_that_is_reset_before_the_first_word_is_asked_for_again(
    connect: Connect, wire: Wire, waits: list[float]
):
    wire.script(Say("Lost words.", (Call("add", {}),), resets=True), Say("Found words."))
    heard = Heard()
    reply = await connect().reply(ASKED, on_text=heard)
    assert (reply.text, reply.tool_calls, heard.text) == ("Found words.", (), "Found words.")
    assert len(waits) == 1


async def test_a_stream_that_ends_early_is_asked_for_again_from_the_beginning(
    connect: Connect, wire: Wire, waits: list[float]
):
    wire.script(Say(calls=(Call("add", {"a": 1}, "lost"),), ends_early=True), Say(calls=(Call("add", {"a": 2}, "2"),)))
    reply = await connect().reply(ASKED, tools=[ADD], on_text=Heard())
    assert reply.tool_calls == (ToolCall("2", "add", {"a": 2}),)
    assert len(waits) == 1


async def test_a_stream_that_breaks_off_in_the_middle_is_not_said_twice(
    connect: Connect, wire: Wire, waits: list[float]
):
    wire.script(Say("one two three", breaks_after=2), Say("one two three"))
    heard = Heard()
    with pytest.raises(ModelFailed, match="broke off in the middle"):
        await connect().reply(ASKED, on_text=heard)
    assert heard.text == "one two"
    assert (len(wire.requests), waits) == (1, [])


async def test_what_the_listener_does_wrong_is_the_listeners(connect: Connect, wire: Wire):
    wire.script(Say("one two three"), Say("fine"))
    model = connect()

    def stumble(piece: str) -> None:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        await model.reply(ASKED, on_text=stumble)
    assert (await model.reply(ASKED)).text == "fine"


async def test_nothing_listens_there(connect: Connect, wire: Wire, waits: list[float]):
    model = connect()
    wire.__exit__(None, None, None)
    with pytest.raises(ModelFailed, match=r"could not be reached: \w+; check the network"):
        await model.reply(ASKED)
    assert len(waits) == 4


async def test_a_question_can_be_called_off(connect: Connect, wire: Wire):
    wire.script(Hang(), Say("still well"))
    model = connect()
    task = asyncio.create_task(model.reply(ASKED))
    assert await asyncio.to_thread(wire.asked.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await model.reply(ASKED)).text == "still well"


async def test_after_closing_it_is_closed(connect: Connect, wire: Wire):
    wire.script(Say("once"))
    model = connect()
    await model.reply(ASKED)
    await model.close()
    await model.close()
    with pytest.raises(StoreClosed):
        await model.reply(ASKED)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_neither_key_nor_prompt_is_told_to_anybody(
    connect: Connect, wire: Wire, caplog: pytest.LogCaptureFixture, status: int
):
    """Not even by a server that quotes both, in errors with all their causes, or in the most talkative log."""
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


async def test_the_client_itself_never_tries_again(connect: Connect, wire: Wire, waits: list[float]):
    wire.script(Fail(500), Say("too late"))
    with pytest.raises(ModelFailed):
        await connect(retry=Retry(0)).reply(ASKED)
    assert len(wire.requests) == 1
