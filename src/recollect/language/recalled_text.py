"""Recognition of text that `recall` wrote, in any form in which it is pasted back: recalled text is never learned."""

from __future__ import annotations

import re

SECTIONS = ("## Current session", "## Recent context", "## Relevant knowledge", "## Known procedures")
CURRENT_SECTION, RECENT_SECTION, KNOWLEDGE_SECTION, PROCEDURES_SECTION = SECTIONS

# Each recalled line ends with its origin: a date, and often more. Other lists may end with a date, too. A line without
# a bullet therefore counts only if it has more of an origin than the date, or one of our labels.
_DATE = r"\(\d{4,5}-\d\d-\d\d"
_DETAILS = r"(?:, [^()\n]+)?"
_FULL_ORIGIN = (
    rf"{_DATE}, session [^()\n]+\)"
    rf"|{_DATE}(?:, from [^()\n,]+)?(?:, unverified)?,"
    rf" (?:unverified|not tried yet|worked \d+ of \d+ times{_DETAILS})\)"
)
_LABEL = "(?:user|assistant|tool|tool call|decision|error|outcome|turn|earlier in this session): "
# A line that is quoted within a sentence.
_QUOTED_LINE = rf"(?<=\S) - .{{2,600}}?{_DATE}{_DETAILS}\)"
_DATED_TEXT = re.compile(rf"{_DATE}{_DETAILS}\)")
_DATED_LINE = re.compile(
    rf"^[ \t>]*(?:[-*•] |{_LABEL}).*{_DATE}{_DETAILS}\)[ \t]*$|{_FULL_ORIGIN}|{_QUOTED_LINE}", re.MULTILINE
)
_BULLETS = ("- ", "* ", "• ")

_ANY_SECTION = "|".join(SECTIONS)
_SECTION_HEADING = re.compile(_ANY_SECTION)
_HEADING_LINE = re.compile(rf"^[ \t>]*(?:{_ANY_SECTION})[ \t]*$", re.MULTILINE)
# If line breaks became blanks, a heading is recognized by what follows it.
_INLINE_HEADING = re.compile(
    rf"(?:{_ANY_SECTION})\s+(?:[-*•>] |Task: |Goal: |Subgoals: |Results|Recent thoughts:|Variables)"
)

# An origin inside a sentence.
_ORIGIN = re.compile(
    r"\(\d{4,5}-\d\d-\d\d(?:, (?:session|from|unverified|worked|used)[^()\n]*)\)"
    r"|\(\d{4,5}-\d\d-\d\d\)(?=\s*(?:$|\n|- |\\n|\"))"
)
_DATED_NOTE = re.compile(r"\(\d{4,5}-\d\d-\d\d[^()\n]*\)")
_ESCAPED_BREAK = re.compile(r"\\[nrt]")
_HAS_WORD = re.compile(r"\w")

# Labels that applications put before retrieved text. The text ends at the question or at the end of the paragraph.
_CONTEXT_LABEL = re.compile(
    r"(?:^|(?<=[\n.!?]))[ \t\"'{\[(*#]*"
    r"(?:(?:some|relevant|retrieved|additional|known|recalled|long-term|stored|useful)[ _])?"
    r"(?:(?P<context>context)|memory|memories|knowledge|known facts|search results|documents?|retrieved)[\"'*]*[ \t]*:"
    r"|\b(?:based on|from|according to) (?:your |my |the |our )?(?:memory|memories|context)\b[^.?!\n:]{0,30}[:,]",
    re.I,
)
_QUESTION_LABEL = re.compile(
    r"\n[ \t]*\n|[\"'*]*\b(?:question|query|user|task|request|instructions?|user message|message|prompt|input)"
    r"[\"'*]*[ \t]*:[ \t\"'*]*",
    re.I,
)


def is_recalled(text: str) -> bool:
    """Return True if the text contains a block or a line that `recall` wrote, also with escaped or lost line breaks."""
    if "(" not in text and "##" not in text:
        return False
    return _has_recalled_lines(text) or ("\\n" in text and _has_recalled_lines(_unescape_newlines(text)))


def has_recalled_mark(sentence: str) -> bool:
    """Return True if the sentence contains one of our headings or origins."""
    return bool(_SECTION_HEADING.search(sentence) or _ORIGIN.search(sentence))


def remove_recalled(text: str) -> str:
    """Return the text without the lines and headings that `recall` wrote; the rest stays."""
    if not is_recalled(text):
        return text
    kept = []
    within_task = within_block = False
    for line in _split_lines(text):
        inline = _INLINE_HEADING.search(line)
        if _HEADING_LINE.search(line):
            within_task, within_block = line.strip(" \t>") == CURRENT_SECTION, True
        elif not line.strip():
            within_task = within_block = False
            kept.append(line)
        elif inline is not None:
            kept.append(f"{line[: inline.start()]}{_find_trailing_text(line)}")
        elif within_block and line.lstrip(" \t>")[:2] in _BULLETS and _DATED_TEXT.search(line):
            kept.append(_find_trailing_text(line))
        elif not within_task and not _DATED_LINE.search(line):
            # A block inside quotation marks or JSON starts in the middle of a line.
            ending = next((heading for heading in SECTIONS if line.rstrip().endswith(heading)), "\n")
            before, heading, behind = line.rpartition(ending)
            within_block = within_block or bool(heading and not behind.strip())
            within_task = heading == CURRENT_SECTION and within_block
            kept.append(before if within_block and heading else line)
    return "\n".join(kept).strip() if any(_HAS_WORD.search(line) for line in kept) else ""


def extract_own_words(text: str) -> str:
    """Return the message without recalled or retrieved text; empty if the sender wrote nothing else."""
    text = remove_recalled(text)
    if "\\n" in text and has_recalled_mark(text):
        text = remove_recalled(_ESCAPED_BREAK.sub("\n", text))
    return _remove_retrieved(_remove_blocks(text)).strip()


def _has_recalled_lines(text: str) -> bool:
    return _has_heading(text) or bool(_DATED_LINE.search(text))


def _has_heading(text: str) -> bool:
    return bool(_HEADING_LINE.search(text) or _INLINE_HEADING.search(text))


def _unescape_newlines(text: str) -> str:
    return text.replace("\\r\\n", "\n").replace("\\n", "\n")


def _split_lines(text: str) -> list[str]:
    """Return the lines. An escaped break counts only if it reveals a block: `C:\\new` contains one, too."""
    if "\\n" in text and not (
        _has_heading(text) or (_has_recalled_lines(text) and not _has_heading(_unescape_newlines(text)))
    ):
        text = _unescape_newlines(text)
    return text.split("\n")


def _find_trailing_text(line: str) -> str:
    """Return the text after the last origin of the line."""
    ends = [match.end() for match in _DATED_TEXT.finditer(line)]
    rest = line[ends[-1] :] if ends else ""
    return rest if _HAS_WORD.search(rest) else ""


def _remove_blocks(text: str) -> str:
    """Remove everything from the first mark to the last: within one line the items cannot be told apart."""
    heading = _SECTION_HEADING.search(text)
    origins = list(_ORIGIN.finditer(text))
    if heading is None and not origins:
        return text
    if heading is None:
        line = text.rfind("\n", 0, origins[0].start()) + 1
        dash = text.find("- ", line, origins[0].start())
        start = line if dash < 0 else dash
    else:
        start = min(heading.start(), origins[0].start()) if origins else heading.start()
    if origins and origins[-1].end() > start:
        # On the line of an origin every date counts: text of the application may follow the last origin.
        line_end = text.find("\n", origins[-1].end())
        dates = _DATED_NOTE.finditer(text, origins[-1].start(), len(text) if line_end < 0 else line_end)
        end = max(date.end() for date in dates)
    else:
        blank = text.find("\n\n", start)
        end = len(text) if blank < 0 else blank
    return f"{text[:start]}\n\n{text[end:]}"


def _remove_retrieved(text: str) -> str:
    """Remove the text between `Context:` and `Question:`. A `Context:` without a question is the sender's own."""
    kept: list[str] = []
    own_start = position = 0
    while (label := _CONTEXT_LABEL.search(text, position)) is not None:
        question = _QUESTION_LABEL.search(text, label.end())
        position = len(text) if question is None else question.end()
        if not label["context"] or (question is not None and question[0].strip()):
            kept.append(text[own_start : label.start()])
            own_start = position
    return "\n\n".join((*kept, text[own_start:]))
