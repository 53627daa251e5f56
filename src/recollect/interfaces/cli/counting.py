"""Numbers of things, in words: facts that are true now, what a store holds, and how large it is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from recollect.interfaces.cli.output import spent_line

if TYPE_CHECKING:
    from recollect.memory import AgentMemory, Stats

# Whoever has more does not count them one by one, and need not wait until we have.
_MANY = 1000
_WIDTH = 12
_AGES = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_UNITS = ("KiB", "MiB", "GiB")


def told(count: int, one: str, many: str | None = None) -> str:
    """How many of what: `1 fact`, `2 facts`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def age(seconds: float) -> str:
    """How long that is, in the largest unit that it fills."""
    for size, unit in _AGES:
        if seconds >= size:
            return told(int(seconds // size), unit)
    return told(max(0, int(seconds)), "second")


async def facts_now(memory: AgentMemory) -> tuple[int, str]:
    """How many facts are true now, and the same in words; a store counts those that are past as well."""
    count = len(await memory.semantic.page(_MANY + 1))
    return count, told(count, "fact") if count <= _MANY else f"over {_MANY:,} facts"


async def stats_lines(memory: AgentMemory) -> tuple[Stats, list[str]]:
    """What a store holds, and the same as lines for a person."""
    stats, (now, _) = await memory.stats(everybody=True), await facts_now(memory)
    rows = []
    for name, tier in stats.tiers.items():
        within = f" in {told(tier.sessions, 'session')}" if tier.sessions else ""
        past = f", of which {now:,} true now" if name == "semantic" and now < tier.items and now <= _MANY else ""
        since = f", {_moment(tier.oldest)} to {_moment(tier.newest)}" if tier.oldest and tier.newest else ""
        rows.append((name, f"{tier.items:,}{within}{past}{since}"))
    rows += [
        ("everybody's", f"{told(stats.all_items or 0, 'item')} in {told(stats.spaces or 0, 'scope')}"),
        ("on disk", _size(stats.bytes)),
        ("model", stats.model or "none yet"),
        *(("spent", spent_line(one)) for one in stats.spent),
    ]
    return stats, [f"{name:>{_WIDTH}}  {value}" for name, value in rows]


def _size(count: int) -> str:
    size, unit = count / 1024, _UNITS[0]
    for larger in _UNITS[1:]:
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:,.1f} {unit}"


def _moment(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M}"
