"""Commits: a decision made here from what was last seen, and carried out there if nothing has changed meanwhile.

The rules of leases live in one place, in Python. So a batch is decided from the rows of its tasks as this process last
saw them, and one script compares and writes. Where somebody was faster it answers with the rows as they are, and the
batch is decided again; a refusal is never made on memory alone. In the usual case this is one round trip.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from recollect.errors import Conflict, RecollectError, StoreUnavailable, Unsupported
from recollect.stores.redis import keys
from recollect.stores.redis.batch import Decision, Rows
from recollect.stores.redis.clock import SharedClock
from recollect.stores.redis.server import Server
from recollect.stores.redis.values import moment
from recollect.values import Space

# An answer is remembered for longer than anybody tries to get it.
_MEMORY_MS = b"60000"
_MOST_TRIES = 1000
_MOST_REMEMBERED = 4096

# Nobody is named in a list of owners for this batch: those whom it is for are thought to be there.
_NOBODY = (b"0", b"0")

Decide = Callable[[Rows, datetime], Decision]


@dataclass(frozen=True, slots=True)
class Commit:
    """What is to be decided, of whom, and about which tasks."""

    id: str
    owners: tuple[Space, ...]
    tasks: tuple[keys.TaskName, ...]
    decide: Decide
    only_removes: bool = False


class Committer:
    """Carries commits out, each once however often it has to be asked for."""

    def __init__(self, server: Server, clock: SharedClock) -> None:
        self._server = server
        self._clock = clock
        # By another clock than the server's own it would be dropped at any time.
        self._grace = server.grace if clock.tolerance else b""
        self._seen: OrderedDict[keys.TaskName, bytes] = OrderedDict()

    async def carry_out(self, commit: Commit) -> tuple[bytes, Decision]:
        """What the server answered, and the decision that was carried out; or the refusal."""
        owners = {keys.prefix_of(space): space for space in commit.owners}
        if self._server.is_cluster and len(owners) > 1:
            raise Unsupported(
                f"a batch on a cluster is of one tenant, user and agent, not of {len(owners)}: they may live on "
                "different servers, which share no transaction; write one batch for each"
            )
        rows, fresh = await self._rows(commit.tasks, remembered=True)
        new = _NOBODY
        for _ in range(_MOST_TRIES):
            now = self._clock()
            try:
                decision = commit.decide(rows, now)
            except RecollectError:
                if fresh:
                    raise
                rows, fresh = await self._rows(commit.tasks, remembered=False)
                continue
            verdict, *told = await self._ask(commit, owners, rows, decision, new, now)
            match verdict:
                case b"ok":
                    self._remember(decision.closed(told[0]).items())
                    if new is not _NOBODY:  # whoever erased them meanwhile has taken them off the list
                        await self._index(owners.values())
                    return told[0], decision
                case b"stale":
                    rows, fresh = dict(zip(commit.tasks, told, strict=True)), True
                    self._remember(rows.items())
                case b"index":
                    new = await self._index(owners[prefix] for prefix in told)
                case _:
                    pass  # this clock was off, and has now been set
        if commit.tasks:
            raise Conflict(f"task {commit.tasks[0][1]!r} is written by many at once; try again when they are fewer")
        raise StoreUnavailable("the server's time does not stand still long enough to write; look after its clock")

    async def _ask(
        self,
        commit: Commit,
        owners: dict[bytes, Space],
        rows: Rows,
        decision: Decision,
        new: tuple[bytes, bytes],
        now: datetime,
    ) -> list[bytes]:
        args = [
            commit.id.encode(),
            _MEMORY_MS,
            moment(now),
            self._clock.tolerance,
            self._grace,
            *new,
            b"%d" % len(owners),
        ]
        for prefix, space in owners.items():
            args += (prefix, b"" if commit.only_removes else keys.names_of(space))
        args.append(b"%d" % len(commit.tasks))
        for name in commit.tasks:
            args += (keys.table(name[0]), keys.raw(name[1]), rows[name])
        verdict, time, *told = await self._server.script(
            "commit", [prefix + b"done" for prefix in owners], [*args, *decision.orders]
        )
        self._clock.hear(time)
        if verdict == b"denied":
            raise self._server.denied(told[0].decode())
        return [verdict, *told]

    async def _rows(
        self, names: Sequence[keys.TaskName], *, remembered: bool
    ) -> tuple[dict[keys.TaskName, bytes], bool]:
        """Rows of tasks, and whether they were just read."""
        if not names:
            return {}, True
        if remembered and all(name in self._seen for name in names):
            return {name: self._seen[name] for name in names}, False
        time, *rows = await self._server.script(
            "rows", [keys.table(space) for space, _ in names], [keys.raw(task) for _, task in names]
        )
        self._clock.hear(time)
        found = dict(zip(names, rows, strict=True))
        self._remember(found.items())
        return found, True

    async def _index(self, spaces: Iterable[Space]) -> tuple[bytes, bytes]:
        """Name owners in the list of their tenant, before anything is written for them.

        The list lies on another server, perhaps. A crash before the batch leaves a name too many in it, which those
        who read it pass over; in the other order it would leave an owner whom nobody finds. For the script: that they
        are on it, and the highest fence of what was erased, which may have been theirs.
        """
        for space in spaces:
            await self._server.command("SADD", keys.index_of(space.tenant), keys.prefix_of(space))
        highest = await self._server.command("ZSCORE", keys.ERASED_FENCE, keys.ERASED_FENCE)
        return b"1", b"%d" % int(float(highest or 0))

    def forget(self) -> None:
        """Drop what this process has seen of tasks."""
        self._seen.clear()

    def _remember(self, rows: Iterable[tuple[keys.TaskName, bytes]]) -> None:
        for name, row in rows:
            self._seen[name] = row
            self._seen.move_to_end(name)
        while len(self._seen) > _MOST_REMEMBERED:
            self._seen.popitem(last=False)
