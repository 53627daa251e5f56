"""What in a message is recited and not said: lines that recall wrote, in whatever shape they were pasted."""

from __future__ import annotations

import re

from recollect.recall.lines import SECTIONS, without_recalled

_HEADING = re.compile("|".join(re.escape(one) for one in SECTIONS))
# Where a recalled line is from stands behind it, and in nobody's own sentence.
_ORIGIN = re.compile(
    r"\(\d{4,5}-\d\d-\d\d(?:, (?:session|from|unverified|worked|used)[^()\n]*)\)"
    r"|\(\d{4,5}-\d\d-\d\d\)(?=\s*(?:$|\n|- |\\n|\"))"
)
_DATE = re.compile(r"\(\d{4,5}-\d\d-\d\d[^()\n]*\)")
_ESCAPED = re.compile(r"\\[nrt]")
# How applications introduce what they have looked up; it ends where the question is asked, or the paragraph.
_TEMPLATE = re.compile(
    r"(?:^|(?<=[\n.!?]))[ \t\"'{\[(*#]*"
    r"(?:(?:some|relevant|retrieved|additional|known|recalled|long-term|stored|useful)[ _])?"
    r"(?:(?P<context>context)|memory|memories|knowledge|known facts|search results|documents?|retrieved)[\"'*]*[ \t]*:"
    r"|\b(?:based on|from|according to) (?:your |my |the |our )?(?:memory|memories|context)\b[^.?!\n:]{0,30}[:,]",
    re.I,
)
_ASKED = re.compile(
    r"\n[ \t]*\n|[\"'*]*\b(?:question|query|user|task|request|instructions?|user message|message|prompt|input)"
    r"[\"'*]*[ \t]*:[ \t\"'*]*",
    re.I,
)


def own_words(text: str) -> str:
    """The message without what was recalled or looked up for it; empty where nothing is the sender's own."""
    text = without_recalled(text)
    if "\\n" in text and (_HEADING.search(text) or _ORIGIN.search(text)):
        text = without_recalled(_ESCAPED.sub("\n", text))
    return _without_templates(_without_blocks(text)).strip()


def is_recited(sentence: str) -> bool:
    """Whether a sentence has a mark of ours in it."""
    return bool(_HEADING.search(sentence) or _ORIGIN.search(sentence))


def _without_blocks(text: str) -> str:
    """Without all from the first mark of ours to the last: on one line nobody can tell where each item began."""
    heading = _HEADING.search(text)
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
        # On the line of a mark any date is one: there may be words of the application behind the last.
        line_end = text.find("\n", origins[-1].end())
        dates = _DATE.finditer(text, origins[-1].start(), len(text) if line_end < 0 else line_end)
        end = max(date.end() for date in dates)
    else:
        blank = text.find("\n\n", start)
        end = len(text) if blank < 0 else blank
    return f"{text[:start]}\n\n{text[end:]}"


def _without_templates(text: str) -> str:
    """Without what stands between `Context:` and `Question:`; by `Context:` alone people mean themselves."""
    kept: list[str] = []
    own = at = 0
    while (found := _TEMPLATE.search(text, at)) is not None:
        asked = _ASKED.search(text, found.end())
        at = len(text) if asked is None else asked.end()
        if not found["context"] or (asked is not None and asked[0].strip()):
            kept.append(text[own : found.start()])
            own = at
    return "\n\n".join((*kept, text[own:]))
