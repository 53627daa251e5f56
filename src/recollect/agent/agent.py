"""AgentWithMemory: a model with tools and a memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from typing import Any, Literal, Self
from weakref import WeakSet

from recollect.agent.journal import RunJournal, RunRequest, load_run, open_journal, read_values
from recollect.agent.loop import AgentConfig, AgentLoop
from recollect.agent.run import AgentEventEmitter, AgentEventHandler, AgentRun
from recollect.agent.tools import build_tools
from recollect.durable.checkpoints import check_task_id
from recollect.durable.steps import Timing
from recollect.errors import BadInput, FencedOut, LeaseHeld
from recollect.memory import AgentMemory
from recollect.models.chat import ChatModel
from recollect.models.factory import open_chat
from recollect.models.llm import CallableChat
from recollect.tiers.log_entries import generate_id
from recollect.validation import check_choice, check_count, check_seconds, check_text

_MIN_CONTEXT_TOKENS = 1000

# A memory holds the state of one task at a time.
_BUSY_MEMORIES: WeakSet[AgentMemory] = WeakSet()


class AgentWithMemory:
    """An agent that recalls before it thinks, calls tools until it has an answer, and learns from the outcome.

    - `tools`: typed functions, sync or async, or objects with `to_api_schema()`.
    - `model`: a name such as "anthropic:claude-sonnet-5" or "openai:gpt-5", a callable, or an object with `reply`.
    - `max_steps`: the most replies with tool calls. Then the model is asked once more, for an answer without tools.
    - `instructions`: text of the system prompt before the memories.
    - `memory_tools`: give the model `remember`, `recall`, `forget` and `save_procedure`.
    - `learn`: store a lesson about each run. If False, a run is only a turn of the conversation, as in a chat.
    - `max_context`: tokens beyond which the oldest steps are replaced by a summary.
    - `lease_ttl`: seconds after which another process can take over a run with an id.
    - `on_conflict`: "raise" or "wait" if another process has the run.
    """

    def __init__(  # noqa: PLR0913 - the public API
        self,
        memory: AgentMemory,
        tools: Iterable[Any] = (),
        model: str | Callable[..., Any] | ChatModel = "anthropic:claude-sonnet-5",
        *,
        max_steps: int = 20,
        instructions: str = "",
        memory_tools: bool = True,
        learn: bool = True,
        tool_timeout: float = 120.0,
        max_context: int = 100_000,
        on_event: AgentEventHandler | None = None,
        lease_ttl: float = 30.0,
        on_conflict: Literal["raise", "wait"] = "raise",
        _timing: Timing = Timing(),
    ) -> None:
        if not isinstance(memory, AgentMemory):
            raise BadInput(
                f"memory must be an open AgentMemory; got {type(memory).__name__}. For a memory of recollect.sync use "
                "recollect.sync.AgentWithMemory"
            )
        AgentEventEmitter(on_event, None)  # checks the handler
        engine = memory._engine  # the model's usage counts in the memory's own ledger
        chat = open_chat(model, engine.settings, ledger=engine.usage, clock=engine.clock)
        built_tools = build_tools(tools)
        if built_tools and isinstance(chat, CallableChat):
            raise BadInput(
                "a callable model answers with text only and cannot call tools; use a model's name, or an object with "
                "`reply(messages, …)`"
            )
        self._config = AgentConfig(
            memory=memory,
            model=chat,
            tools=built_tools,
            max_steps=check_count("max_steps", max_steps, minimum=1),
            instructions=check_text("instructions", instructions, allow_empty=True),
            memory_tools=memory_tools,
            learn=learn,
            tool_timeout=check_seconds("tool_timeout", tool_timeout),
            max_context=check_count("max_context", max_context, minimum=_MIN_CONTEXT_TOKENS),
            summarizer=engine.llm,
        )
        self._owns_model = isinstance(model, str)
        self._on_event = on_event
        self._lease_ttl = timedelta(seconds=check_seconds("lease_ttl", lease_ttl))
        self._on_conflict = check_choice("on_conflict", on_conflict, ("raise", "wait"))
        self._timing = _timing
        self.last_run: AgentRun | None = None
        """The newest run, even if it failed: its steps, recalled memories and usage."""

    async def run(self, task: str, *, task_id: str | None = None, on_text: Callable[[str], Any] | None = None) -> str:
        """Do a task and return the model's answer. `on_text` is called with each piece of text as it streams.

        A run continues the conversation of its session. With a `task_id`, each reply and each tool result is stored at
        once: after a crash, run the same task with the same id, and completed calls are not repeated. A call that was
        started and has no result is made again with the same idempotency key, unless its tool's `on_unknown` differs.
        A run that has ended returns its stored answer.
        """
        memory = self._config.memory
        check_text("task", task, max_length=memory.checkpoints.settings.max_content)
        if memory in _BUSY_MEMORIES:
            raise BadInput(
                "this memory is in the middle of a run; for concurrent runs give each agent its own "
                "`memory.scoped(session=…)`"
            )
        _BUSY_MEMORIES.add(memory)
        try:
            if task_id is None:
                journal = RunJournal(memory.checkpoints._space, generate_id())
                return await self._run(task, None, nullcontext(journal), on_text)
            return await self._run_durable(task, check_task_id(task_id), on_text)
        finally:
            _BUSY_MEMORIES.discard(memory)

    async def close(self) -> None:
        """Close the model's client if the model was given by name."""
        if self._owns_model:
            await self._config.model.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run_durable(self, task: str, task_id: str, on_text: Callable[[str], Any] | None) -> str:
        memory = self._config.memory
        request = RunRequest(task_id, task, memory.scope.user)
        while True:
            values = read_values(await load_run(memory.checkpoints, request))
            if "answer" in values and "learned" in values:
                answer, stopped, trust = (values["answer"][name] for name in ("text", "stopped", "trust"))
                self.last_run = AgentRun(
                    task=task, task_id=task_id, answer=answer, stopped=stopped, resumed=True, trust=trust
                )
                return str(answer)
            journal = open_journal(memory.checkpoints, request, self._lease_ttl, self._timing)
            try:
                return await self._run(task, task_id, journal, on_text)
            except (LeaseHeld, FencedOut):
                if self._on_conflict == "raise":
                    raise
            await self._timing.sleep_before_claim(self._lease_ttl)

    async def _run(
        self,
        task: str,
        task_id: str | None,
        opened: AbstractAsyncContextManager[RunJournal],
        on_text: Callable[[str], Any] | None,
    ) -> str:
        async with opened as journal:
            loop = AgentLoop(self._config, journal, AgentEventEmitter(self._on_event, on_text), task, task_id)
            try:
                run = await loop.run_to_end()
            finally:
                self.last_run = loop.run
            assert run.answer is not None
            return run.answer
