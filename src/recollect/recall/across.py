"""One question to many sources at once: their answers put together, without the sources that are down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recollect.deadline import within
from recollect.errors import EmbedderFailed, StoreClosed, StoreError
from recollect.recall.echoes import echoes, key
from recollect.recall.lines import Line
from recollect.values import LeftOut, MemoryItem

# What is told from these may be somebody reciting what was recalled.
_LOGS = ("episodic", "conversation")


@dataclass(frozen=True, slots=True)
class Found:
    """What a source has for a question, in the order in which it is to be read."""

    lines: Sequence[Line] = ()
    left_out: Sequence[LeftOut] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Somebody to ask: its name in a warning, the question itself, and how many seconds it may take."""

    name: str
    ask: Callable[[], Awaitable[Found]]
    patience: float
    stored: bool = True
    """Whether it reads a store; what is in this process cannot be down."""
    slow: bool = False
    """Whether it takes longer than others: it is asked first, and they are read while its store is at work."""


async def across(sources: Sequence[Source]) -> Found:
    """Ask all of them in parallel.

    A source whose store or embedder is down, or that takes too long, is left out with a warning. When that is all of
    them, their first error is raised; so is any other error, such as bad input. Cancelled, it cancels all.
    """
    in_turn = sorted(sources, key=lambda source: not source.slow)
    told = dict(zip(map(id, in_turn), await together(*map(_answer, in_turn)), strict=True))
    answers = [told[id(source)] for source in sources]
    found = [answer for answer in answers if isinstance(answer, Found)]
    lines = [line for one in found for line in one.lines]
    failures = [answer for answer in answers if isinstance(answer, _Failure)]
    if failures and not lines and len(failures) == sum(source.stored for source in sources):
        raise failures[0].error
    warnings = [*(failure.warning for failure in failures), *(warning for one in found for warning in one.warnings)]
    # Two logs may have failed to learn the same from the same server.
    return Found(each_once(lines), [out for one in found for out in one.left_out], list(dict.fromkeys(warnings)))


async def together(*several: Coroutine[Any, Any, Any]) -> list[Any]:
    """The answers of all, in their order; the first to fail ends the others, and its error is raised."""
    if len(several) == 1:  # needs nobody to look after it
        return [await several[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in several]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def each_once(lines: Sequence[Line]) -> list[Line]:
    """The lines without those that say what another one says, which become its `twins`.

    Case, spaces and punctuation make no difference, and a fact stands for the episode that it was made from. The line
    that lasts longest stays, among equals the one worth most, and then the later one; it is worth as much as the best
    that says it in the same words. What was said or happened is left out too where it only quotes another line.
    """
    keys = [key(line.hit.item.content) for line in lines]
    by_text: dict[str, int] = {}
    by_id: dict[str, int] = {}
    twins: dict[int, list[MemoryItem]] = {}
    best: dict[int, Line] = {}
    for at in sorted(range(len(lines)), key=lambda at: (lines[at].lasts, lines[at].worth, at), reverse=True):
        item = lines[at].hit.item
        same = by_id.get(item.id, by_text.get(keys[at]))
        if same is not None:
            if keys[at] == keys[same]:
                best[same] = max(best[same], lines[at], key=lambda line: line.worth)
            # Two sources may have found the very same item.
            if (item.tier, item.id) != (lines[same].hit.item.tier, lines[same].hit.item.id):
                twins[same].append(item)
            continue
        twins[at], best[at] = [], lines[at]
        by_id.update(dict.fromkeys((*item.derived_from, item.id), at))
        for said in [key(text) for text in lines[at].says] or [keys[at]]:
            by_text.setdefault(said, at)
    _without_echoes(lines, keys, twins)
    return [_for_all(lines[at], best[at], twins[at]) if twins[at] else lines[at] for at in sorted(twins)]


def _for_all(line: Line, best: Line, twins: Sequence[MemoryItem]) -> Line:
    """A line in the place of all that say the same, with what the best of them was found to be worth."""
    hit = replace(line.hit, relevance=best.hit.relevance, score=best.hit.score, why=best.hit.why)
    return replace(line, hit=hit, worth=best.worth, twins=tuple(twins))


def _without_echoes(lines: Sequence[Line], keys: Sequence[str], twins: dict[int, list[MemoryItem]]) -> None:
    places = sorted(twins)
    for echo, said in echoes([keys[at] for at in places]).items():
        if lines[places[echo]].hit.tier in _LOGS:
            twins[places[said]] += [lines[places[echo]].hit.item, *twins.pop(places[echo])]


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception
    warning: str


async def _answer(source: Source) -> Found | _Failure:
    if not source.stored:
        return await source.ask()
    try:
        with within(source.patience):
            return await source.ask()
    except StoreClosed:
        raise  # nothing is down: the caller closed it
    except TimeoutError as error:
        said = str(error) or f"no answer within {source.patience:g} s"
        return _Failure(error, _warning(source, said))
    except (StoreError, EmbedderFailed, OSError) as error:
        return _Failure(error, _warning(source, str(error) or type(error).__name__))


def _warning(source: Source, said: str) -> str:
    return f"{source.name} memory could not be read: {said}; its part is missing"
