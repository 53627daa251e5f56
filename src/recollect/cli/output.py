"""Output of the command line: JSON for programs, text for people, and no terminal control sequences."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from recollect.security.redaction import REDACTED_KINDS_KEY
from recollect.security.secrets import PERSONAL_KINDS
from recollect.types import Hit, LeftOut, MemoryItem, Progress, ProgressCallback
from recollect.validation import format_count, format_size

if TYPE_CHECKING:
    from recollect.health.stats import Stats
    from recollect.memory import AgentMemory

# Counting more facts would take longer than the number is worth.
_MAX_COUNTED_FACTS = 1000
_LABEL_WIDTH = 12
_ITEM_FIELDS = (
    *("id", "content", "metadata", "importance", "access_count", "last_accessed", "created_at", "valid_from"),
    *("valid_to", "superseded_by", "source", "trust", "key", "pinned", "derived_from"),
)
_AGE_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


class OutputClosed(Exception):
    """The reader of stdout has closed it. Not an OSError: click would report that as "not found"."""


class OutputConsole(Console):
    def on_broken_pipe(self) -> None:
        raise OutputClosed


console = OutputConsole(highlight=False, soft_wrap=True, emoji=False)
error_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

# Stored text may come from anywhere: remove what moves the cursor, changes colors or the title, adds links, reorders
# text, ends a line or hides characters.
_CONTROL_CHARACTERS = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles and links
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # cursor and colors
    r"|\x1b[ -/]*[0-~]"  # other escape sequences; their arguments are shown
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def strip_control_characters(text: str) -> str:
    return _CONTROL_CHARACTERS.sub("", text)


def print_json(value: Any) -> None:
    # Written directly, not by rich; json's ASCII escapes make control characters harmless.
    write_raw(json.dumps(value, indent=2, default=to_json_value) + "\n")


def write_raw(text: str) -> None:
    """Write and flush text; raise `OutputClosed` if the reader is gone."""
    try:
        console.file.write(text)
        console.file.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def print_text(text: str) -> None:
    console.print(strip_control_characters(text), markup=False)


def print_error(text: str) -> None:
    error_console.print(f"recollect: {strip_control_characters(text)}", markup=False)


def print_hint(text: str) -> None:
    """Print secondary information to stderr, so that it does not mix with the result."""
    error_console.print(Text(strip_control_characters(text), "dim"))


def print_error_json(error: str, text: str) -> None:
    error_console.file.write(json.dumps({"error": error, "message": strip_control_characters(text)}) + "\n")


@contextmanager
def show_progress(is_hidden: bool = False, *, is_single: bool = False) -> Iterator[ProgressCallback]:
    """Show a progress bar for each stage, or a single one, on stderr if that is a terminal; yield its callback."""
    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=error_console,
        disable=is_hidden or not error_console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def update(progress: Progress) -> None:
        key = "" if is_single else progress.stage
        if key not in tasks:
            tasks[key] = bar.add_task(progress.stage, total=progress.total)
        bar.update(tasks[key], description=progress.stage, completed=progress.done, total=progress.total)

    with bar:
        yield update


def format_item(item: MemoryItem) -> str:
    marks = [f"key {item.key}"] if item.key is not None else []
    marks += ["pinned"] if item.pinned else []
    return " ".join(item.content.split()) + (f"  ({', '.join(marks)})" if marks else "")


def to_json_value(value: Any) -> Any:
    """Return what JSON prints for a value of a type that it does not know; `json.dumps` calls this for each part."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Path():
            return str(value)
        case Mapping():
            return dict(value)
        case MemoryItem():
            shown = {name: getattr(value, name) for name in _ITEM_FIELDS}
            return {**shown, "user": value.scope.user, "tier": value.tier}
        case Hit():
            shown = {name: getattr(value, name) for name in ("item", "tier", "relevance", "score")}
            why = {"cosine": value.why.cosine, "words": value.why.matched, "parts": value.why.parts}
            return {**shown, "why": why}
        case LeftOut():
            return {"item": value.item, "tier": value.item.tier, "reason": value.reason}
    if hasattr(value, "as_json"):
        return value.as_json()
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit: `3 days`."""
    for size, unit in _AGE_UNITS:
        if seconds >= size:
            return format_count(int(seconds // size), unit)
    return format_count(max(0, int(seconds)), "second")


async def count_current_facts(memory: AgentMemory) -> tuple[int, str]:
    """Return the number of facts that are true now, and the same as text; stores count past facts as well."""
    count = len(await memory.semantic.page(_MAX_COUNTED_FACTS + 1))
    return count, format_count(count, "fact") if count <= _MAX_COUNTED_FACTS else f"over {_MAX_COUNTED_FACTS:,} facts"


async def load_stats_lines(memory: AgentMemory) -> tuple[Stats, list[str]]:
    """Return the statistics of a store, and the same as lines of text."""
    stats, (current, _) = await memory.stats(whole_store=True), await count_current_facts(memory)
    rows = []
    for name, tier in stats.tiers.items():
        text = f"{tier.items:,}"
        if tier.sessions:
            text += f" in {format_count(tier.sessions, 'session')}"
        if name == "semantic" and current < tier.items and current <= _MAX_COUNTED_FACTS:
            text += f", of which {current:,} true now"
        if tier.oldest and tier.newest:
            text += f", {tier.oldest:%Y-%m-%d %H:%M} to {tier.newest:%Y-%m-%d %H:%M}"
        rows.append((name, text))
    total = f"{format_count(stats.all_items or 0, 'item')} in {format_count(stats.spaces or 0, 'scope')}"
    rows += [("all users", total), ("on disk", format_size(stats.bytes)), ("model", stats.model or "none yet")]
    for usage in stats.spent:
        dollars = "at an unknown price" if usage.usd is None else f"${usage.usd:.4f}"
        tokens, calls = usage.read + usage.written + usage.embedded, format_count(usage.calls, "call")
        rows.append(("spent", f"{usage.model}: {tokens:,} tokens in {calls}, {dollars}"))
    return stats, [f"{name:>{_LABEL_WIDTH}}  {value}" for name, value in rows]


@contextmanager
def collect_redactions() -> Iterator[list[str]]:
    """Collect the kinds of secrets that are redacted within the block, from the log."""
    log = logging.getLogger("recollect.security")
    kinds: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        kinds.extend(kind for kind in getattr(record, REDACTED_KINDS_KEY, ()) if kind not in kinds)
        return False  # the caller prints them

    level = log.level
    log.addFilter(collect)
    log.setLevel(logging.INFO)
    try:
        yield kinds
    finally:
        log.setLevel(level)
        log.removeFilter(collect)


def format_redactions(kinds: list[str]) -> str:
    nouns = [f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" for kind in kinds]
    options = {"RECOLLECT_PERSONAL_DATA" if kind in PERSONAL_KINDS else "RECOLLECT_SECRETS" for kind in kinds}
    settings = ", ".join(f"{option}=allow" for option in sorted(options))
    is_single = len(kinds) == 1
    listed = " and ".join(part for part in (", ".join(nouns[:-1]), nouns[-1]) if part)
    return f"{listed} {'was' if is_single else 'were'} left out; {settings} keeps {'it' if is_single else 'them'}"
