"""Working memory: the state of the current task, and a buffer of items that stays within its tokens."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from recollect.clock import Clock, system_clock
from recollect.errors import BadInput
from recollect.language.analysis import count_tokens as default_token_counter
from recollect.language.extractive_summary import LabeledText, TokenCounter, extract_text
from recollect.models.llm import AskFunction, LanguageModel, summarize_with_fallback, to_language_model
from recollect.tiers import messages
from recollect.tiers.messages import MessageItem, ToolIds
from recollect.validation import check_count, check_json, check_name, check_number, check_text

_SNAPSHOT_FORMAT = 1
_SUMMARY_PREFIX = "Earlier: "
_MAX_WARNINGS = 20
_MAX_LATE_CALLS = 1000
# A summary in fewer tokens says nothing.
_MIN_SUMMARY_TOKENS = 24
# An exchange of more items than this, and than twice `max_items`, is summarized as a whole.
_MAX_EXCHANGE_ITEMS = 40

_MAX_TEXT_LENGTH = 1_000_000
_MAX_NAME_LENGTH = 256
_MAX_TOKENS = 1_000_000_000

_MAX_SHOWN_THOUGHTS = 5
_MAX_SHOWN_VALUES = 20
_MAX_VALUE_LENGTH = 200
_MAX_LINE_LENGTH = 1000

_OPTION_NAMES = ("max_tokens", "summarize_at", "keep_recent", "max_items")
_STATE_TYPES: dict[str, type] = {
    "task": str,
    "task_id": str,
    "current_goal": str,
    "subgoals": list,
    "results": dict,
    "scratchpad": list,
    "variables": dict,
}


@dataclass(frozen=True, slots=True)
class WorkingItem:
    """An item of the buffer or a summary, with its text and tokens."""

    item: MessageItem
    text: str
    tokens: int
    scale: float = 1.0
    """The caller's count of the tokens divided by ours, for the tokens of a shortened item."""

    @property
    def passage(self) -> LabeledText:
        role = self.item.get("role") if isinstance(self.item, Mapping) else None
        if isinstance(role, str) and self.text.startswith(f"{role}: "):
            return LabeledText(self.text.removeprefix(f"{role}: "), role)
        return LabeledText(self.text)


class WorkingMemory:
    """In-process memory of the current task. Only `add` is awaited, because it may call a model for a summary.

    The state of the task is in plain attributes. The methods check their arguments and store copies.

    Past `summarize_at` of `max_tokens`, or past `max_items`, all but the last `keep_recent` items become a summary.
    The rules, strongest first: a tool call stays with its result; `max_tokens` is never exceeded; the last
    `keep_recent` items stay word for word; there are at most `max_items`. So if the last items exceed `max_tokens`, the
    largest are shortened to extracts. A tool exchange longer than `max_items` stays whole, up to twice as many items.
    """

    def __init__(  # noqa: PLR0913 - the public API names these
        self,
        max_tokens: int = 8000,
        summarize_at: float = 0.80,
        keep_recent: int = 5,
        max_items: int | None = 20,
        *,
        llm: LanguageModel | AskFunction | None = None,
        count_tokens: TokenCounter | None = None,
        timeout: float = 30.0,
        clock: Clock = system_clock,
        ids: Callable[[], str] | None = None,
    ) -> None:
        self._generate_id = ids or (lambda: secrets.token_hex(4))
        self.max_tokens = check_count("max_tokens", max_tokens, minimum=1)
        self.summarize_at = check_number("summarize_at", summarize_at, maximum=1.0)
        if not summarize_at:
            raise BadInput("summarize_at must be above 0; got 0")
        self.keep_recent = check_count("keep_recent", keep_recent)
        self.max_items = None if max_items is None else check_count("max_items", max_items, minimum=1)
        self._count_tokens = _check_counter(count_tokens)
        self._llm = to_language_model(llm, timeout=timeout, clock=clock)
        self._warnings: deque[str] = deque(maxlen=_MAX_WARNINGS)
        self._compress_lock = asyncio.Lock()
        self._clear_count = 0
        self.clear()

    def _reset_task(self, task: str) -> None:
        self.task = task
        self.task_id = self._generate_id()
        self.current_goal = task
        self.subgoals: list[str] = []
        self.results: dict[str, Any] = {}
        self.scratchpad: list[str] = []

    def set_task(self, task: str) -> None:
        """Begin another task: goal, subgoals, results and thoughts are reset; variables and the buffer stay."""
        self._reset_task(_check_text("task", task))

    def add_result(self, key: str, value: Any) -> None:
        """Store an intermediate result as a copy in JSON."""
        key = check_name("key", key, max_length=_MAX_NAME_LENGTH, example="units")
        self.results[key] = _check_json(f"results.{key:.80}", value)

    def get_result(self, key: str, default: Any = None) -> Any:
        return self.results.get(key, default) if isinstance(key, str) else default

    def add_thought(self, thought: str) -> None:
        self.scratchpad.append(_check_text("thought", thought))

    def set_variable(self, name: str, value: Any) -> None:
        """Store a value as a copy in JSON. Variables stay when another task begins."""
        name = check_name("name", name, max_length=_MAX_NAME_LENGTH, example="units")
        self.variables[name] = _check_json(f"variables.{name:.80}", value)

    def get_variable(self, name: str, default: Any = None) -> Any:
        return self.variables.get(name, default) if isinstance(name, str) else default

    def push_subgoal(self, goal: str) -> None:
        self.subgoals.append(_check_text("goal", goal))

    def pop_subgoal(self) -> str | None:
        """Remove and return the newest subgoal; None if there is none."""
        return self.subgoals.pop() if self.subgoals else None

    def get_context_string(self) -> str:
        """Return the state for a prompt, one line a value, so that no text can imitate a heading; "" if it is empty."""
        lines = []
        if self.task:
            lines.append(f"Task: {_format_line(self.task, _MAX_LINE_LENGTH)}")
        if self.current_goal and self.current_goal != self.task:
            lines.append(f"Goal: {_format_line(self.current_goal, _MAX_LINE_LENGTH)}")
        if self.subgoals:
            lines.append("Subgoals: " + " > ".join(_format_line(goal, _MAX_VALUE_LENGTH) for goal in self.subgoals))
        lines += _format_values("Results", self.results)
        if self.scratchpad:
            newest = list(dict.fromkeys(reversed(self.scratchpad)))[:_MAX_SHOWN_THOUGHTS]
            thoughts = (f"- {_format_line(thought, _MAX_LINE_LENGTH)}" for thought in reversed(newest))
            lines += ["Recent thoughts:", *thoughts]
        lines += _format_values("Variables", self.variables)
        return "\n".join(lines)

    def clear(self) -> None:
        """Forget everything, variables too; a compression that is running has no effect."""
        self._clear_count += 1
        self._reset_task("")
        self.variables: dict[str, Any] = {}
        self._entries: list[WorkingItem] = []
        self._summaries: list[WorkingItem] = []
        # Calls whose results had not come when they were summarized.
        self._late_calls: dict[str, None] = {}
        self._warnings.clear()

    async def add(self, item: MessageItem, tokens: int | None = None) -> None:
        """Append a text or a message, and summarize older items if there are too many.

        `tokens` is the caller's own count. The item is stored even if this call is cancelled.
        """
        self._entries.append(self._resolve_late_result(_build_item(item, tokens, self._count_tokens)))
        if not self._is_over():
            return
        async with self._compress_lock:
            if not self._is_over():  # another call has compressed meanwhile
                return
            cut = self._find_cut()
            if (not cut or await self._summarize(cut)) and self.current_tokens > self.max_tokens:
                await self._shorten_to_fit()

    @property
    def items(self) -> list[MessageItem]:
        """The items that are kept word for word, oldest first."""
        return [deepcopy(entry.item) for entry in self._entries]

    @property
    def summaries(self) -> list[str]:
        """The summaries of older items, oldest first."""
        return [str(summary.item) for summary in self._summaries]

    @property
    def current_tokens(self) -> int:
        return self._tokens_from(0) + self._summary_tokens

    @property
    def warnings(self) -> list[str]:
        """The newest warnings, without any content."""
        return list(self._warnings)

    @property
    def is_empty(self) -> bool:
        """True if there is no task, no result and no item."""
        task = (self.task, self.current_goal, self.subgoals, self.results, self.scratchpad, self.variables)
        return not any(task) and not self._entries and not self._summaries

    def get_context_block(self) -> str:
        """Return the buffer for a prompt: summaries, then items, with all lines but the first of each indented."""
        return "\n".join("\n  ".join(entry.text.splitlines()) for entry in (*self._summaries, *self._entries))

    def snapshot(self) -> dict[str, Any]:
        """Return everything as JSON for `from_snapshot`."""
        return {
            "format": _SNAPSHOT_FORMAT,
            **{name: getattr(self, name) for name in _OPTION_NAMES},
            **{name: _check_json(name, getattr(self, name)) for name in _STATE_TYPES},
            "items": [{"item": deepcopy(entry.item), "tokens": entry.tokens} for entry in self._entries],
            "summaries": self.summaries,
            "late": list(self._late_calls),
            "warnings": self.warnings,
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], **parts: Any) -> WorkingMemory:
        """Return the memory of a snapshot. `llm`, `count_tokens`, `timeout`, `clock` and `ids` are passed again."""
        if not isinstance(snapshot, Mapping) or snapshot.get("format") != _SNAPSHOT_FORMAT:
            raise BadInput(f"the snapshot must be one of working memory in format {_SNAPSHOT_FORMAT}")
        try:
            memory = cls(**{name: snapshot[name] for name in _OPTION_NAMES}, **parts)
            for name, kind in _STATE_TYPES.items():
                value = _check_json(name, snapshot[name])
                if not isinstance(value, kind):
                    raise BadInput(f"{name} of the snapshot must be a {kind.__name__}; got {type(value).__name__}")
                if isinstance(value, list):
                    value = [_check_text(name, text) for text in value]
                setattr(memory, name, value)
            count = memory._count_tokens
            memory._entries = [_build_item(entry["item"], entry["tokens"], count) for entry in snapshot["items"]]
            texts = [_check_text("summaries", text) for text in snapshot["summaries"]]
            memory._summaries = [_build_summary(text, count) for text in texts]
            memory._late_calls = dict.fromkeys(_check_text("late", id) for id in snapshot["late"])
            memory._warnings.extend(_check_text("warnings", text) for text in snapshot["warnings"])
        except (KeyError, TypeError) as error:
            raise BadInput(f"the snapshot of working memory is incomplete or damaged: {error}") from error
        return memory

    @property
    def _threshold(self) -> int:
        return max(1, int(self.max_tokens * self.summarize_at))

    @property
    def _summary_tokens(self) -> int:
        return sum(summary.tokens for summary in self._summaries)

    def _is_over(self) -> bool:
        has_too_many = self.max_items is not None and len(self._entries) > self.max_items
        return has_too_many or self.current_tokens > self._threshold

    def _find_cut(self) -> int:
        """Return how many of the oldest items to summarize."""
        ids = self._resolve_ids()
        max_items = len(ids) if self.max_items is None else self.max_items
        wanted = max(0, len(ids) - min(self.keep_recent, max_items))
        cut = messages.cut_before(ids, wanted)
        longest = max(2 * max_items, _MAX_EXCHANGE_ITEMS)
        # A pending call is kept while its exchange continues. Beside other items it is kept if there is room, because
        # some calls never get a result.
        pending = messages.cut_before(ids, min([cut, *messages.find_pending_calls(ids).values()]))
        kept = len(ids) - pending
        is_small = kept <= max_items and self._tokens_from(pending) <= self._threshold // 2
        is_affordable = kept <= longest if messages.is_one_exchange(ids[pending:]) else is_small
        if is_affordable:
            return pending
        return messages.cut_after(ids, wanted) if len(ids) - cut > longest else cut

    def _resolve_ids(self) -> list[ToolIds]:
        return messages.resolve_tool_ids([entry.item for entry in self._entries])

    def _tokens_from(self, index: int) -> int:
        return sum(entry.tokens for entry in self._entries[index:])

    async def _summarize(self, cut: int) -> bool:
        """Replace the first items by a summary; return False if the memory was cleared meanwhile."""
        clear_count, older = self._clear_count, self._entries[:cut]
        share = max(min(self.max_tokens // 4, self._threshold // 2), min(self.max_tokens // 2, _MIN_SUMMARY_TOKENS))
        room = min(share, max(share // 4, self.max_tokens - self._tokens_from(cut)))
        minimum = min(room, _MIN_SUMMARY_TOKENS)
        # Without room for another summary, the old summaries and the new items get one together.
        is_rolling = self._summary_tokens + max(room // 4, minimum) > room
        passages = [LabeledText(text) for text in self.summaries] if is_rolling else []
        limit = max(room // 2 if is_rolling else room // 4, minimum)
        result = await summarize_with_fallback(
            [*passages, *(entry.passage for entry in older)],
            limit - self._count_tokens(_SUMMARY_PREFIX),
            model=self._llm,
            count=self._count_tokens,
        )
        if clear_count != self._clear_count:
            return False
        if result.warning:
            self._warnings.append(f"{result.warning} ({cut} items)")
        if is_rolling:
            self._summaries = []
        if result.text:
            self._summaries = [*self._summaries, _build_summary(result.text, self._count_tokens)]
        else:
            self._warnings.append(f"{cut} items left no summary: max_tokens={self.max_tokens} has no room for one")
        self._drop_items(cut)
        return True

    def _drop_items(self, cut: int) -> None:
        """Remove the first items. Results of removed calls become text, now or when they come."""
        pending = messages.find_pending_calls([messages.tool_ids(entry.item) for entry in self._entries])
        late_calls = [*self._late_calls, *(call for call, index in pending.items() if index < cut)]
        self._late_calls = dict.fromkeys(late_calls[-_MAX_LATE_CALLS:])
        for call_at, result_at, id in messages.pair_results(self._resolve_ids()):
            if call_at < cut <= result_at:
                self._entries[result_at] = _replace_orphan(self._entries[result_at], id, self._count_tokens)
        self._entries = self._entries[cut:]

    def _resolve_late_result(self, entry: WorkingItem) -> WorkingItem:
        """Return an item with the results of summarized calls as text."""
        if not self._late_calls:
            return entry
        pending = messages.find_pending_calls([messages.tool_ids(other.item) for other in self._entries])
        for id in messages.tool_ids(entry.item).results:
            if id in self._late_calls and id not in pending:
                del self._late_calls[id]
                entry = _replace_orphan(entry, id, self._count_tokens)
        return entry

    async def _shorten_to_fit(self) -> None:
        """Shorten the largest items to extracts; summarize the oldest if that is not enough."""
        clear_count, entries = self._clear_count, list(self._entries)
        room = max(self._threshold, self.max_tokens // 2) - self._summary_tokens
        share = messages.fair_share([entry.tokens for entry in entries], room)
        short = await asyncio.to_thread(lambda: [_shorten_item(entry, share, self._count_tokens) for entry in entries])
        if clear_count != self._clear_count:
            return
        self._entries[: len(short)] = short
        changed = sum(before is not after for before, after in zip(entries, short, strict=True))
        if changed:
            self._warnings.append(f"{changed} items did not fit max_tokens={self.max_tokens} and are kept as extracts")
        excess = self.current_tokens - self.max_tokens
        ids = self._resolve_ids()
        cut = 0
        while excess > 0 and cut < len(ids):
            cut = messages.cut_after(ids, cut + 1)
            excess = self._tokens_from(cut) + max(self.max_tokens // 4, self._summary_tokens) - self.max_tokens
        if cut:
            await self._summarize(cut)


def _build_item(item: Any, tokens: int | None, count: TokenCounter) -> WorkingItem:
    """Return a checked copy of a text or a message as an item of the buffer."""
    if tokens is not None:
        check_count("tokens", tokens, maximum=_MAX_TOKENS)
    item = _check_item(item)
    text, ids = messages.format_message(item), messages.tool_ids(item)
    if not ids.calls and not ids.results and not _has_content(item):
        raise BadInput("an item of working memory must not be empty")
    own_count = count(text)
    scale = 1.0 if tokens is None else tokens / max(1, own_count)
    return WorkingItem(item, text, own_count if tokens is None else tokens, scale)


def _build_summary(text: str, count: TokenCounter) -> WorkingItem:
    shown = f"{_SUMMARY_PREFIX}{text}"
    return WorkingItem(text, shown, count(shown))


def _check_item(item: Any) -> MessageItem:
    if isinstance(item, str):
        return _check_text("item", item)
    if not isinstance(item, Mapping):
        raise BadInput(f"item must be a string or a message (dict); got {type(item).__name__}")
    message: dict[str, Any] = _check_json("item", dict(item))
    role, calls = message.get("role", "user"), message.get("tool_calls")
    if not isinstance(role, str) or not role.strip():
        raise BadInput(f"the role of an item must be a name such as 'user'; got {role!r:.80}")
    if calls is not None and not isinstance(calls, list):
        raise BadInput(f"tool_calls of an item must be a list; got {type(calls).__name__}")
    return message


def _has_content(item: MessageItem) -> bool:
    if isinstance(item, str) or "role" not in item:
        return bool(messages.format_message(item or "").strip())
    extra = (str(value) for key, value in item.items() if value and key not in ("role", "name", "content"))
    return any(text.strip() for text in (messages.format_content(item.get("content")), *extra))


def _replace_orphan(entry: WorkingItem, id: str, count: TokenCounter) -> WorkingItem:
    item = entry.item if isinstance(entry.item, str) else messages.orphans_to_text(entry.item, frozenset({id}))
    return _change_item(entry, item, count)


def _shorten_item(entry: WorkingItem, limit: int, count: TokenCounter) -> WorkingItem:
    """Return the item in at most `limit` tokens of the caller's count, or unchanged if that is impossible."""
    if entry.tokens <= limit:
        return entry
    item = messages.shorten_message(entry.item, int(limit / max(entry.scale, 0.01)), count, shorten=extract_text)
    short = entry if item is None else _change_item(entry, item, count)
    return short if short.tokens <= limit else entry


def _change_item(entry: WorkingItem, item: MessageItem, count: TokenCounter) -> WorkingItem:
    text = messages.format_message(item)
    return WorkingItem(item, text, math.ceil(count(text) * entry.scale), entry.scale)


_check_text = partial(check_text, max_length=_MAX_TEXT_LENGTH)


def _check_json(name: str, value: Any) -> Any:
    copy = check_json(name, value)
    _check_text(name, json.dumps(copy, ensure_ascii=False))
    return copy


def _check_counter(counter: TokenCounter | None) -> TokenCounter:
    if counter is None:
        return default_token_counter
    if not callable(counter):
        raise BadInput(f"count_tokens must be a callable that counts the tokens of a text; got {counter!r:.80}")
    return lambda text: check_count("the result of count_tokens", counter(text))


def _format_values(heading: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    shown = list(values.items())[-_MAX_SHOWN_VALUES:]
    is_cut = len(values) > len(shown)
    lines = [f"{heading} (the last {len(shown)} of {len(values)}):" if is_cut else f"{heading}:"]
    for name, value in shown:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        lines.append(f"- {_format_line(name, _MAX_VALUE_LENGTH)}: {_format_line(text, _MAX_VALUE_LENGTH)}")
    return lines


def _format_line(text: str, max_length: int) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= max_length else f"{line[:max_length].rstrip()}… ({len(line):,} characters)"
