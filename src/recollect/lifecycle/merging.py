"""Duplicates among the facts become one: the lifecycle's end of consolidation."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.lifecycle.marks import Marks
from recollect.lifecycle.report import Action
from recollect.lifecycle.run import Run
from recollect.stores.ops import Put
from recollect.tiers.consolidate import Merge, apply, plan_consolidation, standing_for

_NAME = "merged"

# As many as a merge itself counts.
_MOST_ACCESSES = 10


async def merge_duplicates(run: Run) -> None:
    """Merge what says the same; a plan does not see what the same plan would promote.

    Every fact has to be read for that, which takes seconds where there are many: where none has come or gone since
    the last time, there is nothing new to merge.
    """
    held, there = (await Marks(run.ground, run.scope).get([_NAME])).get(_NAME), await _held(run)
    run.compared = there["items"]
    if held is None or dict(held.metadata) != there:
        await _merge(run)


async def note_what_was_compared(run: Run) -> None:
    """At the end of a run: which facts need not be compared again. What came while it ran still has to be."""
    there = await _held(run)
    if run.dry or there["items"] != run.compared - run.dropped:
        return
    marks = Marks(run.ground, run.scope)
    held = (await marks.get([_NAME])).get(_NAME)
    if held is None or dict(held.metadata) != there:
        with contextlib.suppress(Conflict):  # another run has noted the same
            await run.ground.write(marks.put(_NAME, there, held, run.now))


async def _held(run: Run) -> dict[str, int]:
    """How many facts there are, and when the newest came: what changes with every fact that comes or goes."""
    for count in await run.means.records.spaces(run.scope.tenant):
        if count.space == run.facts and count.newest is not None:
            return {"items": count.items, "newest": to_micros(count.newest)}
    return {"items": 0}


async def _merge(run: Run) -> None:
    means = run.means
    plan = await plan_consolidation(
        means.records,
        means.embedding,
        run.facts,
        run.now,
        progress=lambda done, total: run.progress("merge", done, total),
    )
    if run.dry:
        for merge in plan.merges:
            await _imagine(run, merge)
        merges = plan.merges
    else:
        report = await apply(means.records, run.facts, plan.merges, run.now)
        merges = report.merged
        for skipped in report.skipped:
            run.ledger.note(f"item {skipped.merge.survivor} was not merged: {skipped.reason}")
    run.ledger.examined += plan.examined
    for merge in merges:
        run.ledger.add("merged", (Action(id, "semantic", merge.reason, merge.survivor) for id in merge.merged))


async def _imagine(run: Run, merge: Merge) -> None:
    """The items as the merge would leave them, for the stages of a plan that come after it."""
    items = {item.id: item for item in await run.ground.get(run.facts, *merge.seen)}
    survivor, others = items[merge.survivor], [items[id] for id in merge.merged]
    stands = standing_for(survivor, others)
    read = max((other.last_accessed for other in others if other.last_accessed), default=None)
    if read is not None:
        counted = survivor.access_count + min(sum(other.access_count for other in others), _MOST_ACCESSES)
        stands = replace(stands, access_count=counted, last_accessed=max(survivor.last_accessed or read, read))
    copies = [replace(other, superseded_by=survivor.id, valid_to=run.now) for other in others]
    await run.ground.write(*(Put(item=item) for item in (stands, *copies)))
