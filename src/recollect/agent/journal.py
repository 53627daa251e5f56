"""The journal of a run: what was answered and done is kept as it happens, so that a run that was killed goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from recollect.agent.events import log
from recollect.errors import Conflict, FencedOut, PlanChanged, StepFailed, StoreError
from recollect.runtime.checkpoints import Checkpoints, Loaded
from recollect.runtime.claiming import claimed
from recollect.runtime.codec import SCHEMA, written
from recollect.runtime.events import Telling
from recollect.runtime.failpoints import reach
from recollect.runtime.lease import Heartbeat, LeaseLost
from recollect.runtime.plan import Keys
from recollect.runtime.step import Pace
from recollect.stores.base import Lease, Step
from recollect.stores.leases import Claim
from recollect.stores.ops import Journal as Note
from recollect.stores.ops import Save, StepStatus, TaskStatus, Write
from recollect.values import Space

T = TypeVar("T")

_KIND = "agent run"

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Errand:
    """What a run is about: its id, its words, and whose it is. Ids are an agent's; what is said is its user's alone."""

    id: str
    task: str
    user: str


class Journal(Protocol):
    """What a run needs to know of the one before it, and to keep for the one after."""

    def has(self, name: str) -> bool:
        """Whether something was kept under this name."""

    def known(self, name: str) -> Any:
        """What was kept under this name; None when nothing was."""

    def begun(self, name: str) -> int:
        """How often runs before this one began it without an end."""

    def is_begun(self, name: str) -> bool:
        """Whether this run has said that it begins."""

    def inputs(self, prefix: str) -> Mapping[str, str | None]:
        """All that was ever begun under names that begin so, each with the sha256 of what it was given, if noted."""

    def key_of(self, name: str) -> str:
        """The idempotency key: the same for every attempt of every worker, and no other's."""

    async def keep(
        self, done: Mapping[str, Any], *, begin: Mapping[str, str] = NOTHING, status: TaskStatus | None = None
    ) -> None:
        """Keep what was done, and that something else is about to begin with what sha256 of input, in one commit."""

    async def guard(self, work: Awaitable[T]) -> T:
        """Do something outside, as long as the run is ours."""


class Unkept:
    """Of a run that has no id: nothing is kept, and nothing can be resumed."""

    def __init__(self, space: Space, run: str) -> None:
        self._space = space
        self._run = run

    def has(self, name: str) -> bool:
        return False

    def known(self, name: str) -> Any:
        return None

    def begun(self, name: str) -> int:
        return 0

    def is_begun(self, name: str) -> bool:
        return True

    def inputs(self, prefix: str) -> Mapping[str, str | None]:
        return {}

    def key_of(self, name: str) -> str:
        return Keys(self._space, self._run).of(name)

    async def keep(
        self, done: Mapping[str, Any], *, begin: Mapping[str, str] = NOTHING, status: TaskStatus | None = None
    ) -> None:
        return

    async def guard(self, work: Awaitable[T]) -> T:
        return await work


class Kept:
    """Of a run with an id: each answer and each result is one durable commit under the fence of its lease.

    The results are in the notes of the journal, each with its sha256; the checkpoint lists what is completed, so that
    `memory.checkpoints` can retry, skip or cancel a run like any other task.
    """

    def __init__(
        self, checkpoints: Checkpoints, lease: Lease, heart: Heartbeat, loaded: Loaded, errand: Errand
    ) -> None:
        self._checkpoints = checkpoints
        self._lease = lease
        self._heart = heart
        self._notes = dict(loaded.journal)
        self._version = loaded.version
        self._state: dict[str, Any] = (
            dict(loaded.document.state)
            if loaded.document is not None
            else {"kind": _KIND, "task": errand.task, "user": errand.user, "completed": [], "results": {}}
        )
        self._attempts = {name: note.attempts for name, note in self._notes.items()}
        self._inputs = {name: note.input_sha for name, note in self._notes.items()}
        self._values = known_of(loaded)
        self._begun_here: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    def has(self, name: str) -> bool:
        return name in self._values

    def known(self, name: str) -> Any:
        return self._values.get(name)

    def begun(self, name: str) -> int:
        note = self._notes.get(name)
        # "completed" without a value: it was done, but what came of it is damaged.
        unknown = note is not None and note.status in ("started", "completed") and name not in self._values
        return self._attempts[name] if unknown else 0

    def is_begun(self, name: str) -> bool:
        return name in self._begun_here

    def inputs(self, prefix: str) -> Mapping[str, str | None]:
        return {name: sha for name, sha in self._inputs.items() if name.startswith(prefix)}

    def key_of(self, name: str) -> str:
        return Keys(self._lease.space, self._lease.task).of(name)

    async def keep(
        self, done: Mapping[str, Any], *, begin: Mapping[str, str] = NOTHING, status: TaskStatus | None = None
    ) -> None:
        async with self._one_at_a_time:
            completed = [*self._state["completed"], *(one for one in done if one not in self._state["completed"])]
            results = self._state["results"] | {name: done[name] for name in done if status == "done"}
            state = {**self._state, "completed": completed, "results": results}
            attempts = {name: self._attempts.get(name, 0) + 1 for name in begin}
            inputs = {**self._inputs, **begin}
            writes: list[Write] = [
                self._save(state, status),
                *(
                    self._note(name, "completed", max(1, self._attempts.get(name, 1)), inputs, sealed(done[name]))
                    for name in done
                ),
                *(self._note(name, "started", attempts[name], inputs) for name in begin),
            ]
            reach("completion.before" if done else "intent.before")
            await self._write(writes)
            reach("completion.after" if done else "intent.after")
            self._version, self._state = self._version + 1, state
            self._values.update(done)
            self._attempts |= attempts
            self._inputs = inputs
            self._begun_here.update(begin)

    async def guard(self, work: Awaitable[T]) -> T:
        return await self._heart.guard(work)

    async def _write(self, writes: Sequence[Write]) -> None:
        try:
            self._heart.check()
            await self._checkpoints.store.write(*writes)
        except FencedOut:
            raise
        except Conflict as error:
            raise FencedOut(f"run {self._lease.task!r} was changed by others: {error}") from error

    def _save(self, state: Mapping[str, Any], status: TaskStatus | None) -> Save:
        return Save(
            space=self._lease.space,
            task=self._lease.task,
            state=self._checkpoints.encoded(dict(state)),
            schema=SCHEMA,
            expect=self._version,
            fence=self._lease.fence,
            status=status,
        )

    def _note(
        self,
        name: str,
        status: StepStatus,
        attempts: int,
        inputs: Mapping[str, str | None],
        result: str | None = None,
    ) -> Note:
        return Note(
            space=self._lease.space,
            task=self._lease.task,
            step=name,
            status=status,
            fence=self._lease.fence,
            attempts=attempts,
            idempotency_key=self.key_of(name),
            input_sha=inputs.get(name),
            result=result,
        )


async def looked_up(checkpoints: Checkpoints, errand: Errand) -> Loaded:
    """A run as it stands, if it may go on; an error says what has to be decided first."""
    task_id = errand.id
    loaded = await checkpoints.loaded(task_id, Telling(checkpoints.on_event, checkpoints.clock))
    if loaded.document is not None:
        state = loaded.document.state
        if state.get("kind") != _KIND:
            raise PlanChanged(f"task {task_id!r} is not a run of an agent; give the run another id")
        if (state.get("task"), state.get("user")) != (errand.task, errand.user):
            raise PlanChanged(f"run {task_id!r} was begun for another task or another user; give this one another id")
    if loaded.task is not None and loaded.task.status in ("failed", "poisoned"):
        raise StepFailed(
            f"run {task_id!r} was cancelled; call `await memory.checkpoints.retry({task_id!r})` to go on with it"
        )
    return loaded


def known_of(loaded: Loaded) -> dict[str, Any]:
    """What is kept of a run, by name: what we noted, unless it is damaged, and what `checkpoints.skip` was told."""
    results = loaded.document.state.get("results", {}) if loaded.document is not None else {}
    return {**results, **{name: value[0] for name, note in loaded.journal.items() if (value := unsealed(note))}}


@asynccontextmanager
async def kept(checkpoints: Checkpoints, errand: Errand, lease_ttl: timedelta, pace: Pace) -> AsyncIterator[Kept]:
    """The journal of a run that is ours until we give it back; `LeaseHeld` while it is another's."""
    asked = pace.monotonic()
    lease = await claimed(checkpoints.store, Claim(checkpoints.space, errand.id, checkpoints.workers(), lease_ttl))
    reach("claim.after")
    async with Heartbeat(checkpoints.store, lease, lease_ttl, pace, asked) as heart:
        try:
            yield Kept(checkpoints, lease, heart, await looked_up(checkpoints, errand), errand)
        except LeaseLost as error:
            raise FencedOut(
                f"the lease of run {errand.id!r} was lost: {error}; what was under way here is discarded"
            ) from error
        finally:
            reach("release.before")
            if not heart.lost:
                await _released(checkpoints, lease)


async def _released(checkpoints: Checkpoints, lease: Lease) -> None:
    try:
        await checkpoints.store.release(lease)
    except StoreError:  # what was done is kept; the lease runs out by itself
        log.warning("the lease of run %r could not be given back", lease.task)


def sealed(value: Any) -> str:
    """A value with its sha256: what was torn by a power cut must not pass for an answer."""
    text = written(value)
    return written({"sha256": hashlib.sha256(text.encode()).hexdigest(), "value": value})


def unsealed(note: Step) -> tuple[Any] | None:
    """What a note says was done, in a tuple of one; None when it says nothing, or is damaged."""
    if note.status != "completed" or note.result is None:
        return None
    try:
        kept = json.loads(note.result)
        value, seal = kept["value"], kept["sha256"]
        fits = hashlib.sha256(written(value).encode()).hexdigest() == seal
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return (value,) if fits else None
