"""A step: the function, how it is tried, timed and undone, and what it is told when it runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from recollect.errors import BadInput
from recollect.runtime.mind import Thoughts

if TYPE_CHECKING:
    # For editors and checkers alone: a step may look at all of a memory, and what runs it knows nothing of one.
    from recollect.memory import AgentMemory
    from recollect.tiers.working import WorkingMemory

OnUnknown = Literal["retry", "skip", "ask"]
F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__recollect_step__"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: a random share of a time that doubles up to `most` seconds."""

    first: float = 0.5
    most: float = 30.0

    def wait(self, attempt: int, chance: float) -> float:
        return chance * min(self.most, self.first * 2.0 ** min(attempt - 1, 60))


@dataclass(frozen=True, slots=True)
class Pace:
    """The time as a running task feels it; a test gives its own and waits for nothing."""

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    beat: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.Random().random


@dataclass(frozen=True, slots=True)
class Options:
    """How a step is tried, timed and undone. `retries` None leaves the number of attempts to the agent."""

    retries: int | None = None
    timeout: float | None = None
    backoff: Backoff = Backoff()
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    compensate: Callable[..., Any] | None = None
    on_unknown: OnUnknown = "retry"

    def attempts(self, most: int) -> int:
        """How often it may be begun, in all runs together."""
        return most if self.retries is None else self.retries + 1


class StepContext:
    """What a running step is told besides the state.

    `idempotency_key` is the same for every attempt and every worker: give it to whoever acts outside. `lost` turns
    True when the lease is gone: whatever the step does from then on is discarded. What `memory` is told is kept
    together with the step's completion, or not at all; `working` comes back with the checkpoint.
    """

    def __init__(
        self,
        *,
        task_id: str,
        step: str,
        attempt: int,
        idempotency_key: str,
        thoughts: Thoughts,
        lost: Callable[[], bool],
        view: Callable[[Any], Any] | None = None,
    ) -> None:
        self.task_id = task_id
        self.step = step
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self._thoughts = thoughts
        self._lost = lost
        self._view = view

    @property
    def lost(self) -> bool:
        """Whether another worker has the task by now."""
        return self._lost()

    @property
    def memory(self) -> AgentMemory:
        """The memory the agent was made with; what it is told is kept with the step's completion."""
        memory: AgentMemory = self._thoughts.memory
        return memory if self._view is None else self._view(memory)

    @property
    def working(self) -> WorkingMemory:
        """The task at hand; it comes back with the checkpoint."""
        if self._view is not None:
            return self.memory.working
        working: WorkingMemory = self._thoughts.working
        return working


@overload
def step(function: F, /) -> F: ...
@overload
def step(
    *,
    retries: int | None = None,
    timeout: float | None = None,
    backoff: float | tuple[float, float] | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    compensate: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "retry",
) -> Callable[[F], F]: ...


def step(
    function: F | None = None,
    /,
    *,
    retries: int | None = None,
    timeout: float | None = None,
    backoff: float | tuple[float, float] | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    compensate: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "retry",
) -> F | Callable[[F], F]:
    """Say how a step is tried: attempts after the first, seconds for each, waits between, what to undo it with.

    `backoff` is the longest first wait in seconds, or that and the longest of all; `on_unknown` says what to do about
    an attempt that began and never ended: `retry` it, `skip` it as done, or `ask`, which raises `UnknownOutcome`.
    """
    options = Options(
        retries=_checked_retries(retries),
        timeout=_checked_seconds("timeout", timeout),
        backoff=_checked_backoff(backoff),
        retry_on=_checked_errors(retry_on),
        compensate=_checked_callable(compensate),
        on_unknown=_checked_policy(on_unknown),
    )

    def marked(function: F) -> F:
        setattr(function, _MARK, options)
        return function

    return marked if function is None else marked(function)


def options_of(function: Callable[..., Any]) -> Options:
    """As the decorator said, or the defaults of a plain function."""
    found = getattr(function, _MARK, None) or getattr(_inner(function), _MARK, None)
    return found if isinstance(found, Options) else Options()


def name_of(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    return getattr(inner, "__name__", None) or type(inner).__name__


async def call(function: Callable[..., Any], state: dict[str, Any], context: StepContext) -> Any:
    """Run a step: coroutines on the loop, plain functions in a thread."""
    given = (state, context) if _takes_context(function) else (state,)
    if is_async(function):
        return await function(*given)
    answer = await asyncio.to_thread(function, *given)
    return await answer if inspect.isawaitable(answer) else answer


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_async(function: Any) -> bool:
    inner = _inner(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def takes_state(function: Callable[..., Any]) -> bool:
    """Whether it can be called as a step at all: with the state, and perhaps the context, and nothing else."""
    given = (None, None) if _takes_context(function) else (None,)
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        return False
    except ValueError:  # some built-in functions do not say
        return True
    return True


def _takes_context(function: Callable[..., Any]) -> bool:
    """Whether there is a second place that has to be filled; one with a default is the function's own affair."""
    if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
        return _takes_context_by_code(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions do not say
        return False
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return True
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and (places[1].default is places[1].empty or places[1].name in ("ctx", "context"))


def _takes_context_by_code(function: FunctionType) -> bool:
    """The same of a plain function, read from its code: a signature takes longer than some steps."""
    code, filled = function.__code__, function.__code__.co_argcount - len(function.__defaults__ or ())
    named = code.co_argcount > 1 and code.co_varnames[1] in ("ctx", "context")
    return filled > 1 or named or bool(code.co_flags & inspect.CO_VARARGS)


def _checked_retries(retries: Any) -> int | None:
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        raise BadInput(f"retries is how often a step is tried again, a whole number from 0, not {retries!r:.80}")
    return retries


def _checked_seconds(name: str, seconds: Any) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise BadInput(f"{name} is a number of seconds above 0, not {seconds!r:.80}")
    return float(seconds)


def _checked_backoff(backoff: Any) -> Backoff:
    if backoff is None:
        return Backoff()
    first, most = backoff if isinstance(backoff, tuple) and len(backoff) == 2 else (backoff, 30.0)
    for seconds in (first, most):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise BadInput(
                f"backoff is a number of seconds, or two: the first wait and the longest, not {backoff!r:.80}"
            )
    return Backoff(float(first), float(max(first, most)))


def _checked_errors(errors: Any) -> tuple[type[BaseException], ...]:
    given = errors if isinstance(errors, tuple) else (errors,)
    if not all(isinstance(one, type) and issubclass(one, Exception) for one in given):
        raise BadInput(f"retry_on is an exception class or a tuple of them, not {errors!r:.80}")
    return given


def _checked_callable(compensate: Any) -> Callable[..., Any] | None:
    if compensate is not None and not callable(compensate):
        raise BadInput(f"compensate is a function that undoes the step, not {compensate!r:.80}")
    return compensate  # type: ignore[no-any-return]


def _checked_policy(policy: Any) -> OnUnknown:
    if policy not in ("retry", "skip", "ask"):
        raise BadInput(f"on_unknown is 'retry', 'skip' or 'ask', not {policy!r:.80}")
    return policy  # type: ignore[no-any-return]
