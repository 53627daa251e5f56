"""Tasks: started, recorded step by step, ended and learned from. An unfinished task survives a crash as a note."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from recollect.durable.failpoints import reach_failpoint
from recollect.durable.step_memory import StoreWrites, write_in_order
from recollect.engine import Engine
from recollect.errors import BadInput, NotFound, SecretRefused, StoreError
from recollect.language.extractive_summary import extract_text
from recollect.language.importance import score_importance
from recollect.recording.turn import format_result, parse_tool_calls
from recollect.security.injection import AGENT_TRUST, find_quarantine_reasons
from recollect.security.redaction import RedactionPolicy
from recollect.stores import codec
from recollect.stores.writes import Append, Drop, Entry, Model, Put
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import Episode, EpisodeKind, EpisodicMemory, parse_episode
from recollect.tiers.indexing import build_puts, retry_on_conflict, with_current_model
from recollect.tiers.log_entries import generate_id
from recollect.tiers.messages import TOOL_TRUST, TRUST_KEY, check_trust
from recollect.tiers.procedural import ProceduralMemory, Procedure, validate_procedure_key
from recollect.tiers.quarantine import to_quarantine_item
from recollect.tiers.working import WorkingMemory
from recollect.types import MemoryItem, Scope, make_content_id
from recollect.validation import check_flag, check_text

_log = logging.getLogger("recollect.memory")

_NOTE_KIND = "task"
# The default episodic cap of a session: a lesson names no more sources.
_MAX_EPISODES = 1000
_MAX_RESULTS = 20
_EXTRACT_TOKENS = 500
_RESUME_TIMEOUT = 5.0  # seconds

# The last steps of a task that a lesson tells.
_MAX_STEPS = 10
# A lesson that is learned repeatedly keeps its newest sources.
_MAX_SOURCES = 1000
# Limits in characters: a lesson is one of several lines in a prompt.
_MAX_TASK_CHARACTERS = 300
_MAX_OUTCOME_CHARACTERS = 1200
_MAX_STEP_CHARACTERS = 160
_MAX_NOTE_CHARACTERS = 400
_MAX_REASONS = 3


class TaskTiers(Protocol):
    """The tiers that a task writes to."""

    scope: Scope
    working: WorkingMemory
    conversation: ConversationMemory
    episodic: EpisodicMemory
    procedural: ProceduralMemory


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A recorded step: its number from 1, its episode, and the procedure it was a trial of."""

    number: int
    success: bool
    episode: Episode
    procedure: Procedure | None = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The end of a task: `learned` is the stored lesson, `results` the results in working memory."""

    task: str
    task_id: str
    success: bool
    outcome: str
    steps: int
    results: Mapping[str, Any]
    episode: Episode
    learned: MemoryItem


@dataclass(frozen=True, slots=True)
class TakenStep:
    """A step as the note of an unfinished task stores it; the field names are the stored keys."""

    thought: str
    done: str
    shown: str
    success: bool
    trouble: str | None
    episode: str
    procedure: str | None
    act: str | None = None

    @property
    def line(self) -> str:
        return f"{self.done} → {self.shown}" if self.done and self.shown else self.done or self.shown or self.thought


@dataclass(frozen=True, slots=True)
class LessonStep:
    """A step as the lesson tells it: the action, and the reason of its failure if it failed."""

    action: str
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """The state of a task besides working memory; the field names are the keys of its note."""

    task: str
    id: str
    steps: int = 0
    tried: tuple[LessonStep, ...] = ()
    """The last steps."""
    episodes: tuple[str, ...] = ()
    procedures: Mapping[str, bool] = field(default_factory=dict)
    """Each procedure that steps were trials of, and whether one of these steps failed."""
    acts: Mapping[str, int] = field(default_factory=dict)
    """The numbers of steps that a retried agent step may record again, by action id."""

    def advance(self, step: TakenStep) -> ActiveTask:
        """Return the task after one more step."""
        failed, numbers, number = dict(self.procedures), dict(self.acts), self.steps + 1
        if step.procedure is not None:
            failed[step.procedure] = failed.get(step.procedure, False) or not step.success
        if step.act is not None:
            numbers[step.act] = number
        tried = (*self.tried, LessonStep(step.done or step.thought, step.trouble))[-_MAX_STEPS:]
        episodes = (*self.episodes, step.episode)[-_MAX_EPISODES:]
        return ActiveTask(self.task, self.id, number, tried, episodes, failed, numbers)


@dataclass(frozen=True, slots=True)
class UnfinishedTask:
    """A task that another process left open; `working` is working memory before the last step."""

    state: ActiveTask
    working: Mapping[str, Any] | None
    last_step: TakenStep | None


class TaskRecorder:
    """The task of one memory object, one at a time. A `scoped` view has a task of its own."""

    def __init__(self, tiers: TaskTiers, engine: Engine) -> None:
        self._tiers = tiers
        self._engine = engine
        self._episodes = engine.stores.log("episodic")
        self._note_space = tiers.scope.space("working")
        self._policy = RedactionPolicy.from_settings(engine.settings)
        self._max_characters = engine.settings.max_content
        self._task: ActiveTask | None = None
        self._has_looked = False
        self._lock = asyncio.Lock()

    async def resume(self) -> str | None:
        """Restore the unfinished task of this session; return the id of the current task, or None."""
        async with self._lock:
            task = await self._find_task()
            return None if task is None else task.id

    async def try_resume(self) -> None:
        """Restore the unfinished task of this session, unless the store does not answer within 5 seconds."""
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_RESUME_TIMEOUT), self._lock:
                await self._resume_unfinished()

    async def start(self, task: str) -> str:
        """Start a task and return its id. A task with the same text and no step yet was interrupted; return its id."""
        async with self._lock:
            task = self._redact("task", check_text("content", task, max_length=self._max_characters))
            await self._resume_unfinished()
            current = self._task = await self._load_current_task()
            id = self._engine.new_id()
            if current is not None and (
                current.id == id or (current.task == task == self._tiers.working.task and current.steps == 0)
            ):
                return current.id
            episodes = []
            if current is not None:
                text = f"Task '{current.task}' was given up for another after {current.steps} steps."
                about = {"task": current.id, "success": None, "steps": current.steps}
                episodes.append(await self._draft_episode(text, "outcome", about, f"{current.id}:outcome"))
            begun = await self._draft_episode(f"Task begun: {task}", "decision", {"task": id}, f"{id}:begun")
            messages = await self._draft_message("user", task, {"task": id}, "asked")
            new = ActiveTask(task, id, episodes=(begun.entry.id,))
            blank = WorkingMemory()
            blank.set_task(task)
            blank.variables = dict(self._tiers.working.variables)
            await write_in_order(
                (self._engine.stores.log("conversation"), messages),
                (self._episodes, [*episodes, begun, self._draft_note(new, blank, None)]),
            )
            if messages:
                await self._tiers.conversation._roll_summary()
            self._tiers.working.set_task(task)
            self._task = new
            return id

    async def record_step(
        self,
        thought: str | None,
        action: Any,
        result: Any,
        *,
        success: bool | None,
        procedure: str | None,
        trust: float | None,
    ) -> StepRecord:
        """Record a step, and a trial of the procedure that it follows."""
        async with self._lock:
            task, action_id = await self._require_task(), self._engine.next_action_id()
            number = task.steps + 1
            if action_id is not None and action_id in task.acts:
                # An earlier attempt of the same agent step has recorded it.
                id = f"{task.id}:{task.acts[action_id]}"
                [entry] = await self._episodes.entries(self._tiers.episodic._find_space(), id)
                stored = parse_episode(self._tiers.episodic._find_space(), entry)
                return StepRecord(task.acts[action_id], bool(stored.metadata["success"]), stored)
            has_worked = not isinstance(result, BaseException) if success is None else check_flag("success", success)
            thought = "" if thought is None else thought
            thought = check_text("content", thought, max_length=self._max_characters, allow_empty=True)
            done, name = self._parse_action(action, f"{task.id}_{number}")
            thought, done = self._redact("thought", thought), self._redact("action", done)
            if not done.strip() and not thought.strip():
                raise BadInput("a step needs a thought or an action; both are empty")
            text = "" if result is None else self._redact("result", format_result(result))
            key = await self._find_procedure_key(procedure, name)
            metadata = {"task": task.id, "step": number, "success": has_worked, "procedure": key}
            metadata[TRUST_KEY] = check_trust(trust)
            line = f"{done} → {text}" if done and text else done or text
            episode = await self._tiers.episodic._build_append(
                "\n".join(part for part in (thought, line) if part.strip()),
                kind="error" if not has_worked else "tool_call" if done.strip() else "decision",
                metadata={name: value for name, value in metadata.items() if value is not None},
                id=f"{task.id}:{number}",
            )
            shown = await asyncio.to_thread(extract_text, text, _EXTRACT_TOKENS) if text else ""
            trouble = None if has_worked else _clip_text(shown, _MAX_NOTE_CHARACTERS) or None
            step = TakenStep(thought, done, shown, has_worked, trouble, episode.entry.id, key, action_id)
            advanced = task.advance(step)
            await self._episodes.write(episode, self._draft_note(advanced, self._tiers.working, step))
            self._task = advanced
            await self._add_to_working(number, step)
            reach_failpoint("stores.between")
            trial = None if key is None else await self._record_trial(key, has_worked, shown, episode.entry.id)
            return StepRecord(number, has_worked, parse_episode(episode.space, episode.entry), trial)

    async def end(self, success: bool, outcome: str, trust: float | None) -> TaskOutcome:
        """End the task and store its lesson. If this fails the task stays open, and ending it again is safe."""
        async with self._lock:
            check_flag("success", success)
            outcome = self._redact("outcome", check_text("content", outcome, max_length=self._max_characters))
            max_trust, task = check_trust(trust), await self._require_task()
            # The agent's own words are trusted more than the error of a tool that the lesson quotes.
            worth = TOOL_TRUST if any(step.trouble for step in task.tried) else AGENT_TRUST
            worth = worth if max_trust is None else min(max_trust, worth)
            working = self._tiers.working
            results = dict(working.results)
            newest = list(results.items())[-_MAX_RESULTS:]
            shown_results = {name: _clip_text(format_result(value), _MAX_NOTE_CHARACTERS) for name, value in newest}
            about = {"task": task.id, "success": success, "steps": task.steps, TRUST_KEY: worth}
            ended = "succeeded" if success else "failed"
            text, about = f"Task '{task.task}' {ended}: {outcome}", {**about, "results": shown_results}
            episode = await self._draft_episode(text, "outcome", about, f"{task.id}:outcome")
            messages = await self._draft_message("assistant", outcome, {"task": task.id, TRUST_KEY: worth}, "answered")
            # A failure counts against every procedure whose own steps succeeded; the others are counted already.
            blamed = [] if success else [key for key, failed in task.procedures.items() if not failed]
            learned = await self._learn(task, success, outcome, messages, episode, is_last=not blamed)
            for key in blamed:
                reach_failpoint("stores.between")
                await self._record_trial(key, False, f"the task failed: {outcome}", f"{task.id}:outcome")
            if blamed:
                reach_failpoint("stores.between")
                # The note is deleted last: after a crash, ending the task again records the missing trials.
                await write_in_order(await self._draft_note_removal(task))
            self._task = None
            working.task, working.current_goal = "", ""
            working.subgoals, working.results, working.scratchpad = [], {}, []
            await self._tiers.conversation._roll_summary()
            stored = parse_episode(episode.space, episode.entry)
            return TaskOutcome(task.task, task.id, success, outcome, task.steps, results, stored, learned)

    def _redact(self, name: str, text: str) -> str:
        return str(self._policy.redact_text(name, text).value)

    async def _find_task(self) -> ActiveTask | None:
        await self._resume_unfinished()
        self._task = await self._load_current_task() or infer_task(self._tiers.working)
        return self._task

    async def _require_task(self) -> ActiveTask:
        task = await self._find_task()
        if task is None:
            raise BadInput("no task is open in this memory object; call start_task(task) first")
        return task

    async def _load_current_task(self) -> ActiveTask | None:
        """Return the task as it is stored; an agent's step, in a memory of its own, may have advanced or ended it."""
        current, newest = self._task, await self._load_unfinished()
        stored = None if newest is None else newest.state
        if current is not None:
            if stored is not None and stored.id == current.id:
                return stored if stored.steps > current.steps else current
            if not await self._episodes.entries(self._tiers.episodic._find_space(), f"{current.id}:outcome"):
                return current
        return stored if stored is not None and stored.task == self._tiers.working.task else None

    async def _load_unfinished(self, ignore_opening: str | None = None) -> UnfinishedTask | None:
        """Load the newest note of this session, unless the opening `ignore_opening` wrote it."""
        newest = await self._episodes.recent(self._note_space, limit=1, kinds=(_NOTE_KIND,))
        if not newest or (ignore_opening is not None and newest[0].metadata.get("by") == ignore_opening):
            return None
        try:
            return _parse_note(json.loads(newest[0].content))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            _log.warning("ignored the damaged note of an unfinished task (%s)", type(error).__name__)
            return None

    async def _resume_unfinished(self) -> None:
        """Restore what an earlier process left in this session, once, unless there is a current task."""
        if self._has_looked or self._task is not None or self._tiers.working.task:
            return
        unfinished = await self._load_unfinished(ignore_opening=self._engine.opening_id)
        self._has_looked = True
        if unfinished is None:
            return
        before, engine = self._tiers.working, self._engine
        if unfinished.working is None:
            before.set_task(unfinished.state.task)
        else:
            self._tiers.working = WorkingMemory.from_snapshot(unfinished.working, llm=engine.llm, clock=engine.clock)
        self._task = unfinished.state
        step = unfinished.last_step
        if step is not None:
            await self._add_to_working(unfinished.state.steps, step)
            if step.procedure is not None:  # the crash may have come before the trial was recorded
                with contextlib.suppress(NotFound):
                    await self._record_trial(step.procedure, step.success, step.shown, step.episode)
        if unfinished.working is not None:
            self._tiers.working.variables.update(before.variables)
            for item in before.items:
                await self._tiers.working.add(item)

    def _draft_note(self, task: ActiveTask, working: WorkingMemory, last: TakenStep | None) -> Append:
        """Build the note that is written with a step, which is not in working memory yet; only the newest is kept."""
        try:
            snapshot = working.snapshot()
        except BadInput:  # a caller assigned an attribute that is not JSON
            snapshot = None
        note = {**asdict(task), "working": snapshot, "last": None if last is None else asdict(last)}
        try:
            clean = self._policy.redact_json("the task", note).value
        except SecretRefused:  # working memory may hold anything; without it the note is clean
            clean = self._policy.redact_json("the task", {**note, "working": None}).value
        entry = Entry(
            id=f"{task.id}:{task.steps}:{generate_id()}",
            kind=_NOTE_KIND,
            content=json.dumps(clean),
            at=self._engine.clock(),
            metadata={"task": task.id, "by": self._engine.opening_id},
        )
        return Append(space=self._note_space, entry=entry, cap=1)

    async def _draft_note_removal(self, task: ActiveTask) -> StoreWrites:
        """Build the deletion of this task's notes; the note of another task started meanwhile stays."""
        notes = [e.seq for e in await self._episodes.read(self._note_space) if e.metadata.get("task") == task.id]
        return self._episodes, [Drop(self._note_space, tuple(notes))] if notes else []

    async def _draft_episode(self, text: str, kind: EpisodeKind, metadata: Mapping[str, Any], id: str) -> Append:
        text = text[: self._max_characters]
        return await self._tiers.episodic._build_append(text, kind=kind, metadata=metadata, id=id)

    async def _draft_message(self, role: Any, text: str, metadata: Mapping[str, Any], part: str) -> list[Append]:
        """Build a message for the conversation; none if its last message is the same."""
        last = await self._tiers.conversation.get_last_n(1)
        if last and (last[0].role, last[0].content) == (role, text):
            return []
        id = f"{metadata['task']}:{part}"
        return [self._tiers.conversation._build_append(role, text, metadata=metadata, id=id)]

    def _parse_action(self, action: Any, call_id: str) -> tuple[str, str]:
        """Return an action, which is a text or a tool call, as text and by name."""
        if action is None or isinstance(action, str):
            text = check_text("content", action or "", max_length=self._max_characters, allow_empty=True)
            return text, text.strip()
        [call] = parse_tool_calls([action], call_id, self._max_characters)
        return str(call), call.name or ""

    async def _find_procedure_key(self, procedure: str | None, action_name: str) -> str | None:
        """Return the key of the procedure that is named, or of a current procedure named like the action."""
        if procedure is not None:
            if await self._tiers.procedural.get(procedure) is None:
                raise NotFound(f"there is no procedure {procedure!r}; save it first, or omit `procedure`")
            return procedure
        try:
            key = validate_procedure_key(action_name)
        except BadInput:  # the action is not a name
            return None
        known = await self._tiers.procedural.get(key)
        return key if known is not None and known.current else None

    async def _add_to_working(self, number: int, step: TakenStep) -> None:
        working = self._tiers.working
        if step.thought.strip():
            working.add_thought(step.thought)
        if step.shown:
            working.add_result(f"step_{number}", step.shown)
        await working.add(f"Step {number}: {step.line}")

    async def _record_trial(self, key: str, success: bool, note: str, id: str) -> Procedure:
        """Record a trial under the id of its episode, so that a retry does not count twice."""
        note_text = None if success else _clip_text(note, _MAX_NOTE_CHARACTERS) or None
        return await self._tiers.procedural.record_outcome(key, success, note=note_text, id=id)

    async def _learn(
        self, task: ActiveTask, success: bool, outcome: str, messages: list[Append], episode: Append, *, is_last: bool
    ) -> MemoryItem:
        """Write the outcome and its lesson: in one transaction if one store holds them, else the lesson last."""
        stores, embedding = self._engine.stores, self._engine.embedding
        records = stores.records("semantic")
        item = self._build_lesson(task, success, outcome, parse_episode(episode.space, episode.entry))
        space = item.scope.space(item.tier)

        async def write(model: Model) -> None:
            stored = await records.get(space, item.id)
            if stored:  # a lesson that exists keeps its date and gains the new sources
                known = stored[0]
                merged = replace(
                    known,
                    importance=max(known.importance, item.importance),
                    trust=min(known.trust, item.trust),
                    derived_from=tuple(dict.fromkeys((*known.derived_from, *item.derived_from)))[-_MAX_SOURCES:],
                )
                put = Put(item=merged, expect=known.version)
            elif item.tier == "quarantine":
                put = Put(item=item, expect=0)  # not searchable, so without terms and vectors
            else:
                [put] = await build_puts(embedding, model, [item])
            await write_in_order(
                (stores.log("conversation"), messages),
                (self._episodes, [episode]),
                (records, [put]),
                *([await self._draft_note_removal(task)] if is_last else []),
            )

        await retry_on_conflict(lambda: with_current_model(embedding, write), f"the lesson of task {task.id!r}")
        return (await records.get(space, item.id) or [item])[0]

    def _build_lesson(self, task: ActiveTask, success: bool, outcome: str, episode: Episode) -> MemoryItem:
        """Build the lesson's item; in quarantine if the text contains instructions, which a tool may have injected."""
        scope, text = self._tiers.scope, format_lesson(task, success, outcome)
        short = _clip_text(task.task, _MAX_TASK_CHARACTERS)
        trust = episode.metadata[TRUST_KEY]  # the lesson quotes the outcome
        item = MemoryItem(
            id=make_content_id(scope.space("semantic"), text),
            content=text,
            scope=scope,
            created_at=self._engine.clock(),
            metadata=MappingProxyType({"task": short, "task_id": task.id, "success": success, "steps": task.steps}),
            importance=score_importance(text, "outcome" if success else "error"),
            source="agent",
            trust=trust,
            derived_from=tuple(dict.fromkeys((*task.episodes, episode.id))),
        )
        reasons = find_quarantine_reasons(text, trust)
        return to_quarantine_item(item, reasons) if reasons else item


def format_lesson(task: ActiveTask, success: bool, outcome: str) -> str:
    """Return what was asked, what was tried and how it ended. Thoughts are left out: they may repeat recalled text."""
    steps = task.tried
    outcome = _end_sentence(_clip_text(outcome, _MAX_OUTCOME_CHARACTERS))
    ended = "succeeded" if success else "failed"
    parts = [f"Task '{_clip_text(task.task, _MAX_TASK_CHARACTERS)}' {ended}: {outcome}"]
    if steps:
        earlier = task.steps - len(steps)
        actions = "; ".join(_clip_text(step.action, _MAX_STEP_CHARACTERS) for step in steps)
        parts.append(f"{'Done' if success else 'Tried'}: {f'{earlier} earlier steps; ' if earlier else ''}{actions}.")
    reasons = [_clip_text(step.trouble, _MAX_STEP_CHARACTERS) for step in steps if step.trouble]
    if reasons:
        listed = "; ".join(list(dict.fromkeys(reasons))[-_MAX_REASONS:])
        parts.append(f"{'Had to get around' if success else 'Why it failed'}: {_end_sentence(listed)}")
    return " ".join(parts)


def _clip_text(text: str, max_characters: int) -> str:
    """Return the text on one line, cut to `max_characters`."""
    line = " ".join(text.split())
    return line if len(line) <= max_characters else f"{line[: max_characters - 1].rstrip()}…"


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def infer_task(working: WorkingMemory) -> ActiveTask | None:
    """Return the task that `set_task` or an import put into working memory, if any."""
    numbers = (re.fullmatch(r"step_([0-9]+)", name) for name in working.results)
    last = max((int(number[1]) for number in numbers if number), default=0)
    return ActiveTask(working.task, generate_id(), last) if working.task else None


def _parse_note(note: Mapping[str, Any]) -> UnfinishedTask:
    """Parse a note; raise an error of Python's if a part is missing or has the wrong type."""
    text, optional_text = codec.decode_text, codec.decode_optional_text
    steps = [(step["action"], step["trouble"]) for step in note["tried"]]
    task = ActiveTask(
        text("task", note["task"]),
        text("id", note["id"]),
        codec.decode_int("steps", note["steps"]),
        tuple(LessonStep(text("action", action), optional_text("trouble", trouble)) for action, trouble in steps),
        codec.decode_texts("episodes", note["episodes"]),
        {key: codec.decode_flag("procedures", failed) for key, failed in note["procedures"].items()},
        codec.decode_counts("acts", note.get("acts", {})),
    )
    working, last = note["working"], note["last"]
    if working is not None:
        WorkingMemory.from_snapshot(working)  # raises if it cannot be restored
    if last is not None:
        for name in ("thought", "done", "shown", "episode"):
            text(name, last[name])
        for name in ("trouble", "procedure", "act"):
            optional_text(name, last.get(name))
        codec.decode_flag("success", last["success"])
    return UnfinishedTask(task, working, None if last is None else TakenStep(**last))
