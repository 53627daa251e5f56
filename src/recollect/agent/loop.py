"""The loop of an agent: recall, ask the model, call the tools it wants, and again until there is an answer."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recollect.agent.compaction import Compaction, Room, compacted
from recollect.agent.dialogue import (
    added,
    history_of,
    message_from,
    message_json,
    reply_from,
    reply_json,
    whole,
    without_task,
)
from recollect.agent.diary import Diary, TaskDiary, doubt
from recollect.agent.events import Telling
from recollect.agent.journal import Journal
from recollect.agent.memory_tools import MemoryTools
from recollect.agent.prompt import BUDGET, RECALLED, from_elsewhere, system_prompt
from recollect.agent.rounds import Rounds, Use, inputs_of
from recollect.agent.run import Run, Step, Stopped
from recollect.agent.standing import Standing
from recollect.agent.tools import Tool
from recollect.agent.turn_diary import TurnDiary
from recollect.errors import ModelFailed, RecollectError
from recollect.inference.chat import ChatMessage, ChatModel, Reply, cut_off, knows_may_call
from recollect.inference.llm import LanguageModel
from recollect.inference.threads import Threads
from recollect.memory import AgentMemory

# A model has its own patience; this is for one that never answers.
_PATIENCE = 1200.0

_NO_MORE_STEPS = (
    "All the steps that this task may take are used up, and no tool is called any more. Answer now with what you have, "
    "and say what is still open."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every run of an agent goes by."""

    memory: AgentMemory
    model: ChatModel
    tools: Mapping[str, Tool]
    max_steps: int
    instructions: str
    memory_tools: bool
    learn: bool
    tool_timeout: float
    room: Room
    summariser: LanguageModel | None
    threads: Threads = field(default_factory=lambda: Threads("recollect-tool"))


class Loop:
    """One run, from where its journal says it stands."""

    def __init__(self, means: Means, journal: Journal, telling: Telling, task: str, task_id: str | None) -> None:
        self._means = means
        self._journal = journal
        self._telling = telling
        self._standing = Standing()
        kind = TaskDiary if means.learn else TurnDiary
        self._diary: Diary = kind(means.memory, task, telling)
        memory_tools = MemoryTools(means.memory, self._standing).tools() if means.memory_tools else []
        # The user's own come last, and count: a tool that somebody wrote under one of these names is meant.
        self._tools = {one.spec.name: one for one in memory_tools} | dict(means.tools)
        self._rounds = Rounds(self._tools, journal, telling, means.tool_timeout, means.room, means.threads)
        self._messages: list[ChatMessage] = []
        self._start = 0
        self.run = Run(task=task, task_id=task_id)

    async def go(self) -> Run:
        """The run to its end; what memory keeps of it is there then, too."""
        try:
            await self._begin()
            stopped, answer = await self._answered()
        except Exception as error:
            if self.run.task_id is None:  # one that can be resumed has not failed before somebody gives it up
                await self._diary.fail(_said(error), self._standing.trust)
            raise
        if not self._journal.has("answer"):
            note = {"text": answer, "stopped": stopped, "trust": self._standing.trust}
            await self._journal.keep({"answer": note}, status="done")
        self.run = replace(self.run, answer=answer, stopped=stopped, trust=self._standing.trust)
        if await self._diary.end(stopped == "end", answer, self._standing.trust):
            await self._journal.keep({"learned": True})
        self._telling.tell("answered", step=len(self.run.steps), text=answer)
        return self.run

    async def _begin(self) -> None:
        """What the model is shown before its first thought: looked up once, and the same at every step from then on."""
        kept = self._journal.known("begin")
        if kept is None:
            kept = await self._recalled()
            await self._journal.keep({"begin": kept})
        else:
            self._standing.restore(kept["trust"], kept["shown"], kept["doubtful"])
            self.run = replace(self.run, resumed=True)
            ids = self._journal.known("memory") or [kept["memory"]]
            begun = await self._diary.go_on(ids, answered=self._journal.has("answer"))
            if begun != ids:
                await self._journal.keep({"memory": begun})
            self._telling.tell("resumed", step=self._replies() + 1)
        self._messages = [*map(message_from, kept["history"]), ChatMessage("user", self.run.task)]
        self._start = len(self._messages)
        self.run = replace(self.run, system=kept["system"], trust=self._standing.trust)

    def _replies(self) -> int:
        """How many replies are kept."""
        return next(number for number in itertools.count() if not self._journal.has(f"reply_{number + 1}"))

    async def _recalled(self) -> dict[str, Any]:
        memory, task = self._means.memory, self.run.task
        before = without_task(await memory.conversation.get_messages_for_llm(), task)
        context = await memory.recall(task, RECALLED, budget=BUDGET)
        said, history = history_of(before)
        block, hits = from_elsewhere(context, memory.scope.session)
        self._standing.recalled(hits)
        self._standing.read("an earlier answer that is unverified", await doubt(memory))
        self.run = replace(self.run, recalled=context)
        self._telling.tell("recalled", text=block)
        return {
            "system": system_prompt(block, self._means.instructions, said),
            "history": [message_json(one) for one in history],
            "memory": await self._diary.begin(),
            "trust": self._standing.trust,
            "shown": sorted(self._standing.shown),
            "doubtful": self._standing.doubtful,
        }

    async def _answered(self) -> tuple[Stopped, str]:
        for number in range(1, self._means.max_steps + 1):
            reply = await self._reply(number)
            if not reply.tool_calls or reply.stop == "refusal":
                self._note(number, reply, [])
                return "end" if reply.stop == "tools" else reply.stop, _answer(reply, self._means.model)
            await self._act(number, reply)
        self._messages.append(ChatMessage("user", _NO_MORE_STEPS))
        # The tools are shown all the same: models want to know what the calls in the dialogue were.
        last = await self._reply(self._means.max_steps + 1, act=False)
        self._note(self._means.max_steps + 1, last, [])
        return "max_steps", _answer(last, self._means.model)

    async def _reply(self, number: int, *, act: bool = True) -> Reply:
        """The model's reply, as it was kept or as it comes; together with it, what it leads to is kept as begun."""
        await self._compact(number)
        name = f"reply_{number}"
        kept = self._journal.known(name)
        if kept is not None:
            reply = reply_from(kept)
            self._rounds.check(number, reply, kept=True)
        else:
            self._telling.tell("thinking", step=number)
            reply = whole(await self._journal.guard(self._asked(number, act=act)), number)
            if reply.stop == "length":
                reply = replace(reply, tool_calls=cut_off(reply.tool_calls))
            self._rounds.check(number, reply, kept=False)
            acts = act and reply.tool_calls and reply.stop != "refusal"
            if not acts:
                _answer(reply, self._means.model)  # an answer that says nothing is not kept: it would be final
            # What a run before this one began is there already, perhaps with its result.
            known = self._journal.inputs(f"tool_{number}_")
            begin = {call: given for call, given in inputs_of(number, reply).items() if call not in known}
            await self._journal.keep({name: reply_json(reply)}, begin=begin if acts else {})
        self._messages.append(ChatMessage("assistant", reply.text, reply.tool_calls))
        return reply

    async def _asked(self, number: int, *, act: bool) -> Reply:
        model, telling = self._means.model, self._telling
        ask = model.reply if act or not knows_may_call(model) else functools.partial(model.reply, may_call=False)
        try:
            async with asyncio.timeout(_PATIENCE):
                return await ask(
                    tuple(self._messages),
                    system=self.run.system,
                    tools=[one.spec for one in self._tools.values()],
                    on_text=(lambda piece: telling.text(number, piece)) if telling.listens else None,
                )
        except RecollectError:
            raise
        except Exception as error:
            raise ModelFailed(f"the model {model.name!r} failed with {_said(error)}") from error

    async def _compact(self, number: int) -> None:
        """Sum up the oldest steps if there is no room for more; a decision that was kept is not made again."""
        name = f"compaction_{number}"
        made = Compaction.from_json(self._journal.known(name))
        if made is not None and made.fits(self._messages, self._start):
            self._messages = made.applied(self._messages, self._start)
            return
        if self._journal.has(f"reply_{number}"):
            return
        made = await compacted(self._messages, self._start, self._means.room, self._means.summariser)
        if made is not None:
            await self._journal.keep({name: made.as_json()})
            self._messages = made.applied(self._messages, self._start)
            self._telling.tell("compacted", step=number, text=made.summary)

    async def _act(self, number: int, reply: Reply) -> None:
        """Call what the model wants, all at once, and tell it what came of each, in the order it asked."""
        used = await self._rounds.go(number, reply)
        for use in used:
            what = f"what {use.told.name!r} returned"
            self._standing.read(what, use.outcome.trust, use.outcome.shown)
            self._messages.append(
                ChatMessage("tool", use.outcome.text, call_id=use.told.call_id, failed=use.outcome.failed)
            )
        self._note(number, reply, used)
        if self._journal.has(f"reply_{number + 1}"):
            self._diary.skip(len(used))
        else:
            results = [(use.told, use.outcome.noted or use.outcome.text) for use in used]
            await self._diary.record(reply, results, self._standing.trust, again=self.run.resumed)

    def _note(self, number: int, reply: Reply, used: Sequence[Use]) -> None:
        step = Step(number, reply.text, tuple(use.told for use in used), reply.usage)
        usage = added(self.run.usage, reply.usage)
        self.run = replace(self.run, steps=(*self.run.steps, step), usage=usage, trust=self._standing.trust)


def _answer(reply: Reply, model: ChatModel) -> str:
    answer = reply.text.strip()
    if not answer and reply.tool_calls and reply.stop != "refusal":  # it was told that no tool is called any more
        wanted = ", ".join(dict.fromkeys(call.name for call in reply.tool_calls))
        return (
            "All the steps that this task may take are used up, and there is no answer yet: asked for one, the model "
            f"wanted to call {wanted}. What was done so far is done. Give the agent a higher max_steps to go further."
        )
    if not answer:
        why = "declined to answer" if reply.stop == "refusal" else "answered with an empty text"
        raise ModelFailed(f"the model {model.name!r} {why}; ask it differently, or another one")
    return answer


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000].encode("utf-8", "replace").decode()
