"""Durable journal of a run, so that it resumes after a crash, and the record of the run in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from recollect.agent.prompt import to_storable_text
from recollect.agent.run import AgentEventEmitter, ToolUse
from recollect.durable.checkpoints import Checkpoints, LoadedTask, build_journal_entry, build_save
from recollect.durable.events import EventEmitter
from recollect.durable.failpoints import reach_failpoint
from recollect.durable.lease import Heartbeat, hold_lease
from recollect.durable.state_codec import encode_json
from recollect.durable.steps import Timing, make_idempotency_key
from recollect.errors import Conflict, FencedOut, PlanChanged, RecollectError, StepFailed
from recollect.memory import AgentMemory
from recollect.models.chat import Reply
from recollect.stores.leases import LeaseRequest
from recollect.stores.writes import Journal, Step, StepStatus, TaskStatus
from recollect.tiers.episodic import Episode
from recollect.tiers.log_entries import generate_id
from recollect.tiers.messages import TRUST_KEY
from recollect.types import EMPTY_MAPPING, Space

T = TypeVar("T")

_CHECKPOINT_KIND = "agent run"
_MAX_RECENT_EPISODES = 1000

ToolResults = Sequence[tuple[ToolUse, str]]
"""Tool calls, each with the text of its result to record."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Id, task and user of a run. Ids belong to an agent, and tasks to a user."""

    id: str
    task: str
    user: str


class RunJournal:
    """Journal of a run: results by name, and the calls that were started."""

    def __init__(self, space: Space, run_id: str, loaded: LoadedTask = LoadedTask(None, None, {})) -> None:
        self._space = space
        self._run_id = run_id
        self._notes = loaded.journal
        self._attempts = {name: note.attempts for name, note in self._notes.items()}
        self._inputs: dict[str, str | None] = {name: note.input_sha for name, note in self._notes.items()}
        self.values = read_values(loaded)
        """The stored values by name."""
        self.started_here: set[str] = set()
        """The calls whose start this process has committed."""
        self._commit_lock = asyncio.Lock()

    def count_attempts(self, name: str) -> int:
        """Return how often earlier processes started a call that has no result."""
        note = self._notes.get(name)
        # A note that is completed but has no value is damaged: the call was done, its result is lost.
        is_unknown = note is not None and note.status in ("started", "completed") and name not in self.values
        return self._attempts[name] if is_unknown else 0

    def find_started_inputs(self, prefix: str) -> Mapping[str, str | None]:
        """Return the names of started calls with this prefix, each with the sha256 of its input if it is known."""
        return {name: sha for name, sha in self._inputs.items() if name.startswith(prefix)}

    def make_idempotency_key(self, name: str) -> str:
        """Return the idempotency key of a call, the same for all attempts and processes."""
        return make_idempotency_key(self._space, self._run_id, name)

    async def commit(
        self, done: Mapping[str, Any], *, begin: Mapping[str, str] = EMPTY_MAPPING, status: TaskStatus | None = None
    ) -> None:
        """Store results by name, and the start of calls with the sha256 of their inputs, in one commit."""
        async with self._commit_lock:
            self._attempts |= {name: self._attempts.get(name, 0) + 1 for name in begin}
            self._inputs |= begin
            await self._store(done, begin, status)
            self.values |= done
            self.started_here |= begin.keys()

    async def _store(self, done: Mapping[str, Any], begin: Mapping[str, str], status: TaskStatus | None) -> None:
        """Write what is committed to a store, if the journal has one."""

    async def guard(self, work: Awaitable[T]) -> T:
        """Await `work`; cancel it if the lease of the run is lost."""
        return await work


class DurableJournal(RunJournal):
    """Journal of a run with an id: results and starts are sealed notes, committed under the fence of its lease."""

    def __init__(self, checkpoints: Checkpoints, heartbeat: Heartbeat, loaded: LoadedTask, request: RunRequest) -> None:
        super().__init__(heartbeat.lease.space, heartbeat.lease.task, loaded)
        self._checkpoints = checkpoints
        self._encoder = checkpoints._build_encoder()
        self._lease = heartbeat.lease
        self._heartbeat = heartbeat
        self._version = loaded.version
        self._state: dict[str, Any] = (
            dict(loaded.document.state)
            if loaded.document is not None
            else {"kind": _CHECKPOINT_KIND, "task": request.task, "user": request.user, "completed": [], "results": {}}
        )

    async def guard(self, work: Awaitable[T]) -> T:
        return await self._heartbeat.guard(work)

    async def _store(self, done: Mapping[str, Any], begin: Mapping[str, str], status: TaskStatus | None) -> None:
        completed = list(dict.fromkeys((*self._state["completed"], *done)))
        results = self._state["results"] | (dict(done) if status == "done" else {})
        state = {**self._state, "completed": completed, "results": results}
        notes = [self._build_note(name, "completed", seal_value(value)) for name, value in done.items()]
        notes += [self._build_note(name, "started") for name in begin]
        reach_failpoint("completion.before" if done else "intent.before")
        save = build_save(self._lease, self._encoder.encode(state), self._version, status=status)
        try:
            self._heartbeat.check()
            await self._checkpoints._store.write(save, *notes)
        except FencedOut:
            raise
        except Conflict as error:
            raise FencedOut(f"run {self._lease.task!r} was changed by another process: {error}") from error
        reach_failpoint("completion.after" if done else "intent.after")
        self._version, self._state = self._version + 1, state

    def _build_note(self, name: str, status: StepStatus, result: str | None = None) -> Journal:
        attempts, input_sha = max(1, self._attempts.get(name, 1)), self._inputs.get(name)
        key = self.make_idempotency_key(name)
        return build_journal_entry(self._lease, name, status, attempts, key, input_sha=input_sha, result=result)


@asynccontextmanager
async def open_journal(
    checkpoints: Checkpoints, request: RunRequest, lease_ttl: timedelta, timing: Timing
) -> AsyncIterator[DurableJournal]:
    """Open a run's journal under a lease; raise `LeaseHeld` while another process has it."""
    owner = checkpoints._make_worker_name()
    async with hold_lease(
        checkpoints._store, LeaseRequest(checkpoints._space, request.id, owner, lease_ttl), timing
    ) as heartbeat:
        yield DurableJournal(checkpoints, heartbeat, await load_run(checkpoints, request), request)


async def load_run(checkpoints: Checkpoints, request: RunRequest) -> LoadedTask:
    """Return the stored run; raise `PlanChanged` if the id belongs to something else, `StepFailed` if cancelled."""
    task_id = request.id
    loaded = await checkpoints._load_task(task_id, EventEmitter(checkpoints.on_event, checkpoints.clock))
    if loaded.document is not None:
        state = loaded.document.state
        if state.get("kind") != _CHECKPOINT_KIND:
            raise PlanChanged(f"task {task_id!r} is not a run of an agent; use another id for the run")
        if (state.get("task"), state.get("user")) != (request.task, request.user):
            raise PlanChanged(f"run {task_id!r} belongs to another task or another user; use another id")
    if loaded.task is not None and loaded.task.status in ("failed", "poisoned"):
        raise StepFailed(f"run {task_id!r} was cancelled; call `memory.checkpoints.retry({task_id!r})` to continue it")
    return loaded


def read_values(loaded: LoadedTask) -> dict[str, Any]:
    """Return a run's stored values by name: those of undamaged notes, and those set with `checkpoints.skip`."""
    results = loaded.document.state.get("results", {}) if loaded.document is not None else {}
    return {**results, **{name: value[0] for name, note in loaded.journal.items() if (value := unseal_value(note))}}


def seal_value(value: Any) -> str:
    """Return a value as JSON with its sha256, which detects a value that was only partly written."""
    text = encode_json(value)
    return encode_json({"sha256": hashlib.sha256(text.encode()).hexdigest(), "value": value})


def unseal_value(note: Step) -> tuple[Any] | None:
    """Return the value of a completed note in a tuple; None if the note is not completed or is damaged."""
    if note.status != "completed" or note.result is None:
        return None
    try:
        data = json.loads(note.result)
        value = data["value"]
        is_intact = hashlib.sha256(encode_json(value).encode()).hexdigest() == data["sha256"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return (value,) if is_intact else None


class RunRecorder:
    """Recorder of a run as a turn of the conversation. A memory that fails does not end the run: it emits `trouble`."""

    def __init__(self, memory: AgentMemory, task: str, events: AgentEventEmitter) -> None:
        self._memory = memory
        self._task = task
        self._events = events
        # A run has several ids if other tasks ran in between.
        self._ids: list[str] = []
        self.step_count = 0

    async def begin(self) -> str:
        """Record that the run begins; return its id in memory."""
        self._ids = self._ids or [generate_id()]
        last = await self._memory.conversation.get_last_n(1)
        if not last or (last[0].role, last[0].content) != ("user", self._task):
            await self._memory.record_turn(user=self._task, id=f"{self._ids[-1]}:asked")
        return self._ids[-1]

    async def resume(self, ids: Sequence[str], *, answered: bool) -> list[str]:
        """Continue a run; return its ids, with a new one if it had to begin again. `answered`: there is an answer."""
        self._ids = [ids[-1]]
        return list(ids)

    async def end(self, success: bool, outcome: str, trust: float) -> bool:
        """Record the outcome; return False if it failed and must be tried again."""
        try:
            await self._memory.record_turn(
                assistant=to_storable_text(outcome), id=f"{self._ids[-1]}:answered", metadata={TRUST_KEY: trust}
            )
        except RecollectError as error:
            self._events.emit("trouble", text=f"the answer was not recorded: {error}")
            return False
        return True

    async def record_step(self, reply: Reply, results: ToolResults, trust: float, *, again: bool) -> None:
        """Record the tool calls of a reply; with `again`, only those that are not recorded yet."""
        try:
            recorded = 0
            if again:
                data = [episode.metadata for episode in await self._get_recent_episodes()]
                steps = [(metadata.get("task"), metadata.get("step", 0)) for metadata in data]
                recorded = sum(max((step for task, step in steps if task == id), default=0) for id in self._ids)
            for place, (use, result) in enumerate(results):
                self.step_count += 1
                if self.step_count > recorded:
                    await self._record_call(reply.text.strip() if place == 0 else None, use, result, trust)
        except RecollectError as error:
            self._events.emit("trouble", text=f"a step was not recorded: {error}")

    async def _record_call(self, thought: str | None, use: ToolUse, result: str, trust: float) -> None:
        """Record one tool call; `thought` is the text of the reply."""
        arguments = json.dumps(dict(use.arguments), ensure_ascii=False)
        await self._memory.episodic.store(
            f"{use.name}({'' if arguments == '{}' else arguments}) → {result}",
            kind="error" if use.failed else "tool_call",
            metadata={"task": self._ids[-1], "step": self.step_count, "success": not use.failed, TRUST_KEY: trust},
        )

    async def _get_recent_episodes(self) -> list[Episode]:
        return await self._memory.episodic.get_recent(_MAX_RECENT_EPISODES, session=self._memory.scope.session)


class LearningRecorder(RunRecorder):
    """Recorder of a run as a task of the memory, whose outcome is learned."""

    async def begin(self) -> str:
        self._ids.append(await self._memory.start_task(self._task))
        return self._ids[-1]

    async def resume(self, ids: Sequence[str], *, answered: bool) -> list[str]:
        self._ids = list(ids)
        if not answered:
            if not await self._is_active():
                await self.begin()
            else:
                # An earlier process may have begun it again, and been killed before it could commit the id.
                begun = [episode for episode in await self._get_recent_episodes() if episode.id.endswith(":begun")]
                last_id = begun[-1].metadata.get("task") if begun else None
                self._ids += [last_id] if last_id is not None and last_id not in ids else []
        return self._ids

    async def end(self, success: bool, outcome: str, trust: float) -> bool:
        outcome = to_storable_text(outcome)
        try:
            if await self._is_active():
                await self._memory.end_task(success, outcome, trust=trust)
        except RecollectError as error:
            self._events.emit("trouble", text=f"the outcome was not learned: {error}")
        else:
            return True
        # Record at least the answer, so that the next run sees it in the conversation. `end_task` uses the same
        # message id, so ending the task later does not repeat the answer.
        id = self._ids[-1]
        try:
            await self._memory.conversation.add_message(
                "assistant", outcome, id=f"{id}:answered", **{"task": id, TRUST_KEY: trust}
            )
        except RecollectError as error:
            self._events.emit("trouble", text=f"the answer was not recorded: {error}")
        return False

    async def _record_call(self, thought: str | None, use: ToolUse, result: str, trust: float) -> None:
        call = {"name": use.name, "arguments": dict(use.arguments)}
        await self._memory.record_step(thought, call, result, success=not use.failed, trust=trust)

    async def _is_active(self) -> bool:
        await self._memory.resume_task()
        return self._memory.working.task == self._task
