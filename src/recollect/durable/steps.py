"""Steps of a task: the `@step` decorator, the context a step gets, and the plan of a run."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar, cast, overload

from recollect.durable.state_codec import State
from recollect.durable.step_memory import RunMemory
from recollect.errors import BadInput, PlanChanged
from recollect.stores.base import Store
from recollect.stores.writes import Step, Write
from recollect.tiers.working import WorkingMemory
from recollect.types import Space
from recollect.validation import check_choice, check_count, check_number, check_seconds

UnknownOutcomePolicy = Literal["retry", "skip", "ask"]
PlanChangePolicy = Literal["raise", "by_name"]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
MemoryT = TypeVar("MemoryT")

UNDO_PREFIX = "undo_"
"""Prefix of the journal key of a compensation."""

_OPTIONS_ATTRIBUTE = "__recollect_step__"
_STEP_NAME = re.compile(r"step_\d+_.*", re.DOTALL)
_MAX_BACKOFF_SECONDS = 30.0
_MAX_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, between 0 and `most` seconds."""

    first: float = 0.5
    most: float = _MAX_BACKOFF_SECONDS

    def get_wait(self, attempt: int, chance: float) -> float:
        return chance * min(self.most, self.first * 2.0 ** min(attempt - 1, 60))


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, sleep and randomness of a task run; tests inject fakes."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    heartbeat_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.Random().random

    async def sleep_before_claim(self, lease_ttl: timedelta) -> None:
        """Sleep before a lease that another worker has is requested again."""
        longest = min(_MAX_POLL_SECONDS, lease_ttl.total_seconds() / 3)
        await self.sleep(longest * (0.5 + self.random() / 2))


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Retries, timeout and compensation of a step; without `retries` the agent's `max_attempts` applies."""

    retries: int | None = None
    timeout: float | None = None
    backoff: Backoff = Backoff()
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    compensate: Callable[..., Any] | None = None
    on_unknown: UnknownOutcomePolicy = "retry"

    def get_max_attempts(self, default: int) -> int:
        """Return the maximum number of attempts in all runs together."""
        return default if self.retries is None else self.retries + 1


@dataclass(eq=False, repr=False)
class StepContext(Generic[MemoryT]):
    """The context of one attempt at a step.

    `idempotency_key` is the same for every attempt and every worker: pass it to external services. When the lease is
    lost, `lost` becomes True and the result of the step is discarded. Writes to `memory` are committed together with
    the completion of the step. `working` is restored from the checkpoint when the task resumes.
    """

    task_id: str
    step: str
    attempt: int
    idempotency_key: str
    _run_memory: RunMemory
    _write_ids: str
    _is_lost: Callable[[], bool]
    _view: Callable[[Any], Any] | None
    _memory: Any = None
    _writes: list[tuple[Store, list[Write]]] = field(default_factory=list)
    """The buffered writes, in order."""

    @property
    def lost(self) -> bool:
        """True if the lease is lost, so that another worker may have the task."""
        return self._is_lost()

    @property
    def memory(self) -> MemoryT:
        """The agent's memory; its writes are committed with the completion of the step."""
        if self._memory is None:  # most steps never use it
            twin = self._run_memory.open_twin(self._writes, self._write_ids)
            self._memory = twin if self._view is None else self._view(twin)
        return cast(MemoryT, self._memory)

    @property
    def working(self) -> WorkingMemory:
        """The working memory of the task; it is part of the checkpoint."""
        owner: Any = self._run_memory if self._view is None else self.memory
        working: WorkingMemory = owner.working
        return working


@overload
def step(function: FunctionT, /) -> FunctionT: ...
@overload
def step(
    *,
    retries: int | None = None,
    timeout: float | None = None,
    backoff: float | tuple[float, float] | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    compensate: Callable[..., Any] | None = None,
    on_unknown: UnknownOutcomePolicy = "retry",
) -> Callable[[FunctionT], FunctionT]: ...


def step(
    function: FunctionT | None = None,
    /,
    *,
    retries: int | None = None,
    timeout: float | None = None,
    backoff: float | tuple[float, float] | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    compensate: Callable[..., Any] | None = None,
    on_unknown: UnknownOutcomePolicy = "retry",
) -> FunctionT | Callable[[FunctionT], FunctionT]:
    """Set how a step is tried, timed and undone.

    `retries` counts attempts after the first, and `timeout` is in seconds for each attempt. `backoff` is the longest
    first wait in seconds, or a tuple of that and the longest wait of all. `compensate` undoes the step when a later
    step fails. `on_unknown` applies to an attempt that began and has no recorded end: "retry" it, "skip" it as done,
    or "ask", which raises `UnknownOutcome`.
    """
    if compensate is not None and not callable(compensate):
        raise BadInput(f"compensate must be a function that undoes the step; got {compensate!r:.80}")
    error_types = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in error_types):
        raise BadInput(f"retry_on must be an exception class or a tuple of them; got {retry_on!r:.80}")
    options = StepOptions(
        retries=None if retries is None else check_count("retries", retries),
        timeout=None if timeout is None else check_seconds("timeout", timeout),
        backoff=Backoff() if backoff is None else _parse_backoff(backoff),
        retry_on=error_types,
        compensate=compensate,
        on_unknown=check_choice("on_unknown", on_unknown, ("retry", "skip", "ask")),
    )
    mark: Callable[[FunctionT], FunctionT] = functools.partial(attach_options, _OPTIONS_ATTRIBUTE, options)
    return mark if function is None else mark(function)


def attach_options(attribute: str, options: Any, function: FunctionT) -> FunctionT:
    setattr(function, attribute, options)
    return function


def read_options(attribute: str, function: Callable[..., Any]) -> Any:
    """Return the options that a decorator attached to a function or to the function of a partial; None without any."""
    return getattr(function, attribute, None) or getattr(unwrap_partial(function), attribute, None)


def get_options(function: Callable[..., Any]) -> StepOptions:
    """Return the options set by `@step`, or the defaults."""
    options = read_options(_OPTIONS_ATTRIBUTE, function)
    return options if isinstance(options, StepOptions) else StepOptions()


def _parse_backoff(backoff: Any) -> Backoff:
    is_pair = isinstance(backoff, tuple) and len(backoff) == 2
    first, most = backoff if is_pair else (backoff, _MAX_BACKOFF_SECONDS)
    first, most = check_number("backoff", first), check_number("backoff", most)
    return Backoff(first, max(first, most))


def get_name(function: Callable[..., Any]) -> str:
    inner = unwrap_partial(function)
    return getattr(inner, "__name__", None) or type(inner).__name__


def is_async(function: Any) -> bool:
    inner = unwrap_partial(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def unwrap_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def takes_context(function: Callable[..., Any]) -> bool | None:
    """Return whether a step takes the context; None if it cannot be called as a step.

    The context is a second positional parameter that is required or named `ctx` or `context`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    has_context = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) or (
        len(positional) > 1
        and (positional[1].default is positional[1].empty or positional[1].name in ("ctx", "context"))
    )
    try:
        signature.bind(*((None, None) if has_context else (None,)))
    except TypeError:
        return None
    return has_context


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a plan, or its compensation; `name` is its key in the journal."""

    name: str
    function: Callable[..., Any]
    options: StepOptions
    takes_context: bool
    idempotency_key: str
    previous_name: str | None = None
    """The name under which an attempt began, if it was another; the idempotency key stays."""


def build_plan(functions: Iterable[Callable[..., Any]], space: Space, task: str) -> tuple[PlannedStep, ...]:
    """Return the steps, named `step_{index}_{function name}`; raise `BadInput` for what cannot be a step."""
    if callable(functions) or not isinstance(functions, Iterable):
        raise BadInput(f"steps must be a list of functions; got {functions!r:.80}")
    plan = []
    for index, function in enumerate(functions):
        if not callable(function):
            raise BadInput(f"step {index} must be a function of the state; got {function!r:.80}")
        has_context, name = takes_context(function), get_name(function)
        if has_context is None:
            raise BadInput(f"step {index}, {name!r}, must take the state: define it as f(state) or f(state, ctx)")
        name = f"step_{index}_{name}"
        key = make_idempotency_key(space, task, name)
        plan.append(PlannedStep(name, function, get_options(function), has_context, key))
    return tuple(plan)


def hash_plan(plan: Sequence[PlannedStep]) -> str:
    """Return the SHA-256 of the step names in order."""
    return hashlib.sha256("\n".join(planned.name for planned in plan).encode("utf-8", "surrogatepass")).hexdigest()


def make_idempotency_key(space: Space, task: str, step_name: str) -> str:
    """Return the idempotency key of a step, the same for every attempt and every worker."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (space.tenant, space.agent, task, step_name)]
    # Each part follows its length, so that ("a", "bc") and ("ab", "c") differ.
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """A plan and the state it continues from, both with the step names of the plan."""

    plan: tuple[PlannedStep, ...]
    state: State

    @property
    def pending(self) -> list[PlannedStep]:
        completed = set(self.state["completed"])
        return [planned for planned in self.plan if planned.name not in completed]


def fit_plan(
    plan: tuple[PlannedStep, ...], state: State, journal: Mapping[str, Step], on_change: PlanChangePolicy
) -> FittedPlan:
    """Match the plan with what has run; raise `PlanChanged` if a begun step is missing and `on_change` is "raise"."""
    names = {planned.name for planned in plan}
    completed = state["completed"]
    begun = [key for key, entry in journal.items() if entry.status == "started" and key not in completed]
    missing = [name for name in (*completed, *begun) if name not in names and _STEP_NAME.fullmatch(name)]
    if not missing:
        return FittedPlan(plan, state)
    if on_change == "raise":
        raise PlanChanged(
            f"step {missing[0]!r} has begun or finished, but the new plan has no such step; restore the old order and "
            'names, use another task id, or set on_plan_change="by_name"'
        )
    new_names = _match_renamed_steps(missing, [planned for planned in plan if planned.name not in completed])
    previous_names = {new_names[old]: old for old in begun if old in new_names}
    new_plan = tuple(
        replace(planned, previous_name=old, idempotency_key=journal[old].idempotency_key)
        if (old := previous_names.get(planned.name))
        else planned
        for planned in plan
    )
    new_completed = [new_names.get(name, name) for name in completed]
    results = {
        new_names.get(name, name) if name in completed else name: value for name, value in state["results"].items()
    }
    return FittedPlan(new_plan, {**state, "completed": new_completed, "results": results})


def _match_renamed_steps(missing: Sequence[str], candidates: list[PlannedStep]) -> dict[str, str]:
    """Return the new name of each missing step: the first unmatched step with the same function name."""
    new_names: dict[str, str] = {}
    for old in missing:
        function_name = old.split("_", 2)[2]
        match = next((planned for planned in candidates if get_name(planned.function) == function_name), None)
        if match is not None:
            new_names[old] = match.name
            candidates.remove(match)
    return new_names


def check_state(state: Any) -> State:
    """Return the state with its `completed` list and `results` dict; raise `BadInput` if they have other types."""
    if not isinstance(state, dict):
        raise BadInput(f"the state of a task must be a dict; got {type(state).__name__}")
    completed, results = state.get("completed", []), state.get("results", {})
    if not isinstance(completed, list) or not all(isinstance(name, str) for name in completed):
        raise BadInput('state["completed"] must be a list of step names; store other values under another key')
    if not isinstance(results, dict):
        raise BadInput('state["results"] must map step names to results; store other values under another key')
    return {**state, "completed": completed, "results": results}
