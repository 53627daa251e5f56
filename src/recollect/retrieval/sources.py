"""Parallel queries of several sources, and the removal of lines that repeat another line."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.language.analysis import analyze
from recollect.retrieval.prompt_block import PromptLine
from recollect.types import LeftOut, MemoryItem

# Entries of logs may quote what was recalled.
_LOG_TIERS = ("episodic", "conversation")

_WORD = re.compile(r"\w+")
# A frame around a text that has the same frame, as when an agent quotes its own quotation.
_REPEATED_FRAME = re.compile(r"^((?:\S+ ){1,8}?)\1+")
_FRAME_WORDS = 9

# Texts that share this many first characters, and have the same length, count as the same.
_MAX_COMPARED_CHARACTERS = 4000

# A shorter text is a phrase that occurs in many sentences.
_MIN_QUOTED_WORDS = 4
_MAX_FRAME_CHARACTERS = 160

# Terms around a quotation that add nothing to it.
_FRAME_TERMS = frozenset(
    analyze(
        "based memory memories recall recalled recollect remember remembered said say says told tell mentioned mention "
        "noted note notes according earlier previous previously before know known knowledge fact record records "
        "recorded stored saved context information info found here answer sure yes ok okay right well thanks "
        "understood got last time session user assistant see history conversation so far quote still exactly "
        "stated state states wrote reminder reminded remind"
    )
)


@dataclass(frozen=True, slots=True)
class SourceResult:
    """The lines of one source, in reading order; of a source that failed, a warning and the error."""

    lines: Sequence[PromptLine] = ()
    left_out: Sequence[LeftOut] = ()
    warnings: Sequence[str] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallSource:
    """A source of lines: its name for warnings, its query, and the timeout in seconds."""

    name: str
    query: Callable[[], Awaitable[SourceResult]]
    timeout: float
    is_stored: bool = True
    """False if it reads no store, so that it cannot fail."""
    is_slow: bool = False
    """True if it is started before the others."""


async def query_sources(sources: Sequence[RecallSource]) -> SourceResult:
    """Query all sources in parallel and merge their results.

    A source whose store or embedder fails, or that times out, is left out with a warning. If all stored sources fail,
    the first error is raised. Other errors, such as `BadInput`, are always raised.
    """
    by_start = sorted(sources, key=lambda source: not source.is_slow)
    answers = dict(zip(map(id, by_start), await gather_all(*map(_query_source, by_start)), strict=True))
    results: list[SourceResult] = [answers[id(source)] for source in sources]
    lines = [line for result in results for line in result.lines]
    errors = [result.error for result in results if result.error is not None]
    if errors and not lines and len(errors) == sum(source.is_stored for source in sources):
        raise errors[0]
    warnings = dict.fromkeys(warning for result in results for warning in result.warnings)
    return SourceResult(dedupe_lines(lines), [item for result in results for item in result.left_out], list(warnings))


async def _query_source(source: RecallSource) -> SourceResult:
    if not source.is_stored:
        return await source.query()
    try:
        async with asyncio.timeout(source.timeout):
            return await source.query()
    except StoreClosed:
        raise  # the caller closed the memory
    except (StoreError, EmbedderFailed, OSError) as error:  # also a timeout
        kind = f"no answer within {source.timeout:g} s" if isinstance(error, TimeoutError) else type(error).__name__
        warning = f"{source.name} memory could not be read: {str(error) or kind}; its part is missing"
        return SourceResult(warnings=[warning], error=error)


async def gather_all(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all coroutines and return their results in order. The first error cancels the others and is raised."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def dedupe_lines(lines: Sequence[PromptLine]) -> list[PromptLine]:
    """Merge lines with the same text; the merged ones become `duplicates` of the line that stays.

    Case, spaces and punctuation are ignored, and a fact replaces the episode it was derived from. The line with the
    highest precedence stays, then priority, then position. It takes over the best score among lines with its text.
    An entry of a log that only quotes another line is removed, too.
    """
    keys = [build_text_key(line.hit.item.content) for line in lines]
    by_text: dict[str, int] = {}
    by_id: dict[str, int] = {}
    duplicates: dict[int, list[MemoryItem]] = {}
    best: dict[int, PromptLine] = {}
    for at in sorted(range(len(lines)), key=lambda at: (lines[at].precedence, lines[at].priority, at), reverse=True):
        item = lines[at].hit.item
        same = by_id.get(item.id, by_text.get(keys[at]))
        if same is not None:
            if keys[at] == keys[same]:
                # The search of a log knows the turns beside its entries.
                why = max(best[same].hit.why, lines[at].hit.why, key=lambda why: len(why.parts))
                higher = max(best[same], lines[at], key=lambda line: line.priority)
                best[same] = replace(higher, hit=replace(higher.hit, why=why))
            kept = lines[same].hit.item
            if (item.tier, item.id) != (kept.tier, kept.id):  # two sources may return the same item
                duplicates[same].append(item)
            continue
        duplicates[at], best[at] = [], lines[at]
        by_id.update(dict.fromkeys((*item.derived_from, item.id), at))
        for key in [build_text_key(text) for text in lines[at].texts] or [keys[at]]:
            by_text.setdefault(key, at)
    kept_places = sorted(duplicates)
    for echo, quoted in find_echoes([keys[at] for at in kept_places]).items():
        item = lines[kept_places[echo]].hit.item
        if lines[kept_places[echo]].hit.tier in _LOG_TIERS:
            duplicates[kept_places[quoted]] += [item, *duplicates.pop(kept_places[echo])]
    merged = []
    for at in sorted(duplicates):
        line, priority = lines[at], best[at].priority
        if duplicates[at] or best[at] is not line:
            hit = replace(best[at].hit, item=line.hit.item, tier=line.hit.tier)
            line = replace(line, hit=hit, priority=priority, duplicates=tuple(duplicates[at]))
        merged.append(line)
    return merged


def build_text_key(text: str) -> str:
    """Return a key that is equal for texts that differ in case, punctuation or spaces only."""
    start = text[:_MAX_COMPARED_CHARACTERS]
    words = _WORD.findall(start.casefold())
    key = " ".join(words) or start.strip()
    if words and words[0] in words[1:_FRAME_WORDS]:
        key = _REPEATED_FRAME.sub(r"\1", key)
    return key if len(text) <= _MAX_COMPARED_CHARACTERS else f"{key} {len(text)}"


def find_echoes(keys: Sequence[str]) -> dict[int, int]:
    """Map each text that only quotes another to that one, by index. Texts are given as keys of `build_text_key`."""
    found: dict[int, int] = {}
    quotable: list[tuple[str, int]] = []
    # A quotation contains the longest word of the quoted text, so the index by that word finds it.
    by_word: dict[str, list[int]] = {}
    for at in sorted(range(len(keys)), key=lambda at: (len(keys[at]), at)):
        own, words = f" {keys[at]} ", keys[at].split(" ")
        for place in sorted({place for word in words for place in by_word.get(word, ())}):
            quoted, original = quotable[place]
            if len(own) - len(quoted) <= _MAX_FRAME_CHARACTERS and quoted in own:
                frame = analyze(own.replace(quoted, " ", 1))
                if all(term in _FRAME_TERMS or term.isdigit() for term in frame):
                    found[at] = original
                    break
        if own.count(" ") > _MIN_QUOTED_WORDS:
            by_word.setdefault(max(words, key=len), []).append(len(quotable))
            quotable.append((own, found.get(at, at)))
    return found
