"""Turns of a dialogue: parsed and checked as a whole, then written to the conversation and the episodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recollect.durable.step_memory import append_in_order, write_in_order
from recollect.engine import Engine
from recollect.errors import BadInput
from recollect.language.extractive_summary import extract_text
from recollect.stores.writes import Append, Entry
from recollect.tiers.conversation import ConversationMemory
from recollect.tiers.episodic import Episode, EpisodeKind, EpisodicMemory, parse_episode
from recollect.tiers.facts import check_metadata
from recollect.tiers.indexing import call_with_text
from recollect.tiers.log_entries import QUARANTINED_KEY, check_id
from recollect.tiers.messages import TOOL_TRUST, TRUST_KEY, Message, parse_message, to_model_message, tool_ids
from recollect.types import EMPTY_MAPPING
from recollect.validation import check_name, to_plain_json

# With a suffix such as ":tool:12", an id stays within the limit of a log entry's id.
_MAX_ID_CHARACTERS = 200
_MAX_CALLS = 1000
_MAX_NAME_CHARACTERS = 256
# The extract of a tool result that is longer than a message may be.
_EXTRACT_TOKENS = 500

# Metadata keys that a turn sets itself.
_RESERVED_KEYS = ("role", "turn", "tool", "failed", "tool_calls", "tool_call_id")

# The keys of OpenAI's and Anthropic's formats, in the order of preference.
_ID_KEYS = ("id", "call_id", "tool_call_id", "tool_use_id")
_ANSWER_KEYS = ("tool_call_id", "tool_use_id")
_ARGUMENT_KEYS = ("arguments", "input", "args")
_RESULT_KEYS = ("result", "output", "content")
_RESULT_TYPES = ("tool_result", "function_call_output")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call, or without a name the result of an earlier one. `result` is None until there is one."""

    id: str
    name: str | None
    arguments: str = "{}"
    result: str | None = None
    has_failed: bool = False

    def __str__(self) -> str:
        call = f"{self.name}({'' if self.arguments == '{}' else self.arguments})" if self.name else f"[{self.id}]"
        return call if self.result is None else f"{call} → {self.result}"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """The stored messages and episodes of a turn. `id` is the caller's id, or a generated one."""

    id: str
    messages: tuple[Message, ...]
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, slots=True)
class TurnInput:
    """A checked turn."""

    id: str
    user: str | None
    assistant: str | None
    calls: tuple[RecordedCall, ...]
    metadata: Mapping[str, Any]
    is_named: bool = True
    """True if the caller gave the id; then the turn may be stored already."""

    @property
    def answer_metadata(self) -> Mapping[str, Any]:
        """The metadata of the assistant's text, which is trusted as a tool if the turn has tool calls."""
        return {TRUST_KEY: TOOL_TRUST, **self.metadata} if self.calls else self.metadata


def parse_turn(
    engine: Engine, texts: tuple[Any, Any], tool_calls: Iterable[Any], metadata: Any, id: str | None
) -> TurnInput:
    """Check a turn; `texts` are the user's and the assistant's. Raise `BadInput` if it cannot be stored."""
    user, assistant = texts
    about, max_characters = check_metadata(metadata), engine.settings.max_content
    if reserved := [key for key in _RESERVED_KEYS if key in about]:
        raise BadInput(f"metadata must not have the reserved keys {', '.join(map(repr, reserved))}; rename them")
    if about and len(str(about)) > max_characters:
        raise BadInput(f"metadata must have at most {max_characters:,} characters; got {len(str(about)):,}")
    name = about.get("id") if id is None else id
    turn_id = engine.new_id() if name is None else check_id(name)
    if len(turn_id) > _MAX_ID_CHARACTERS:
        raise BadInput(f"the id of a turn must have at most {_MAX_ID_CHARACTERS} characters; got {len(turn_id)}")
    calls = parse_tool_calls(tool_calls, turn_id, max_characters)
    if user is None and assistant is None and not calls:
        raise BadInput("a turn must have content; pass user, assistant or tool_calls")
    for role, text in (("user", user), ("assistant", assistant)):
        if text is not None and not isinstance(text, str):
            raise BadInput(f"{role} must be a string; got {type(text).__name__}")
    return TurnInput(turn_id, user, assistant, tuple(calls), about, name is not None)


async def write_turn(
    engine: Engine, turn: TurnInput, conversation: ConversationMemory, episodic: EpisodicMemory
) -> TurnRecord:
    """Write the turn, in one transaction if both logs are in one store. Writing the same id again is a no-op.

    With two stores, the conversation is written first, because it has the full text. After a crash in between, writing
    the turn again adds the episodes.
    """
    conversation_log, episode_log = engine.stores.log("conversation"), engine.stores.log("episodic")
    await _check_orphan_results(turn, conversation)
    max_characters = engine.settings.max_content
    texts = (turn.user or "", turn.assistant or "", *map(str, turn.calls))
    messages = await call_with_text(sum(map(len, texts)), _draft_messages, turn, conversation, max_characters)
    episodes = await _draft_episodes(turn, episodic, {append.entry.id: append.entry for append in messages})
    cap = episodes[0].cap
    if turn.is_named or (cap is not None and len(episodes) > cap):
        stored, happened = await append_in_order((conversation_log, messages), (episode_log, episodes))
    else:  # a new id, so the logs hold what was written
        await write_in_order((conversation_log, messages), (episode_log, episodes))
        stored, happened = [append.entry for append in messages], [append.entry for append in episodes]
    # Summarizing and indexing come last, so that they do not delay the write.
    await conversation._roll_summary(*messages)
    return TurnRecord(
        turn.id,
        tuple(parse_message(entry) for entry in stored),
        tuple(parse_episode(episodes[0].space, entry) for entry in happened),
    )


async def _check_orphan_results(turn: TurnInput, conversation: ConversationMemory) -> None:
    """Refuse a result without its call, because model APIs reject a conversation that contains one."""
    results = [call.id for call in turn.calls if call.name is None]
    messages = map(parse_message, await conversation._read_message_entries() if results else ())
    known = {id for message in messages for id in tool_ids(to_model_message(message)).calls}
    for id in results:
        if id not in known:
            raise BadInput(
                f"tool_calls has a result for the call {id!r:.80}, which is not in this session; pass the call "
                "with its 'name' in the same tool_calls, or record it first"
            )


def _draft_messages(turn: TurnInput, conversation: ConversationMemory, max_characters: int) -> list[Append]:
    """Build the messages of a turn, in the order of chat APIs: the call, its results, the assistant's answer.

    A call without a result must be last, so the answer is then sent along with it.
    """
    messages: list[Append] = []

    def add(role: Any, content: Any, part: str, more: Mapping[str, Any] = EMPTY_MAPPING) -> None:
        metadata = {**turn.metadata, "turn": turn.id, **more}
        messages.append(conversation._build_append(role, content, metadata=metadata, id=f"{turn.id}:{part}"))

    calls = [call for call in turn.calls if call.name is not None]
    is_pending = any(call.result is None for call in calls)
    if turn.user is not None:
        add("user", turn.user, "user")
    if calls:
        functions = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in calls]
        tool_calls = [{"id": id, "type": "function", "function": function} for id, function in functions]
        add("assistant", (turn.assistant or "") if is_pending else "", "call", {"tool_calls": tool_calls})
    for index, call in enumerate(turn.calls):
        if call.result is not None:
            about = {"tool_call_id": call.id, **({} if call.name is None else {"name": call.name})}
            shown = call.result if len(call.result) <= max_characters else extract_text(call.result, _EXTRACT_TOKENS)
            add("tool", shown, f"tool:{index}", about)
    if turn.assistant is not None and not is_pending:
        add("assistant", turn.assistant, "assistant", turn.answer_metadata)
    return messages


async def _draft_episodes(turn: TurnInput, episodic: EpisodicMemory, messages: Mapping[str, Entry]) -> list[Append]:
    """Build the episodes of a turn: the user's text, each tool call, the assistant's text."""
    episodes: list[Append] = []

    async def add(kind: EpisodeKind, role: str, content: str, part: str, metadata: Mapping[str, Any]) -> None:
        id = f"{turn.id}:{part}"
        message = messages.get(id) if kind == "turn" else None
        if message is None:
            about = {**metadata, "turn": turn.id, "role": role}
            episodes.append(await episodic._build_append(content, kind=kind, metadata=about, id=id))
            return
        about = {**message.metadata, "role": role}
        # The episodic tier decides for itself if it quarantines the text.
        if QUARANTINED_KEY not in turn.metadata:
            about.pop(QUARANTINED_KEY, None)
        episodes.append(await call_with_text(len(content), episodic._build_append_from_message, message, about))

    if turn.user is not None:
        await add("turn", "user", turn.user, "user", turn.metadata)
    for index, call in enumerate(turn.calls):
        about = {**turn.metadata, "tool": call.name or call.id, **({"failed": True} if call.has_failed else {})}
        await add("tool_call", "tool", str(call), f"tool:{index}", about)
    if turn.assistant is not None:
        await add("turn", "assistant", turn.assistant, "assistant", turn.answer_metadata)
    return episodes


def parse_tool_calls(tool_calls: Any, turn_id: str, max_characters: int) -> list[RecordedCall]:
    """Parse calls in order and join each with its result, or raise `BadInput`. Missing ids come from the turn."""
    if isinstance(tool_calls, str | bytes | Mapping) or not isinstance(tool_calls, Iterable):
        raise BadInput(f"tool_calls must be a list of calls; got {type(tool_calls).__name__}")
    calls: dict[str, RecordedCall] = {}
    for index, item in enumerate(tool_calls):
        if index >= _MAX_CALLS:
            raise BadInput(f"a turn must have at most {_MAX_CALLS} tool calls; record the rest as another turn")
        call = _parse_call(item, f"call_{turn_id}_{index}", f"tool_calls[{index}]", max_characters)
        known = calls.get(call.id)
        if known is None:
            calls[call.id] = call
        elif call.name is None and known.result is None:
            calls[call.id] = replace(known, result=call.result, has_failed=call.has_failed)
        else:
            raise BadInput(f"tool_calls[{index}] repeats the id {call.id!r:.80}; use unique ids, or none")
    return list(calls.values())


def format_result(value: Any, path: str = "result") -> str:
    """Format a tool's result: errors by type and message, content blocks by their text, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list | tuple) and value and all(_is_text_block(block) for block in value):
        return "\n".join(block["text"] for block in value)
    return json.dumps(to_plain_json(value, path), ensure_ascii=False)


def _parse_call(item: Any, default_id: str, path: str, max_characters: int) -> RecordedCall:
    call = item.model_dump() if hasattr(item, "model_dump") else item  # objects of the SDKs
    if not isinstance(call, Mapping):
        raise BadInput(
            f"{path} must be a dict such as {{'name': …, 'arguments': …, 'result': …}}; got {type(item).__name__}"
        )
    function = call.get("function")
    body = function if isinstance(function, Mapping) else call
    # Some formats give a call the key of its answer; only a call has arguments.
    is_result = not any(key in call for key in _ARGUMENT_KEYS) and (
        call.get("role") == "tool" or call.get("type") in _RESULT_TYPES or any(key in call for key in _ANSWER_KEYS)
    )
    id = _find_first(call, _ID_KEYS)
    if is_result and id is None:
        raise BadInput(f"{path} is a result without a tool_call_id; add the id of its call")
    name = None
    if not is_result:
        name = check_name(f"{path}.name", body.get("name"), max_length=_MAX_NAME_CHARACTERS, example="search")
    error, result = call.get("error"), _find_first(call, (*_RESULT_KEYS, "error"))
    if result is None and (is_result or any(key in call for key in _RESULT_KEYS)):
        result = ""
    arguments = _find_first(body, _ARGUMENT_KEYS)
    # Models write arguments as JSON text. It is stored as it is, even if it is invalid JSON.
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(to_plain_json(arguments, f"{path}.arguments"), ensure_ascii=False)
    arguments = arguments or "{}"
    if len(arguments) > max_characters:
        raise BadInput(f"{path}.arguments must have at most {max_characters:,} characters; got {len(arguments):,}")
    return RecordedCall(
        id=default_id if id is None else check_id(id),
        name=name,
        arguments=arguments,
        result=None if result is None else format_result(result, f"{path}.result"),
        has_failed=bool(call.get("is_error")) or error is not None or isinstance(result, BaseException),
    )


def _find_first(values: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _is_text_block(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)
