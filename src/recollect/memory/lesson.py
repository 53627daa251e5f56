"""What is learned from a task that has ended: what was wanted, what was tried, what came of it and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from recollect.guard.instructions import held_back
from recollect.inference.base import Embedding
from recollect.inference.offline import importance_of
from recollect.stores.base import Records
from recollect.stores.ops import Model, Put
from recollect.tiers.facts import Fact
from recollect.tiers.indexing import index_terms
from recollect.tiers.quarantine import in_quarantine
from recollect.tiers.semantic import embedded
from recollect.values import MemoryItem, Scope, content_id

# A lesson is read in a prompt, beside others.
_TASK = 300
_OUTCOME = 1200
_STEP = 160
_STEPS_TOLD = 10
_REASONS_TOLD = 3

# A lesson that is learned over and over keeps its newest sources.
_MOST_SOURCES = 1000


@dataclass(frozen=True, slots=True)
class Tried:
    """A step as a lesson tells it: what was done, and why it did not work, if it did not."""

    action: str
    trouble: str | None = None


def told(task: str, success: bool, outcome: str, tried: Sequence[Tried], *, steps: int) -> str:
    """The lesson in words. Thoughts stay out of it: they may repeat what was recalled, which is not learned again."""
    ended = "succeeded" if success else "failed"
    lines = [f"Task '{clipped(task, _TASK)}' {ended}: {_sentence(clipped(outcome, _OUTCOME))}"]
    if tried:
        earlier = steps - len(tried)
        listed = "; ".join(clipped(one.action, _STEP) for one in tried)
        lines.append(f"{'Done' if success else 'Tried'}: {f'{earlier} earlier steps; ' if earlier else ''}{listed}.")
    reasons = list(dict.fromkeys(clipped(one.trouble, _STEP) for one in tried if one.trouble))[-_REASONS_TOLD:]
    if reasons:
        lines.append(f"{'Had to get around' if success else 'Why it failed'}: {_sentence('; '.join(reasons))}")
    return " ".join(lines)


def kept_steps() -> int:
    """How many of the last steps a lesson tells."""
    return _STEPS_TOLD


def importance(text: str, success: bool) -> float:
    """A failure matters more: it is what somebody would do again."""
    return importance_of(text, "outcome" if success else "error")


def trust(tried: Iterable[Tried]) -> float:
    """The least of what it is made of: the agent's own words, and a tool's where it quotes one."""
    worth = [Fact(content="", source="agent").trusted]
    if any(one.trouble for one in tried):
        worth.append(Fact(content="", source="tool").trusted)
    return min(worth)


def learned(
    text: str, scope: Scope, about: Mapping[str, Any], *, at: datetime, trust: float, sources: Iterable[str]
) -> MemoryItem:
    """The lesson as an item, in quarantine where it gives orders."""
    item = MemoryItem(
        id=content_id(scope.space("semantic"), text),
        content=text,
        scope=scope,
        created_at=at,
        metadata=about,
        importance=importance(text, about["success"]),
        source="agent",
        trust=trust,
        derived_from=tuple(dict.fromkeys(sources)),
    )
    return gated(item)


def gated(item: MemoryItem) -> MemoryItem:
    """The lesson, in quarantine where it gives orders: what a tool said may have found its way into the outcome."""
    why = held_back(item.content, item.trust)
    return in_quarantine(item, why) if why else item


async def drafted(store: Records, embedding: Embedding, model: Model, item: MemoryItem) -> Put:
    """The lesson on its way to the store. One that is there already gains the new episodes and keeps its birthday."""
    held = await store.get(item.scope.space(item.tier), item.id)
    if not held and item.tier == "quarantine":
        return Put(item=item, expect=0)  # without words and vectors, for nobody is to find it
    if not held:
        vectors = (await embedded(embedding, [item]))[0]
        return Put(item=item, vectors=vectors, terms=index_terms(item), model=model, expect=0)
    known = held[0]
    again = replace(
        known,
        importance=max(known.importance, item.importance),
        trust=min(known.trust, item.trust),
        derived_from=tuple(dict.fromkeys((*known.derived_from, *item.derived_from)))[-_MOST_SOURCES:],
    )
    return Put(item=again, expect=known.version)


def metadata(task: str, task_id: str, success: bool, steps: int) -> MappingProxyType[str, Any]:
    return MappingProxyType({"task": clipped(task, _TASK), "task_id": task_id, "success": success, "steps": steps})


def clipped(text: str, most: int) -> str:
    """The text as one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
