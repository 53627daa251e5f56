"""AgentWithMemory: a model with tools whose memory is ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self
from weakref import WeakSet

from recollect.agent.compaction import Room
from recollect.agent.events import OnEvent, Telling
from recollect.agent.journal import Errand, Journal, Unkept, kept, known_of, looked_up
from recollect.agent.loop import Loop, Means
from recollect.agent.run import Run
from recollect.agent.tools import tools_of
from recollect.errors import BadInput, FencedOut, LeaseHeld
from recollect.inference.chat import ChatModel
from recollect.inference.connect import connect_chat
from recollect.inference.plain_chat import PlainChat
from recollect.memory import AgentMemory
from recollect.runtime.checkpoints import checked_task
from recollect.runtime.step import Pace
from recollect.tiers.entries import checked_content, fresh_id

_LOOKING = 1.0

# One task at a time is what a memory has in mind.
_BUSY: WeakSet[AgentMemory] = WeakSet()


class AgentWithMemory:
    """A model that recalls before it thinks, calls tools until it has an answer, and learns what came of it.

    `tools` are typed functions, sync or async, or objects with `to_api_schema()`; with `memory_tools` the model also
    has `remember`, `recall`, `forget` and `save_procedure`. With `learn` off a run is a turn of the conversation, as in
    a chat, and no lesson is kept of each. `model` is a name such as "anthropic:claude-sonnet-5" or
    "openai:gpt-5", a callable, or an object with `reply`. `instructions` go before everything that is remembered.
    `max_steps` bounds how often the model is asked: when they are used up it is asked once more for an answer without
    tools. Past `max_context` tokens the oldest steps are summed up. Runs with an id are leased for `lease_ttl` seconds;
    `on_conflict` says whether a run that another process has is an error or is waited for.
    """

    def __init__(  # noqa: PLR0913 - the front door fixes these
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
        on_event: OnEvent | None = None,
        lease_ttl: float = 30.0,
        on_conflict: Literal["raise", "wait"] = "raise",
        pace: Pace = Pace(),
    ) -> None:
        if not isinstance(memory, AgentMemory):
            raise BadInput(
                f"an agent needs an open AgentMemory, not {type(memory).__name__}; that of recollect.sync goes with "
                "recollect.sync.AgentWithMemory"
            )
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise BadInput(f"max_steps is a whole number from 1, not {max_steps!r:.80}")
        for name, seconds in (("tool_timeout", tool_timeout), ("lease_ttl", lease_ttl)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise BadInput(f"{name} is a number of seconds above 0, not {seconds!r:.80}")
        if on_conflict not in ("raise", "wait"):
            raise BadInput(f"on_conflict is 'raise' or 'wait', not {on_conflict!r:.80}")
        if not isinstance(instructions, str):
            raise BadInput(f"instructions are a text, not {type(instructions).__name__}")
        Telling(on_event, None)  # says now what it could not be told later
        parts = memory._parts  # a room of the same house: what is spent goes into the memory's own ledger
        chat, given = connect_chat(model, parts.settings, ledger=parts.ledger, clock=parts.clock), tools_of(tools)
        if given and isinstance(chat, PlainChat):
            raise BadInput(
                "a callable is asked for text alone and could never call these tools; name a model, or give an object "
                "with `reply(messages, …)`"
            )
        self._means = Means(
            memory=memory,
            model=chat,
            tools=given,
            max_steps=max_steps,
            instructions=instructions,
            memory_tools=memory_tools,
            learn=learn,
            tool_timeout=tool_timeout,
            room=Room(max_context),
            summariser=parts.llm,
        )
        self._owns_model = isinstance(model, str)
        self._on_event = on_event
        self._lease_ttl = timedelta(seconds=lease_ttl)
        self._on_conflict = on_conflict
        self._pace = pace
        self.last_run: Run | None = None
        """The newest run, also one that failed: its steps, what was recalled, what it cost."""

    async def run(self, task: str, *, task_id: str | None = None, on_text: Callable[[str], Any] | None = None) -> str:
        """Do a task and return the model's answer; `on_text` is handed the text piece by piece as it comes.

        Runs of one session go on with its conversation. With a `task_id` every answer of the model and every result of
        a tool is kept as it comes: after a crash, run the same task under the same id, and what was completed is not
        done again. A call that was begun and has no result is made again under the same idempotency key, unless its
        tool says otherwise. A run that has ended is only looked up.
        """
        memory = self._means.memory
        checked_content(task, memory.checkpoints.settings.max_content)
        if memory in _BUSY:
            raise BadInput(
                "this memory is in the middle of a run; for several at once give each an agent of its own, over "
                "`memory.scoped(session=…)`"
            )
        _BUSY.add(memory)
        try:
            if task_id is None:
                journal = Unkept(memory.checkpoints.space, fresh_id())
                return await self._run(task, None, nullcontext(journal), on_text)
            return await self._resumed(task, checked_task(task_id), on_text)
        finally:
            _BUSY.discard(memory)

    async def close(self) -> None:
        """Let go of the model, if it was named; one that you brought is yours to close."""
        if self._owns_model:
            await self._means.model.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _resumed(self, task: str, task_id: str, on_text: Callable[[str], Any] | None) -> str:
        memory = self._means.memory
        checkpoints, errand = memory.checkpoints, Errand(task_id, task, memory.scope.user)
        while True:
            known = known_of(await looked_up(checkpoints, errand))
            if "answer" in known and "learned" in known:
                answer = known["answer"]
                self.last_run = Run(
                    task=task,
                    task_id=task_id,
                    answer=answer["text"],
                    stopped=answer["stopped"],
                    resumed=True,
                    trust=answer["trust"],
                )
                return str(answer["text"])
            journal = kept(checkpoints, errand, self._lease_ttl, self._pace)
            try:
                return await self._run(task, task_id, journal, on_text)
            except (LeaseHeld, FencedOut):
                if self._on_conflict == "raise":
                    raise
            wait = min(_LOOKING, self._lease_ttl.total_seconds() / 3)
            await self._pace.sleep(wait * (0.5 + self._pace.chance() / 2))

    async def _run(
        self,
        task: str,
        task_id: str | None,
        opened: AbstractAsyncContextManager[Journal],
        on_text: Callable[[str], Any] | None,
    ) -> str:
        async with opened as journal:
            loop = Loop(self._means, journal, Telling(self._on_event, on_text), task, task_id)
            try:
                run = await loop.go()
            finally:
                self.last_run = loop.run
            assert run.answer is not None
            return run.answer
