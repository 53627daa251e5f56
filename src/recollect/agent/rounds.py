"""The tools that one reply asks for: called all at once, each one's result kept as soon as it is there."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.agent.arguments import Unfit
from recollect.agent.compaction import Room
from recollect.agent.events import Telling
from recollect.agent.journal import Journal
from recollect.agent.run import ToolUse
from recollect.agent.tools import Outcome, Tool, text_of
from recollect.errors import RecollectError, UnknownOutcome
from recollect.inference.chat import Reply, ToolCall
from recollect.inference.threads import Threads
from recollect.recall.across import together
from recollect.runtime.failpoints import reach
from recollect.tiers.messages import cut
from recollect.words.tokens import count_tokens

# A tool that ended the process so often is not called again by itself.
_MOST_ATTEMPTS = 5
_LONGEST_NAME = 64
# Of what an exception says; more is cut anyway, and not on the loop's time.
_LONGEST_FAILURE = 100_000


@dataclass(frozen=True, slots=True)
class Use:
    """A call that has ended: as it is told of, and what came of it."""

    told: ToolUse
    outcome: Outcome


class Rounds:
    """Calls the tools of a run, round by round."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        journal: Journal,
        telling: Telling,
        timeout: float,
        room: Room,
        threads: Threads,
    ) -> None:
        self._tools = tools
        self._journal = journal
        self._telling = telling
        self._timeout = timeout
        self._room = room
        self._threads = threads

    def check(self, number: int, reply: Reply, *, kept: bool) -> None:
        """Raise `UnknownOutcome` if runs before this one began other calls here than this reply asks for.

        That is so when the reply was damaged and the model, asked again, wants something else. Neither may what came
        of the one be told of the other, nor the other be done under the idempotency key of the one.
        """
        wanted = inputs_of(number, reply)
        for name, given in self._journal.inputs(f"tool_{number}_").items():
            if name in wanted and (given == wanted[name] or (given is None and kept)):
                continue
            raise UnknownOutcome(
                f"{name!r} was begun for a reply that is damaged, and now the model asks for something else; find out "
                f"what came of the idempotency key {self._journal.key_of(name)}, then run the task under another id"
            )

    async def go(self, number: int, reply: Reply) -> list[Use]:
        """All the calls of a reply, in its order; one that was completed before is only looked up."""
        inputs = inputs_of(number, reply)
        calls = list(zip(inputs, reply.tool_calls, strict=True))
        for name, call in calls:
            await self._made_ready(name, call, inputs[name])
        longest = self._room.share(len(calls))
        outcomes = await self._journal.guard(
            together(*(self._outcome(number, name, call, longest) for name, call in calls))
        )
        return [
            Use(self._told(name, call, outcome), outcome) for (name, call), outcome in zip(calls, outcomes, strict=True)
        ]

    async def _made_ready(self, name: str, call: ToolCall, given: str) -> None:
        """Have the journal say that a call begins; of one that began before and never ended, decide what to do."""
        journal, tool = self._journal, self._tools.get(call.name)
        if journal.has(name) or journal.is_begun(name):
            return
        attempts = journal.begun(name)
        policy = tool.options.on_unknown if tool is not None else "retry"
        if attempts and policy == "ask":
            raise UnknownOutcome(
                f"{name!r} was begun and nobody knows how it ended; look for the idempotency key "
                f"{journal.key_of(name)}, then call `checkpoints.skip` with the result if it was done, or "
                "`checkpoints.retry` if it was not, and run the task again"
            )
        if attempts and (policy == "skip" or attempts >= _MOST_ATTEMPTS):
            text = "this was begun before the process ended, and nobody knows whether it was done; find out first"
            await journal.keep({name: _json(Outcome(text, failed=True))})
            return
        await journal.keep({}, begin={name: given})

    async def _outcome(self, number: int, name: str, call: ToolCall, longest: int) -> Outcome:
        if self._journal.has(name):
            return self._kept(name, call, longest)
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        self._telling.tell("tool_started", step=number, tool=call.name, call_id=call.id, text=arguments)
        reach("body.before")
        outcome = await self._called(call, self._journal.key_of(name), longest)
        reach("body.after")
        await self._journal.keep({name: _json(outcome)})
        self._telling.tell(
            "tool_finished", step=number, tool=call.name, call_id=call.id, text=outcome.text, failed=outcome.failed
        )
        return outcome

    async def _called(self, call: ToolCall, key: str, longest: int) -> Outcome:
        """What a call leads to; whatever goes wrong is something that the model is told."""
        tool = self._tools.get(call.name)
        if tool is None:
            return Outcome(f"there is no tool {call.name!r:.80}; the tools are {', '.join(self._tools)}", failed=True)
        if call.malformed is not None:
            return Outcome(f"the arguments could not be read: {call.malformed}; call it again", failed=True)
        seconds = tool.options.timeout or self._timeout
        patience = asyncio.timeout(seconds)
        try:
            async with patience:
                outcome = await tool.call(call.arguments, key, self._threads)
        except Unfit as unfit:
            return Outcome(f"{unfit}; call it again with arguments that fit", failed=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():  # we are, and not something that the tool waited for
                raise
            return Outcome("it was cancelled from within", failed=True, trust=tool.trust)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is for the model to deal with
            if patience.expired():
                return Outcome(
                    f"it gave no answer within {seconds:g} s; it may have been done all the same", failed=True
                )
            said = str(error) if isinstance(error, RecollectError) else f"{type(error).__name__}: {error}"
            outcome = Outcome(text_of(said[:_LONGEST_FAILURE]), failed=True, trust=tool.trust)
        return replace(outcome, text=cut(outcome.text, longest, count_tokens))

    def _kept(self, name: str, call: ToolCall, longest: int) -> Outcome:
        kept = self._journal.known(name)
        if isinstance(kept, Mapping) and kept.keys() == _json(Outcome("")).keys():
            return Outcome(kept["text"], kept["failed"], kept["trust"], tuple(kept["shown"]), kept["noted"])
        # Somebody who looked into it has said what came of it, with `checkpoints.skip`.
        tool = self._tools.get(call.name)
        return Outcome(cut(text_of(kept), longest, count_tokens), trust=1.0 if tool is None else tool.trust)

    def _told(self, name: str, call: ToolCall, outcome: Outcome) -> ToolUse:
        key = self._journal.key_of(name)
        return ToolUse(call.name, dict(call.arguments), outcome.text, outcome.failed, call.id, key)


def inputs_of(number: int, reply: Reply) -> dict[str, str]:
    """The names that the calls of a reply have in the journal, in its order, each with the sha256 of its arguments."""
    return {
        f"tool_{number}_{place}_{call.name[:_LONGEST_NAME]}": _sha256(call)
        for place, call in enumerate(reply.tool_calls)
    }


def _sha256(call: ToolCall) -> str:
    # What could not be read was not called with {}, though that is what stands there.
    given = json.dumps([dict(call.arguments), call.malformed], sort_keys=True)
    return hashlib.sha256(given.encode()).hexdigest()


def _json(outcome: Outcome) -> dict[str, Any]:
    return {
        "text": outcome.text,
        "failed": outcome.failed,
        "trust": outcome.trust,
        "shown": list(outcome.shown),
        "noted": outcome.noted,
    }
