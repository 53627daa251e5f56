"""What memory keeps of a run: its beginning, every step, and what came of it, each once also over crashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recollect.agent.events import Telling
from recollect.agent.run import ToolUse
from recollect.agent.standing import AGENT
from recollect.errors import BadQuery, EmbedderFailed, RecollectError
from recollect.inference.chat import Reply
from recollect.memory import AgentMemory
from recollect.values import Hit, MemoryItem

_RECENT = 1000

# As much of a conversation as a model is shown at most.
_SHOWN = 50

TRUST = "trust"
"""Where an answer in a conversation says how far it is trusted."""

_UNKNOWN = 0.5

Used = Sequence[tuple[ToolUse, str]]
"""Tools that were called, each with what is to be recorded of its result."""


class Diary(Protocol):
    """Records a run in a memory. Memory that fails is no reason to lose an answer: it is told, and the run goes on."""

    async def begin(self) -> str:
        """Begin in memory; the id it has there."""

    async def go_on(self, id: str, *, answered: bool) -> None:
        """Take up what a process before this one began; once there is an answer, memory may be done with it."""

    def skip(self, steps: int) -> None:
        """Steps that are recorded for certain: what came after them is known."""

    async def record(self, reply: Reply, uses: Used, *, again: bool) -> None:
        """One step for each tool that was called; with `again`, only those that are not there yet."""

    async def end(self, success: bool, outcome: str, trust: float) -> None:
        """Keep how it went, trusted no further than what the run has read."""

    async def fail(self, why: str, trust: float) -> None:
        """The run has failed, and there is no answer."""


class TaskDiary:
    """A run as a task of the memory: its outcome, success or failure, is learned."""

    def __init__(self, memory: AgentMemory, task: str, telling: Telling) -> None:
        self._memory = memory
        self._task = task
        self._telling = telling
        self._id = ""
        self._taken = 0

    async def begin(self) -> str:
        self._id = await self._memory.start_task(self._task)
        return self._id

    async def go_on(self, id: str, *, answered: bool) -> None:
        self._id = id
        if not answered and not await self._is_under_way():
            await self.begin()

    def skip(self, steps: int) -> None:
        self._taken += steps

    async def record(self, reply: Reply, uses: Used, *, again: bool) -> None:
        try:
            there = await recorded(self._memory, self._id) if again else 0
            for place, (use, result) in enumerate(uses):
                self._taken += 1
                if self._taken > there:
                    await self._memory.record_step(
                        reply.text.strip() if place == 0 else None,
                        {"name": use.name, "arguments": dict(use.arguments)},
                        result,
                        success=not use.failed,
                    )
        except RecollectError as error:
            self._telling.tell("trouble", text=f"a step was not recorded: {error}")

    async def end(self, success: bool, outcome: str, trust: float) -> None:
        try:
            learned = (await self._memory.end_task(success, outcome)).learned if await self._is_under_way() else None
            if trust < AGENT:
                await self._lower(learned or await self._found(), trust)
        except RecollectError as error:
            self._telling.tell("trouble", text=f"the outcome was not learned: {error}")

    async def fail(self, why: str, trust: float) -> None:
        await self.end(False, why, trust)

    async def _is_under_way(self) -> bool:
        # Asking for working memory takes up what an earlier process left in this session.
        await self._memory.recall(self._task, 1, tiers=("working",))
        return self._memory.working.task == self._task

    async def _found(self) -> MemoryItem | None:
        """What a process that was killed right then has learned."""
        found = await self._memory.semantic.search(
            self._task, 1, min_relevance=0.0, where={"task_id": self._id}, mode="text"
        )
        return found[0].item if found else None

    async def _lower(self, learned: MemoryItem | None, trust: float) -> None:
        """The lesson quotes the answer, which may quote what was read."""
        if learned is not None and learned.trust > trust:
            await self._memory.remember(learned.content, source="agent", trust=trust)


async def recorded(memory: AgentMemory, id: str) -> int:
    """How many steps of a run memory has."""
    episodes = await memory.episodic.get_recent(_RECENT, session=memory.scope.session)
    return max((one.metadata.get("step", 0) for one in episodes if one.metadata.get("task") == id), default=0)


async def doubt(memory: AgentMemory, task: str, hits: Sequence[Hit]) -> float:
    """How far earlier answers are trusted, in this session's conversation or recalled: as each says, or its lesson."""
    said = [one.metadata for one in await memory.conversation.get_last_n(_SHOWN) if one.role == "assistant"]
    said += [hit.item.metadata for hit in hits if hit.tier in ("conversation", "episodic")]
    told = [float(one[TRUST]) for one in said if isinstance(one.get(TRUST), int | float)]
    tasks = list({one["task"] for one in said if isinstance(one.get("task"), str)})
    if tasks:
        told += await _trust_of_lessons(memory, task, tasks)
    return min(told, default=AGENT)


async def _trust_of_lessons(memory: AgentMemory, task: str, tasks: list[str]) -> list[float]:
    try:
        learned = await memory.semantic.search(task, len(tasks), min_relevance=0.0, where={"task_id": tasks})
    except BadQuery:  # nothing was ever learned here
        return []
    except EmbedderFailed:  # nobody can look it up
        return [_UNKNOWN]
    return [hit.item.trust for hit in learned]
