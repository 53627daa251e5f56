"""One pass over the facts of a user: what has expired or is low and unused goes, and the rest fades a little."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recollect.errors import Conflict
from recollect.lifecycle.decay import faded, is_worth_writing
from recollect.lifecycle.forget import Rules, is_copy, may_be_capped, why_expired, why_forgotten
from recollect.lifecycle.report import Action, Kind
from recollect.lifecycle.run import Run
from recollect.stores.ops import Delete, Put
from recollect.stores.where import Where
from recollect.values import MemoryItem

_TOGETHER = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an item: a new importance, or the end."""

    kind: Kind
    item: MemoryItem
    reason: str
    importance: float | None = None

    def write(self, run: Run) -> Put | Delete:
        if self.importance is None:
            return Delete(run.facts, self.item.id, expect=self.item.version)
        aged = replace(self.item, importance=self.importance, decayed_at=run.now)
        return Put(item=aged, expect=self.item.version)

    @property
    def action(self) -> Action:
        return Action(self.item.id, "semantic", self.reason)


def verdict(item: MemoryItem, rules: Rules, run: Run) -> Verdict | None:
    """What is to become of an item; None when it stays as it is."""
    if expired := why_expired(item, rules, run.now):
        return Verdict("expired", item, expired)
    importance = faded(item, rules.half_life, rules.floor, run.now)
    if forgotten := why_forgotten(replace(item, importance=importance), rules, run.now):
        return Verdict("forgotten", item, forgotten)
    # A copy speaks through the item that it was merged into.
    if is_copy(item) or not is_worth_writing(item, importance):
        return None
    return Verdict("decayed", item, f"importance {item.importance:.2f} → {importance:.2f}", importance)


async def sweep(run: Run) -> None:
    """Age, expire and forget, in pages; what somebody else changes meanwhile is looked at again."""
    rules = Rules.of(run.means.settings)
    total = await _count(run)
    done = 0
    async for page in run.ground.pages(Where(run.facts)):
        await _carry_out(run, [found for item in page if (found := verdict(item, rules, run))], rules)
        done += len(page)
        run.ledger.examined += len(page)
        run.progress("sweep", done, max(total, done))
    if rules.most is not None:
        await _cap(run, rules.most, rules)


async def _carry_out(run: Run, verdicts: Sequence[Verdict], rules: Rules) -> None:
    if not verdicts:
        return
    try:
        await run.ground.write(*(one.write(run) for one in verdicts))
        _enter(run, verdicts)
    except Conflict:
        for one in verdicts:
            await _carry_out_alone(run, one, rules)


async def _carry_out_alone(run: Run, given: Verdict, rules: Rules) -> None:
    """Somebody changed one of a page: each is read again, and judged as it is now."""
    for item in await run.ground.get(run.facts, given.item.id):
        again = verdict(item, rules, run) if given.kind != "capped" else replace(given, item=item)
        if again is None or (given.kind == "capped" and not may_be_capped(item)):
            return
        try:
            await run.ground.write(again.write(run))
            _enter(run, [again])
        except Conflict:
            run.ledger.note(f"item {item.id} is being changed by others; left for the next run")


def _enter(run: Run, verdicts: Sequence[Verdict]) -> None:
    for one in verdicts:
        run.ledger.add(one.kind, [one.action])
    run.dropped += sum(one.importance is None for one in verdicts)


async def _cap(run: Run, most: int, rules: Rules) -> None:
    """The least important go first, of equals the one unused for longest; only ids are held, never the items."""
    count = 0
    least: list[tuple[float, float, str]] = []
    async for page in run.ground.pages(Where(run.facts)):
        count += len(page)
    surplus = count - most
    if surplus <= 0:
        return
    async for page in run.ground.pages(Where(run.facts)):
        for item in page:
            if may_be_capped(item):
                used = (item.last_accessed or item.created_at).timestamp()
                # The heap's first is the best of the worst: it makes room.
                entry = (-item.importance, -used, item.id)
                heapq.heappush(least, entry) if len(least) < surplus else heapq.heappushpop(least, entry)
    ids = [id for *_, id in sorted(least, reverse=True)]
    reason = f"one of more than {most:,}, and among the least important"
    for start in range(0, len(ids), _TOGETHER):
        items = await run.ground.get(run.facts, *ids[start : start + _TOGETHER])
        await _carry_out(run, [Verdict("capped", item, reason) for item in items], rules)


async def _count(run: Run) -> int:
    if run.tell is None:
        return 0
    spaces = await run.means.records.spaces(run.scope.tenant)
    return sum(count.items for count in spaces if count.space == run.facts)
