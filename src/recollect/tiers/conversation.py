"""Conversation memory: a session's messages, stored whole. A model is shown instructions, a summary and the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate
from typing import Any, Literal, Protocol

from recollect.clock import Clock, to_utc
from recollect.errors import BadInput
from recollect.language.analysis import count_tokens
from recollect.language.extractive_summary import LabeledText, TokenCounter
from recollect.language.importance import score_importance
from recollect.models.embedding import call_off_loop
from recollect.models.llm import summarize_offline
from recollect.security.injection import find_quarantine_reasons
from recollect.security.redaction import RedactionPolicy
from recollect.settings import Settings
from recollect.stores.base import Log
from recollect.stores.writes import Append, Clear, Entry
from recollect.tiers.facts import check_metadata
from recollect.tiers.indexing import call_with_text, check_limit, check_query, split_batches
from recollect.tiers.log_entries import check_id, generate_id, read_all_entries, search_entries
from recollect.tiers.messages import (
    BLOCKS_KEY,
    ROLE_ALIASES,
    ROLES,
    TOOL_TRUST,
    TRUST_KEY,
    UNKNOWN_TRUST,
    Message,
    MessageContent,
    ModelMessage,
    Role,
    TextCache,
    check_blocks,
    check_trust,
    count_message_tokens,
    count_rendered_tokens,
    find_cut_points,
    find_orphan_results,
    find_pending_calls,
    message_trust,
    orphans_to_text,
    parse_message,
    read_trust,
    render_message,
    resolve_tool_ids,
    sanitize_message,
    to_model_message,
    to_passage,
    tool_ids,
)
from recollect.types import Scope, Space
from recollect.validation import check_choice, check_count, check_text, check_utc

Summarizer = Callable[[list[Message], str | None], Awaitable[str] | str]

EXPORT_FORMAT = 1

_ACCEPTED_ROLES = (*ROLES, *ROLE_ALIASES)
KEPT_MESSAGES = 10
SUMMARY_KIND = "summary"

# Entries besides the shown messages: the summary, what it covers last, and the newest turn.
_EXTRA_ENTRIES = 12

_MAX_SUMMARY_TOKENS = 1000
_SUMMARY_HEADING = "[Context from earlier conversation]\n"
_SUMMARY_REPLY = "Understood. I will keep this in mind."

# Leading system messages are shown always, in at most a third of the tokens.
_MAX_INSTRUCTIONS = 5
_INSTRUCTIONS_SHARE = 3

_MIN_MESSAGE_TOKENS = 16

_HEAD_ENTRIES = 8
_MAX_COUNTED_TEXTS = 4096
# Concurrent writers can make another roll necessary; then the next message rolls again.
_MAX_ROLL_ATTEMPTS = 8


class ConversationIndex(Protocol):
    """Search index over conversations that follows their logs."""

    async def notify(self, space: Space) -> None:
        """Schedule indexing of new messages in a space."""

    async def clear(self, space: Space, *replacements: Append) -> None:
        """Replace the entries of a log, and delete what was indexed of them."""


class ConversationMemory:
    """The conversation of one session, as `AgentMemory.conversation`.

    A model is shown the newest messages word for word and a rolling summary of the older ones. Each new summary covers
    the one before, and is an entry of the same log. `summarizer` makes it from messages and the previous summary;
    without one, or if it fails, it is an extract of the most important sentences.
    """

    def __init__(  # noqa: PLR0913 - the public API names these
        self,
        store: Log,
        *,
        scope: Scope,
        settings: Settings,
        clock: Clock,
        max_messages: int = 50,
        max_tokens: int = 10_000,
        summarize_threshold: int = 30,
        summarizer: Summarizer | None = None,
        summary_timeout: float = 30.0,
        count: TokenCounter = count_tokens,
        ids: Callable[[], str] = generate_id,
        index: ConversationIndex | None = None,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._limits = ContextLimits(max_messages, max_tokens, summarize_threshold)
        self._summarizer = summarizer
        self._summary_timeout = summary_timeout
        self._count_tokens = TextCache(count, _MAX_COUNTED_TEXTS).get
        self._generate_id = ids
        self._max_content = settings.max_content
        self._policy = RedactionPolicy.from_settings(settings)
        self._space = scope.space("conversation")
        self._roll_lock = asyncio.Lock()
        self._room = ContextRoom()
        self._has_unseen_messages = False
        self._summary_error: str | None = None
        """The error of the summarizer, if the newest summary was made offline because of it."""

    async def add_message(
        self,
        role: Role | Literal["developer"],
        content: MessageContent | None,
        *,
        id: str | None = None,
        **metadata: Any,
    ) -> Message:
        """Store a message, and roll the summary if there are too many to show.

        `content` is a text, a list of blocks such as `tool_use` and `tool_result`, or None beside `tool_calls`. A
        message whose `id` is stored already is returned as it is.
        """
        length = len(content) if isinstance(content, str) else 0
        append = await call_with_text(length, self._build_append, role, content, metadata=metadata, id=id)
        stored = None
        if id is None:
            await self._store.write(append)
        else:
            [stored] = await self._store.append(append)
        await self._roll_summary(append)
        return parse_message(stored or append.entry)

    async def get_messages_for_llm(self) -> list[ModelMessage]:
        """Return instructions, summary and newest messages within the limits, as dicts with `role` and `content`.

        The prefix stays the same, byte for byte, until a summary rolls.
        """
        async with self._roll_lock:
            view, roll = await self._roll()
        while roll is not None:
            view = view.apply_roll(roll, view.summary.text)
            roll = view.plan_roll()
        return view.render()

    async def search(self, query: str, limit: int = 5) -> list[Message]:
        """Return the messages of the whole history that match the terms of the query best, best first."""
        query, limit = check_query(query), check_limit(limit)
        matches = await search_entries(query, await self._read_message_entries(), limit, to_utc(self._clock()))
        return [parse_message(entry) for entry in matches]

    async def get_last_n(self, n: int) -> list[Message]:
        """Return the newest messages, newest last."""
        newest = await self._store.recent(self._space, limit=check_limit(n), kinds=ROLES)
        return [parse_message(entry) for entry in newest]

    async def summary(self) -> str | None:
        """Return the summary of the messages that are no longer shown; None if all of them are."""
        return (await self._load_view()).summary.text or None

    async def clear(self) -> None:
        """Delete all messages and summaries."""
        async with self._roll_lock:
            await self._replace_all()

    async def export(self) -> dict[str, Any]:
        """Return the whole conversation as JSON data for `import_from`."""
        summary = (await self._load_view()).summary
        messages = [parse_message(entry) for entry in await self._read_message_entries()]
        covered = sum(message.seq <= summary.covered_seq for message in messages)
        at = None if summary.at is None else summary.at.isoformat()
        rolled = {"messages": covered, "at": at, **_summary_fields(summary)}
        return {
            "format": EXPORT_FORMAT,
            "messages": [
                {
                    "id": message.id,
                    "role": message.role,
                    "content": message.content if message.blocks is None else list(message.blocks),
                    "timestamp": message.timestamp.isoformat(),
                    "metadata": dict(message.metadata),
                }
                for message in messages
            ],
            "summary": None if summary.is_absent else summary.text,
            "rolled": None if summary.is_absent else rolled,
        }

    async def import_from(self, data: Mapping[str, Any]) -> None:
        """Replace the conversation by an exported one, in one transaction."""
        if not isinstance(data, Mapping) or not isinstance(data.get("messages", []), list | tuple):
            raise BadInput("import_from needs the dict that export() returns, with a list of 'messages'")
        if data.get("format", EXPORT_FORMAT) != EXPORT_FORMAT:
            raise BadInput(f"the export has format {data['format']!r}; this version reads format {EXPORT_FORMAT}")
        writes = [self._parse_message(message, index) for index, message in enumerate(data.get("messages", []))]
        if len({write.entry.id for write in writes}) < len(writes):
            raise BadInput("two messages of the export have the same id; give each its own id, or none")
        if (text := data.get("summary")) is not None:
            text = check_text("summary", text, max_length=self._max_content, allow_empty=True)
            text = await self._shorten_summary(self._policy.redact_text("summary", text).value)
            covered, summary = import_summary(text, data.get("rolled"), len(writes), self._limits.message_tokens)
            # A summary of untrusted messages may be someone's instructions; it is dropped and made again. A trusted
            # one names roles, which looks like an injection.
            if summary.trust >= TOOL_TRUST or not find_quarantine_reasons(text, summary.trust):
                built = build_summary_entry(summary, to_utc(self._clock()), self._summary_error)
                # The entry's place in the log says what it covers.
                metadata = {name: value for name, value in built.metadata.items() if name != "covers"}
                entry = replace(built, id=self._generate_id(), metadata=metadata)
                writes.insert(covered, Append(space=self._space, entry=entry))
        async with self._roll_lock:
            await self._replace_all(*writes)
        await self._roll_summary()

    def _build_append(
        self,
        role: Role | Literal["developer"],
        content: MessageContent | None,
        *,
        metadata: Mapping[str, Any] | None = None,
        at: datetime | None = None,
        id: str | None = None,
    ) -> Append:
        """Return the write of a message; call `_roll_summary` after it."""
        check_choice("role", role, _ACCEPTED_ROLES)
        fields = check_metadata(metadata)
        if BLOCKS_KEY in fields:
            raise BadInput(f"metadata must not have the key {BLOCKS_KEY!r}, which stores content blocks")
        if isinstance(content, list | tuple):
            text, blocks = check_blocks(content, self._max_content)
            fields = {**fields, BLOCKS_KEY: blocks}
        else:
            may_be_empty = role == "tool" or (role == "assistant" and bool(fields.get("tool_calls")))
            if content is None and role == "assistant" and may_be_empty:
                content = ""
            text = check_text("content", content, max_length=self._max_content, allow_empty=may_be_empty)
        entry = Entry(
            id=self._generate_id() if id is None else check_id(id),
            kind=ROLE_ALIASES.get(role, role),
            content=text,
            at=to_utc(self._clock()) if at is None else check_utc("at", at),
            metadata=fields,
            importance=score_importance(text),
        )
        return Append(space=self._space, entry=sanitize_message(self._policy, entry))

    def _parse_message(self, message: Any, index: int) -> Append:
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise BadInput(f"messages[{index}] must be a dict with a 'role' and a 'content'; got {message!r:.80}")
        at = parse_export_time(f"messages[{index}].timestamp", message.get("timestamp"))
        return self._build_append(
            message["role"], message["content"], metadata=message.get("metadata"), at=at, id=message.get("id")
        )

    async def _compute_trust(self) -> float:
        """Return the lowest trust of anything that a model is shown."""
        view = await self._load_view()
        return min([view.summary.trust, *map(message_trust, (*view.instructions, *view.messages))])

    async def _roll_summary(self, *added: Append) -> None:
        """Roll the summary if needed. If `added` are all writes since the last call, the room decides."""
        if self._index is not None:
            await self._index.notify(self._space)
        if self._roll_lock.locked():
            self._has_unseen_messages = True
            return
        messages = [parse_message(append.entry) for append in added]
        room = self._room.subtract(messages, self._count_tokens) if messages else None
        self._room, self._has_unseen_messages = room or ContextRoom(), False
        if room is not None:
            return
        async with self._roll_lock:
            view, _ = await self._roll()
            if not self._has_unseen_messages:
                self._room = view.measure_room()

    async def _roll(self) -> tuple[ConversationView, SummaryRoll | None]:
        """Roll the summary until the view is within its limits; return the view and the roll that it still needs."""
        view = await self._load_view()
        for _ in range(_MAX_ROLL_ATTEMPTS):
            roll = view.plan_roll()
            if roll is None:
                return view, None
            text = await self._summarize(view.messages[: roll.covered], view.summary.text)
            summary = view.apply_roll(roll, text).summary
            entry = build_summary_entry(summary, to_utc(self._clock()), self._summary_error)
            await self._store.write(Append(space=self._space, entry=entry))
            view = await self._load_view()
        return view, view.plan_roll()

    async def _replace_all(self, *replacements: Append) -> None:
        if self._index is None:
            await self._store.write(Clear(self._space), *replacements)
        else:
            await self._index.clear(self._space, *replacements)

    async def _read_message_entries(self) -> list[Entry]:
        return [entry for entry in await read_all_entries(self._store, self._space) if entry.kind in ROLES]

    async def _load_view(self) -> ConversationView:
        """Return what a model is shown now. The newest entries are read first, and usually suffice."""
        limits, limit = self._limits, self._limits.entries_read
        while True:
            newest = await self._store.recent(self._space, limit=limit)
            is_complete = len(newest) < limit
            state = find_current_summary(newest, limits.message_tokens, is_complete=is_complete)
            if state is not None:
                break
            limit *= 4
        head = newest[:_HEAD_ENTRIES] if is_complete else await self._store.read(self._space, limit=_HEAD_ENTRIES)
        first = [parse_message(entry) for entry in head if entry.kind in ROLES]
        instructions = find_instructions(first, limits, self._count_tokens)
        pinned = {message.seq for message in instructions}
        summary, entries = state
        messages = [parse_message(entry) for entry in entries if entry.kind in ROLES and entry.seq not in pinned]
        return ConversationView(limits, self._count_tokens, instructions, summary, messages)

    async def _summarize(self, messages: Sequence[Message], before: str) -> str:
        """Return the summary of these messages and the summary before them, within its token limit."""
        text = before
        self._summary_error = None
        limits, count = self._limits, self._count_tokens
        # An import can have thousands of messages, more than a model can read at once.
        size = partial(count_rendered_tokens, max_tokens=limits.message_tokens, count=count)
        for portion in split_batches(messages, size, limits.max_tokens):
            summary = None
            # A summarizer that failed once is not called again in this roll.
            if self._summarizer is not None and self._summary_error is None:
                summary = await self._call_summarizer(self._summarizer, portion, text)
            if summary is None:
                passages = [*([LabeledText(text)] if text else []), *map(to_passage, portion)]
                summary = await summarize_offline(passages, limits.summary_tokens, count)
            text = summary
        return await self._shorten_summary(text)

    async def _shorten_summary(self, text: str) -> str:
        limit = self._limits.summary_tokens
        if self._count_tokens(text) <= limit:
            return text
        return await summarize_offline([LabeledText(text)], limit, self._count_tokens)

    async def _call_summarizer(self, summarizer: Summarizer, messages: list[Message], before: str) -> str | None:
        """Return the summarizer's text; on failure set `_summary_error` and return None."""
        try:
            async with asyncio.timeout(self._summary_timeout):
                text = await call_off_loop(partial(summarizer, messages), before or None, None)
        except Exception as error:  # noqa: BLE001 - any failure of a model falls back to the offline summary
            self._summary_error = type(error).__name__
            return None
        if not isinstance(text, str) or not text.strip():
            self._summary_error = "the summarizer gave no text"
            return None
        return text.replace("\x00", "").encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Limits of what is shown. `max_tokens` always holds; the others unless they would separate a tool pair."""

    max_messages: int = 50
    max_tokens: int = 10_000
    summarize_threshold: int = 30

    def __post_init__(self) -> None:
        check_count("max_messages", self.max_messages, minimum=4)
        check_count("max_tokens", self.max_tokens, minimum=200)
        check_count("summarize_threshold", self.summarize_threshold, minimum=1)

    @property
    def summary_tokens(self) -> int:
        return min(_MAX_SUMMARY_TOKENS, self.max_tokens // 5)

    @property
    def entries_read(self) -> int:
        """The number of newest log entries that usually contain everything that is shown."""
        return max(KEPT_MESSAGES, min(self.summarize_threshold, self.max_messages)) + _EXTRA_ENTRIES

    @property
    def message_tokens(self) -> int:
        """The token limit of one message, unless a roll lowered it."""
        return self.max_tokens // 2


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """Summary of the messages up to the number `covered_seq`.

    `message_tokens` limits each message after it. `is_acknowledged` shows a reply of the assistant after it, for models
    that require alternating roles. `unanswered` are the ids of covered calls without a result.
    """

    text: str
    covered_seq: int
    message_tokens: int
    is_acknowledged: bool = True
    unanswered: tuple[str, ...] = ()
    at: datetime | None = None
    trust: float = 1.0

    @property
    def is_absent(self) -> bool:
        """True if nothing has been summarized."""
        return not self.text and not self.covered_seq


@dataclass(frozen=True, slots=True)
class SummaryRoll:
    """Decision to summarize the oldest `covered` messages, and to show `message_tokens` of each other message."""

    covered: int
    message_tokens: int


@dataclass(frozen=True, slots=True)
class ConversationView:
    """Instructions, summary, and the messages after it, for a model with these limits."""

    limits: ContextLimits
    count: TokenCounter
    instructions: Sequence[Message]
    summary: ConversationSummary
    messages: Sequence[Message]

    def render(self) -> list[ModelMessage]:
        """Return the messages for a model. New messages do not change earlier ones until a summary rolls."""
        rendered = [render_message(message, self.limits.max_tokens, self.count) for message in self.instructions]
        if self.summary.text:
            rendered.append({"role": "user", "content": _SUMMARY_HEADING + self.summary.text})
            if self.summary.is_acknowledged:
                rendered.append({"role": "assistant", "content": _SUMMARY_REPLY})
        return rendered + self._render_messages(self.summary.message_tokens)

    def plan_roll(self) -> SummaryRoll | None:
        """Return the roll that the view needs to stay within its limits; None if it needs none."""
        number, budget, limits = len(self.messages), self._token_budget, self.limits
        kept = min(KEPT_MESSAGES, self._max_messages)
        is_over = number > self._max_messages or sum(self._count_tokens(self.summary.message_tokens)) > budget
        if not is_over and number <= max(limits.summarize_threshold, kept):
            return None
        # The tokens of the messages from each index on.
        tokens_from = list(accumulate(reversed([*self._count_tokens(limits.message_tokens), 0])))[::-1]
        ids = resolve_tool_ids([to_model_message(message) for message in self.messages])
        # A call that waits for its result is covered only if the limits cannot be kept otherwise.
        for before_pending in (True, False) if is_over else (True,):
            cuts = [cut for cut in find_cut_points(ids, before_pending=before_pending) if 0 < cut < number]
            cut = max((cut for cut in cuts if cut <= number - kept), default=0)
            room = budget * 3 // 4 if is_over else budget
            if cut and number - cut <= self._max_messages and tokens_from[cut] <= room:
                return SummaryRoll(cut, limits.message_tokens)
            # Half of the budget stays free; otherwise the next message would roll the summary again.
            fitting = [cut for cut in cuts if tokens_from[cut] <= budget // 2 and number - cut <= self._max_messages]
            if is_over and fitting:
                return SummaryRoll(fitting[0], limits.message_tokens)
        return self._plan_squeeze(find_cut_points(ids)[-2]) if is_over else None

    def apply_roll(self, roll: SummaryRoll, text: str) -> ConversationView:
        """Return the view after a roll, with its new summary `text`."""
        covered, messages = self.messages[: roll.covered], self.messages[roll.covered :]
        ids = [tool_ids(to_model_message(message)) for message in covered]
        summary = ConversationSummary(
            text,
            covered_seq=covered[-1].seq if covered else self.summary.covered_seq,
            message_tokens=roll.message_tokens,
            is_acknowledged=not messages or messages[0].role == "user",
            unanswered=tuple(find_pending_calls(ids, self.summary.unanswered)),
            trust=min([self.summary.trust, *map(message_trust, covered)]),
        )
        return replace(self, summary=summary, messages=messages)

    def measure_room(self) -> ContextRoom:
        """Return the room in a view that needs no roll."""
        message_tokens = self.summary.message_tokens
        kept = min(KEPT_MESSAGES, self._max_messages)
        messages = min(self._max_messages, max(self.limits.summarize_threshold, kept)) - len(self.messages)
        tokens = self._token_budget - sum(self._count_tokens(message_tokens))
        return ContextRoom(messages, tokens, message_tokens)

    def _plan_squeeze(self, start: int) -> SummaryRoll | None:
        """Return the roll for a newest exchange, from `start` on, that is too long; None if it would change nothing."""
        message_tokens = self.limits.message_tokens
        while message_tokens >= _MIN_MESSAGE_TOKENS:
            if sum(self._count_tokens(message_tokens)[start:]) <= self._token_budget:
                is_same = start == 0 and message_tokens == self.summary.message_tokens
                return None if is_same else SummaryRoll(start, message_tokens)
            message_tokens //= 2
        return SummaryRoll(len(self.messages), self.limits.message_tokens)

    def _render_messages(self, message_tokens: int) -> list[ModelMessage]:
        rendered = [render_message(message, message_tokens, self.count) for message in self.messages]
        for index, orphans in find_orphan_results(rendered).items():
            rendered[index] = orphans_to_text(rendered[index], orphans)
        return rendered

    def _count_tokens(self, message_tokens: int) -> list[int]:
        return [count_message_tokens(message, self.count) for message in self._render_messages(message_tokens)]

    @property
    def _max_messages(self) -> int:
        """The number of messages beside the instructions, the summary and its acknowledgement."""
        return max(1, self.limits.max_messages - 2 - len(self.instructions))

    @property
    def _token_budget(self) -> int:
        """The tokens for messages beside the instructions and the longest possible summary."""
        frame = [{"role": "user", "content": _SUMMARY_HEADING}, {"role": "assistant", "content": _SUMMARY_REPLY}]
        limit = self.limits.max_tokens
        fixed = [*frame, *(render_message(message, limit, self.count) for message in self.instructions)]
        return limit - self.limits.summary_tokens - sum(count_message_tokens(message, self.count) for message in fixed)


@dataclass(frozen=True, slots=True)
class ContextRoom:
    """Messages and tokens that this process can add before a roll; so not every message reads the view."""

    messages: int = 0
    tokens: int = 0
    message_tokens: int = 0

    def subtract(self, added: Iterable[Message], count: TokenCounter) -> ContextRoom | None:
        """Return the room after these messages; None if it is used up or the view must be read to know."""
        messages, tokens = self.messages, self.tokens
        for message in added:
            # The tokens of calls and results depend on the messages around them.
            is_plain = message.role in ("user", "assistant") and message.blocks is None
            if not is_plain or "tool_calls" in message.metadata:
                return None
            messages -= 1
            tokens -= count_rendered_tokens(message, self.message_tokens, count)
        return ContextRoom(messages, tokens, self.message_tokens) if messages >= 0 and tokens >= 0 else None


def find_instructions(messages: Sequence[Message], limits: ContextLimits, count: TokenCounter) -> list[Message]:
    """Return the leading system messages, as far as their limits allow."""
    left = limits.max_tokens // _INSTRUCTIONS_SHARE
    instructions: list[Message] = []
    for message in messages[:_MAX_INSTRUCTIONS]:
        left -= count_rendered_tokens(message, limits.max_tokens, count)
        if message.role != "system" or left < 0 or len(instructions) + 3 >= limits.max_messages:
            break
        instructions.append(message)
    return instructions


SummaryState = tuple[ConversationSummary, Sequence[Entry]]
"""The current summary, and the log entries that it does not cover."""


def covered_seq(entry: Entry) -> int:
    """Return the sequence number that a summary covers up to; by default its own."""
    return int(entry.metadata.get("covers", entry.seq))


def find_current_summary(newest: Sequence[Entry], message_tokens: int, *, is_complete: bool) -> SummaryState | None:
    """Return the summary state from the newest entries of a log, or from all; None if more entries must be read.

    A summary whose covered entries are gone was written while the conversation was cleared, and does not count. Of
    several, which concurrent rolls can write, the one that covers most counts.
    """
    known = {entry.seq for entry in newest}
    summaries = [entry for entry in newest if entry.kind == SUMMARY_KIND]
    for entry in sorted(summaries, key=lambda entry: (covered_seq(entry), entry.seq), reverse=True):
        reach = covered_seq(entry)
        if reach in known or (is_complete and reach == 0):
            summary = _build_summary(entry.content, entry.metadata, reach, message_tokens, entry.at)
            return summary, [other for other in newest if other.seq > reach]
    return (ConversationSummary("", 0, message_tokens), newest) if is_complete else None


def build_summary_entry(summary: ConversationSummary, at: datetime, error: str | None) -> Entry:
    return Entry(
        # Two processes that plan the same roll write one summary.
        id=f"{SUMMARY_KIND}:{summary.covered_seq}:{summary.message_tokens}",
        kind=SUMMARY_KIND,
        content=summary.text,
        at=summary.at or at,
        metadata={"covers": summary.covered_seq, **_summary_fields(summary), **({"fault": error} if error else {})},
    )


def import_summary(text: str, fields: Any, messages: int, message_tokens: int) -> tuple[int, ConversationSummary]:
    """Return how many of an export's messages its summary covers, and the summary."""
    values = dict(fields) if isinstance(fields, Mapping) else {}
    covered = check_count("messages of the export's summary", values.get("messages", 0), maximum=messages)
    check_trust(values.get(TRUST_KEY))
    unanswered = values.setdefault("unanswered", ())
    if not isinstance(unanswered, list | tuple) or not all(isinstance(id, str) for id in unanswered):
        raise BadInput(f"unanswered of the export's summary must be a list of ids; got {unanswered!r:.80}")
    check_count("most of the export's summary", values.setdefault("most", message_tokens), minimum=1)
    values.setdefault("noted", True)
    at = parse_export_time("at of the export's summary", values.get("at"))
    return covered, _build_summary(text, values, 0, message_tokens, at)


def _summary_fields(summary: ConversationSummary) -> dict[str, Any]:
    return {
        "most": summary.message_tokens,
        "noted": summary.is_acknowledged,
        "unanswered": list(summary.unanswered),
        TRUST_KEY: summary.trust,
    }


def _build_summary(
    text: str, fields: Mapping[str, Any], covered: int, message_tokens: int, at: datetime | None
) -> ConversationSummary:
    trust = read_trust(fields)
    return ConversationSummary(
        text,
        covered_seq=covered,
        message_tokens=min(fields["most"], message_tokens),
        is_acknowledged=bool(fields["noted"]),
        unanswered=tuple(fields["unanswered"]),
        at=at,
        trust=UNKNOWN_TRUST if trust is None else trust,
    )


def parse_export_time(name: str, value: Any) -> datetime | None:
    """Return an ISO 8601 time of an export; None for None."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name} must be an ISO 8601 time; got {value!r:.80}") from error
    return check_utc(name, time)
