"""The prompt block of a recall: lines that quote memories as data, packed into sections within a token budget."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recollect.language.analysis import count_tokens
from recollect.language.recalled_text import SECTIONS
from recollect.security.injection import AGENT_TRUST
from recollect.types import Context, ContextLine, Hit, LeftOut, MemoryItem, Tier

TIER_PRECEDENCE: Mapping[Tier, int] = {"working": 5, "semantic": 4, "procedural": 3, "episodic": 2, "conversation": 1}
"""If several tiers hold the same text, the tier with the highest number is shown."""

_MAX_LINE_CHARACTERS = 1200
_MAX_WORD_CHARACTERS = 40
_MIN_TRUNCATED_CHARACTERS = 20
# With less room than this, the start of a long line says less than a short line.
_MIN_ROOM_TO_TRUNCATE = 40
_LABELED_TEXT = re.compile(r"\W*[A-Za-z][\w ]{0,30}:")
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

    def truncate(self, room: int) -> RenderedLine | None:
        """Cut the line to `room` tokens, at a space if possible. Return None if less than 20 characters remain."""
        lengths = range(1, len(self.body) + 1)
        end = bisect_right(lengths, room, key=lambda end: count_tokens(f"{self.head}{self.body[:end]}…{self.tail}"))
        start = self.body[:end]
        # Scripts without spaces, and words of more than 40 characters, are cut anywhere.
        if end < len(self.body) and not self.body[end].isspace() and " " in start[-_MAX_WORD_CHARACTERS:]:
            start = start.rsplit(" ", 1)[0]
        start = start.rstrip()
        return RenderedLine(self.head, f"{start}…", self.tail) if len(start) >= _MIN_TRUNCATED_CHARACTERS else None


def render_line(line: PromptLine) -> RenderedLine:
    """Render an item with its origin on one line, which cannot pose as a heading; working memory keeps its lines."""
    item = line.hit.item
    if line.hit.tier == "working":
        return RenderedLine("", "\n".join(_clean_line(text) for text in item.content.split("\n")), "")
    text = _clean_line(item.content[: 4 * _MAX_LINE_CHARACTERS]) or _NOT_PRINTABLE
    if len(text) > _MAX_LINE_CHARACTERS:
        text = f"{text[:_MAX_LINE_CHARACTERS]}… ({len(item.content):,} characters)"
    label = line.label or (item.turn.speaker if item.turn is not None and item.turn.speaker else "")
    # A line without a label is the user's, unless its text could pose as that of another speaker.
    shows_label = label not in ("", "user") or (label and _LABELED_TEXT.match(text))
    head = f"- {_clean_line(label)}: " if shows_label else "- "
    origin = [item.created_at.date().isoformat()]
    is_own_statement = item.trust == 1.0 and item.source.startswith(("conversation:", "episodic:"))
    if item.source not in ("user", label) and not is_own_statement:
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
) -> Context:
    """Return the lines with the highest priority that fit, by section and in the given order; the rest is left out."""
    rendered: dict[int, str] = {}
    omitted: list[LeftOut] = []
    tokens = 0  # the tokens of a block are those of its lines and headings
    open_sections: set[str] = set()
    for at in sorted(range(len(lines)), key=lambda at: -lines[at].priority):
        line, shown = lines[at], render_line(lines[at])
        heading = 0 if line.section in open_sections else count_tokens(line.section)
        cost = count_tokens(str(shown))
        if budget is not None and tokens + heading + cost > budget:
            left = budget - tokens - heading
            truncated = shown.truncate(left) if left >= _MIN_ROOM_TO_TRUNCATE else None
            if truncated is None:
                reason = f"{cost} tokens do not fit into the {max(left, 0)} that are left of {budget}"
                omitted.append(LeftOut(line.hit.item, reason))
                continue
            shown, cost = truncated, count_tokens(str(truncated))
        rendered[at] = str(shown)
        tokens += heading + cost
        open_sections.add(line.section)
    for at, line in enumerate(lines):
        shown_in = f"already shown in {line.section.removeprefix('## ')}"
        reason = shown_in if at in rendered else "says the same as something that did not fit"
        omitted += [LeftOut(item, reason) for item in line.duplicates]
    places = sorted(rendered, key=lambda at: (SECTIONS.index(lines[at].section), at))
    blocks: dict[str, list[str]] = {}
    for at in places:
        blocks.setdefault(lines[at].section, [lines[at].section]).append(rendered[at])
    text = "\n\n".join(map("\n".join, blocks.values()))
    return Context(
        query=query,
        text=text,
        hits=tuple(lines[at].hit for at in rendered),
        tokens=tokens,
        left_out=(*omitted, *left_out),
        warnings=tuple(warnings),
        lines=tuple(
            ContextLine(
                text=rendered[at],
                section=lines[at].section,
                hit=None if lines[at].hit.tier == "working" else lines[at].hit,
                note=lines[at].note,
            )
            for at in places
        ),
    )
