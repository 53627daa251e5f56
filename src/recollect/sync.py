"""The same memory for code that does not await: every call runs on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from recollect.agent.agent import AgentWithMemory as _AsyncAgentWithMemory
from recollect.agent.prompt import create_memory_aware_prompt as _async_prompt
from recollect.agent.run import Run
from recollect.errors import BadInput, StoreClosed
from recollect.lifecycle import Lifecycle as _AsyncLifecycle
from recollect.memory import AgentMemory as _AsyncMemory
from recollect.memory.opening import not_opened
from recollect.runtime import Checkpoints as _AsyncCheckpoints
from recollect.runtime import ResumableAgent as _AsyncAgent
from recollect.tiers.conversation import ConversationMemory as _AsyncConversation
from recollect.tiers.episodic import EpisodicMemory as _AsyncEpisodic
from recollect.tiers.procedural import ProceduralMemory as _AsyncProcedural
from recollect.tiers.quarantine import Quarantine as _AsyncQuarantine
from recollect.tiers.semantic import SemanticMemory as _AsyncSemantic
from recollect.tiers.working import WorkingMemory as _AsyncWorking

P = ParamSpec("P")
R = TypeVar("R")


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recollect-sync", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        if threading.current_thread() is self._thread:
            raise BadInput("this was called from within one of its own callbacks, where waiting would never end")
        with self._gate:
            if self._stopped:
                raise StoreClosed("this memory was closed; open it again")
            answer = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return answer.result()
        except BaseException:  # an interrupt here has to reach the work there
            answer.cancel()
            raise

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Do one last thing and end; whoever comes second finds it done."""
        with self._gate:
            if self._stopped:
                return
            self._stopped = True
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """The same method, waiting for its answer; name, docstring and types carry over."""

    @functools.wraps(method)
    def wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(lambda: method(self._real, *args, **kwargs))  # type: ignore[no-any-return]

    return wait  # type: ignore[return-value]


def _on_its_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The same for a method that is not awaited, but begins something that goes on there."""

    @functools.wraps(method)
    def wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        async def begun() -> R:
            return method(self._real, *args, **kwargs)

        return self._loop.run(begun)  # type: ignore[no-any-return]

    return wait  # type: ignore[return-value]


class _Part:
    """A tier behind the same thread."""

    def __init__(self, real: Any, loop: _Loop) -> None:
        self._real = real
        self._loop = loop


class SemanticMemory(_Part):
    """What is known, without await."""

    add = _blocking(_AsyncSemantic.add)
    add_many = _blocking(_AsyncSemantic.add_many)
    get = _blocking(_AsyncSemantic.get)
    search = _blocking(_AsyncSemantic.search)
    update_importance = _blocking(_AsyncSemantic.update_importance)
    forget = _blocking(_AsyncSemantic.forget)
    consolidate = _blocking(_AsyncSemantic.consolidate)
    history = _blocking(_AsyncSemantic.history)
    page = _blocking(_AsyncSemantic.page)


class ConversationMemory(_Part):
    """The dialogue, without await."""

    # A message's metadata may have any name, `self` among them, which is all that the checker has against it.
    add_message = _blocking(_AsyncConversation.add_message)  # type: ignore[arg-type]
    get_messages_for_llm = _blocking(_AsyncConversation.get_messages_for_llm)
    search = _blocking(_AsyncConversation.search)
    get_last_n = _blocking(_AsyncConversation.get_last_n)
    summary = _blocking(_AsyncConversation.summary)
    trust = _blocking(_AsyncConversation.trust)
    settle = _blocking(_AsyncConversation.settle)
    clear = _blocking(_AsyncConversation.clear)
    export = _blocking(_AsyncConversation.export)
    import_from = _blocking(_AsyncConversation.import_from)


class EpisodicMemory(_Part):
    """What happened, without await."""

    store = _blocking(_AsyncEpisodic.store)
    get_recent = _blocking(_AsyncEpisodic.get_recent)
    search = _blocking(_AsyncEpisodic.search)
    matching = _blocking(_AsyncEpisodic.matching)
    sessions = _blocking(_AsyncEpisodic.sessions)


class ProceduralMemory(_Part):
    """How to do things, without await."""

    save = _blocking(_AsyncProcedural.save)
    get = _blocking(_AsyncProcedural.get)
    record_outcome = _blocking(_AsyncProcedural.record_outcome)
    success_rate = _blocking(_AsyncProcedural.success_rate)
    best = _blocking(_AsyncProcedural.best)
    all = _blocking(_AsyncProcedural.all)
    keys = _blocking(_AsyncProcedural.keys)
    search = _blocking(_AsyncProcedural.search)
    history = _blocking(_AsyncProcedural.history)
    retire = _blocking(_AsyncProcedural.retire)
    rollback = _blocking(_AsyncProcedural.rollback)


class Quarantine(_Part):
    """What waits to be read, without await."""

    list = _blocking(_AsyncQuarantine.list)
    get = _blocking(_AsyncQuarantine.get)
    approve = _blocking(_AsyncQuarantine.approve)
    drop = _blocking(_AsyncQuarantine.drop)


class Lifecycle(_Part):
    """What keeps memory small and true, without await; once started it goes on in the memory's own thread."""

    run_once = _blocking(_AsyncLifecycle.run_once)
    plan = _blocking(_AsyncLifecycle.plan)
    start = _on_its_loop(_AsyncLifecycle.start)
    stop = _blocking(_AsyncLifecycle.stop)


class Checkpoints(_Part):
    """The states of tasks by version, without await."""

    checkpoint = _blocking(_AsyncCheckpoints.checkpoint)
    restore = _blocking(_AsyncCheckpoints.restore)
    history = _blocking(_AsyncCheckpoints.history)
    tasks = _blocking(_AsyncCheckpoints.tasks)
    task = _blocking(_AsyncCheckpoints.task)
    steps = _blocking(_AsyncCheckpoints.steps)
    retry = _blocking(_AsyncCheckpoints.retry)
    skip = _blocking(_AsyncCheckpoints.skip)
    cancel = _blocking(_AsyncCheckpoints.cancel)
    delete = _blocking(_AsyncCheckpoints.delete)


class WorkingMemory(_Part):
    """The task at hand, without await: what is not awaited anyway is passed through."""

    add = _blocking(_AsyncWorking.add)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class AgentMemory:
    """Memory for one scope, without await: `with AgentMemory.open("agent.db") as memory: …`."""

    def __new__(cls, *given: Any, **named: Any) -> Self:
        if not given or not isinstance(given[0], _AsyncMemory):
            raise not_opened("with AgentMemory.open(…) as memory")
        return super().__new__(cls)

    def __init__(self, real: _AsyncMemory, loop: _Loop) -> None:
        self._real = real
        self._loop = loop
        self.conversation = ConversationMemory(real.conversation, loop)
        self.episodic = EpisodicMemory(real.episodic, loop)
        self.semantic = SemanticMemory(real.semantic, loop)
        self.quarantine = Quarantine(real.quarantine, loop)
        self.procedural = ProceduralMemory(real.procedural, loop)
        self.checkpoints = Checkpoints(real.checkpoints, loop)
        self.lifecycle = Lifecycle(real.lifecycle, loop)

    @classmethod
    def open(cls, store: str | Path | dict[str, str] | None = None, **options: Any) -> AgentMemory:
        """As `recollect.AgentMemory.open`."""
        loop = _Loop()

        async def opened() -> _AsyncMemory:
            return await _AsyncMemory.open(store, **options)

        try:
            return cls(loop.run(opened), loop)
        except BaseException:
            loop.stop()
            raise

    remember = _blocking(_AsyncMemory.remember)
    recall = _blocking(_AsyncMemory.recall)
    record_turn = _blocking(_AsyncMemory.record_turn)
    start_task = _blocking(_AsyncMemory.start_task)
    record_step = _blocking(_AsyncMemory.record_step)
    end_task = _blocking(_AsyncMemory.end_task)
    forget = _blocking(_AsyncMemory.forget)
    forget_source = _blocking(_AsyncMemory.forget_source)
    export = _blocking(_AsyncMemory.export)
    import_from = _blocking(_AsyncMemory.import_from)
    backup = _blocking(_AsyncMemory.backup)
    stats = _blocking(_AsyncMemory.stats)
    erase = _blocking(_AsyncMemory.erase)
    erasures = _blocking(_AsyncMemory.erasures)
    verify_erasure = _blocking(_AsyncMemory.verify_erasure)
    check = _blocking(_AsyncMemory.check)
    doctor = _blocking(_AsyncMemory.doctor)
    reembed = _blocking(_AsyncMemory.reembed)

    @property
    def scope(self) -> Any:
        return self._real.scope

    @property
    def working(self) -> WorkingMemory:
        return WorkingMemory(self._real.working, self._loop)  # an import may have put another in its place

    def scoped(self, **parts: str | None) -> AgentMemory:
        """The same stores under another scope; closing either closes both."""
        return AgentMemory(self._real.scoped(**parts), self._loop)

    def close(self) -> None:
        """Let go of files and threads; safe to call twice."""
        self._loop.stop(self._real.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StepContext(Protocol):
    """What a plain step is told besides the state, for its annotation; see `recollect.StepContext`."""

    task_id: str
    step: str
    attempt: int
    idempotency_key: str

    @property
    def lost(self) -> bool: ...
    @property
    def memory(self) -> AgentMemory: ...
    @property
    def working(self) -> WorkingMemory: ...


class ResumableAgent(_Part):
    """Runs tasks that survive crashes, without await; the steps are plain functions, each run in a thread."""

    def __init__(self, memory: AgentMemory, **options: Any) -> None:
        real = _AsyncAgent(memory._real, **options)
        real.seen_as(lambda twin: AgentMemory(twin, memory._loop))
        super().__init__(real, memory._loop)

    run = _blocking(_AsyncAgent.run)


class AgentWithMemory(_Part):
    """A model with tools and memory, without await; tools that are plain functions each run in a thread."""

    def __init__(
        self, memory: AgentMemory, tools: Iterable[Any] = (), model: Any = "anthropic:claude-sonnet-5", **options: Any
    ) -> None:
        super().__init__(_AsyncAgentWithMemory(memory._real, tools, model, **options), memory._loop)

    run = _blocking(_AsyncAgentWithMemory.run)
    close = _blocking(_AsyncAgentWithMemory.close)

    @property
    def last_run(self) -> Run | None:
        """The newest run, also one that failed: its steps, what was recalled, what it cost."""
        return self._real.last_run  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@functools.wraps(_async_prompt)
def create_memory_aware_prompt(memory: AgentMemory, task: str, *, include_history: bool = True) -> str:
    return memory._loop.run(lambda: _async_prompt(memory._real, task, include_history=include_history))
