"""Episodes whose time is up, and those beyond the cap: dropped, once they have been read for what deserves to last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from recollect.lifecycle.report import Action, Kind
from recollect.lifecycle.run import Run
from recollect.stores.ops import Drop, Entry
from recollect.values import Space

_PAGE = 500


async def drop_old_episodes(run: Run) -> None:
    """What has expired is hidden already. It goes for good a grace later: a clock that runs fast must cost nothing."""
    log = run.means.episodic
    spaces = await log.logs(run.scope.space("episodic"), hidden=True)
    for at, space in enumerate(spaces):
        live = await _drop_expired(run, space)
        await _drop_surplus(run, space, live)
        run.progress("expire", at + 1, len(spaces))


async def _drop_expired(run: Run, space: Space) -> list[tuple[int, str]]:
    """Drops what expired a grace ago; what is still seen comes back as (seq, id), oldest first."""
    grace = timedelta(seconds=run.means.settings.purge_grace_seconds)
    seen = run.read_up_to.get(space, 0)
    live: list[tuple[int, str]] = []
    after = 0
    while page := await run.means.episodic.read(space, after=after, limit=_PAGE, hidden=True):
        after = page[-1].seq
        gone = [
            entry
            for entry in page
            if entry.seq <= seen and entry.expires_at is not None and entry.expires_at + grace <= run.now
        ]
        live += [(one.seq, one.id) for one in page if one.expires_at is None or one.expires_at > run.now]
        await _drop(run, space, "expired", [(one.seq, one.id, _when(one)) for one in gone])
    return live


async def _drop_surplus(run: Run, space: Space, live: Sequence[tuple[int, str]]) -> None:
    """Writing keeps to the cap by itself; this is for a cap that was lowered since."""
    most = run.means.settings.tier("episodic").max_items
    if most is None or len(live) <= most:
        return
    seen = run.read_up_to.get(space, 0)
    surplus = [(seq, id, f"one of more than {most:,} in its session") for seq, id in live[:-most] if seq <= seen]
    for start in range(0, len(surplus), _PAGE):
        await _drop(run, space, "capped", surplus[start : start + _PAGE])


async def _drop(run: Run, space: Space, kind: Kind, gone: Sequence[tuple[int, str, str]]) -> None:
    if not gone:
        return
    if not run.dry:
        await run.means.episodic.write(Drop(space, tuple(seq for seq, _, _ in gone)))
    run.ledger.add(kind, (Action(id, "episodic", why) for _, id, why in gone))


def _when(entry: Entry) -> str:
    return f"expired on {entry.expires_at:%Y-%m-%d at %H:%M} UTC"
