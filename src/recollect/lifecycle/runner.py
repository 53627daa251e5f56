"""Runs of the lifecycle, on request or at an interval, for one user or for all users of a tenant."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from recollect.clock import from_micros, to_micros, to_utc
from recollect.errors import BadInput, StoreClosed
from recollect.lifecycle.context import LifecycleContext, LifecycleRun
from recollect.lifecycle.promotion import Promoter
from recollect.lifecycle.report import LifecycleAction, LifecycleReport, LifecycleReportBuilder
from recollect.lifecycle.retention import drop_expired_episodes, drop_expired_tasks, get_purge_grace, sweep_facts
from recollect.stores.base import Records
from recollect.stores.overlay import BufferedStore
from recollect.tiers.consolidation import apply_merges, plan_consolidation
from recollect.tiers.lifecycle_notes import CLOCK_NOTE
from recollect.types import ProgressCallback, Scope
from recollect.validation import is_number

# A gap between two runs up to this length is plausible; a longer one needs a second run that confirms it.
_MAX_CLOCK_LEAP = timedelta(days=100)
_CLOCK_NOTE_INTERVAL = timedelta(hours=1)
_MERGE_NOTE = "merged"

# Placeholder for the user in the clock note of an agent's tasks.
_NO_USER = "(nobody)"

_log = logging.getLogger("recollect.lifecycle")


class Lifecycle:
    """Maintenance of memory: promotes statements, drops expired data, merges duplicates, decays and forgets.

    Runs are idempotent and safe to run concurrently: every write checks the version it read.
    """

    def __init__(self, context: LifecycleContext, scope: Scope) -> None:
        self._context = context
        self._scope = replace(scope, session=None)  # facts belong to no session
        self._run_lock = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._background_task: asyncio.Task[None] | None = None

    async def run_once(self, progress: ProgressCallback | None = None, *, all_users: bool = False) -> LifecycleReport:
        """Run all stages for this user and agent, or with `all_users` for all users and agents of the tenant."""
        return await self._run_stages(progress, all_users=all_users, dry=False)

    async def plan(self, progress: ProgressCallback | None = None, *, all_users: bool = False) -> LifecycleReport:
        """Return what `run_once` would do now, without writing. Merges of newly promoted facts are not included."""
        return await self._run_stages(progress, all_users=all_users, dry=True)

    def start(self, interval: float | timedelta) -> None:
        """Run now and then every `interval` seconds until `stop`. A run that fails is logged and retried."""
        seconds = interval.total_seconds() if isinstance(interval, timedelta) else interval
        if not is_number(seconds) or not 0 < seconds < math.inf:
            raise BadInput(f"interval must be a number of seconds above 0; got {interval!r:.80}")
        if self._background_task is not None and not self._background_task.done():
            raise BadInput("the lifecycle is already running; call stop() first")
        self._stopping.clear()
        self._background_task = asyncio.get_running_loop().create_task(
            self._run_periodically(seconds), name="recollect-lifecycle"
        )

    async def stop(self) -> None:
        """Stop running; return when a run in progress has ended. Safe to call twice."""
        self._stopping.set()
        task, self._background_task = self._background_task, None
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    async def _run_periodically(self, seconds: float) -> None:
        while not self._stopping.is_set():
            try:
                report = await self.run_once()
                _log.info("lifecycle: %s", ", ".join(f"{count} {kind}" for kind, count in report.counts.items()))
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - the next run may succeed
                # Only the type: the message may contain user content.
                _log.warning("lifecycle: a run failed with %s; retrying in %g s", type(error).__name__, seconds)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()

    async def _run_stages(self, progress: ProgressCallback | None, *, all_users: bool, dry: bool) -> LifecycleReport:
        context = self._context
        async with self._run_lock:
            now, report = to_utc(context.clock()), LifecycleReportBuilder(context.settings.lifecycle_llm_tokens)
            overlay = cast(Records, BufferedStore(context.records, [])) if dry else context.records
            if not dry and context.eraser is not None:
                for receipt in await context.eraser.resume():
                    report.add_note(f"erasure {receipt.id} is {receipt.status}")
            users, agents = set[str](), set[str]()
            build_run = partial(LifecycleRun, context=context, now=now, report=report, overlay=overlay, is_dry=dry)
            for scope in await self._list_scopes() if all_users else [self._scope]:
                run = build_run(scope=scope, on_progress=progress)
                await _maintain_scope(run, facts=scope.user not in users, tasks=scope.agent not in agents)
                users.add(scope.user)
                agents.add(scope.agent)
            return report.build(now, planned=dry)

    async def _list_scopes(self) -> Iterable[Scope]:
        """Return a scope for every user and agent with logs, every user with facts and every agent with tasks."""
        context, tenant = self._context, self._scope.tenant
        logs = (context.conversation, context.episodic)
        owners = {(space.user, space.agent) for log in logs for space in await log.owners(tenant)}
        users = {user for user, _ in owners}
        facts = [count.space for count in await context.records.spaces(tenant) if count.space.tier == "semantic"]
        owners |= {(space.user, self._scope.agent) for space in facts if space.user not in users}
        agents = {agent for _, agent in owners}
        tasks = await context.tasks.task_spaces(tenant)
        owners |= {(self._scope.user, space.agent) for space in tasks if space.agent not in agents}
        return [replace(self._scope, user=user, agent=agent) for user, agent in sorted(owners) if user and agent]


async def _maintain_scope(run: LifecycleRun, *, facts: bool, tasks: bool) -> None:
    """Run the stages in order: statements are promoted before anything is dropped."""
    if run.context.index_turns is not None and not run.is_dry:
        with run.measure_stage("index"):
            await run.context.index_turns(run.scope)
    with run.measure_stage("promote"):
        await Promoter(run).run()
    # Tasks belong to an agent for all its users: a user who is new to the agent cannot confirm the agent's clock.
    drop_tasks = tasks and await is_clock_plausible(replace(run, scope=replace(run.scope, user=_NO_USER)))
    if not await is_clock_plausible(run):
        return
    with run.measure_stage("expire"):
        await drop_expired_episodes(run)
        await run.notes.drop_stale(run.now)
        if drop_tasks:
            await drop_expired_tasks(run)
    if not facts:
        return
    with run.measure_stage("merge"):
        await merge_duplicates(run)
    with run.measure_stage("sweep"):
        await sweep_facts(run)
        await record_comparison(run)


async def is_clock_plausible(run: LifecycleRun) -> bool:
    """Return True if time-dependent stages may run. A leap of the clock is noted, and accepted once it has lasted."""
    stored = await run.notes.find(CLOCK_NOTE)
    values = dict(stored.metadata) if stored is not None else {}
    grace = get_purge_grace(run.context.settings)
    last, doubted = _read_time(values, "at"), _read_time(values, "doubt")
    if (
        last is None
        or abs(run.now - last) <= _MAX_CLOCK_LEAP
        or (doubted is not None and grace <= run.now - doubted <= _MAX_CLOCK_LEAP)
    ):
        plausible = True
        if last is None or abs(run.now - last) >= _CLOCK_NOTE_INTERVAL:
            values = {"at": to_micros(run.now)}
    else:
        plausible = False
        if doubted is None or not timedelta() <= run.now - doubted <= _MAX_CLOCK_LEAP:
            values["doubt"] = to_micros(run.now)
        run.report.add_note(
            f"the clock has moved by {abs(run.now - last).days:,} days since the last run; "
            f"nothing is dropped or decayed until a run at least {grace} later confirms it"
        )
    await run.notes.save(CLOCK_NOTE, values, stored, run.now)
    return plausible


def _read_time(values: dict[str, object], name: str) -> datetime | None:
    value = values.get(name)
    return from_micros(value) if isinstance(value, int) else None


async def merge_duplicates(run: LifecycleRun) -> None:
    """Merge facts that say the same, unless none was added or removed since the last comparison, which reads all."""
    stored, summary = await run.notes.find(_MERGE_NOTE), await _summarize_facts(run)
    run.compared_count = summary["items"]
    if stored is not None and dict(stored.metadata) == summary:
        return
    plan = await plan_consolidation(
        run.context.records,
        run.context.embedding,
        run.fact_space,
        run.now,
        progress=lambda progress: run.report_progress("merge", progress.done, progress.total),
    )
    report = await apply_merges(run.overlay, run.fact_space, plan.merged, run.now)
    for skipped in report.skipped:
        run.report.add_note(f"item {skipped.merge.survivor} was not merged: {skipped.reason}")
    run.report.examined += plan.examined
    for merge in report.merged:
        run.report.add("merged", (LifecycleAction(id, "semantic", merge.reason, merge.survivor) for id in merge.merged))


async def record_comparison(run: LifecycleRun) -> None:
    """Note which facts need no further comparison. Facts that were added during the run still need it."""
    summary = await _summarize_facts(run)
    if not run.is_dry and summary["items"] == run.compared_count - run.dropped_count:
        await run.notes.save(_MERGE_NOTE, summary, await run.notes.find(_MERGE_NOTE), run.now)


async def _summarize_facts(run: LifecycleRun) -> dict[str, int]:
    """Return the number of facts and the time of the newest, which change with every fact added or removed."""
    for count in await run.context.records.spaces(run.scope.tenant):
        if count.space == run.fact_space and count.newest is not None:
            return {"items": count.items, "newest": to_micros(count.newest)}
    return {"items": 0}
