"""Merging of duplicate facts during a lifecycle run."""

from __future__ import annotations

import contextlib
from typing import cast

from recollect.clock import to_micros
from recollect.errors import Conflict
from recollect.lifecycle.context import LifecycleRun
from recollect.lifecycle.report import LifecycleAction
from recollect.stores.base import Records
from recollect.tiers.consolidation import apply_merges, plan_consolidation
from recollect.tiers.lifecycle_notes import LifecycleNotes

_MERGE_NOTE = "merged"


async def merge_duplicates(run: LifecycleRun) -> None:
    """Merge facts that say the same, unless no fact was added or removed since the last comparison.

    The comparison reads every fact. A plan does not include facts that the same plan would promote.
    """
    stored = (await LifecycleNotes(run.overlay, run.scope).get([_MERGE_NOTE])).get(_MERGE_NOTE)
    summary = await _summarize_facts(run)
    run.compared_count = summary["items"]
    if stored is None or dict(stored.metadata) != summary:
        await _merge_facts(run)


async def record_comparison(run: LifecycleRun) -> None:
    """Note which facts need no further comparison. Facts that were added during the run still need it."""
    summary = await _summarize_facts(run)
    if run.is_dry or summary["items"] != run.compared_count - run.dropped_count:
        return
    notes = LifecycleNotes(run.overlay, run.scope)
    stored = (await notes.get([_MERGE_NOTE])).get(_MERGE_NOTE)
    if stored is None or dict(stored.metadata) != summary:
        with contextlib.suppress(Conflict):  # another run has noted the same
            await run.overlay.write(notes.build_put(_MERGE_NOTE, summary, stored, run.now))


async def _summarize_facts(run: LifecycleRun) -> dict[str, int]:
    """Return the number of facts and the time of the newest, which change with every fact added or removed."""
    for count in await run.context.records.spaces(run.scope.tenant):
        if count.space == run.fact_space and count.newest is not None:
            return {"items": count.items, "newest": to_micros(count.newest)}
    return {"items": 0}


async def _merge_facts(run: LifecycleRun) -> None:
    context = run.context
    plan = await plan_consolidation(
        context.records,
        context.embedding,
        run.fact_space,
        run.now,
        progress=lambda progress: run.report_progress("merge", progress.done, progress.total),
    )
    report = await apply_merges(cast(Records, run.overlay), run.fact_space, plan.merged, run.now)
    for skipped in report.skipped:
        run.report.add_note(f"item {skipped.merge.survivor} was not merged: {skipped.reason}")
    run.report.examined += plan.examined
    for merge in report.merged:
        run.report.add("merged", (LifecycleAction(id, "semantic", merge.reason, merge.survivor) for id in merge.merged))
