"""A turn into conversation and episodes: what each of them keeps of it, checked whole before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.errors import BadInput
from recollect.guard.policy import LONG_TO_LOOK_THROUGH
from recollect.inference.summarise import extract
from recollect.memory.tool_calls import ToolCall, tool_calls_of
from recollect.runtime.in_order import append_in_order, write_in_order
from recollect.stores.base import Log
from recollect.stores.ops import Append, Entry
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.entries import QUARANTINED, checked_id, checked_metadata, entire, fresh_id
from recollect.tiers.episodic import Episode, EpisodicMemory, episode_of
from recollect.tiers.messages import ROLES, Message, item_of, message_of
from recollect.tiers.tool_pairs import ends_of
from recollect.tiers.trust import IN_TOOLS, TRUST
from recollect.values import Space

# Together with what is put behind it, an id stays within what a log takes.
_LONGEST_ID = 200

# A tool may say more than a message holds.
_EXTRACT_TOKENS = 500

# What we note beside the caller's own metadata, and what a model is shown as its own calls.
_OURS = ("role", "turn", "tool", "failed", "tool_calls", "tool_call_id")


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """What was kept of a turn. `id` is the caller's name for it, or the one it was given."""

    id: str
    messages: tuple[Message, ...]
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said and done, checked."""

    id: str
    user: str | None
    assistant: str | None
    calls: tuple[ToolCall, ...]
    metadata: Mapping[str, Any]
    named: bool = True
    """Whether its id is the caller's: then it may have been told before."""

    @property
    def is_short(self) -> bool:
        """Whether to look through it holds nobody up."""
        done = [text for call in self.calls for text in (call.arguments, call.result or "")]
        return sum(map(len, (self.user or "", self.assistant or "", *done))) <= LONG_TO_LOOK_THROUGH

    @property
    def answered(self) -> Mapping[str, Any]:
        """What is noted of the assistant's words: after a tool had its say they may be the tool's."""
        return {TRUST: IN_TOOLS, **self.metadata} if self.calls else self.metadata


def turn_of(
    said: tuple[Any, Any],
    tool_calls: Iterable[Any],
    metadata: Any,
    id: str | None,
    longest: int,
    ids: Callable[[], str] = fresh_id,
) -> Turn:
    """The turn, or `BadInput` saying what cannot be kept of it. `said` is what the user and the assistant said."""
    user, assistant = said
    given = checked_metadata(metadata)
    if taken := [name for name in _OURS if name in given]:
        raise BadInput(
            f"metadata names {', '.join(map(repr, taken))}, which a turn says for itself; choose other names"
        )
    if given and len(str(given)) > longest:
        raise BadInput(f"the metadata has more than {longest:,} characters; keep documents elsewhere and refer to them")
    named = given.get("id") if id is None else id
    turn = ids() if named is None else checked_id(named)
    if len(turn) > _LONGEST_ID:
        raise BadInput(f"the id of a turn has at most {_LONGEST_ID} characters, not {len(turn)}")
    calls = tool_calls_of(tool_calls, turn, longest)
    if user is None and assistant is None and not calls:
        raise BadInput("a turn needs something in it: give user, assistant or tool_calls")
    for words in said:
        if words is not None and not isinstance(words, str):
            raise BadInput(f"content is a text, not {type(words).__name__}")
    return Turn(turn, user, assistant, tuple(calls), given, named is not None)


async def record(
    turn: Turn, conversation: ConversationMemory, episodic: EpisodicMemory, logs: tuple[Log, Log], longest: int
) -> TurnRecord:
    """Write the turn, in one transaction where both live in one store; told again under its id it is the same turn.

    With two stores the conversation is written first: it has the words whole, where an episode may be an extract of
    them that expires. A crash between the two leaves what was said, and telling it again adds the episodes.
    """
    if turn.calls:
        await _refuse_orphans(turn, logs[0], conversation.space)
    told = (turn, conversation, episodic, longest)
    said, retold = _said(*told) if turn.is_short else await asyncio.to_thread(_said, *told)
    happened = await _episodes(turn, episodic, retold)
    messages, episodes = await _written(turn, logs, said, happened)
    # Last, so that what follows from a turn behind everybody's back does not hold up whoever waits for it.
    await conversation.settle(*said)
    return TurnRecord(
        turn.id,
        tuple(message_of(entry) for entry in messages),
        tuple(episode_of(happened[0].space, entry) for entry in episodes),
    )


async def _written(
    turn: Turn, logs: tuple[Log, Log], said: Sequence[Append], happened: Sequence[Append]
) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """What the logs have of the turn. Under an id that nobody had before that is what was written: it is not read."""
    cap = happened[0].cap
    if turn.named or (cap is not None and len(happened) > cap):
        messages, episodes = await append_in_order((logs[0], said), (logs[1], happened))
        return messages, episodes
    await write_in_order((logs[0], said), (logs[1], happened))
    return [one.entry for one in said], [one.entry for one in happened]


async def _refuse_orphans(turn: Turn, log: Log, space: Space) -> None:
    """A result whose call nobody made is refused by every model; better now than when the conversation is shown."""
    answers = [call.id for call in turn.calls if call.name is None]
    if not answers:
        return
    said = [message_of(entry) for entry in await entire(log, space) if entry.kind in ROLES]
    known = {id for message in said for id in ends_of(item_of(message)).calls}
    unknown = [id for id in answers if id not in known]
    if unknown:
        raise BadInput(
            f"there is a result for {unknown[0]!r:.80}, and no call with that id in this turn or before it in this "
            "session; give the call with its 'name' in the same tool_calls, or record it first"
        )


def _said(
    turn: Turn, conversation: ConversationMemory, episodic: EpisodicMemory, longest: int
) -> tuple[list[Append], dict[str, Append]]:
    """The messages of a turn, and those of user and assistant among the episodes."""
    said = _messages(turn, conversation, longest)
    return said, _retold(turn, episodic, said)


def _messages(turn: Turn, conversation: ConversationMemory, longest: int) -> list[Append]:
    """As a chat model wants them: the call, its results, and what the assistant made of them.

    While a result is still to come, nothing may follow the call: then the words were said along with it.
    """
    said: list[Append] = []

    def say(role: Any, content: Any, part: str, **more: Any) -> None:
        metadata = {**turn.metadata, "turn": turn.id, **more}
        said.append(conversation.drafted(role, content, metadata=metadata, id=f"{turn.id}:{part}"))

    made = [call for call in turn.calls if call.name is not None]
    waiting = any(call.result is None for call in made)
    if turn.user is not None:
        say("user", turn.user, "user")
    if made:
        words = turn.assistant if waiting and turn.assistant is not None else ""
        say("assistant", words, "call", tool_calls=[call.as_message() for call in made])
    for place, call in enumerate(turn.calls):
        if call.result is not None:
            named = {} if call.name is None else {"name": call.name}
            shown = call.result if len(call.result) <= longest else extract(call.result, _EXTRACT_TOKENS)
            say("tool", shown, f"tool:{place}", tool_call_id=call.id, **named)
    if turn.assistant is not None and not (made and waiting):
        say("assistant", turn.assistant, "assistant", **turn.answered)
    return said


async def _episodes(turn: Turn, episodic: EpisodicMemory, retold: Mapping[str, Append]) -> list[Append]:
    """What happened in a turn: what the tools did, and what was said, `retold` by the ids of the messages."""
    if not turn.calls:
        return list(retold.values())
    told = {**turn.metadata, "turn": turn.id}
    happened: list[Append] = []
    if turn.user is not None:
        happened.append(retold[f"{turn.id}:user"])
    for place, call in enumerate(turn.calls):
        about = {**told, "role": "tool", "tool": call.name or call.id, **({"failed": True} if call.failed else {})}
        happened.append(
            await episodic.drafted(str(call), kind="tool_call", metadata=about, id=f"{turn.id}:tool:{place}")
        )
    if turn.assistant is not None:
        id = f"{turn.id}:assistant"
        if id in retold:
            happened.append(retold[id])
        else:  # its words went along with a call that waits for its result
            about = {**turn.answered, **told, "role": "assistant"}
            happened.append(await episodic.drafted(turn.assistant, metadata=about, id=id))
    return happened


def _retold(turn: Turn, episodic: EpisodicMemory, said: Sequence[Append]) -> dict[str, Append]:
    """What user and assistant said, among the episodes.

    Whether it is held back is another question there, so that is not taken over.
    """
    words = {f"{turn.id}:user", f"{turn.id}:assistant"}
    told: dict[str, Append] = {}
    for one in said:
        if one.entry.id in words:
            about = {**one.entry.metadata, "role": one.entry.kind}
            if QUARANTINED in about and QUARANTINED not in turn.metadata:
                del about[QUARANTINED]
            told[one.entry.id] = episodic.retold(one.entry, about)
    return told
