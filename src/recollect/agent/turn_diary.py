"""What memory keeps of a run that is a turn of a conversation: what was said, and the tools that were called."""

from __future__ import annotations

import json
from collections.abc import Sequence

from recollect.agent.dialogue import storable
from recollect.agent.diary import Used, recorded
from recollect.agent.events import Telling
from recollect.errors import RecollectError
from recollect.inference.chat import Reply
from recollect.memory import AgentMemory
from recollect.tiers.entries import fresh_id
from recollect.tiers.trust import TRUST


class TurnDiary:
    """A run as a turn: no lesson is learned from it, and the lifecycle finds what the user said."""

    def __init__(self, memory: AgentMemory, task: str, telling: Telling) -> None:
        self._memory = memory
        self._task = task
        self._telling = telling
        self._id = ""
        self._taken = 0

    async def begin(self) -> str:
        self._id = self._id or fresh_id()
        last = await self._memory.conversation.get_last_n(1)
        if not last or (last[0].role, last[0].content) != ("user", self._task):
            await self._memory.record_turn(user=self._task, id=f"{self._id}:asked")
        return self._id

    async def go_on(self, ids: Sequence[str], *, answered: bool) -> list[str]:
        self._id = ids[-1]  # what was said under an id is said once, however often
        return list(ids)

    def skip(self, steps: int) -> None:
        self._taken += steps

    async def record(self, reply: Reply, uses: Used, trust: float, *, again: bool) -> None:
        try:
            there = await recorded(self._memory, [self._id]) if again else 0
            for use, result in uses:
                self._taken += 1
                if self._taken > there:
                    arguments = json.dumps(dict(use.arguments), ensure_ascii=False)
                    await self._memory.episodic.store(
                        f"{use.name}({'' if arguments == '{}' else arguments}) → {result}",
                        kind="error" if use.failed else "tool_call",
                        metadata={
                            "task": self._id,
                            "step": self._taken,
                            "success": not use.failed,
                            TRUST: trust,
                        },
                    )
        except RecollectError as error:
            self._telling.tell("trouble", text=f"a tool call was not recorded: {error}")

    async def end(self, success: bool, outcome: str, trust: float) -> bool:
        id = f"{self._id}:answered"
        try:
            await self._memory.record_turn(assistant=storable(outcome), id=id, metadata={TRUST: trust})
        except RecollectError as error:
            self._telling.tell("trouble", text=f"the answer was not recorded: {error}")
            return False
        return True

    async def fail(self, why: str, trust: float) -> None:
        return  # the question stands in the conversation, and nobody has answered it
