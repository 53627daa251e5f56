"""The lifecycle: what keeps memory small and true, once or at every interval, for one user or for all of a tenant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from recollect.clock import aware
from recollect.errors import BadInput, StoreClosed
from recollect.lifecycle.episodes import drop_old_episodes
from recollect.lifecycle.ground import Ground
from recollect.lifecycle.marks import forget_old_notes
from recollect.lifecycle.merging import merge_duplicates, note_what_was_compared
from recollect.lifecycle.promotion import Promotion
from recollect.lifecycle.report import Ledger, LifecycleReport
from recollect.lifecycle.run import Means, Progress, Purse, Run
from recollect.lifecycle.sanity import is_believable
from recollect.lifecycle.sweep import sweep
from recollect.lifecycle.tasks import drop_old_tasks
from recollect.values import Scope

# Under whom the clock of an agent's tasks is noted: a name that nobody has, and that can be seen to be none.
_NOBODY = "(nobody)"

_log = logging.getLogger("recollect.lifecycle")


class Lifecycle:
    """Promotes what deserves to last, drops what has expired, merges duplicates, ages and forgets.

    What a run does twice at one moment, it does once; two that run at once, in one process or in several, do not
    double anything: every write names the version that it saw.
    """

    def __init__(self, means: Means, scope: Scope) -> None:
        self._means = means
        self._scope = replace(scope, session=None)  # facts have no session, and all of them are looked after
        self._running = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._daemon: asyncio.Task[None] | None = None

    async def run_once(self, progress: Progress | None = None, *, everybody: bool = False) -> LifecycleReport:
        """Do what is due for this user and agent, or for everybody of the tenant.

        `progress` is called with the stage, how much of it is done, and how much there is.
        """
        return await self._run(progress, everybody=everybody, dry=False)

    async def plan(self, progress: Progress | None = None, *, everybody: bool = False) -> LifecycleReport:
        """What `run_once` would do now; nothing is written. Merges of what it would promote are not foreseen."""
        return await self._run(progress, everybody=everybody, dry=True)

    def start(self, interval: float | timedelta) -> None:
        """Run now and then at every interval (in seconds), until `stop`. A run that fails is logged and tried again."""
        seconds = interval.total_seconds() if isinstance(interval, timedelta) else interval
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise BadInput(f"interval is a number of seconds above 0, not {interval!r:.80}")
        if self._daemon is not None and not self._daemon.done():
            raise BadInput("the lifecycle is running already; stop() it first")
        self._stopping.clear()
        self._daemon = asyncio.get_running_loop().create_task(self._keep_running(seconds), name="recollect-lifecycle")

    async def stop(self) -> None:
        """Stop running; returns when a run that is under way has ended. Safe to call twice."""
        self._stopping.set()
        daemon, self._daemon = self._daemon, None
        if daemon is not None and daemon is not asyncio.current_task():
            await asyncio.wait([daemon])

    async def _keep_running(self, seconds: float) -> None:
        while not self._stopping.is_set():
            try:
                report = await self.run_once()
                _log.info("lifecycle: %s", ", ".join(f"{count} {kind}" for kind, count in report.counts.items()))
            except StoreClosed:
                return  # there is nothing left to look after
            except Exception as error:  # noqa: BLE001 - whatever is wrong now may be right at the next interval
                # The type alone: the message of an error may hold what somebody said.
                _log.warning("lifecycle: a run failed with %s; the next is in %g s", type(error).__name__, seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _run(self, progress: Progress | None, *, everybody: bool, dry: bool) -> LifecycleReport:
        async with self._running:
            now, ledger = aware(self._means.clock()), Ledger()
            ground, purse = Ground(self._means.records, imagined=dry), Purse(self._means.settings.lifecycle_llm_tokens)
            if not dry and self._means.erasures is not None:
                for receipt in await self._means.erasures.resume():
                    ledger.note(f"erasure {receipt.id} is {receipt.status}")
            swept: set[str] = set()
            worked: set[str] = set()
            for scope in await self._everybody() if everybody else [self._scope]:
                run = Run(
                    means=self._means,
                    scope=scope,
                    now=now,
                    ledger=ledger,
                    ground=ground,
                    purse=purse,
                    dry=dry,
                    tell=progress,
                )
                await _look_after(run, facts=scope.user not in swept, tasks=scope.agent not in worked)
                swept.add(scope.user)
                worked.add(scope.agent)
            return ledger.report(now, planned=dry)

    async def _everybody(self) -> Iterable[Scope]:
        """Every user and agent of the tenant that has logs, every user that has facts, every agent that has tasks."""
        means, tenant = self._means, self._scope.tenant
        owners = {(space.user, space.agent) for space in await means.conversation.owners(tenant)}
        owners |= {(space.user, space.agent) for space in await means.episodic.owners(tenant)}
        known = {user for user, _ in owners}
        facts = [count.space for count in await means.records.spaces(tenant) if count.space.tier == "semantic"]
        owners |= {(space.user, self._scope.agent) for space in facts if space.user not in known}
        working = {agent for _, agent in owners}
        tasks = await means.tasks.task_spaces(tenant)
        owners |= {(self._scope.user, space.agent) for space in tasks if space.agent not in working}
        scopes = (replace(self._scope, user=user, agent=agent, session=None) for user, agent in sorted(owners) if user)
        return [scope for scope in scopes if scope.agent]


async def _look_after(run: Run, *, facts: bool, tasks: bool) -> None:
    """The stages in their order: what deserves to last is taken out before anything goes."""
    if run.means.index is not None and not run.dry:
        with run.stage("index"):
            await run.means.index(run.scope)
    with run.stage("promote"):
        await Promotion(run).run()
    # Tasks are an agent's, whomever it works for: a user who is new to it must not vouch for their clock.
    certain = tasks and await is_believable(replace(run, scope=replace(run.scope, user=_NOBODY)))
    if not await is_believable(run):
        return
    with run.stage("expire"):
        await drop_old_episodes(run)
        await forget_old_notes(run.ground, run.scope.space("lifecycle"), run.now)
        if certain:
            await drop_old_tasks(run)
    if not facts:
        return
    with run.stage("merge"):
        await merge_duplicates(run)
    with run.stage("sweep"):
        await sweep(run)
        await note_what_was_compared(run)
