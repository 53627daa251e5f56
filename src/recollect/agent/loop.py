"""The agent's loop: recall, ask the model, call the tools it requests, and repeat until it answers."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recollect.agent import prompt
from recollect.agent.journal import LearningRecorder, RunJournal, RunRecorder
from recollect.agent.memory_tools import MemoryTools
from recollect.agent.prompt import Compaction
from recollect.agent.run import AGENT_TRUST, AgentEventEmitter, AgentRun, AgentStep, StopReason, ToolUse, TrustTracker
from recollect.agent.tools import InvalidArgument, Tool, ToolOutcome, format_tool_result
from recollect.durable.events import describe_error
from recollect.durable.failpoints import reach_failpoint
from recollect.errors import ModelFailed, RecollectError, UnknownOutcome
from recollect.language.analysis import count_tokens
from recollect.memory import AgentMemory
from recollect.models.chat import ChatMessage, ChatModel, Reply, ToolCall, Usage, accepts_may_call, mark_truncated_call
from recollect.models.llm import CallableChat, LanguageModel, WorkerThreads
from recollect.retrieval.sources import gather_all
from recollect.tiers.messages import truncate_text

# A tool that ended the process this often is not called again.
_MAX_TOOL_ATTEMPTS = 5
_MAX_STEP_NAME_LENGTH = 64
_MAX_ERROR_LENGTH = 100_000
# Seconds. The models' clients have shorter timeouts; this one is for a model of the user's own.
_MODEL_TIMEOUT = 1200.0

_STEPS_USED_UP = (
    "All the steps that this task may take are used up, and no tool is called any more. Answer now with what you have, "
    "and say what is still open."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    memory: AgentMemory
    model: ChatModel
    tools: Mapping[str, Tool]
    max_steps: int
    instructions: str
    memory_tools: bool
    learn: bool
    tool_timeout: float
    max_context: int
    summarizer: LanguageModel | None
    threads: WorkerThreads = field(default_factory=lambda: WorkerThreads("recollect-tool"))


class AgentLoop:
    """One run, from its start or from where its journal ends. Each tool result is committed at once."""

    def __init__(
        self, config: AgentConfig, journal: RunJournal, events: AgentEventEmitter, task: str, task_id: str | None
    ) -> None:
        self._config = config
        self._journal = journal
        self._events = events
        self._trust = TrustTracker()
        self._recorder = (LearningRecorder if config.learn else RunRecorder)(config.memory, task, events)
        # A callable model never calls tools.
        with_memory_tools = config.memory_tools and not isinstance(config.model, CallableChat)
        memory_tools = MemoryTools(config.memory, self._trust).build_tools() if with_memory_tools else []
        # A tool of the user's replaces a memory tool of the same name.
        self._tools = {tool.spec.name: tool for tool in memory_tools} | dict(config.tools)
        self._messages: list[ChatMessage] = []
        self._start = 0
        self.run = AgentRun(task=task, task_id=task_id)

    async def run_to_end(self) -> AgentRun:
        """Run until there is an answer, and record the outcome in memory."""
        try:
            await self._begin()
            stopped, answer = await self._run_steps()
        except Exception as error:
            # A run with an id can be resumed, so it has not failed yet.
            if self.run.task_id is None and self._config.learn:
                await self._recorder.end(False, describe_error(error), self._trust.trust)
            raise
        if "answer" not in self._journal.values:
            value = {"text": answer, "stopped": stopped, "trust": self._trust.trust}
            await self._journal.commit({"answer": value}, status="done")
        self.run = replace(self.run, answer=answer, stopped=stopped, trust=self._trust.trust)
        if await self._recorder.end(stopped == "end", answer, self._trust.trust):
            await self._journal.commit({"learned": True})
        self._events.emit("answered", step=len(self.run.steps), text=answer)
        return self.run

    async def _begin(self) -> None:
        """Recall once and keep the result: every step, also after a crash, uses the same system prompt."""
        begin = self._journal.values.get("begin")
        if begin is None:
            begin = await self._recall()
            await self._journal.commit({"begin": begin})
        else:
            self._trust.restore(begin["trust"], begin["shown"], begin["doubtful"])
            self.run = replace(self.run, resumed=True)
            known_ids = self._journal.values.get("memory") or [begin["memory"]]
            ids = await self._recorder.resume(known_ids, answered="answer" in self._journal.values)
            if ids != known_ids:
                await self._journal.commit({"memory": ids})
            replies = next(number for number in itertools.count(1) if f"reply_{number}" not in self._journal.values)
            self._events.emit("resumed", step=replies)
        history = [ChatMessage(message["role"], message["content"]) for message in begin["history"]]
        self._messages = [*history, ChatMessage("user", self.run.task)]
        self._start = len(self._messages)
        self.run = replace(self.run, system=begin["system"], trust=self._trust.trust)

    async def _recall(self) -> dict[str, Any]:
        memory, task = self._config.memory, self.run.task
        messages = prompt.drop_task_message(await memory.conversation.get_messages_for_llm(), task)
        context = await memory.recall(task, budget=prompt.MEMORY_TOKENS)
        instructions, history = prompt.build_history(messages)
        block, hits = prompt.exclude_session(context, memory.scope.session)
        self._trust.record_hits(hits)
        conversation_trust = min(AGENT_TRUST, await memory.conversation._compute_trust())
        self._trust.record_read("an earlier answer that is unverified", conversation_trust)
        self.run = replace(self.run, recalled=context)
        self._events.emit("recalled", text=block)
        return {
            "system": prompt.build_system_prompt(block, self._config.instructions, instructions),
            "history": [{"role": message.role, "content": message.content} for message in history],
            "memory": await self._recorder.begin(),
            "trust": self._trust.trust,
            "shown": sorted(self._trust.shown_ids),
            "doubtful": self._trust.untrusted_sources,
        }

    async def _run_steps(self) -> tuple[StopReason, str]:
        last = self._config.max_steps + 1
        for number in range(1, last):
            reply = await self._next_reply(number)
            if not reply.tool_calls or reply.stop == "refusal":
                self._append_step(number, reply, ())
                return "end" if reply.stop == "tools" else reply.stop, _extract_answer(reply, self._config.model)
            await self._call_tools(number, reply)
        self._messages.append(ChatMessage("user", _STEPS_USED_UP))
        reply = await self._next_reply(last, may_call=False)
        self._append_step(last, reply, ())
        return "max_steps", _extract_answer(reply, self._config.model)

    async def _next_reply(self, number: int, *, may_call: bool = True) -> Reply:
        """Return a stored or new reply; a new one is committed together with the start of its tool calls."""
        await self._compact(number)
        name = f"reply_{number}"
        stored = self._journal.values.get(name)
        if stored is not None:
            reply = prompt.reply_from_json(stored)
            self._check_journal(number, reply, is_stored=True)
        else:
            self._events.emit("thinking", step=number)
            answer = await self._journal.guard(self._ask_model(number, may_call=may_call))
            reply = prompt.normalize_reply(answer, number)
            if reply.stop == "length":
                reply = replace(reply, tool_calls=mark_truncated_call(reply.tool_calls))
            self._check_journal(number, reply, is_stored=False)
            calls_tools = may_call and reply.tool_calls and reply.stop != "refusal"
            if not calls_tools:
                _extract_answer(reply, self._config.model)  # raises for an empty answer, which must not be committed
            # Calls that an earlier process started are in the journal already, perhaps with their results.
            started = self._journal.find_started_inputs(f"tool_{number}_")
            begin = {call: sha for call, sha in hash_inputs(number, reply).items() if call not in started}
            await self._journal.commit({name: prompt.reply_to_json(reply)}, begin=begin if calls_tools else {})
        self._messages.append(ChatMessage("assistant", reply.text, reply.tool_calls))
        return reply

    async def _ask_model(self, number: int, *, may_call: bool) -> Reply:
        model, events = self._config.model, self._events
        ask = model.reply if may_call or not accepts_may_call(model) else functools.partial(model.reply, may_call=False)
        try:
            async with asyncio.timeout(_MODEL_TIMEOUT):
                # The tools are sent even if none may be called: providers need them for the calls in the dialogue.
                return await ask(
                    tuple(self._messages),
                    system=self.run.system,
                    tools=[tool.spec for tool in self._tools.values()],
                    on_text=(lambda piece: events.emit_text(number, piece)) if events.has_listeners else None,
                )
        except RecollectError:
            raise
        except Exception as error:
            raise ModelFailed(f"the model {model.name!r} failed with {describe_error(error)}") from error

    async def _compact(self, number: int) -> None:
        name = f"compaction_{number}"
        compaction = Compaction.from_json(self._journal.values.get(name))
        if compaction is None or not compaction.is_applicable(self._messages, self._start):
            if f"reply_{number}" in self._journal.values:
                return
            compaction = await prompt.plan_compaction(
                self._messages, self._start, self._config.max_context, self._config.summarizer
            )
            if compaction is None:
                return
            await self._journal.commit({name: asdict(compaction)})
            self._events.emit("compacted", step=number, text=compaction.summary)
        self._messages = compaction.apply(self._messages, self._start)

    async def _call_tools(self, number: int, reply: Reply) -> None:
        """Call the tools of a reply concurrently, and append the results in the order of the calls."""
        inputs = hash_inputs(number, reply)
        calls = list(zip(inputs, reply.tool_calls, strict=True))
        for name, call in calls:
            await self._begin_call(name, call, inputs[name])
        limit = prompt.limit_result(self._config.max_context, len(calls))
        outcomes = await self._journal.guard(
            gather_all(*(self._get_outcome(number, name, call, limit) for name, call in calls))
        )
        uses = []
        for (name, call), outcome in zip(calls, outcomes, strict=True):
            key = self._journal.make_idempotency_key(name)
            uses.append(ToolUse(call.name, dict(call.arguments), outcome.text, outcome.failed, call.id, key))
            self._trust.record_read(f"what {call.name!r} returned", outcome.trust, outcome.shown_ids)
            self._messages.append(ChatMessage("tool", outcome.text, call_id=call.id, failed=outcome.failed))
        self._append_step(number, reply, tuple(uses))
        if f"reply_{number + 1}" in self._journal.values:
            self._recorder.step_count += len(uses)  # an earlier process has recorded them
        else:
            texts = [outcome.recorded_text or outcome.text for outcome in outcomes]
            results = list(zip(uses, texts, strict=True))
            await self._recorder.record_step(reply, results, self._trust.trust, again=self.run.resumed)

    def _append_step(self, number: int, reply: Reply, tools: tuple[ToolUse, ...]) -> None:
        step = AgentStep(number, reply.text, tools, reply.usage)
        usage = Usage(**{name: count + getattr(reply.usage, name) for name, count in asdict(self.run.usage).items()})
        self.run = replace(self.run, steps=(*self.run.steps, step), usage=usage, trust=self._trust.trust)

    def _check_journal(self, number: int, reply: Reply, *, is_stored: bool) -> None:
        """Raise `UnknownOutcome` if earlier processes started other calls at this step than the reply requests.

        This happens if the stored reply is damaged and the model now requests something else. The results of the old
        calls do not belong to the new ones, and an old idempotency key must not be used for a new call.
        """
        inputs = hash_inputs(number, reply)
        for name, sha in self._journal.find_started_inputs(f"tool_{number}_").items():
            if name in inputs and (sha == inputs[name] or (sha is None and is_stored)):
                continue
            raise UnknownOutcome(
                f"{name!r} was started for a reply that is damaged, and the model now requests something else. Check "
                f"the outcome of the idempotency key {self._journal.make_idempotency_key(name)}, then run the task "
                "under another id"
            )

    async def _begin_call(self, name: str, call: ToolCall, input_sha: str) -> None:
        """Commit that a call starts; apply the tool's `on_unknown` if it started before and has no result."""
        journal, tool = self._journal, self._tools.get(call.name)
        if name in journal.values or name in journal.started_here:
            return
        attempts = journal.count_attempts(name)
        policy = tool.options.on_unknown if tool is not None else "retry"
        if attempts and policy == "ask":
            raise UnknownOutcome(
                f"{name!r} was started and its outcome is unknown. Check the idempotency key "
                f"{journal.make_idempotency_key(name)}. If the call was done, call `checkpoints.skip` with its result; "
                "if not, `checkpoints.retry`. Then run the task again"
            )
        if attempts and (policy == "skip" or attempts >= _MAX_TOOL_ATTEMPTS):
            text = "this was started before the process ended, and its outcome is unknown; find out first"
            await journal.commit({name: _outcome_to_json(ToolOutcome(text, failed=True))})
            return
        await journal.commit({}, begin={name: input_sha})

    async def _get_outcome(self, number: int, name: str, call: ToolCall, limit: int) -> ToolOutcome:
        if name in self._journal.values:
            return self._load_outcome(self._journal.values[name], call, limit)
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        self._events.emit("tool_started", step=number, tool=call.name, call_id=call.id, text=arguments)
        reach_failpoint("body.before")
        outcome = await self._call_tool(call, self._journal.make_idempotency_key(name), limit)
        reach_failpoint("body.after")
        await self._journal.commit({name: _outcome_to_json(outcome)})
        self._events.emit(
            "tool_finished", step=number, tool=call.name, call_id=call.id, text=outcome.text, failed=outcome.failed
        )
        return outcome

    async def _call_tool(self, call: ToolCall, key: str, limit: int) -> ToolOutcome:
        """Call a tool. An error becomes an outcome that the model reads."""
        tool = self._tools.get(call.name)
        if tool is None:
            message = f"there is no tool {call.name!r:.80}; the tools are {', '.join(self._tools)}"
            return ToolOutcome(message, failed=True)
        if call.malformed is not None:
            return ToolOutcome(f"the arguments could not be read: {call.malformed}; call it again", failed=True)
        seconds = tool.options.timeout or self._config.tool_timeout
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                outcome = await tool.call(call.arguments, key, self._config.threads)
        except InvalidArgument as error:
            return ToolOutcome(f"{error}; call it again with arguments that fit", failed=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # the run itself is cancelled
                raise
            return ToolOutcome("it was cancelled from within", failed=True, trust=tool.trust)
        except Exception as error:  # noqa: BLE001 - the model reads any error of a tool
            if timeout.expired():
                return ToolOutcome(f"it gave no answer within {seconds:g} s; it may still have been done", failed=True)
            text = str(error) if isinstance(error, RecollectError) else f"{type(error).__name__}: {error}"
            outcome = ToolOutcome(format_tool_result(text[:_MAX_ERROR_LENGTH]), failed=True, trust=tool.trust)
        return replace(outcome, text=truncate_text(outcome.text, limit, count_tokens))

    def _load_outcome(self, value: Any, call: ToolCall, limit: int) -> ToolOutcome:
        if isinstance(value, Mapping) and value.keys() == _outcome_to_json(ToolOutcome("")).keys():
            return ToolOutcome(value["text"], value["failed"], value["trust"], tuple(value["shown"]), value["noted"])
        # The result was set with `checkpoints.skip`.
        tool = self._tools.get(call.name)
        text = truncate_text(format_tool_result(value), limit, count_tokens)
        return ToolOutcome(text, trust=1.0 if tool is None else tool.trust)


def hash_inputs(number: int, reply: Reply) -> dict[str, str]:
    """Return the journal names of a reply's calls, each with the sha256 of its arguments."""
    return {
        f"tool_{number}_{place}_{call.name[:_MAX_STEP_NAME_LENGTH]}": hashlib.sha256(
            # `malformed` counts too: unreadable arguments are stored as {}.
            json.dumps([dict(call.arguments), call.malformed], sort_keys=True).encode()
        ).hexdigest()
        for place, call in enumerate(reply.tool_calls)
    }


def _outcome_to_json(outcome: ToolOutcome) -> dict[str, Any]:
    return {
        "text": outcome.text,
        "failed": outcome.failed,
        "trust": outcome.trust,
        "shown": list(outcome.shown_ids),
        "noted": outcome.recorded_text,
    }


def _extract_answer(reply: Reply, model: ChatModel) -> str:
    answer = reply.text.strip()
    if not answer and reply.tool_calls and reply.stop != "refusal":  # the model wants tools after the last step
        names = ", ".join(dict.fromkeys(call.name for call in reply.tool_calls))
        return (
            "All the steps that this task may take are used up, and there is no answer yet: asked for one, the model "
            f"wanted to call {names}. What was done so far is done. Give the agent a higher max_steps to go further."
        )
    if not answer:
        reason = "declined to answer" if reply.stop == "refusal" else "answered with an empty text"
        raise ModelFailed(f"the model {model.name!r} {reason}; rephrase the task, or use another model")
    return answer
