"""The prompt block of a recall: lines that quote memories as data, packed into sections within a token budget."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recollect.language.analysis import count_tokens
from recollect.language.recalled_text import SECTIONS
from recollect.security.injection import AGENT_TRUST
from recollect.types import Context, Hit, LeftOut, MemoryItem

TokenCounter = Callable[[str], int]

_MAX_LINE_CHARACTERS = 1200
_MAX_WORD_CHARACTERS = 40
_MIN_TRUNCATED_CHARACTERS = 20
# With less room than this, the start of a long line says less than a short line.
_MIN_ROOM_TO_TRUNCATE = 40
_NOT_PRINTABLE = "[nothing that can be shown]"

# Terminal escapes, and characters that change the writing direction or are invisible to people but not to models.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
_BRACKETS = str.maketrans("()", "[]")
# Untrusted text stands between these quotes, and has none of them itself.
_OPEN_QUOTE, _CLOSE_QUOTE = "“", "”"
_QUOTES = str.maketrans("“”„‟«»", '""""""')

# Tags that chat templates and agents read as the start of a turn or as a call.
_ROLE_NAMES = (
    "system|assistant|user|human|developer|tool|function|instructions?|system[_-]prompt|memory|conversation|notes|context|"
    "tool_call|tool_use|tool_result|tool_response|function_calls?|function_results?|invoke|parameter|antml:[a-z_]+|s"
)
_ROLE_TAG = re.compile(
    rf"<(/?\s*(?:{_ROLE_NAMES})\b[^<>]{{0,200}})>|<(/?\s*(?:{_ROLE_NAMES})\b)|<<(/?sys)>>", re.IGNORECASE
)
_TEMPLATE_TOKEN = re.compile(r"<([|｜][^<>]{0,80}[|｜])>|<([|｜])|([|｜])>")
_INST_TAG = re.compile(r"\[(/?inst)\]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """A hit with its section and everything that is shown beside its text."""

    hit: Hit
    section: str
    label: str = ""
    """The speaker or the kind of entry, shown before the text."""
    note: str = ""
    """For example a success rate, shown after the text."""
    priority: float
    """Lines of all tiers compete for the budget by this."""
    precedence: int = 0
    """If several lines have the same text, the line with the highest precedence is shown."""
    texts: tuple[str, ...] = ()
    """The texts that the line contains, if it has several."""
    duplicates: tuple[MemoryItem, ...] = ()
    """Items with the same text, which are not shown."""


@dataclass(frozen=True, slots=True)
class RenderedLine:
    """A line as it is shown; only `body` may be truncated."""

    head: str
    body: str
    tail: str

    def __str__(self) -> str:
        return f"{self.head}{self.body}{self.tail}"

    def truncate(self, room: int, count: TokenCounter) -> RenderedLine | None:
        """Cut the line to `room` tokens, at a space if possible. Return None if less than 20 characters remain."""
        lengths = range(1, len(self.body) + 1)
        end = bisect_right(lengths, room, key=lambda end: count(f"{self.head}{self.body[:end]}…{self.tail}"))
        start = self.body[:end]
        # Scripts without spaces, and words of more than 40 characters, are cut anywhere.
        if end < len(self.body) and not self.body[end].isspace() and " " in start[-_MAX_WORD_CHARACTERS:]:
            start = start.rsplit(" ", 1)[0]
        start = start.rstrip()
        return RenderedLine(self.head, f"{start}…", self.tail) if len(start) >= _MIN_TRUNCATED_CHARACTERS else None


def render_line(line: PromptLine) -> RenderedLine:
    """Render an item on one line, so that its text cannot pose as a heading, with its origin at the end.

    Working memory keeps its lines, each of which begins with a label or a dash.
    """
    item = line.hit.item
    if line.hit.tier == "working":
        return RenderedLine("", "\n".join(_clean_line(text) for text in item.content.split("\n")), "")
    text = _clean_line(item.content[: 4 * _MAX_LINE_CHARACTERS]) or _NOT_PRINTABLE
    if len(text) > _MAX_LINE_CHARACTERS:
        text = f"{text[:_MAX_LINE_CHARACTERS]}… ({len(item.content):,} characters)"
    label = line.label or (item.turn.speaker if item.turn is not None and item.turn.speaker else "")
    head = f"- {_clean_line(label)}: " if label else "- "
    origin = [item.created_at.date().isoformat()]
    if item.turn is not None:
        origin.append(f"session {_clean_name(item.turn.session)}")
    if item.source not in ("user", label):
        origin.append(f"from {_clean_name(item.source)}")
    if item.trust < 1.0:
        origin.append("unverified")
    if line.note:
        origin.append(line.note)
    tail = f" ({', '.join(origin)})"
    if item.trust < AGENT_TRUST:
        return RenderedLine(f"{head}{_OPEN_QUOTE}", text.translate(_QUOTES), f"{_CLOSE_QUOTE}{tail}")
    return RenderedLine(head, text, tail)


def neutralize_role_tags(text: str) -> str:
    """Replace the brackets of chat template tags by ‹ and ›, so that they are readable but not interpreted."""
    if "<" in text or "|>" in text or "｜>" in text:
        text = _TEMPLATE_TOKEN.sub(
            lambda match: f"‹{match[1]}›" if match[1] else f"‹{match[2]}" if match[2] else f"{match[3]}›", text
        )
        text = _ROLE_TAG.sub(lambda match: f"‹{match[2]}" if match[2] else f"‹{match[1] or match[3]}›", text)
    return _INST_TAG.sub(r"‹\1›", text) if "[" in text else text


def _clean_name(text: str) -> str:
    return _clean_line(text).translate(_BRACKETS)


def _clean_line(text: str) -> str:
    """Return the text on one line, without invisible characters, and not starting like a heading."""
    if not text.isprintable():
        text = _INVISIBLE_CHARACTERS.sub("", _ESCAPES.sub("", text))
    line = neutralize_role_tags(" ".join(text.split()))
    if line.startswith("#"):
        return f"\\{line}"
    return f"- \\{line[2:]}" if line.startswith("- #") else line


def build_prompt_block(
    query: str,
    lines: Sequence[PromptLine],
    budget: int | None = None,
    *,
    left_out: Sequence[LeftOut] = (),
    warnings: Sequence[str] = (),
    count: TokenCounter = count_tokens,
) -> Context:
    """Return the lines with the highest priority that fit, by section and in the given order; the rest is left out."""
    if not lines:
        return Context(query, "", (), 0, tuple(left_out), tuple(warnings))
    selection = _LineSelection(lines, budget, count)
    text = selection.render()
    # `count_tokens` is additive over lines, which are counted already. For other counters the text is recounted.
    tokens = selection.tokens_used if budget is not None and count is count_tokens else count(text) if text else 0
    while budget is not None and tokens > budget:
        selection.drop_last()
        text = selection.render()
        tokens = count(text) if text else 0
    shown = sorted(selection.rendered, key=lambda at: (SECTIONS.index(lines[at].section), at))
    hits = tuple(lines[at].hit for at in shown)
    omitted = (*selection.left_out, *_list_duplicates(lines, selection), *left_out)
    return Context(query, text, hits, tokens, omitted, tuple(warnings))


class _LineSelection:
    """The lines that are shown: those with the highest priority, as long as there is room."""

    def __init__(self, lines: Sequence[PromptLine], budget: int | None, count: TokenCounter) -> None:
        self._lines = lines
        self._budget = budget
        self.rendered: dict[int, RenderedLine] = {}
        self.left_out: list[LeftOut] = []
        self.tokens_used = 0
        room = budget
        open_sections: set[str] = set()
        for at in sorted(range(len(lines)), key=lambda at: -lines[at].priority):
            line, whole = lines[at], render_line(lines[at])
            if room is None:
                self.rendered[at] = whole
                continue
            left = room - (0 if line.section in open_sections else count(line.section))
            cost = count(str(whole))
            shown: RenderedLine | None = whole
            if cost > left:
                shown = whole.truncate(left, count) if left >= _MIN_ROOM_TO_TRUNCATE else None
            if shown is None:
                self._leave_out(at, f"{cost} tokens do not fit into the {max(left, 0)} that are left of {budget}")
                continue
            self.rendered[at] = shown
            room = left - (cost if shown is whole else count(str(shown)))
            open_sections.add(line.section)
        if budget is not None and room is not None:
            self.tokens_used = budget - room

    def render(self) -> str:
        blocks = []
        for section in SECTIONS:
            texts = [str(self.rendered[at]) for at in sorted(self.rendered) if self._lines[at].section == section]
            if texts:
                blocks.append("\n".join([section, *texts]))
        return "\n\n".join(blocks)

    def drop_last(self) -> None:
        at = next(reversed(self.rendered))
        del self.rendered[at]
        self._leave_out(at, f"the whole block does not fit into {self._budget} tokens with it")

    def _leave_out(self, at: int, reason: str) -> None:
        self.left_out.append(LeftOut(self._lines[at].hit.item, reason))


def _list_duplicates(lines: Sequence[PromptLine], selection: _LineSelection) -> list[LeftOut]:
    return [
        LeftOut(
            item,
            f"already shown in {line.section.removeprefix('## ')}"
            if at in selection.rendered
            else "says the same as something that did not fit",
        )
        for at, line in enumerate(lines)
        for item in line.duplicates
    ]
