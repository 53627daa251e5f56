"""The life of a task: begun, taken step by step, ended, and learned from whether it succeeded or failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recollect.errors import BadInput, Conflict, NotFound, StoreError
from recollect.guard.policy import Policy
from recollect.inference.summarise import extract
from recollect.memory import lesson
from recollect.memory.parts import Parts
from recollect.memory.task_under_way import Keeper, Running, Taken, dropped, found, kept, of_working
from recollect.memory.tool_calls import result_text, tool_calls_of
from recollect.runtime.failpoints import reach
from recollect.runtime.in_order import Share, write_in_order
from recollect.stores.ops import Append, Model
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.entries import checked_content
from recollect.tiers.episodic import Episode, EpisodicMemory, Kind, episode_of
from recollect.tiers.one_model import under_one_model
from recollect.tiers.patience import pause
from recollect.tiers.procedural import ProceduralMemory
from recollect.tiers.procedure import Procedure
from recollect.tiers.procedure_input import checked_key, checked_success
from recollect.tiers.trust import TRUST, checked_trust
from recollect.tiers.working import WorkingMemory
from recollect.values import MemoryItem, Scope

_TRIES = 16
_SHORT = 400
_RESULTS_TOLD = 20
_EXTRACT_TOKENS = 500

# A recall does not wait longer for what an earlier process may have left.
_PATIENCE = 5.0


class Tiers(Protocol):
    """The parts of a memory that a task passes through."""

    scope: Scope
    working: WorkingMemory
    conversation: ConversationMemory
    episodic: EpisodicMemory
    procedural: ProceduralMemory


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was taken: its number from 1, the episode that tells of it, and the procedure it was a trial of."""

    number: int
    success: bool
    episode: Episode
    procedure: Procedure | None = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a task ended: `learned` is what is remembered of it, and `results` what working memory held."""

    task: str
    task_id: str
    success: bool
    outcome: str
    steps: int
    results: Mapping[str, Any]
    episode: Episode
    learned: MemoryItem


class TaskLife:
    """The task of one memory object, one at a time; a memory made by `scoped` has a task of its own, or none.

    A session that an earlier process left in the middle of a task is in the middle of it still.
    The steps are in working memory and in the episodes. The dialogue gets two messages, what was asked and what came
    of it, unless they were just said there: a model that is shown the conversation needs no list of tool calls.
    """

    def __init__(self, tiers: Tiers, parts: Parts) -> None:
        self._tiers = tiers
        self._parts = parts
        self._running: Running | None = None
        self._looked = False
        self._one_at_a_time = asyncio.Lock()

    async def look_back(self) -> None:
        """Take up what an earlier process left, for a recall: one that cannot ask the store says so itself."""
        if self._looked or self._running is not None or self._tiers.working.task:
            return
        try:
            async with asyncio.timeout(_PATIENCE), self._one_at_a_time:
                await self._take_up()
        except (StoreError, TimeoutError):
            return

    async def start(self, task: str) -> str:
        """Begin a task; the one that is under way, if any, is given up, and nothing is learned from it.

        One that was begun in the same words and has no step yet is that task: whoever began it was interrupted.
        """
        async with self._one_at_a_time:
            task = self._clean("task", checked_content(task, self._longest))
            await self._take_up()
            self._running = await self._as_kept()
            new = Running(task, self._parts.new_id())
            held = self._running
            if held is not None and (held.id == new.id or self._is_fresh(held, task)):
                return held.id
            given_up = [] if self._running is None else [await self._given_up(self._running)]
            begun = await self._tiers.episodic.drafted(
                f"Task begun: {task}", kind="decision", metadata={"task": new.id}, id=f"{new.id}:begun"
            )
            asked = await self._unless_said("user", task, {"task": new.id}, "asked")
            new.episodes.append(begun.entry.id)
            blank = WorkingMemory()
            blank.set_task(task)
            blank.variables = dict(self._tiers.working.variables)
            await self._write(asked, [*given_up, begun, self._kept(new, blank, None)])
            self._tiers.working.set_task(task)
            self._running = new
            return new.id

    async def step(
        self,
        thought: str | None,
        action: Any,
        result: Any,
        *,
        success: bool | None,
        procedure: str | None,
        trust: float | None,
    ) -> StepRecord:
        """Note a step; under a procedure it is also one trial of that procedure."""
        async with self._one_at_a_time:
            running, act = await self._known(), self._parts.act()
            if act in running.acts:
                return await self._taken_before(running, running.acts[act])
            worked = not isinstance(result, BaseException) if success is None else checked_success(success)
            thought = checked_content("" if thought is None else thought, self._longest, may_be_empty=True)
            done, name = self._action(action, running)
            thought, done = self._clean("thought", thought), self._clean("action", done)
            if not done.strip() and not thought.strip():
                raise BadInput("a step needs a thought or an action; both are empty")
            came = "" if result is None else self._clean("result", result_text(result))
            key = await self._procedure(procedure, name)
            about = {
                "success": worked,
                **({"procedure": key} if key is not None else {}),
                **({TRUST: checked_trust(trust)} if trust is not None else {}),
            }
            append = await self._step_episode(running, thought, done, came, about)
            shown = await asyncio.to_thread(extract, came, _EXTRACT_TOKENS) if came else ""
            trouble = None if worked else lesson.clipped(shown, _SHORT) or None
            taken = Taken(thought, done, shown, worked, trouble, append.entry.id, key, act)
            further = running.after(taken)
            kept = self._kept(further, self._tiers.working, taken)
            await self._parts.stores.log("episodic").write(append, kept)
            self._running = further
            await self._in_mind(further, taken)
            reach("stores.between")
            trial = None if key is None else await self._trial(key, worked, shown, append.entry.id)
            return StepRecord(further.steps, worked, episode_of(append.space, append.entry), trial)

    async def end(self, success: bool, outcome: str, trust: float | None) -> TaskOutcome:
        """End the task and learn from it. When this fails the task goes on, and ending it again is safe."""
        async with self._one_at_a_time:
            checked_success(success)
            outcome = self._clean("outcome", checked_content(outcome, self._longest))
            most, running = checked_trust(trust), await self._known()
            worth = lesson.trust(running.tried) if most is None else min(most, lesson.trust(running.tried))
            working = self._tiers.working
            results = dict(working.results)
            append = await self._tiers.episodic.drafted(
                f"Task '{running.task}' {'succeeded' if success else 'failed'}: {outcome}"[: self._longest],
                kind="outcome",
                metadata={
                    "task": running.id,
                    "success": success,
                    "steps": running.steps,
                    TRUST: worth,
                    "results": {
                        name: lesson.clipped(result_text(value), _SHORT)
                        for name, value in list(results.items())[-_RESULTS_TOLD:]
                    },
                },
                id=f"{running.id}:outcome",
            )
            about = {"task": running.id, TRUST: worth}
            answered = await self._unless_said("assistant", outcome, about, "answered")
            # Its steps looked right and led nowhere; one that failed has been counted already.
            blamed = [] if success else [key for key, failed in running.procedures.items() if not failed]
            learned = await self._learn(running, success, outcome, [*answered, append], done=not blamed)
            for key in blamed:
                reach("stores.between")
                await self._trial(key, False, f"the task failed: {outcome}", f"{running.id}:outcome")
            if blamed:
                reach("stores.between")
                # The task is under way until they are told: whoever ends it again tells the rest.
                await write_in_order(await self._ended(running))
            self._running = None
            working.task, working.current_goal = "", ""
            working.subgoals, working.results, working.scratchpad = [], {}, []
            await self._tiers.conversation.settle()
            return TaskOutcome(
                running.task,
                running.id,
                success,
                outcome,
                running.steps,
                results,
                episode_of(append.space, append.entry),
                learned,
            )

    def _is_fresh(self, running: Running, task: str) -> bool:
        return running.task == task == self._tiers.working.task and running.steps == 0

    def _clean(self, place: str, text: str) -> str:
        """The text as it may be kept: here, since working memory and the lesson have it too."""
        return str(Policy.of(self._parts.settings).text(place, text).value)

    @property
    def _longest(self) -> int:
        return self._parts.settings.max_content

    async def _known(self) -> Running:
        await self._take_up()
        self._running = await self._as_kept() or of_working(self._tiers.working)
        if self._running is None:
            raise BadInput("no task is under way here; call start_task(task) first, on this same memory object")
        return self._running

    async def _as_kept(self) -> Running | None:
        """The task as it is by now: an agent's step, in a memory of its own, may have gone on with it or ended it."""
        held, log = self._running, self._parts.stores.log("episodic")
        newest = await found(log, self._tiers.scope)
        left = None if newest is None else newest.running
        if held is not None:
            if left is not None and left.id == held.id:
                return left if left.steps > held.steps else held
            if not await log.entries(self._tiers.episodic.space(), f"{held.id}:outcome"):
                return held
        return left if left is not None and left.task == self._tiers.working.task else None

    async def _take_up(self) -> None:
        """Go on with what an earlier process left in this session, once, and unless a task is under way here."""
        if self._looked or self._running is not None or self._tiers.working.task:
            return
        left = await found(self._parts.stores.log("episodic"), self._tiers.scope, self._parts.opened_as)
        self._looked = True
        if left is None:
            return
        here = self._tiers.working
        if left.working is None:
            here.set_task(left.running.task)
        else:
            parts = self._parts
            self._tiers.working = WorkingMemory.from_snapshot(left.working, llm=parts.llm, clock=parts.clock)
        self._running = left.running
        if left.last is not None:
            await self._in_mind(left.running, left.last)
            await self._tried(left.last)
        if left.working is not None:  # and what has come to mind since
            self._tiers.working.variables.update(here.variables)
            for item in here.items:
                await self._tiers.working.add(item)

    async def _tried(self, last: Taken) -> None:
        """Count the trial that a step was, should it have been recorded and not counted."""
        if last.procedure is not None:
            with contextlib.suppress(NotFound):  # nobody follows it any more
                await self._trial(last.procedure, last.success, last.shown, last.episode)

    def _kept(self, running: Running, working: WorkingMemory, last: Taken | None) -> Append:
        parts = self._parts
        keeper = Keeper(parts.opened_as, parts.clock(), Policy.of(parts.settings))
        return kept(self._tiers.scope, running, working, last, keeper)

    async def _given_up(self, running: Running) -> Append:
        return await self._tiers.episodic.drafted(
            f"Task '{running.task}' was given up for another after {running.steps} steps."[: self._longest],
            kind="outcome",
            metadata={"task": running.id, "success": None, "steps": running.steps},
            id=f"{running.id}:outcome",
        )

    async def _unless_said(self, role: Any, text: str, about: Mapping[str, Any], part: str) -> list[Append]:
        """A message for the dialogue; none when the same was the last thing said there."""
        last = await self._tiers.conversation.get_last_n(1)
        if last and (last[0].role, last[0].content) == (role, text):
            return []
        return [self._tiers.conversation.drafted(role, text, metadata=about, id=f"{about['task']}:{part}")]

    async def _write(self, said: list[Append], happened: list[Append]) -> None:
        stores = self._parts.stores
        await write_in_order((stores.log("conversation"), said), (stores.log("episodic"), happened))
        if said:
            await self._tiers.conversation.settle()

    def _action(self, action: Any, running: Running) -> tuple[str, str]:
        """What was done as text, and the name it goes by: an action is a text or a tool call."""
        if action is None or isinstance(action, str):
            text = checked_content(action or "", self._longest, may_be_empty=True)
            return text, text.strip()
        [call] = tool_calls_of([action], f"{running.id}_{running.steps + 1}", self._longest)
        return str(call), call.name or ""

    async def _procedure(self, asked: str | None, name: str) -> str | None:
        """The key of the procedure that a step follows: the one it names, or one that is called like its action."""
        if asked is not None:
            if await self._tiers.procedural.get(asked) is None:
                raise NotFound(f"there is no procedure {asked!r}; save it first, or leave `procedure` out")
            return asked
        try:
            key = checked_key(name)
        except BadInput:  # an action may say anything; this one is not a name
            return None
        known = await self._tiers.procedural.get(key)
        return key if known is not None and known.current else None

    async def _step_episode(
        self, running: Running, thought: str, done: str, came: str, about: Mapping[str, Any]
    ) -> Append:
        number = running.steps + 1
        kind: Kind = "error" if not about["success"] else "tool_call" if done.strip() else "decision"
        line = f"{done} → {came}" if done and came else done or came
        return await self._tiers.episodic.drafted(
            "\n".join(part for part in (thought, line) if part.strip()),
            kind=kind,
            metadata={"task": running.id, "step": number, **about},
            id=f"{running.id}:{number}",
        )

    async def _in_mind(self, running: Running, taken: Taken) -> None:
        working, thought, done, shown = self._tiers.working, taken.thought, taken.done, taken.shown
        if thought.strip():
            working.add_thought(thought)
        if shown:
            working.add_result(f"step_{running.steps}", shown)
        line = f"{done} → {shown}" if done and shown else done or shown or thought
        await working.add(f"Step {running.steps}: {line}")

    async def _trial(self, key: str, success: bool, note: str, id: str) -> Procedure:
        """One more trial of a procedure, under the id of the episode that tells of it: it counts once."""
        return await self._tiers.procedural.record_outcome(
            key, success, note=None if success else lesson.clipped(note, _SHORT) or None, id=id
        )

    async def _taken_before(self, running: Running, number: int) -> StepRecord:
        """A step that is told again, because whoever told it the first time was not done."""
        space = self._tiers.episodic.space()
        [entry] = await self._parts.stores.log("episodic").entries(space, f"{running.id}:{number}")
        episode = episode_of(space, entry)
        return StepRecord(number, bool(episode.metadata["success"]), episode)

    async def _ended(self, running: Running) -> Share:
        log = self._parts.stores.log("episodic")
        return log, await dropped(log, self._tiers.scope, running)

    async def _learn(
        self, running: Running, success: bool, outcome: str, told: list[Append], *, done: bool
    ) -> MemoryItem:
        """The outcome and its lesson, in one batch where they live in one store; else the lesson comes last.

        `told` is what is told of it in the conversation, if anything, and then among the episodes.
        """
        *answered, append = told
        stores, scope = self._parts.stores, self._tiers.scope
        records, tried = stores.records("semantic"), list(running.tried)
        text = lesson.told(running.task, success, outcome, tried, steps=running.steps)
        # In the same batch as the outcome: a lesson must never be believed more than what it quotes.
        trust = episode_of(append.space, append.entry).metadata[TRUST]
        about = lesson.metadata(running.task, running.id, success, running.steps)
        sources = (*running.episodes, append.entry.id)
        item = lesson.learned(text, scope, about, at=self._parts.clock(), trust=trust, sources=sources)

        async def learned(model: Model) -> None:
            put = await lesson.drafted(records, self._parts.embedding, model, item)
            await write_in_order(
                (stores.log("conversation"), answered),
                (stores.log("episodic"), [append]),
                (records, [put]),
                *([await self._ended(running)] if done else []),
            )

        for tries in range(_TRIES):
            try:
                await under_one_model(self._parts.embedding, learned)
                break
            except Conflict:  # somebody else is learning the very same
                await pause(tries)
        else:
            raise Conflict("the lesson is being written by others all the time; nothing was stored, try again")
        return (await records.get(scope.space(item.tier), item.id) or [item])[0]
