"""A recalled line: one memory as one line of a prompt, quoted as data, and known again wherever it turns up."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from recollect.guard.instructions import VOUCHED
from recollect.values import Hit, MemoryItem

CURRENT, RECENT, KNOWLEDGE, PROCEDURES = (
    "## Current session",
    "## Recent context",
    "## Relevant knowledge",
    "## Known procedures",
)
SECTIONS = (CURRENT, RECENT, KNOWLEDGE, PROCEDURES)

Count = Callable[[str], int]

_LONGEST_LINE = 1200
_NOT_PRINTABLE = "[nothing that can be shown]"
_UNVERIFIED = "unverified"

# What moves a terminal's cursor, turns the direction of writing or hides letters from people but not from models.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
_BRACKETS = str.maketrans("()", "[]")
# A stranger's words stand between these, and nothing within them looks like one.
_OPEN, _CLOSE = "“", "”"
_QUOTES = str.maketrans("“”„‟«»", '""""""')

# What chat templates and agents take for the beginning of somebody's turn, or for a call. Shown, and taken for nothing.
_ROLES = (
    "system|assistant|user|human|developer|tool|function|instructions?|system[_-]prompt|memory|conversation|notes|context|"
    "tool_call|tool_use|tool_result|tool_response|function_calls?|function_results?|invoke|parameter|antml:[a-z_]+|s"
)
_TAG = re.compile(rf"<(/?\s*(?:{_ROLES})\b[^<>]{{0,200}})>|<(/?\s*(?:{_ROLES})\b)|<<(/?sys)>>", re.IGNORECASE)
_TOKEN = re.compile(r"<([|｜][^<>]{0,80}[|｜])>|<([|｜])|([|｜])>")
_INST = re.compile(r"\[(/?inst)\]", re.IGNORECASE)

# Behind every remembered text stands where it is from: a date, and perhaps more. A list of somebody else's has a date
# too at times, so that without its dash a line of ours is known by the rest of what is said there, or by its label.
_DATE = r"\(\d{4,5}-\d\d-\d\d"
_MORE = r"(?:, [^()\n]+)?"
_MARK = (
    rf"{_DATE}, session [^()\n]+\)"
    rf"|{_DATE}(?:, from [^()\n,]+)?(?:, unverified)?, (?:unverified|not tried yet|worked \d+ of \d+ times{_MORE})\)"
)
_LABEL = "(?:user|assistant|tool|tool call|decision|error|outcome|turn|earlier in this session): "
_DATED = re.compile(rf"{_DATE}{_MORE}\)")
_DATED_LINE = re.compile(rf"^[ \t>]*(?:[-*•] |{_LABEL}).*{_DATE}{_MORE}\)[ \t]*$|{_MARK}", re.MULTILINE)
_HEADING = re.compile(rf"^[ \t>]*(?:{'|'.join(SECTIONS)})[ \t]*$", re.MULTILINE)
# Where line breaks have become blanks, a heading is known by what follows it.
_INLINE = re.compile(
    rf"(?:{'|'.join(SECTIONS)})\s+(?:[-*•>] |Task: |Goal: |Subgoals: |Results|Recent thoughts:|Variables)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A hit on its way into a block: where it belongs, and what is said beside its text."""

    hit: Hit
    section: str
    label: str = ""
    """Who said it, or what kind of thing it is; stands before the text."""
    note: str = ""
    """What is known about it, such as how often it has worked; stands behind the text."""
    worth: float
    """Lines compete for the budget by this, whatever their tier."""
    lasts: int = 0
    """Of lines that say the same, the one that lasts longer is shown."""
    says: tuple[str, ...] = ()
    """The texts in it, where it stands for several, and not for its item's alone."""
    twins: tuple[MemoryItem, ...] = ()
    """Others that say the same, and are left out for this one."""


@dataclass(frozen=True, slots=True)
class Written:
    """A line as it is shown; only `body` may be cut."""

    head: str
    body: str
    tail: str

    def __str__(self) -> str:
        return f"{self.head}{self.body}{self.tail}"

    def cut_to(self, room: int, count: Count) -> Written | None:
        """The beginning that costs at most so many tokens, ended between words; None when too little would be left."""
        low, high = 0, len(self.body)
        while low < high:
            middle = (low + high + 1) // 2
            if count(f"{self.head}{self.body[:middle]}…{self.tail}") <= room:
                low = middle
            else:
                high = middle - 1
        begun = self.body[:low]
        if low < len(self.body) and not self.body[low].isspace():
            # Scripts without spaces, and very long words, are cut where they are.
            begun = begun.rsplit(" ", 1)[0] if " " in begun[-_LONGEST_WORD:] else begun
        begun = begun.rstrip()
        return Written(self.head, f"{begun}…", self.tail) if len(begun) >= _LEAST_LEFT else None


_LONGEST_WORD = 40
_LEAST_LEFT = 20


def written(line: Line) -> Written:
    """One line: the text on a single line, so that stored text cannot pose as a heading, then where it is from.

    The state of the task is in lines of its own making, each of which begins with a name of ours or a dash.
    """
    item = line.hit.item
    if line.hit.tier == "working":
        return Written("", "\n".join(_tame(one) for one in item.content.split("\n")), "")
    # Of a book only the beginning is looked at.
    text = _tame(item.content[: 4 * _LONGEST_LINE]) or _NOT_PRINTABLE
    if len(text) > _LONGEST_LINE:
        text = f"{text[:_LONGEST_LINE]}… ({len(item.content):,} characters)"
    said_by = line.label or (item.turn.speaker if item.turn is not None and item.turn.speaker else "")
    head = f"- {_tame(said_by)}: " if said_by else "- "
    origin = f" ({', '.join(_origin(item, said_by, line.note))})"
    if item.trust < VOUCHED:
        # In quotation marks that it cannot close: whatever it says, it says it in there.
        return Written(f"{head}{_OPEN}", text.translate(_QUOTES), f"{_CLOSE}{origin}")
    return Written(head, text, origin)


def is_recalled(text: str) -> bool:
    """Whether a text is, or has in it, what `recall` once wrote: a block, or a line of one.

    Also with its line breaks made blanks or escaped as in JSON. What was recalled must never be learned again as if
    somebody had said it.
    """
    if "(" not in text and "##" not in text:
        return False
    return _shows_ours(text) or ("\\n" in text and _shows_ours(_unescaped(text)))


def without_recalled(text: str) -> str:
    """The text without the lines that `recall` wrote, and without the headings; what else was said stays."""
    if not is_recalled(text):
        return text
    kept = []
    within_task = within_block = False
    for line in _in_lines(text):
        inline = _INLINE.search(line)
        if _HEADING.search(line):
            within_task, within_block = line.strip(" \t>") == CURRENT, True
        elif not line.strip():
            within_task = within_block = False
            kept.append(line)
        elif inline is not None:
            kept.append(f"{line[: inline.start()]}{_behind(line)}")
        elif within_block and line.lstrip(" \t>")[:2] in _BULLETS and _DATED.search(line):
            kept.append(_behind(line))
        elif not within_task and not _DATED_LINE.search(line):
            # A block inside of quotation marks or JSON begins in the middle of a line.
            before, heading, behind = line.rpartition(_headed(line))
            within_block = within_block or bool(heading and not behind.strip())
            within_task = heading == CURRENT and within_block
            kept.append(before if within_block and heading else line)
    return "\n".join(kept).strip() if any(_SAYS.search(line) for line in kept) else ""


_BULLETS = ("- ", "* ", "• ")
_SAYS = re.compile(r"\w")


def _shows_ours(text: str) -> bool:
    return _headings(text) or bool(_DATED_LINE.search(text))


def _headings(text: str) -> bool:
    return bool(_HEADING.search(text) or _INLINE.search(text))


def _unescaped(text: str) -> str:
    return text.replace("\\r\\n", "\n").replace("\\n", "\n")


def _in_lines(text: str) -> list[str]:
    """The lines of a text; escaped breaks are breaks only where that shows a block, for `C:\\new` has one too."""
    if "\\n" in text and not (_headings(text) or (_shows_ours(text) and not _headings(_unescaped(text)))):
        text = _unescaped(text)
    return text.split("\n")


def _headed(line: str) -> str:
    """The heading that a line ends with, or something that no line has."""
    return next((heading for heading in SECTIONS if line.rstrip().endswith(heading)), "\n")


def _behind(line: str) -> str:
    """What follows the last memory on a line: the rest is ours."""
    ends = [found.end() for found in _DATED.finditer(line)]
    rest = line[ends[-1] :] if ends else ""
    return rest if _SAYS.search(rest) else ""


def _origin(item: MemoryItem, said_by: str, note: str) -> list[str]:
    parts = [item.created_at.date().isoformat()]
    if item.turn is not None:
        parts.append(f"session {_name(item.turn.session)}")
    if item.source not in ("user", said_by):
        parts.append(f"from {_name(item.source)}")
    if item.trust < 1.0:
        parts.append(_UNVERIFIED)
    return [*parts, note] if note else parts


def _name(text: str) -> str:
    return _tame(text).translate(_BRACKETS)


def without_roles(text: str) -> str:
    """The text with its marks of chat templates in other brackets: to be read, and not to be obeyed."""
    if "<" in text or "|>" in text or "｜>" in text:
        text = _TOKEN.sub(
            lambda found: f"‹{found[1]}›" if found[1] else f"‹{found[2]}" if found[2] else f"{found[3]}›", text
        )
        text = _TAG.sub(_bracketed, text)
    return _INST.sub(r"‹\1›", text) if "[" in text else text


def _bracketed(found: re.Match[str]) -> str:
    if found[2]:
        return f"‹{found[2]}"
    return f"‹{found[1] or found[3]}›"


def _tame(text: str) -> str:
    """On one line, without what cannot be seen, and not beginning like a heading."""
    if not text.isprintable():
        text = _UNSEEN.sub("", _ESCAPES.sub("", text))
    flat = without_roles(" ".join(text.split()))
    if flat.startswith("#"):
        return f"\\{flat}"
    return f"- \\{flat[2:]}" if flat.startswith("- #") else flat
