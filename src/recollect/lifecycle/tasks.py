"""Tasks whose time is up: dropped with their checkpoints and journal, unless somebody goes on with them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from recollect.errors import Conflict
from recollect.lifecycle.report import Action
from recollect.lifecycle.run import Run
from recollect.stores.base import Task
from recollect.stores.ops import DropTask

_PAGE = 100


async def drop_old_tasks(run: Run) -> None:
    """What has expired is hidden already. It goes for good a grace later: a clock that runs fast must cost nothing."""
    space = run.scope.space("checkpoints")
    before = run.now - timedelta(seconds=run.means.settings.purge_grace_seconds)
    last: Task | None = None
    while page := await run.means.tasks.expired(space, before, limit=_PAGE, after=last):
        last = page[-1]
        gone = page if run.dry else await _dropped(run, page, before)
        run.ledger.add("expired", (Action(task.id, "checkpoints", _why(task)) for task in gone))
        run.ledger.examined += len(page)


async def _dropped(run: Run, page: Sequence[Task], before: datetime) -> list[Task]:
    """Those of a page that are gone now, all at once; what came back to life since it was listed stays."""
    if await _drop(run, page, before):
        return list(page)
    return [task for task in page if await _drop(run, [task], before)]


async def _drop(run: Run, tasks: Sequence[Task], before: datetime) -> bool:
    space = run.scope.space("checkpoints")
    try:
        await run.means.tasks.write(*(DropTask(space, task.id, expired_by=before) for task in tasks))
    except Conflict:
        return False
    return True


def _why(task: Task) -> str:
    return f"expired on {task.expires_at:%Y-%m-%d at %H:%M} UTC; it was {task.status}"
