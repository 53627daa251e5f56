"""What the command line prints: JSON for programs, tables for people, and nothing that can drive a terminal."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from recollect.values import Hit, MemoryItem

if TYPE_CHECKING:
    from recollect.inference.ledger import Spent


class ReaderGone(Exception):
    """Whoever read our output has seen enough. Not an OSError: the parser would take that for "not found"."""


class Lines(Console):
    """A console that says so when nobody reads it any more."""

    def on_broken_pipe(self) -> None:
        raise ReaderGone


# Text is shown as it is: no `:100:` becomes a picture.
console = Lines(highlight=False, soft_wrap=True, emoji=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

# Stored text may come from anywhere; without these it cannot move the cursor, recolour or retitle a terminal, link to
# elsewhere, be read in another order than it stands in, end a line or hide letters.
_CONTROL = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles and links
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # the cursor and colours
    r"|\x1b[ -/]*[0-~]"  # anything else that begins so: what it would carry is shown
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """The text without terminal escapes and control characters."""
    return _CONTROL.sub("", text)


def print_json(value: Any) -> None:
    # Not through rich: a program reads this, and ASCII escapes keep every control character harmless.
    write(json.dumps(value, indent=2, default=plain_value) + "\n")


def write(text: str) -> None:
    """The text as it is, at once."""
    try:
        console.file.write(text)
        console.file.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def say(text: str) -> None:
    console.print(clean(text), markup=False)


def complain(text: str) -> None:
    errors.print(f"recollect: {clean(text)}", markup=False)


def aside(text: str) -> None:
    """Something by the way, where it never mixes with what was asked for."""
    errors.print(Text(clean(text), "dim"))


def complain_json(error: str, text: str) -> None:
    """An error for a program: the name of its type, and what a person would be told."""
    errors.file.write(json.dumps({"error": error, "message": clean(text)}) + "\n")


def item_line(item: MemoryItem) -> str:
    """An item as one line, with what is said of it besides."""
    marks = [f"key {item.key}"] if item.key is not None else []
    marks += ["pinned"] if item.pinned else []
    return " ".join(item.content.split()) + (f"  ({', '.join(marks)})" if marks else "")


def item_json(item: MemoryItem) -> dict[str, Any]:
    return {
        "id": item.id,
        "content": item.content,
        "metadata": dict(item.metadata),
        "importance": item.importance,
        "access_count": item.access_count,
        "last_accessed": item.last_accessed,
        "created_at": item.created_at,
        "valid_from": item.valid_from,
        "valid_to": item.valid_to,
        "superseded_by": item.superseded_by,
        "source": item.source,
        "trust": item.trust,
        "key": item.key,
        "pinned": item.pinned,
        "derived_from": list(item.derived_from),
        "user": item.scope.user,
        "tier": item.tier,
    }


def hit_json(hit: Hit) -> dict[str, Any]:
    return {
        "item": item_json(hit.item),
        "tier": hit.tier,
        "relevance": hit.relevance,
        "score": hit.score,
        "why": {"cosine": hit.why.cosine, "words": list(hit.why.matched), "parts": dict(hit.why.parts)},
    }


def spent_line(spent: Spent) -> str:
    """What a model has cost."""
    dollars = "at a price that is not known" if spent.usd is None else f"${spent.usd:.4f}"
    tokens = spent.read + spent.written + spent.embedded
    return f"{spent.model}: {tokens:,} tokens in {spent.calls:,} call{'s' * (spent.calls != 1)}, {dollars}"


def progress_bar(for_program: bool = False) -> Progress:
    """A bar on stderr, so that it never mixes with what a program reads; none for a program, nor in a log file."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=False,
        disable=for_program or not errors.is_terminal,
    )


def plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")
