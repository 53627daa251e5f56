"""Agent runs: recall, tools and the answer, and what is stored afterwards."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from recollect import AgentMemory, AgentWithMemory
from recollect.agent import AgentEvent, tool
from recollect.agent.prompt import count_chat_tokens
from recollect.errors import BadInput, BadSettings, ModelFailed
from recollect.models.chat import ChatMessage, Reply, ToolCall
from tests.flows.agent.scripted import Scripted, call, results, says, wants
from tests.flows.conftest import Opener


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}"


async def test_run_without_tools_returns_the_answer(memory: AgentMemory):
    model = Scripted(says("Lisbon."))
    agent = AgentWithMemory(memory, model=model)
    assert await agent.run("What is the capital of Portugal?") == "Lisbon."
    run = agent.last_run
    assert run is not None
    assert (run.answer, run.stopped, run.task_id, len(run.steps)) == ("Lisbon.", "end", None, 1)
    assert (run.usage.read, run.usage.written, run.usage.cached) == (100, 10, 80)


async def test_run_calls_tools_and_returns_results_to_the_model(memory: AgentMemory):
    # Mutant: results are in the order of completion.
    async def slow(what: str) -> str:
        await asyncio.sleep(0.02)
        return f"slow {what}"

    model = Scripted(
        wants(call("slow", what="one"), call("add", a="2", b=3), call("greet", name="Ada"), text="Let me see."),
        lambda messages: says(" | ".join(results(messages))),
    )
    agent = AgentWithMemory(memory, [add, greet, slow], model)
    assert await agent.run("Add and greet.") == "slow one | 5 | Hello Ada"
    first, second = model.asked
    assert [entry.name for entry in first.tools] == [
        "remember",
        "recall",
        "forget",
        "save_procedure",
        "add",
        "greet",
        "slow",
    ]
    assert [entry.role for entry in second.messages] == ["user", "assistant", "tool", "tool", "tool"]
    assert [entry.call_id for entry in second.messages[2:]] == ["id_slow", "id_add", "id_greet"]
    assert agent.last_run is not None
    assert [use.name for use in agent.last_run.steps[0].tools] == ["slow", "add", "greet"]


async def test_parallel_calls_run_concurrently(memory: AgentMemory):
    # Mutant: sequential calls, which deadlock at the barrier.
    meeting = asyncio.Barrier(2)
    other = threading.Barrier(2, timeout=30)

    async def here() -> str:
        await meeting.wait()
        return "met"

    def there() -> str:
        other.wait()
        return f"met in {threading.current_thread().name}"

    model = Scripted(
        wants(call("here", "1"), call("here", "2"), call("there", "3"), call("there", "4")),
        lambda messages: says(" ".join(results(messages))),
    )
    answer = await AgentWithMemory(memory, [here, there], model, tool_timeout=30).run("Meet.")
    assert answer == "met met met in recollect-tool met in recollect-tool"


async def test_system_prompt_is_constant_and_has_the_recalled_memories(memory: AgentMemory):
    # Mutant: a recall at every step.
    await memory.remember("Ada wants reports in metric units.")
    model = Scripted(
        wants(call("remember", content="Ada's reports are due in June.")), wants(call("add", a=1)), says("Metric.")
    )
    agent = AgentWithMemory(memory, [add], model, instructions="You work for Ada.")
    await agent.run("Which units should the reports have?")
    systems = {request.system for request in model.asked}
    assert len(systems) == 1
    [system] = systems
    assert "- Ada wants reports in metric units. (" in system
    assert system.index("You work for Ada.") < system.index("\n<memory>\n") < system.index("metric units")
    assert "June" not in system
    for before, after in zip(model.asked, model.asked[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools
    assert agent.last_run is not None
    assert agent.last_run.recalled is not None
    assert agent.last_run.recalled.hits


async def test_runs_of_a_session_share_the_conversation(memory: AgentMemory):
    # Mutants: the history is missing; the task is in it twice.
    agent = AgentWithMemory(memory, model=(model := Scripted(says("Hello Ada."), says("You are Ada."))))
    await agent.run("I am Ada.")
    await agent.run("Who am I?")
    assert [(entry.role, entry.content) for entry in model.asked[1].messages] == [
        ("user", "I am Ada."),
        ("assistant", "Hello Ada."),
        ("user", "Who am I?"),
    ]


async def test_task_already_in_the_conversation_is_not_repeated(memory: AgentMemory):
    await memory.conversation.add_message("system", "Be brief.")
    await memory.conversation.add_message("assistant", "What can I do for you?")
    await memory.conversation.add_message("user", "Add one and one.")
    model = Scripted(says("2"))
    await AgentWithMemory(memory, model=model).run("Add one and one.")
    assert [entry.content for entry in model.asked[0].messages] == [
        "(the conversation begins)",
        "What can I do for you?",
        "Add one and one.",
    ]
    assert "Be brief." in model.asked[0].system


async def test_run_records_every_step_and_the_outcome(memory: AgentMemory):
    # Mutant: nothing is recorded. Mutant: a failed call is recorded as a success.
    def broken(what: str) -> str:
        raise ConnectionError("no route to host")

    model = Scripted(
        wants(call("add", a=1), call("broken", what="it"), text="First the sum."),
        wants(call("greet", name="Ada")),
        says("It is 2."),
    )
    await AgentWithMemory(memory, [add, broken, greet], model).run("Add and greet.")
    episodes = [(entry.kind, entry.content) for entry in await memory.episodic.get_recent(20)]
    assert episodes[0] == ("decision", "Task begun: Add and greet.")
    assert episodes[1][0] == "tool_call"
    assert episodes[1][1].startswith("First the sum.\nadd(")
    assert episodes[1][1].endswith("→ 2")
    assert episodes[2][0] == "error"
    assert "no route to host" in episodes[2][1]
    assert episodes[3][1].endswith("→ Hello Ada")
    assert episodes[4] == ("outcome", "Task 'Add and greet.' succeeded: It is 2.")
    assert [(entry.role, entry.content) for entry in await memory.conversation.get_last_n(10)] == [
        ("user", "Add and greet."),
        ("assistant", "It is 2."),
    ]
    [lesson] = await memory.semantic.search("Add and greet", 1, min_relevance=0)
    assert lesson.item.metadata["success"] is True
    assert memory.working.task == ""


async def test_run_without_learning_records_turns_and_no_lesson(memory: AgentMemory):
    # Mutant: `learn` is ignored. Mutant: the question is recorded twice.
    model = Scripted(wants(call("add", a=1)), says("It is 2."), OSError("down"), says("I am here."))
    agent = AgentWithMemory(memory, [add], model, learn=False)
    await agent.run("Add one.", task_id="t")
    assert await AgentWithMemory(memory, [add], Scripted(), learn=False).run("Add one.", task_id="t") == "It is 2."
    with pytest.raises(ModelFailed):
        await agent.run("Are you there?")
    await agent.run("Are you there?")
    assert [(entry.role, entry.content) for entry in await memory.conversation.get_last_n(10)] == [
        ("user", "Add one."),
        ("assistant", "It is 2."),
        ("user", "Are you there?"),
        ("assistant", "I am here."),
    ]
    assert [entry.content for entry in model.asked[-1].messages] == ["Add one.", "It is 2.", "Are you there?"]
    assert (await memory.stats()).items == 0
    episodes = [(entry.kind, entry.content) for entry in await memory.episodic.get_recent(10)]
    assert ("tool_call", 'add({"a": 1}) → 2') in episodes


async def test_failed_run_is_recorded_and_learned(memory: AgentMemory):
    # Mutant: `end_task` is not called on failure.
    agent = AgentWithMemory(memory, [add], Scripted(wants(call("add", a=1)), OSError("socket closed")))
    with pytest.raises(ModelFailed, match="socket closed"):
        await agent.run("Add one.")
    outcome = (await memory.episodic.get_recent(1))[0]
    assert outcome.kind == "outcome"
    assert "failed: ModelFailed" in outcome.content
    assert memory.working.task == ""
    assert agent.last_run is not None
    assert agent.last_run.answer is None
    assert [use.result for use in agent.last_run.steps[0].tools] == ["2"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (call("nothing"), "there is no tool 'nothing'"),
        (call("add", a="many"), "a: Input should be a valid integer"),
        (call("add"), "the parameter 'a' is missing"),
        (call("add", a=1, c=2), "there is no parameter 'c'; the parameters are a, b"),
        (ToolCall("1", "add", {}, "it ends in the middle"), "could not be read: it ends in the middle"),
        (call("hangs"), "gave no answer within 0.01 s"),
        (call("hangs_here"), "gave no answer within 0.01 s"),
        (call("breaks"), "ZeroDivisionError: division by zero"),
        (call("leaves"), "RuntimeError: SystemExit: 3"),
        (call("cancels"), "cancelled from within"),
    ],
)
async def test_tool_failure_is_reported_to_the_model(memory: AgentMemory, wanted: ToolCall, message: str):
    # Mutants: the exception ends the run; a failed call is not marked as failed.
    released = threading.Event()

    @tool(timeout=0.01)
    def hangs() -> None:
        released.wait(10)

    @tool(timeout=0.01)
    async def hangs_here() -> None:
        await asyncio.sleep(10)

    def breaks() -> float:
        return 1 / 0

    def leaves() -> None:
        raise SystemExit(3)

    async def cancels() -> None:
        raise asyncio.CancelledError

    seen: list[ChatMessage] = []

    def read(messages: Any) -> Reply:
        seen.extend(messages)
        return says("I see.")

    agent = AgentWithMemory(memory, [add, hangs, hangs_here, breaks, leaves, cancels], Scripted(wants(wanted), read))
    assert await agent.run("Try it.") == "I see."
    released.set()
    [result] = [entry for entry in seen if entry.role == "tool"]
    assert message in result.content
    assert result.failed
    assert result.call_id == wanted.id


async def test_tool_gets_an_idempotency_key_hidden_from_the_model(memory: AgentMemory):
    keys: list[str] = []

    def pay(amount: float, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        return "paid"

    model = Scripted(wants(call("pay", "1", amount=5), call("pay", "2", amount=5)), says("Paid."))
    await AgentWithMemory(memory, [pay], model).run("Pay.")
    [spec] = [entry for entry in model.asked[0].tools if entry.name == "pay"]
    assert set(spec.parameters["properties"]) == {"amount"}
    assert len(set(keys)) == 2


async def test_tool_objects_provide_their_own_schema(memory: AgentMemory):
    class Anthropics:
        def to_api_schema(self) -> dict[str, Any]:
            schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            return {"name": "weather", "description": "The weather.", "input_schema": schema}

        async def run(self, city: str, idempotency_key: str = "") -> dict[str, Any]:
            return {"city": city, "key": len(idempotency_key)}

    class Openais:
        def to_api_schema(self) -> dict[str, Any]:
            inner = {"name": "time", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
            return {"type": "function", "function": inner}

        def __call__(self) -> str:
            return "noon"

    model = Scripted(
        wants(call("weather", city="Lisbon"), call("time"), call("weather", "3")),
        lambda messages: says(" | ".join(results(messages))),
    )
    agent = AgentWithMemory(memory, [Anthropics(), Openais()], model, memory_tools=False)
    answer = await agent.run("Weather and time?")
    assert [entry.name for entry in model.asked[0].tools] == ["weather", "time"]
    assert answer.startswith('{"city": "Lisbon", "key": 64} | noon | the parameter \'city\' is missing')


async def test_model_at_max_steps_answers_with_what_it_has(memory: AgentMemory):
    # Mutant: one more step is made. Mutant: the run counts as a success.
    model = Scripted(
        wants(call("add", "1", a=1)), wants(call("add", "2", a=2)), wants(call("add", "3", a=3), text="3.")
    )
    agent = AgentWithMemory(memory, [add], model, max_steps=2)
    assert await agent.run("Add for ever.") == "3."
    assert agent.last_run is not None
    assert agent.last_run.stopped == "max_steps"
    assert [len(step.tools) for step in agent.last_run.steps] == [1, 1, 0]
    assert "no tool is called any more" in model.asked[-1].messages[-1].content
    assert model.asked[-1].tools == model.asked[0].tools
    assert (await memory.episodic.get_recent(1))[0].metadata["success"] is False


async def test_refused_or_truncated_answer_is_not_a_success(memory: AgentMemory):
    agent = AgentWithMemory(memory, model=Scripted(says("I will not.", stop="refusal"), says("It is", stop="length")))
    for stopped, answer in (("refusal", "I will not."), ("length", "It is")):
        assert await agent.run(f"Do it ({stopped}).") == answer
        assert agent.last_run is not None
        assert agent.last_run.stopped == stopped
        assert (await memory.episodic.get_recent(1))[0].metadata["success"] is False


async def test_empty_answer_raises_model_failed(memory: AgentMemory):
    with pytest.raises(ModelFailed, match="empty text"):
        await AgentWithMemory(memory, model=Scripted(says("  "))).run("Say something.")


async def test_text_and_events_are_emitted_in_order(memory: AgentMemory):
    # Mutant: a failing event handler ends the run.
    pieces: list[str] = []
    events: list[AgentEvent] = []

    def watch(event: AgentEvent) -> None:
        events.append(event)
        raise RuntimeError("a failing event handler")

    model = Scripted(wants(call("add", a=1), text="Let me"), says("It is 2."))
    agent = AgentWithMemory(memory, [add], model, on_event=watch)
    await agent.run("Add one.", on_text=pieces.append)
    assert pieces == ["Let", "me", "It", "is", "2."]
    kinds = [event.kind for event in events]
    assert kinds == [
        *("recalled", "thinking", "text", "text", "tool_started", "tool_finished"),
        *("thinking", "text", "text", "text", "answered"),
    ]
    finished = events[kinds.index("tool_finished")]
    assert (finished.tool, finished.text, finished.step, finished.failed) == ("add", "2", 1, False)


async def test_compaction_keeps_calls_with_their_results(memory: AgentMemory):
    # Mutant: the compaction separates a call from its result. Mutant: the newest result is compacted too.
    def read(page: int) -> str:
        return (
            f"Page {page} says that the code of room {page} is {page * 111}. " + "It goes on about the weather. " * 40
        )

    pages = [wants(call("read", f"c{page}", page=page), text=f"Page {page}.") for page in range(1, 13)]
    events: list[AgentEvent] = []
    model = Scripted(*pages, says("Done."))
    agent = AgentWithMemory(memory, [read], model, max_context=3000, on_event=events.append)
    await agent.run("Read the book.")
    assert "compacted" in [event.kind for event in events]
    for request in model.asked:
        open_calls: list[str] = []
        for message in request.messages:
            if message.role == "tool":
                assert message.call_id == open_calls.pop(0)
            else:
                assert open_calls == []
                open_calls = [entry.id for entry in message.tool_calls]
        assert request.messages[0] == ChatMessage("user", "Read the book.")
    last = model.asked[-1].messages
    assert last[1].content.startswith("[What was done so far, summed up]")
    assert "111" in last[1].content
    assert last[-1].content.startswith("Page 12 says")
    assert max(sum(map(count_chat_tokens, request.messages)) for request in model.asked) <= 3000


async def test_compaction_uses_the_language_model_of_the_memory(opener: Opener):
    def read(page: int) -> str:
        return f"Page {page}. " + "It goes on about the weather. " * 40

    memory = await opener(llm=lambda prompt: "All about the weather.")
    model = Scripted(*(wants(call("read", f"c{page}", page=page)) for page in range(9)), says("Done."))
    await AgentWithMemory(memory, [read], model, max_context=3000).run("Read the book.")
    assert model.asked[-1].messages[1].content == (
        "[What was done so far, summed up]\n<notes>\nAll about the weather.\n</notes>"
    )


async def test_huge_result_is_shortened(memory: AgentMemory):
    def dump() -> str:
        return "beginning " + "x y z " * 50_000 + "the end"

    model = Scripted(wants(call("dump")), lambda messages: says(str(len(results(messages)[0]))))
    answer = await AgentWithMemory(memory, [dump], model, max_context=5000).run("Dump it.")
    assert int(answer) < 20_000
    [result] = results(model.asked[1].messages)
    assert result.startswith("beginning")
    assert result.endswith("the end")


async def test_any_tool_or_model_output_is_stored(memory: AgentMemory):
    """Lone surrogates, NUL characters and values that are not JSON are converted and recorded, and never fail."""
    odd = [
        "\ud800 half",
        "zero \x00 byte",
        float("nan"),
        b"bytes",
        {"a": {1, 2}},
        object,
        None,
        [],
        "",
        [{"type": "text", "text": "t"}],
    ]

    def give(at: int, what: Any = None) -> Any:
        return odd[at]

    calls = [call("give", str(at), at=at, what=what) for at, what in enumerate([float("nan"), "\udfff", *odd[2:]])]
    events: list[AgentEvent] = []
    model = Scripted(wants(*calls, text="\ud83d so"), says("Done \udfff."))
    agent = AgentWithMemory(memory, [give], model, on_event=events.append)
    assert await agent.run("Give.", task_id="t") == "Done ?."
    assert [event.text for event in events if event.kind == "trouble"] == []
    assert not any(entry.failed for entry in model.asked[1].messages)
    assert len([entry for entry in await memory.episodic.get_recent(50) if entry.kind == "tool_call"]) == len(odd)


async def test_second_run_on_the_same_memory_fails(memory: AgentMemory):
    async def again() -> str:
        return await AgentWithMemory(memory, model=Scripted(says("inner"))).run("Inner task.")

    async def apart() -> str:
        inner = memory.scoped(session="inner")
        return await AgentWithMemory(inner, model=Scripted(says("inner"))).run("Inner task.")

    model = Scripted(wants(call("again"), call("apart")), lambda messages: says(" | ".join(results(messages))))
    answer = await AgentWithMemory(memory, [again, apart], model).run("Outer task.")
    assert answer.startswith("this memory is in the middle of a run")
    assert answer.endswith("| inner")


async def test_cancelled_agent_can_run_again(memory: AgentMemory):
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    agent = AgentWithMemory(memory, [endless], Scripted(wants(call("endless")), says("Here.")))
    task = asyncio.create_task(agent.run("Wait."))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await agent.run("Go on.") == "Here."


async def test_agent_does_not_close_a_given_model(memory: AgentMemory):
    model = Scripted(says("Hi."))
    async with AgentWithMemory(memory, model=model) as agent:
        await agent.run("Hello?")
    assert not model.closed


async def test_callable_is_a_model(memory: AgentMemory):
    await memory.remember("The deploy password is kept by Grace.")
    seen: list[str] = []

    def answer(prompt: str) -> str:
        seen.append(prompt)
        return "Ask Grace."

    assert await AgentWithMemory(memory, [], answer).run("Who keeps the deploy password?") == "Ask Grace."
    assert "kept by Grace" in seen[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"tools": "add"}, "tools must be a list"),
        ({"tools": [3]}, "a tool must be a typed function"),
        ({"tools": [add, add]}, "two tools are called 'add'"),
        ({"tool_timeout": 0}, "tool_timeout"),
        ({"lease_ttl": float("nan")}, "lease_ttl"),
        ({"on_conflict": "return"}, "on_conflict"),
        ({"max_context": 10}, "max_context"),
        ({"instructions": None}, "instructions"),
        ({"on_event": asyncio.sleep}, "on_event must be a plain function"),
    ],
)
async def test_invalid_agent_option_raises(memory: AgentMemory, options: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        AgentWithMemory(memory, **{"model": Scripted(), **options})


async def test_invalid_task_model_or_memory_raises(memory: AgentMemory):
    with pytest.raises(BadInput):
        await AgentWithMemory(memory, model=Scripted()).run("  ")
    with pytest.raises(BadSettings):
        AgentWithMemory(memory, model="nobody:nothing")
    with pytest.raises(BadInput, match=r"recollect\.sync"):
        AgentWithMemory("agent.db", model=Scripted())  # type: ignore[arg-type]


async def test_plain_tool_does_not_block_the_loop(memory: AgentMemory):
    """A plain function runs in a thread."""
    loop, responded = asyncio.get_running_loop(), threading.Event()

    def slow() -> str:
        loop.call_soon_threadsafe(responded.set)
        return "the loop went on" if responded.wait(10) else "the loop stood still"

    model = Scripted(wants(call("slow")), lambda messages: says(" ".join(results(messages))))
    assert await AgentWithMemory(memory, [slow], model).run("Be slow.") == "the loop went on"
