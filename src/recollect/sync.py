"""Blocking API: the classes of `recollect` for code without `await`. Calls run on an event loop in a thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from recollect.agent.agent import AgentWithMemory as _AsyncAgentWithMemory
from recollect.agent.prompt import create_memory_aware_prompt as _async_prompt
from recollect.agent.run import AgentRun
from recollect.durable import Checkpoints as _AsyncCheckpoints
from recollect.durable import ResumableAgent as _AsyncAgent
from recollect.engine import Opening, build_not_opened_error
from recollect.errors import BadInput, StoreClosed
from recollect.lifecycle import Lifecycle as _AsyncLifecycle
from recollect.memory import AgentMemory as _AsyncMemory
from recollect.tiers.conversation import ConversationMemory as _AsyncConversation
from recollect.tiers.episodic import EpisodicMemory as _AsyncEpisodic
from recollect.tiers.messages import MessageItem
from recollect.tiers.procedural import ProceduralMemory as _AsyncProcedural
from recollect.tiers.quarantine import Quarantine as _AsyncQuarantine
from recollect.tiers.semantic import SemanticMemory as _AsyncSemantic
from recollect.tiers.working import WorkingMemory as _AsyncWorking
from recollect.types import Scope

P = ParamSpec("P")
R = TypeVar("R")


class _LoopThread:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recollect-sync", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine on the loop and return its result; an interrupt cancels it."""
        if threading.current_thread() is self._thread:
            raise BadInput("a callback must not call the memory that runs it: the call would wait forever")
        with self._lock:
            if self._stopped:
                raise StoreClosed("this memory was closed; open it again")
            future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, close: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `close` and stop the loop; do nothing if it has stopped."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        try:
            if close is not None:
                asyncio.run_coroutine_threadsafe(close(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


def _run_on_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls `method` on the loop, with its name, docstring and types."""

    @functools.wraps(method)
    def wait(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        async def call() -> Any:
            result = method(self._real, *args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._loop.run(call)  # type: ignore[no-any-return]

    return wait  # type: ignore[return-value]


def _make_blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs the async `method` and waits for the result."""
    return _run_on_loop(method)  # type: ignore[arg-type]


def _forward(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls the plain `method` in the thread of the caller."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._real, *args, **kwargs)

    return call  # type: ignore[return-value]


class _Attribute(Generic[R]):
    """Attribute of the async object, read in the thread of the caller."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, part: Any, owner: type) -> R:
        if part is None:
            return self  # type: ignore[return-value]
        return getattr(part._real, self._name)  # type: ignore[no-any-return]


class _BlockingPart:
    def __init__(self, real: Any, loop: _LoopThread) -> None:
        self._real = real
        self._loop = loop


class _Closing:
    """Context manager that closes itself."""

    close: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SemanticMemory(_BlockingPart):
    """Blocking `recollect.SemanticMemory`."""

    add = _make_blocking(_AsyncSemantic.add)
    add_many = _make_blocking(_AsyncSemantic.add_many)
    get = _make_blocking(_AsyncSemantic.get)
    search = _make_blocking(_AsyncSemantic.search)
    update_importance = _make_blocking(_AsyncSemantic.update_importance)
    forget = _make_blocking(_AsyncSemantic.forget)
    consolidate = _make_blocking(_AsyncSemantic.consolidate)
    history = _make_blocking(_AsyncSemantic.history)
    page = _make_blocking(_AsyncSemantic.page)


class ConversationMemory(_BlockingPart):
    """Blocking `recollect.ConversationMemory`."""

    # Metadata may have a key `self`, which the type checker rejects.
    add_message = _make_blocking(_AsyncConversation.add_message)  # type: ignore[arg-type]
    get_messages_for_llm = _make_blocking(_AsyncConversation.get_messages_for_llm)
    search = _make_blocking(_AsyncConversation.search)
    get_last_n = _make_blocking(_AsyncConversation.get_last_n)
    summary = _make_blocking(_AsyncConversation.summary)
    clear = _make_blocking(_AsyncConversation.clear)
    export = _make_blocking(_AsyncConversation.export)
    import_from = _make_blocking(_AsyncConversation.import_from)


class EpisodicMemory(_BlockingPart):
    """Blocking `recollect.EpisodicMemory`."""

    store = _make_blocking(_AsyncEpisodic.store)
    get_recent = _make_blocking(_AsyncEpisodic.get_recent)
    search = _make_blocking(_AsyncEpisodic.search)
    sessions = _make_blocking(_AsyncEpisodic.sessions)


class ProceduralMemory(_BlockingPart):
    """Blocking `recollect.ProceduralMemory`."""

    save = _make_blocking(_AsyncProcedural.save)
    get = _make_blocking(_AsyncProcedural.get)
    record_outcome = _make_blocking(_AsyncProcedural.record_outcome)
    success_rate = _make_blocking(_AsyncProcedural.success_rate)
    best = _make_blocking(_AsyncProcedural.best)
    all = _make_blocking(_AsyncProcedural.all)
    keys = _make_blocking(_AsyncProcedural.keys)
    search = _make_blocking(_AsyncProcedural.search)
    history = _make_blocking(_AsyncProcedural.history)
    retire = _make_blocking(_AsyncProcedural.retire)
    rollback = _make_blocking(_AsyncProcedural.rollback)


class Quarantine(_BlockingPart):
    """Blocking quarantine of a memory."""

    list = _make_blocking(_AsyncQuarantine.list)
    get = _make_blocking(_AsyncQuarantine.get)
    approve = _make_blocking(_AsyncQuarantine.approve)
    drop = _make_blocking(_AsyncQuarantine.drop)


class Lifecycle(_BlockingPart):
    """Blocking lifecycle of a memory. After `start` it runs in the thread of the memory."""

    run_once = _make_blocking(_AsyncLifecycle.run_once)
    plan = _make_blocking(_AsyncLifecycle.plan)
    start = _run_on_loop(_AsyncLifecycle.start)
    stop = _make_blocking(_AsyncLifecycle.stop)


class Checkpoints(_BlockingPart):
    """Blocking checkpoints of a memory."""

    checkpoint = _make_blocking(_AsyncCheckpoints.checkpoint)
    restore = _make_blocking(_AsyncCheckpoints.restore)
    history = _make_blocking(_AsyncCheckpoints.history)
    tasks = _make_blocking(_AsyncCheckpoints.tasks)
    task = _make_blocking(_AsyncCheckpoints.task)
    steps = _make_blocking(_AsyncCheckpoints.steps)
    retry = _make_blocking(_AsyncCheckpoints.retry)
    skip = _make_blocking(_AsyncCheckpoints.skip)
    cancel = _make_blocking(_AsyncCheckpoints.cancel)
    delete = _make_blocking(_AsyncCheckpoints.delete)


class WorkingMemory(_BlockingPart):
    """Blocking `recollect.WorkingMemory`."""

    add = _make_blocking(_AsyncWorking.add)
    set_task = _forward(_AsyncWorking.set_task)
    add_result = _forward(_AsyncWorking.add_result)
    get_result = _forward(_AsyncWorking.get_result)
    add_thought = _forward(_AsyncWorking.add_thought)
    set_variable = _forward(_AsyncWorking.set_variable)
    get_variable = _forward(_AsyncWorking.get_variable)
    push_subgoal = _forward(_AsyncWorking.push_subgoal)
    pop_subgoal = _forward(_AsyncWorking.pop_subgoal)
    get_context_string = _forward(_AsyncWorking.get_context_string)
    get_context_block = _forward(_AsyncWorking.get_context_block)
    snapshot = _forward(_AsyncWorking.snapshot)
    clear = _forward(_AsyncWorking.clear)

    task = _Attribute[str]()
    task_id = _Attribute[str]()
    current_goal = _Attribute[str]()
    subgoals = _Attribute[list[str]]()
    results = _Attribute[dict[str, Any]]()
    scratchpad = _Attribute[list[str]]()
    variables = _Attribute[dict[str, Any]]()
    items = _Attribute[list[MessageItem]]()
    summaries = _Attribute[list[str]]()
    current_tokens = _Attribute[int]()
    warnings = _Attribute[list[str]]()
    is_empty = _Attribute[bool]()


def _open_memory(open: Callable[P, Opening[_AsyncMemory]]) -> Callable[P, AgentMemory]:
    """Return a function that opens a memory on a loop of its own, with the arguments of `open`."""

    @functools.wraps(open)
    def open_blocking(*args: P.args, **kwargs: P.kwargs) -> AgentMemory:
        loop = _LoopThread()

        async def begin() -> _AsyncMemory:
            return await open(*args, **kwargs)

        try:
            return AgentMemory(loop.run(begin), loop, is_view=False)
        except BaseException:
            loop.stop()
            raise

    return open_blocking


class AgentMemory(_Closing):
    """Blocking `recollect.AgentMemory`: `with AgentMemory.open("agent.db") as memory: …`."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if not args or not isinstance(args[0], _AsyncMemory):
            raise build_not_opened_error("with AgentMemory.open(…) as memory")
        return super().__new__(cls)

    def __init__(self, real: _AsyncMemory, loop: _LoopThread, *, is_view: bool = True) -> None:
        self._real = real
        self._loop = loop
        self._is_view = is_view
        self.conversation = ConversationMemory(real.conversation, loop)
        self.episodic = EpisodicMemory(real.episodic, loop)
        self.semantic = SemanticMemory(real.semantic, loop)
        self.quarantine = Quarantine(real.quarantine, loop)
        self.procedural = ProceduralMemory(real.procedural, loop)
        self.checkpoints = Checkpoints(real.checkpoints, loop)
        self.lifecycle = Lifecycle(real.lifecycle, loop)

    open = staticmethod(_open_memory(_AsyncMemory.open))
    remember = _make_blocking(_AsyncMemory.remember)
    recall = _make_blocking(_AsyncMemory.recall)
    record_turn = _make_blocking(_AsyncMemory.record_turn)
    start_task = _make_blocking(_AsyncMemory.start_task)
    resume_task = _make_blocking(_AsyncMemory.resume_task)
    record_step = _make_blocking(_AsyncMemory.record_step)
    end_task = _make_blocking(_AsyncMemory.end_task)
    forget = _make_blocking(_AsyncMemory.forget)
    forget_source = _make_blocking(_AsyncMemory.forget_source)
    export = _make_blocking(_AsyncMemory.export)
    import_from = _make_blocking(_AsyncMemory.import_from)
    backup = _make_blocking(_AsyncMemory.backup)
    stats = _make_blocking(_AsyncMemory.stats)
    erase = _make_blocking(_AsyncMemory.erase)
    erasures = _make_blocking(_AsyncMemory.erasures)
    verify_erasure = _make_blocking(_AsyncMemory.verify_erasure)
    check = _make_blocking(_AsyncMemory.check)
    doctor = _make_blocking(_AsyncMemory.doctor)
    reembed = _make_blocking(_AsyncMemory.reembed)

    scope = _Attribute[Scope]()

    @property
    def working(self) -> WorkingMemory:
        return WorkingMemory(self._real.working, self._loop)  # an import replaces the working memory

    def scoped(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        tenant: str | None = None,
    ) -> AgentMemory:
        """Return a view of the same stores under another scope. Closing a view does nothing; close its owner."""
        return AgentMemory(self._real.scoped(user=user, agent=agent, session=session, tenant=tenant), self._loop)

    def close(self) -> None:
        """Release files and threads; safe to call twice."""
        if not self._is_view:
            self._loop.stop(self._real.close)


class StepContext(Protocol):
    """Second argument of a blocking step; see `recollect.StepContext`."""

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


def _construct(build: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[Any, AgentMemory, P], None]:
    """Return a constructor that builds the async object for the memory behind a blocking one."""

    @functools.wraps(build.__init__)
    def construct(self: Any, memory: AgentMemory, *args: P.args, **kwargs: P.kwargs) -> None:
        real = build(memory._real, *args, **kwargs)
        if isinstance(real, _AsyncAgent):  # its steps get a blocking memory
            real._set_memory_view(lambda twin: AgentMemory(twin, memory._loop))
        _BlockingPart.__init__(self, real, memory._loop)

    return construct  # type: ignore[return-value]


class ResumableAgent(_BlockingPart):
    """Blocking `recollect.ResumableAgent`; the steps are plain functions, each run in a thread."""

    __init__ = _construct(_AsyncAgent)
    run = _make_blocking(_AsyncAgent.run)


class AgentWithMemory(_BlockingPart, _Closing):
    """Blocking `recollect.AgentWithMemory`; tools that are plain functions each run in a thread."""

    __init__ = _construct(_AsyncAgentWithMemory)
    run = _make_blocking(_AsyncAgentWithMemory.run)
    close = _make_blocking(_AsyncAgentWithMemory.close)

    last_run = _Attribute[AgentRun | None]()
    """Newest run, also if it failed, with its steps, recalled context and cost."""


@functools.wraps(_async_prompt)
def create_memory_aware_prompt(memory: AgentMemory, task: str, *, include_history: bool = True) -> str:
    return memory._loop.run(lambda: _async_prompt(memory._real, task, include_history=include_history))
