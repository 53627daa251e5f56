"""Messages: their formats by provider, pairs of tool calls and results, rendering, token costs, trust and redaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args

from recollect.errors import BadInput
from recollect.language.extractive_summary import LabeledText, TokenCounter
from recollect.security.injection import find_quarantine_reasons
from recollect.security.redaction import RedactionPolicy, add_sensitive_kinds
from recollect.stores.writes import Entry
from recollect.tiers.facts import source_trust
from recollect.tiers.log_entries import QUARANTINED_KEY
from recollect.types import EMPTY_MAPPING
from recollect.validation import check_fraction, check_json, check_text, is_number

MessageItem = str | Mapping[str, Any]
ContentBlocks = Sequence[Mapping[str, Any]]
ChangeText = Callable[[str], str | None]
ShortenText = Callable[[str, int, TokenCounter], str]

_CALL_ID_KEYS = {"tool_use": "id", "server_tool_use": "id", "function_call": "call_id"}
_RESULT_ID_KEYS = {"tool_result": "tool_use_id", "function_call_output": "call_id"}
# Prefix of the ids that are made up for calls without an id.
_UNNAMED_PREFIX = "\x00"

_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")
# Keys of a call or result that are never shortened.
_PAIRING_KEYS = frozenset(
    {"role", "type", "id", "name", "tool_call_id", "tool_use_id", "call_id", "is_error", "status"}
)
_IMAGE_TYPES = ("image", "image_url", "input_image")
_EXTRACT_PREFIX = '{"extract": '
_MAX_SHORTEN_ATTEMPTS = 4

_Key = TypeVar("_Key", bound=Sequence[str])
_Value = TypeVar("_Value")

Role = Literal["user", "assistant", "system", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
ROLE_ALIASES: Mapping[Any, Role] = {"developer": "system"}

ModelMessage = dict[str, Any]
MessageContent = str | ContentBlocks

BLOCKS_KEY = "content.blocks"
"""Metadata key of an entry's content blocks; the entry's content is their text."""

TRUST_KEY = "trust"
"""Metadata key of the trust in a message, an episode or a summary."""

TOOL_TRUST = source_trust("tool")
UNKNOWN_TRUST = 0.5

# Metadata that a provider needs to pair calls and results.
_PASSED_ON_KEYS = ("tool_calls", "tool_call_id", "name")

# Tokens of a message besides its text: its role and delimiters.
_FRAME_TOKENS = 4
# Providers count about this many tokens for an image of any size.
_IMAGE_TOKENS = 1600
_QUARANTINE_NOTICE = "(text that gives orders, and is not repeated here)"
_ELLIPSIS = " […] "
# Providers reject empty blocks.
_EMPTY_PLACEHOLDER = "…"
# No token has more characters besides blanks, so a longer text is cut before its tokens are counted.
_MAX_CHARS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation. `seq` is its number in the log, or 0 if it has not been read back.

    `blocks` is the content as it was given if it had blocks; `content` is then their text.
    """

    role: Role
    content: str
    timestamp: datetime
    metadata: Mapping[str, Any] = field(default_factory=lambda: EMPTY_MAPPING)
    id: str = ""
    seq: int = field(default=0, compare=False)
    blocks: ContentBlocks | None = None


def parse_message(entry: Entry) -> Message:
    """Return an entry of a conversation's log as a message."""
    role: Any = entry.kind  # checked when it was written
    blocks = entry.metadata.get(BLOCKS_KEY)
    if blocks is None:
        return Message(role, entry.content, entry.at, entry.metadata, entry.id, entry.seq)
    metadata = {name: value for name, value in entry.metadata.items() if name != BLOCKS_KEY}
    return Message(role, entry.content, entry.at, metadata or EMPTY_MAPPING, entry.id, entry.seq, tuple(blocks))


def check_blocks(content: Any, max_length: int) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the text of content blocks, and the blocks as plain JSON."""
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(kind, str) or (kind == "text" and not isinstance(block.get("text"), str)):
            raise BadInput(
                f"content[{index}] must be a block with a 'type', such as {{'type': 'text', 'text': 'Hello.'}}; got "
                f"{block!r:.80}"
            )
    blocks = check_json("content", [dict(block) for block in content])
    size = len(json.dumps(blocks, ensure_ascii=False))
    if size > max_length:
        raise BadInput(
            f"content must have at most {max_length:,} characters of JSON; got {size:,}. Split it, give images by "
            "their URLs, or raise the setting max_content"
        )
    ids = tool_ids({"content": blocks})
    return check_text("content", format_content(blocks), allow_empty=bool(ids.calls or ids.results)), blocks


def to_model_message(message: Message) -> ModelMessage:
    """Return the whole message as a model gets it."""
    content = message.content if message.blocks is None else list(message.blocks)
    extra = {name: message.metadata[name] for name in _PASSED_ON_KEYS if name in message.metadata}
    return {"role": message.role, "content": content, **extra}


def render_message(message: Message, max_tokens: int, count: TokenCounter) -> ModelMessage:
    """Return a copy of the message as a model gets it, with its content shortened to `max_tokens`."""
    rendered = deepcopy(to_model_message(message))
    fit = truncate_text if message.blocks is None else _fit_blocks
    rendered["content"] = fit(rendered["content"], max_tokens, count)
    return rendered


def truncate_text(text: str, max_tokens: int, count: TokenCounter) -> str:
    """Return the text, or its start and end around an ellipsis, in at most `max_tokens` tokens."""
    max_length = max(max_tokens, 1) * _MAX_CHARS_PER_TOKEN
    if len(text) <= max_length and count(text) <= max_tokens:
        return text
    size = min(len(text), max_length)
    while size > 0:
        head = size * 2 // 3
        short = text[:head] + _ELLIPSIS + text[len(text) - (size - head) :]
        tokens = count(short)
        if tokens <= max_tokens:
            return short
        size = min(size - 1, size * max_tokens // tokens)
    return ""


def _fit_blocks(blocks: list[Mapping[str, Any]], max_tokens: int, count: TokenCounter) -> list[Mapping[str, Any]]:
    """Return the blocks with images as text and long parts shortened, if they have too many tokens."""
    if _count_content_tokens(blocks, count) <= max_tokens:
        return blocks
    without_images = [{"type": "text", "text": _format_image(block)} if is_image(block) else block for block in blocks]
    short = shorten_message(
        {"role": "", "content": without_images},
        max_tokens,
        count,
        shorten=lambda text, limit, count: truncate_text(text, limit, count) or _EMPTY_PLACEHOLDER,
        measure=lambda item: 0 if isinstance(item, str) else _count_content_tokens(item["content"], count),
    )
    return without_images if short is None or isinstance(short, str) else short["content"]


class TextCache(Generic[_Key, _Value]):
    """A bounded cache of a pure function of texts. It holds hashes only, so that erased text does not remain here."""

    def __init__(self, compute: Callable[[_Key], _Value], max_entries: int) -> None:
        self._compute = compute
        self._max_entries = max_entries
        self._entries: dict[tuple[int, int], _Value] = {}

    def get(self, text: _Key) -> _Value:
        key = (hash(text), len(text))
        found = self._entries.get(key)
        if found is None:
            found = self._compute(text)
            if len(self._entries) >= self._max_entries:
                self._entries.clear()
            self._entries[key] = found
        return found

    def find_missing(self, texts: Iterable[_Key]) -> list[_Key]:
        """Return the texts that are not cached."""
        return [text for text in texts if (hash(text), len(text)) not in self._entries]


def count_message_tokens(message: ModelMessage, count: TokenCounter) -> int:
    extra = (message[name] for name in _PASSED_ON_KEYS if name in message)
    extra_tokens = sum(count(value if isinstance(value, str) else json.dumps(value)) for value in extra)
    return _FRAME_TOKENS + _count_content_tokens(message["content"], count) + extra_tokens


def count_rendered_tokens(message: Message, max_tokens: int, count: TokenCounter) -> int:
    """Return the tokens of a message as `render_message` renders it; a plain text need not be rendered."""
    if message.blocks is None and message.metadata.keys().isdisjoint(_PASSED_ON_KEYS):
        return _FRAME_TOKENS + count(truncate_text(message.content, max_tokens, count))
    return count_message_tokens(render_message(message, max_tokens, count), count)


def _count_content_tokens(content: Any, count: TokenCounter) -> int:
    if isinstance(content, str):
        return count(content)
    return sum(_IMAGE_TOKENS if is_image(block) else count(json.dumps(block, ensure_ascii=False)) for block in content)


def to_passage(message: Message) -> LabeledText:
    """Return the text that a summary is made of: the content and the tool calls."""
    if QUARANTINED_KEY in message.metadata:
        return LabeledText(_QUARANTINE_NOTICE, message.role)
    whole = to_model_message(message)
    parts = {name: value for name, value in whole.items() if name in ("role", "content", "tool_calls")}
    return LabeledText(format_message(parts).removeprefix(f"{message.role}: "), message.role)


def text_for_summary(message: Message) -> str:
    """Return the content, or a notice for a quarantined message: its instructions must not survive in a summary."""
    return _QUARANTINE_NOTICE if QUARANTINED_KEY in message.metadata else message.content


def check_trust(trust: Any) -> float | None:
    return None if trust is None else check_fraction("trust", trust)


def read_trust(metadata: Mapping[str, Any]) -> float | None:
    """Return the trust that metadata states, if any."""
    trust: Any = metadata.get(TRUST_KEY)
    return float(trust) if is_number(trust) and 0.0 <= trust <= 1.0 else None


def message_trust(message: Message) -> float:
    """Return the trust in a message: as stated, or by its role and its tool calls."""
    stated = read_trust(message.metadata)
    if stated is not None:
        return stated
    has_plain_text = message.blocks is None and message.metadata.keys().isdisjoint(_PASSED_ON_KEYS)
    ids = ToolIds() if has_plain_text else tool_ids(to_model_message(message))
    if message.role == "tool" or ids.calls or ids.results:
        return TOOL_TRUST
    # The outcome of a task can quote anything that the task has read.
    return UNKNOWN_TRUST if message.role == "assistant" and "task" in message.metadata else 1.0


def episode_trust(kind: str, metadata: Mapping[str, Any]) -> float:
    """Return the trust in an episode: as stated, but at most a tool's if it is a tool's output."""
    stated = read_trust(metadata)
    if is_tool_output(kind, metadata):
        return TOOL_TRUST if stated is None else min(stated, TOOL_TRUST)
    if stated is None and kind == "outcome" and "task" in metadata and metadata.get("success") is not None:
        return UNKNOWN_TRUST
    return 1.0 if stated is None else stated


def is_tool_output(kind: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether an entry has a tool's output. The error of a failed step has the tool's message."""
    return kind in ("tool", "tool_call") or (kind == "error" and "step" in metadata)


def sanitize_message(policy: RedactionPolicy, entry: Entry) -> Entry:
    """Return a message with its secrets redacted, marked if it must be quarantined."""
    text, metadata = policy.redact_text("content", entry.content), policy.redact_json("metadata", entry.metadata)
    if text.kinds or metadata.kinds:
        entry = replace(entry, content=text.value, metadata=add_sensitive_kinds(metadata.value, text, metadata))
    return _mark_quarantined(entry, message_trust(parse_message(entry)))


def sanitize_episode(policy: RedactionPolicy, entry: Entry) -> Entry:
    """Return an episode with its secrets redacted, marked if it must be quarantined."""
    given = entry.metadata.get("given", {})
    text, metadata = policy.redact_text("content", entry.content), policy.redact_json("metadata", given)
    if text.kinds or metadata.kinds:
        given = add_sensitive_kinds(metadata.value, text, metadata)
        entry = replace(entry, content=text.value, metadata={**entry.metadata, "given": given})
    return mark_episode(entry)


def mark_episode(entry: Entry) -> Entry:
    """Return an episode that is redacted already, marked if it must be quarantined."""
    return _mark_quarantined(entry, episode_trust(entry.kind, entry.metadata.get("given", {})))


def _mark_quarantined(entry: Entry, trust: float) -> Entry:
    why = find_quarantine_reasons(entry.content, trust)
    return replace(entry, metadata={**entry.metadata, QUARANTINED_KEY: list(why)}) if why else entry


@dataclass(frozen=True, slots=True)
class ToolIds:
    """Ids of the calls that a message makes, and of the calls whose results it has."""

    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def tool_ids(item: MessageItem) -> ToolIds:
    """Return the tool ids of a message of OpenAI (Chat or Responses) or Anthropic."""
    if isinstance(item, str):
        return ToolIds()
    blocks = [block for block in (item, *content_blocks(item)) if isinstance(block, Mapping)]
    calls = [_block_id(block, _CALL_ID_KEYS) for block in blocks]
    calls += [call.get("id") for call in message_tool_calls(item)]
    results = [_block_id(block, _RESULT_ID_KEYS) for block in blocks]
    return ToolIds(_unique_ids(calls), _unique_ids([*results, item.get("tool_call_id")]))


def resolve_tool_ids(items: Sequence[MessageItem]) -> list[ToolIds]:
    """Return the tool ids of each message. A result without an id gets one, for a call of the assistant before it."""
    ids = [tool_ids(item) for item in items]
    known_calls: set[str] = set()
    caller: int | None = None
    pending: list[str] = []
    for at, item in enumerate(items):
        role = item.get("role") if isinstance(item, Mapping) else None
        if role == "assistant" and isinstance(item, Mapping):
            unnamed = [f"{_UNNAMED_PREFIX}{at}.{number}" for number in range(_count_unnamed_calls(item))]
            ids[at] = ToolIds((*ids[at].calls, *unnamed), ids[at].results)
            caller, pending = at, list(ids[at].calls)
        elif role == "tool" and caller is not None and known_calls.isdisjoint(ids[at].results):
            # A result with an unknown id answers a call without an id.
            open_calls = [call for call in pending if not ids[at].results or call.startswith(_UNNAMED_PREFIX)]
            answered = open_calls[0] if open_calls else f"{_UNNAMED_PREFIX}{caller}"
            if answered not in ids[caller].calls:
                ids[caller] = ToolIds((*ids[caller].calls, answered), ids[caller].results)
            ids[at] = ToolIds(ids[at].calls, (*ids[at].results, answered))
        pending = [call for call in pending if call not in ids[at].results]
        known_calls.update(ids[at].calls)
    return ids


def content_blocks(item: Mapping[str, Any]) -> Sequence[Any]:
    content = item.get("content")
    return content if isinstance(content, list) else ()


def message_tool_calls(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = item.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []


def find_pending_calls(ids: Sequence[ToolIds], before: Sequence[str] = ()) -> dict[str, int]:
    """Return the calls without a result, each with its index; those in `before` have the index -1."""
    pending = dict.fromkeys(before, -1)
    for at, item in enumerate(ids):
        for result in item.results:
            pending.pop(result, None)
        pending.update(dict.fromkeys(item.calls, at))
    return pending


def find_cut_points(ids: Sequence[ToolIds], *, before_pending: bool = False) -> list[int]:
    """Return the indexes where a cut separates no call from its result; or only those up to the first pending call."""
    inside = {cut for call_at, result_at, _ in pair_results(ids) for cut in range(call_at + 1, result_at + 1)}
    last = min(find_pending_calls(ids).values(), default=len(ids)) if before_pending else len(ids)
    return [cut for cut in range(last + 1) if cut not in inside]


def cut_before(ids: Sequence[ToolIds], wanted: int) -> int:
    """Return the last cut point at or before `wanted`."""
    return max(cut for cut in find_cut_points(ids) if cut <= wanted)


def cut_after(ids: Sequence[ToolIds], wanted: int) -> int:
    """Return the first cut point at or after `wanted`."""
    return min(cut for cut in find_cut_points(ids) if cut >= wanted)


def is_one_exchange(ids: Sequence[ToolIds]) -> bool:
    """Return whether the messages are tool calls followed by their results, and nothing else."""
    first_result = next((at for at, item in enumerate(ids) if item.results), len(ids))
    return all(item.calls or item.results for item in ids) and not any(item.calls for item in ids[first_result + 1 :])


def pair_results(ids: Sequence[ToolIds]) -> Iterator[tuple[int, int, str]]:
    """Yield (index of the call, index of the result, id). A reused id belongs to its last call."""
    call_index: dict[str, int] = {}
    for at, item in enumerate(ids):
        for result in item.results:
            if result in call_index:
                yield call_index[result], at, result
        call_index.update(dict.fromkeys(item.calls, at))


def find_orphan_results(items: Sequence[MessageItem]) -> dict[int, frozenset[str]]:
    """Return, for each message, the ids of its results without a pending call before. Providers reject such results."""
    orphans: dict[int, frozenset[str]] = {}
    pending: dict[str, None] = {}
    unnamed_calls, has_caller = 0, False
    for at, item in enumerate(items):
        role = item.get("role") if isinstance(item, Mapping) else None
        if role in ("user", "system") and isinstance(item, Mapping) and isinstance(item.get("content"), str):
            continue  # most messages have no tool ids
        ids = tool_ids(item)
        alone = [result for result in ids.results if result not in pending]
        if role == "tool" and not ids.results:
            alone = [] if has_caller else [_UNNAMED_PREFIX]
        elif role == "tool" and alone and unnamed_calls:
            unnamed_calls, alone = unnamed_calls - 1, []
        if alone:
            orphans[at] = frozenset(alone)
        for result in ids.results:
            pending.pop(result, None)
        pending |= dict.fromkeys(ids.calls)
        if role == "assistant" and isinstance(item, Mapping):
            unnamed_calls, has_caller = _count_unnamed_calls(item), True
    return orphans


def orphans_to_text(item: Mapping[str, Any], orphans: frozenset[str]) -> dict[str, Any]:
    """Return the message with these results as plain text, because their calls are not shown."""

    def to_text(block: Any) -> Any:
        id = _block_id(block, _RESULT_ID_KEYS) if isinstance(block, Mapping) else None
        if not isinstance(id, str) or id not in orphans:
            return block
        return {"type": "text", "text": f"[late result of {id}] {format_content(block.get('content'))}"}

    id = item.get("tool_call_id") or _block_id(item, _RESULT_ID_KEYS)
    if id in orphans or (item.get("role") == "tool" and any(orphan.startswith(_UNNAMED_PREFIX) for orphan in orphans)):
        content = item.get("content", item.get("output"))
        return {"role": "user", "content": f"[late result of {id or 'a tool'}] {format_content(content)}"}
    blocks = [to_text(block) for block in content_blocks(item)]
    return {**item, "content": blocks} if blocks else dict(item)


def _count_unnamed_calls(item: Mapping[str, Any]) -> int:
    return sum(not _unique_ids([call.get("id")]) for call in message_tool_calls(item))


def _block_id(block: Mapping[str, Any], keys: Mapping[str, str]) -> Any:
    kind = block.get("type")
    return block.get(keys.get(kind, "")) if isinstance(kind, str) else None


def _unique_ids(ids: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id for id in ids if isinstance(id, str) and id))


def format_message(item: MessageItem) -> str:
    """Return a message as readable text: its role, content, tool calls and results."""
    if isinstance(item, str):
        return item
    if "role" not in item:
        if set(item) == {"content"} and isinstance(item["content"], str):
            return item["content"]
        return _format_block(item)
    content = item.get("content")
    parts = [content] if isinstance(content, str) else [_format_block(block) for block in content_blocks(item)]
    if content is not None and not isinstance(content, str | list):
        parts.append(_to_json(content))
    parts += [_format_call(call) for call in message_tool_calls(item)]
    extra = {key: value for key, value in item.items() if key not in _MESSAGE_KEYS and value is not None}
    if extra:
        parts.append(_to_json(extra))
    names = "".join(f" ({item[key]})" for key in ("name", "tool_call_id") if item.get(key))
    return f"{item['role']}{names}: " + "\n".join(part for part in parts if part)


def format_content(content: Any) -> str:
    """Return content as text: a text, blocks, or the arguments of a call."""
    match content:
        case None:
            return ""
        case str():
            return content
        case {"type": "text", "text": str(text)}:
            return text
        case {"extract": str(text)} if len(content) == 1:
            return text
        case list():
            return "\n".join(_format_block(block) for block in content)
        case _:
            return _to_json(content)


def is_image(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") in _IMAGE_TYPES


def _format_block(block: Any) -> str:
    if isinstance(block, str):
        return block
    match block:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "tool_use" | "server_tool_use" | "function_call"}:
            return _format_call(block)
        case {"type": "tool_result" | "function_call_output"}:
            failed = " (an error)" if block.get("is_error") else ""
            content = format_content(block.get("content", block.get("output")))
            return f"result of {_block_id(block, _RESULT_ID_KEYS)}{failed}: {content}"
        case _ if is_image(block):
            return _format_image(block)
        case _:
            return _to_json(block)


def _format_image(block: Mapping[str, Any]) -> str:
    """Return the URL, the file id or the media type of an image, never its data."""
    source = block.get("source", block.get("image_url", block.get("file_id")))
    if isinstance(source, Mapping):
        names = (source.get(name) for name in ("url", "file_id", "media_type"))
        source = next((name for name in names if isinstance(name, str)), None)
    if not isinstance(source, str):
        return "[image]"
    return f"[image {source.partition(';')[0] if source.startswith('data:') else source}]"


def _format_call(call: Mapping[str, Any]) -> str:
    named = call["function"] if isinstance(call.get("function"), Mapping) else call
    if not isinstance(named.get("name"), str):
        return _to_json(call)
    arguments = next((named[key] for key in ("arguments", "args", "input") if key in named), None)
    id = call.get("call_id") or call.get("id")
    return f"calls {named['name']}({format_content(arguments)})" + (f" as {id}" if id else "")


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def shorten_message(
    item: MessageItem,
    limit: int,
    count: TokenCounter,
    *,
    shorten: ShortenText,
    measure: Callable[[MessageItem], int] | None = None,
) -> MessageItem | None:
    """Return the message in at most `limit` tokens, as `measure` counts them, or None if that is impossible."""
    measure = measure or (lambda message: count(format_message(message)))
    sizes: list[int] = []
    share = 0

    def fit(text: str) -> str | None:
        return shorten(text, share, count) if count(text) > share else None

    _map_parts(item, lambda text: sizes.append(count(text)))
    room = limit - max(0, measure(item) - sum(sizes))
    for _ in range(_MAX_SHORTEN_ATTEMPTS):
        share = fair_share(sizes, room)
        short = _map_parts(item, fit)
        excess = measure(short) - limit
        if excess <= 0:
            return short
        # Escapes in nested JSON also cost tokens.
        room -= excess + len(sizes)
    return None


def fair_share(sizes: Sequence[int], room: int) -> int:
    """Return the largest size that each part may have so that all fit; parts below it stay whole."""
    left = max(0, room)
    for smaller, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - smaller)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def _map_parts(item: MessageItem, change: ChangeText) -> MessageItem:
    """Return a copy in which each part that can be shortened is changed, except where `change` returns None."""
    if isinstance(item, str):
        return str(_change_part("", item, change))
    if "role" not in item:
        return dict(_map_block(item, change))
    short = {key: value if key in _MESSAGE_KEYS else _change_part(key, value, change) for key, value in item.items()}
    content = item.get("content")
    if isinstance(content, list):
        short["content"] = [_map_block(block, change) for block in content]
    elif content is not None:
        short["content"] = _change_part("content", content, change)
    if item.get("tool_calls"):
        short["tool_calls"] = [_map_call(call, change) for call in item["tool_calls"]]
    return short


def _map_call(call: Any, change: ChangeText) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("arguments"):
        return call
    return {**call, "function": {**function, "arguments": _change_part("arguments", function["arguments"], change)}}


def _map_block(block: Any, change: ChangeText) -> Any:
    if not isinstance(block, Mapping) or tool_ids(block) == ToolIds():
        return _change_part("", block, change)
    return {key: part if key in _PAIRING_KEYS else _change_part(key, part, change) for key, part in block.items()}


def _change_part(key: str, part: Any, change: ChangeText) -> Any:
    """Return the changed text of a part, in a form that is valid under this key; unchanged for None."""
    short = change(_extract_text(part))
    if short is None:
        return part
    if key == "arguments" and isinstance(part, str):
        return _to_json({"extract": short})
    if isinstance(part, str) or key in ("content", "output", "text"):
        return short
    return {"type": "text", "text": short} if isinstance(part, Mapping) and "type" in part else {"extract": short}


def _extract_text(part: Any) -> str:
    """Return the text of a part; of a part that was shortened before, its extract."""
    if isinstance(part, str) and part.startswith(_EXTRACT_PREFIX):
        try:
            return format_content(json.loads(part))
        except (ValueError, RecursionError):  # a text that only starts like an extract
            return part
    return format_content(part)
