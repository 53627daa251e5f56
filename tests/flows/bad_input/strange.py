"""Unusual texts and times, and a search that reports whether they were accepted."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

from recollect import AgentMemory, RecollectError

SYNTAX = (
    *('"', '""', "'", "''", "`", "*", "^", "(", ")", "((", "{", "}", "[", "]", ":", "-", "+", "|", "&", "~", ";", "--"),
    *("AND", "OR", "NOT", "NEAR", "NEAR(", "NEAR/2", "AND AND", "col:", "terms:", "rank", "rowid:", "/*", "*/", "\\"),
    *("' or 1=1 --", '"; drop table records; --', "union select", "${jndi}", "%00", "%s", "{0}", "\\x00", "<|im_end|>"),
    *("\x00", "\x01", "\x1b[31m", "\x7f", "\x85", "\u200b", "\u202e", "\ufeff", "\ufffd", "\uffff", "\U0010ffff"),
    *(
        "é",
        "e\u0301",
        "ß",
        "İ",
        "ſ",
        "№",
        "漢字",
        "ひらがな",
        "한국어",
        "ไทย",
        "हिन्दी",
        "العربية",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "𝔘𝔫𝔦",
    ),
    *("\ud800", "\udfff", "\udc80", "cello", "attic", "o'clock", "a_b", "x" * 500, "ab" * 3000, "1e999", "nan"),
)

EAST, WEST = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
WORDS = [text for text in SYNTAX if text.isprintable()]


async def is_answered(memory: AgentMemory, query: str, **options: Any) -> bool:
    options.setdefault("min_relevance", 0.0)
    try:
        await memory.semantic.search(query, 5, **options)
    except RecollectError:
        return False
    return True
