"""Working memory: the state of the task at hand, beside a buffer that never outgrows its tokens."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recollect.clock import Clock, system_clock
from recollect.errors import BadInput
from recollect.inference.llm import Ask, LanguageModel, language_model, summary_of
from recollect.inference.summarise import Count, Passage
from recollect.tiers.shapes import water_level
from recollect.tiers.task_state import TaskState
from recollect.tiers.tool_pairs import (
    Ends,
    Item,
    cut_after,
    cut_before,
    ends_among,
    is_one_exchange,
    parted_by,
    pending,
)
from recollect.tiers.working_items import (
    Entry,
    as_told,
    checked_json,
    checked_text,
    entry_of,
    shortened_entry,
)
from recollect.words.tokens import count_tokens

_FORMAT = 1
_EARLIER = "Earlier: "
_WARNINGS_KEPT = 20
_LATE_KEPT = 1000
# Below this many tokens a summary says nothing: small budgets give it this much where they can.
_LEAST_SUMMARY = 24
# A tool exchange of more items than this, and than twice `max_items`, is summarised whole.
_LONGEST_EXCHANGE = 40


@dataclass(frozen=True, slots=True)
class _Summary:
    text: str
    tokens: int


class WorkingMemory(TaskState):
    """What an agent has in mind: plain and in-process; only `add` is awaited, for it may have to summarise.

    The buffer rests within `max_tokens`, summaries included. Past `summarize_at` of it, or past `max_items`, all but
    the last `keep_recent` items become a summary. The promises, strongest first: a tool call and its result stay
    together; the tokens are never exceeded; the last `keep_recent` stay word for word; there are at most `max_items`.
    So where the last items do not fit `max_tokens` by themselves, the largest become extracts that say how long
    the whole was and its hash; and a tool exchange that reaches past `max_items` stays whole, up to twice as many.
    """

    def __init__(  # noqa: PLR0913 - the front door fixes these
        self,
        max_tokens: int = 8000,
        summarize_at: float = 0.80,
        keep_recent: int = 5,
        max_items: int | None = 20,
        *,
        llm: LanguageModel | Ask | None = None,
        count_tokens: Count | None = None,
        timeout: float = 30.0,
        clock: Clock = system_clock,
        ids: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(ids)
        _check_whole("max_tokens", max_tokens, 1)
        _check_whole("keep_recent", keep_recent, 0)
        if max_items is not None:
            _check_whole("max_items", max_items, 1)
        if isinstance(summarize_at, bool) or not isinstance(summarize_at, int | float) or not 0 < summarize_at <= 1:
            raise BadInput(f"summarize_at is a share of max_tokens above 0 and up to 1, not {summarize_at!r:.80}")
        self.max_tokens = max_tokens
        self.summarize_at = summarize_at
        self.keep_recent = keep_recent
        self.max_items = max_items
        self._count = _checked_counter(count_tokens)
        self._llm = language_model(llm, timeout=timeout, clock=clock)
        self._entries: list[Entry] = []
        self._summaries: list[_Summary] = []
        self._late: dict[str, None] = {}
        self._warnings: deque[str] = deque(maxlen=_WARNINGS_KEPT)
        self._compressing = asyncio.Lock()
        self._cleared = 0

    def clear(self) -> None:
        """Forget everything; a compression that is under way comes to nothing."""
        self._cleared += 1
        super().clear()
        self._entries, self._summaries, self._late = [], [], {}
        self._warnings.clear()

    async def add(self, item: Item, tokens: int | None = None) -> None:
        """Append a text or a message; older ones are summarised when it gets too much.

        `tokens` is the caller's own count, where they have one. The item is kept even if this is cancelled.
        """
        entry = entry_of(item, tokens, self._count)
        self._entries.append(self._after_its_call(entry))
        if self._is_over():
            async with self._compressing:
                await self._compress()

    @property
    def items(self) -> list[Item]:
        """What is kept word for word, oldest first."""
        return [_copy(entry.item) for entry in self._entries]

    @property
    def summaries(self) -> list[str]:
        """What became of the older items, oldest first."""
        return [summary.text for summary in self._summaries]

    @property
    def current_tokens(self) -> int:
        return sum(entry.tokens for entry in self._entries) + self._summary_tokens

    @property
    def warnings(self) -> list[str]:
        """The last things that did not go as asked, without any content."""
        return list(self._warnings)

    def get_context_block(self) -> str:
        """The buffer for a prompt: summaries first, then each item from the margin, its further lines indented."""
        lines = [f"{_EARLIER}{summary.text}" for summary in self._summaries]
        lines += [entry.text for entry in self._entries]
        return "\n".join("\n  ".join(line.splitlines()) for line in lines)

    @property
    def _threshold(self) -> int:
        return max(1, int(self.max_tokens * self.summarize_at))

    @property
    def _summary_tokens(self) -> int:
        return sum(summary.tokens for summary in self._summaries)

    def _is_over(self) -> bool:
        too_many = self.max_items is not None and len(self._entries) > self.max_items
        return too_many or self.current_tokens > self._threshold

    async def _compress(self) -> None:
        """One pass, never a loop: what came in meanwhile compresses for itself when its turn comes."""
        if not self._is_over():
            return
        cut = self._cut()
        if cut and not await self._summarise(cut):
            return
        if self.current_tokens > self.max_tokens:
            await self._fit()

    def _cut(self) -> int:
        """How many of the oldest items to summarise."""
        ends = self._ends()
        most = len(ends) if self.max_items is None else self.max_items
        wanted = max(0, len(ends) - min(self.keep_recent, most))
        cut = cut_before(ends, wanted)
        longest = max(2 * most, _LONGEST_EXCHANGE)
        # A call that still waits is kept where its result will arrive: always while the exchange goes on, and beside
        # other items if that is affordable. Some calls are never answered.
        waiting = cut_before(ends, min([cut, *pending(ends).values()]))
        if is_one_exchange(ends[waiting:]):
            affordable = len(ends) - waiting <= longest
        else:
            affordable = len(ends) - waiting <= most and self._tokens_from(waiting) <= self._threshold // 2
        if affordable:
            return waiting
        return cut_after(ends, wanted) if len(ends) - cut > longest else cut

    def _ends(self) -> list[Ends]:
        return ends_among([entry.item for entry in self._entries])

    def _tokens_from(self, place: int) -> int:
        return sum(entry.tokens for entry in self._entries[place:])

    async def _summarise(self, cut: int) -> bool:
        """Put a summary in place of the first items; False if memory was cleared meanwhile."""
        cleared, older = self._cleared, self._entries[:cut]
        share = max(min(self.max_tokens // 4, self._threshold // 2), min(self.max_tokens // 2, _LEAST_SUMMARY))
        room = min(share, max(share // 4, self.max_tokens - self._tokens_from(cut)))
        least = min(room, _LEAST_SUMMARY)
        rolls = self._summary_tokens + max(room // 4, least) > room
        # Rolling tells the old summaries and the new items in one, so that there is never more than one question.
        passages = [Passage(summary.text) for summary in self._summaries] if rolls else []
        limit = max(room // 2, least) if rolls else max(room // 4, least)
        made = await summary_of(
            [*passages, *(entry.passage for entry in older)],
            limit - self._count(_EARLIER),
            model=self._llm,
            count=self._count,
        )
        if cleared != self._cleared:
            return False
        if made.warning:
            self._warnings.append(f"{made.warning} ({cut} items)")
        if not made.text:
            self._warnings.append(f"{cut} items left no summary: max_tokens={self.max_tokens} has no room for one")
        summary = _Summary(made.text, self._count(f"{_EARLIER}{made.text}")) if made.text else None
        self._summaries = [*([] if rolls else self._summaries), *([summary] if summary else [])]
        self._drop(cut)
        return True

    def _drop(self, cut: int) -> None:
        """Let go of the first items, which are summarised; results that came meanwhile follow their calls as text."""
        for name, place in pending([entry.ends for entry in self._entries]).items():
            if place < cut:
                self._late[name] = None
        while len(self._late) > _LATE_KEPT:
            del self._late[next(iter(self._late))]
        for place, names in parted_by(self._ends(), cut).items():
            self._entries[place] = as_told(self._entries[place], names, self._count)
        self._entries = self._entries[cut:]

    def _after_its_call(self, entry: Entry) -> Entry:
        """A result whose call was summarised before it came, told as text."""
        waiting = pending([one.ends for one in self._entries]) if self._late else {}
        late = frozenset(name for name in entry.ends.results if name in self._late and name not in waiting)
        for name in late:
            del self._late[name]
        return as_told(entry, late, self._count) if late else entry

    async def _fit(self) -> None:
        """The last items do not fit by themselves: shorten the largest, and summarise what cannot be shortened."""
        cleared, entries = self._cleared, list(self._entries)
        sizes = [entry.tokens for entry in entries]
        height = water_level(sizes, max(self._threshold, self.max_tokens // 2) - self._summary_tokens)
        short = await asyncio.to_thread(_all_shortened, entries, height, self._count)
        if cleared != self._cleared:
            return
        self._entries[: len(short)] = short
        changed = sum(before is not after for before, after in zip(entries, short, strict=True))
        if changed:
            self._warnings.append(f"{changed} items did not fit max_tokens={self.max_tokens} and are kept as extracts")
        # Whatever is still too large goes the way of older items, oldest first, whole exchanges at a time.
        over = self.current_tokens - self.max_tokens
        ends = self._ends()
        cut = 0
        while over > 0 and cut < len(ends):
            cut = cut_after(ends, cut + 1)
            over = self._tokens_from(cut) + max(self.max_tokens // 4, self._summary_tokens) - self.max_tokens
        if cut:
            await self._summarise(cut)

    def snapshot(self) -> dict[str, Any]:
        """All of it as JSON; `from_snapshot` makes the same memory of it, in this process or another."""
        return {
            "format": _FORMAT,
            "max_tokens": self.max_tokens,
            "summarize_at": self.summarize_at,
            "keep_recent": self.keep_recent,
            "max_items": self.max_items,
            **{name: checked_json(name, getattr(self, name)) for name in _STATE},
            "items": [{"item": _copy(entry.item), "tokens": entry.tokens} for entry in self._entries],
            "summaries": self.summaries,
            "late": list(self._late),
            "warnings": self.warnings,
        }

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any], **parts: Any) -> WorkingMemory:
        """The memory that was snapshot; `llm`, `count_tokens`, `timeout`, `clock` and `ids` are given anew."""
        if not isinstance(snapshot, Mapping) or snapshot.get("format") != _FORMAT:
            raise BadInput(f"this is no snapshot of working memory in format {_FORMAT}")
        try:
            memory = cls(**{name: snapshot[name] for name in _OPTIONS}, **parts)
            for name, kind in _STATE.items():
                value = checked_json(name, snapshot[name])
                if not isinstance(value, kind):
                    raise BadInput(f"{name} in a snapshot is a {kind.__name__}, not {type(value).__name__}")
                if isinstance(value, list):
                    value = [checked_text(f"what is in {name}", one) for one in value]
                setattr(memory, name, value)
            memory._entries = [entry_of(one["item"], one["tokens"], memory._count) for one in snapshot["items"]]
            texts = [checked_text("a summary", text) for text in snapshot["summaries"]]
            memory._summaries = [_Summary(text, memory._count(f"{_EARLIER}{text}")) for text in texts]
            memory._late = dict.fromkeys(checked_text("a call", name) for name in snapshot["late"])
            memory._warnings.extend(checked_text("a warning", text) for text in snapshot["warnings"])
        except (KeyError, TypeError) as error:
            raise BadInput(f"this snapshot of working memory is incomplete or damaged: {error}") from error
        return memory


_OPTIONS = ("max_tokens", "summarize_at", "keep_recent", "max_items")
_STATE: dict[str, type] = {
    "task": str,
    "task_id": str,
    "current_goal": str,
    "subgoals": list,
    "results": dict,
    "scratchpad": list,
    "variables": dict,
}


def _all_shortened(entries: list[Entry], height: int, count: Count) -> list[Entry]:
    return [entry if entry.tokens <= height else shortened_entry(entry, height, count) or entry for entry in entries]


def _checked_counter(given: Count | None) -> Count:
    if given is None:
        return count_tokens
    if not callable(given):
        raise BadInput(f"count_tokens is a callable that counts the tokens of a text, not {type(given).__name__}")

    def counted(text: str) -> int:
        number = given(text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise BadInput(f"count_tokens answered {number!r:.80}; it gives a whole number from 0")
        return number

    return counted


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < math.inf:
        raise BadInput(f"{name} is a whole number from {least}, not {value!r:.80}")


def _copy(item: Item) -> Item:
    return item if isinstance(item, str) else dict(json.loads(json.dumps(item)))
