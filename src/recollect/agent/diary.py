"""What memory keeps of a run: its beginning, every step, and what came of it, each once also over crashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recollect.agent.dialogue import storable
from recollect.agent.events import Telling
from recollect.agent.run import ToolUse
from recollect.agent.standing import AGENT
from recollect.errors import RecollectError
from recollect.inference.chat import Reply
from recollect.memory import AgentMemory
from recollect.tiers.trust import TRUST

_RECENT = 1000

Used = Sequence[tuple[ToolUse, str]]
"""Tools that were called, each with what is to be recorded of its result."""


class Diary(Protocol):
    """Records a run in a memory. Memory that fails is no reason to lose an answer: it is told, and the run goes on."""

    async def begin(self) -> str:
        """Begin in memory; the id it has there."""

    async def go_on(self, ids: Sequence[str], *, answered: bool) -> list[str]:
        """Take up what processes before this one began; once there is an answer, memory may be done with it.

        These are the ids it had there. They come back with one more where it had to be begun again.
        """

    def skip(self, steps: int) -> None:
        """Steps that are recorded for certain: what came after them is known."""

    async def record(self, reply: Reply, uses: Used, trust: float, *, again: bool) -> None:
        """One step for each tool that was called, trusted no further than what the run has read by then.

        With `again`, only those that are not there yet.
        """

    async def end(self, success: bool, outcome: str, trust: float) -> bool:
        """Keep how it went, trusted no further than what the run has read; False when that has to be tried again."""

    async def fail(self, why: str, trust: float) -> None:
        """The run has failed, and there is no answer."""


class TaskDiary:
    """A run as a task of the memory: its outcome, success or failure, is learned."""

    def __init__(self, memory: AgentMemory, task: str, telling: Telling) -> None:
        self._memory = memory
        self._task = task
        self._telling = telling
        # Its steps are under several, if other tasks came between.
        self._ids: list[str] = []
        self._taken = 0

    async def begin(self) -> str:
        self._ids.append(await self._memory.start_task(self._task))
        return self._ids[-1]

    async def go_on(self, ids: Sequence[str], *, answered: bool) -> list[str]:
        self._ids = list(ids)
        if answered:
            return self._ids
        if not await self._is_under_way():
            await self.begin()
        elif (begun := await self._begun()) is not None and begun not in ids:
            # It was begun again by a process that was killed before it could tell anybody.
            self._ids.append(begun)
        return self._ids

    def skip(self, steps: int) -> None:
        self._taken += steps

    async def record(self, reply: Reply, uses: Used, trust: float, *, again: bool) -> None:
        try:
            there = await recorded(self._memory, self._ids) if again else 0
            for place, (use, result) in enumerate(uses):
                self._taken += 1
                if self._taken > there:
                    await self._memory.record_step(
                        reply.text.strip() if place == 0 else None,
                        {"name": use.name, "arguments": dict(use.arguments)},
                        result,
                        success=not use.failed,
                        trust=trust,
                    )
        except RecollectError as error:
            self._telling.tell("trouble", text=f"a step was not recorded: {error}")

    async def end(self, success: bool, outcome: str, trust: float) -> bool:
        outcome = storable(outcome)
        try:
            if await self._is_under_way():
                await self._memory.end_task(success, outcome, trust=trust)
        except RecollectError as error:
            self._telling.tell("trouble", text=f"the outcome was not learned: {error}")
            await self._say(outcome, trust)
            return False
        return True

    async def fail(self, why: str, trust: float) -> None:
        await self.end(False, why, trust)

    async def _is_under_way(self) -> bool:
        # Asking for working memory takes up what an earlier process left in this session.
        await self._memory.recall(self._task, 1, tiers=("working",))
        return self._memory.working.task == self._task

    async def _begun(self) -> str | None:
        """The id of the task that was begun here last."""
        episodes = await self._memory.episodic.get_recent(_RECENT, session=self._memory.scope.session)
        begun = [one.metadata.get("task") for one in episodes if one.id.endswith(":begun")]
        return begun[-1] if begun else None

    async def _say(self, outcome: str, trust: float) -> None:
        """The answer alone, where no lesson can be learned: the next run is to know what was said."""
        id = self._ids[-1]
        try:
            # Under the id that the end of the task gives it, so that ending it later says nothing twice.
            await self._memory.conversation.add_message(
                "assistant", outcome, id=f"{id}:answered", **{"task": id, TRUST: trust}
            )
        except RecollectError as error:
            self._telling.tell("trouble", text=f"the answer was not recorded: {error}")


async def recorded(memory: AgentMemory, ids: Sequence[str]) -> int:
    """How many steps of a run memory has, under all the ids that it had there."""
    episodes = await memory.episodic.get_recent(_RECENT, session=memory.scope.session)
    steps = [(one.metadata.get("task"), one.metadata.get("step", 0)) for one in episodes]
    return sum(max((step for task, step in steps if task == id), default=0) for id in ids)


async def doubt(memory: AgentMemory) -> float:
    """How far the conversation of this session is trusted that a model goes on with."""
    return min(AGENT, await memory.conversation.trust())
