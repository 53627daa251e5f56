"""Deleting for an erasure: owner by owner, each in one script, planned in the ledger before it is done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from recollect.errors import Conflict, StoreCorrupt, Unsupported
from recollect.stores.erasing import Doomed
from recollect.stores.ops import DropTask
from recollect.stores.redis import keys
from recollect.stores.redis.evidence import Evidence
from recollect.stores.redis.ledger import Ledger, Plan
from recollect.stores.redis.server import Server
from recollect.stores.redis.values import end_of, names_in, parts_of, task_from
from recollect.stores.traces import Traces, pieces_of
from recollect.values import Space, Tier

_PAGE = 500
_ATTEMPTS = 50
# What an owner is without a space: somebody who had tasks, all of which were dropped before any was claimed.
_NO_SPACE: Tier = "checkpoints"


@dataclass(slots=True)
class _Gone:
    """What is about to go of one owner, and what the script has to find unchanged."""

    counts: Counter[str] = field(default_factory=Counter)
    pieces: list[bytes] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    goes: list[bytes] = field(default_factory=list)
    fence: int = 0

    def note(self, *values: bytes) -> None:
        for value in values:
            self.pieces.extend(pieces_of(value))

    @property
    def orders(self) -> list[bytes]:
        """As the script takes them."""
        return [b"%d" % (len(self.seen) // 5), *self.seen, b"%d" % (len(self.rows) // 3), *self.rows, *self.goes]


class Wiping:
    """What an erasure asks of the keys."""

    def __init__(self, server: Server, ledger: Ledger) -> None:
        self._server = server
        self._ledger = ledger

    async def holdings(self) -> list[Space]:
        """Every space that any owner has a key, a field or a counter of."""
        found: dict[Space, None] = {}
        for index in await self._server.names(keys.ROOT + b"{*}:owners"):
            for prefix in await self._server.command("SMEMBERS", index):
                found |= dict.fromkeys(await self._of_owner(prefix))
        return list(found)

    async def wipe(self, id: str, doomed: Doomed) -> None:
        await self._ledger.check(id)
        await self._ledger.recover()
        for write in doomed.writes:
            if not isinstance(write, DropTask):
                raise Unsupported(f"Redis keeps logs and tasks; an erasure drops tasks of it, and no {write!r:.40}")
        drops = [write for write in doomed.writes if isinstance(write, DropTask)]
        owners = dict.fromkeys(keys.prefix_of(space) for space in (*doomed.spaces, *(one.space for one in drops)))
        emptied = []
        for prefix in owners:
            spaces = [space for space in doomed.spaces if keys.prefix_of(space) == prefix]
            tasks = [(one.space, one.task) for one in drops if keys.prefix_of(one.space) == prefix]
            if await self._owner(id, prefix, spaces, [name for name in tasks if name[0] not in spaces]):
                emptied.append((prefix, keys.index_of((*spaces, *(space for space, _ in tasks))[0].tenant)))
        await self._strike(emptied)

    async def _owner(self, id: str, prefix: bytes, spaces: Sequence[Space], tasks: Sequence[keys.TaskName]) -> bool:
        """Everything that goes of one owner; whether nothing of it is left."""
        mark = prefix + b"wiped"
        for _ in range(_ATTEMPTS):
            gone = _Gone()
            for space in spaces:
                await self._look_at_space(space, gone)
            for name in tasks:
                await self._look_at_task(name, gone)
            time = int((await self._server.script("rows", (), ()))[0])
            traces = Traces.of_pieces(await self._ledger.salt(), gone.pieces)
            if gone.fence:
                await self._server.command("ZADD", keys.ERASED_FENCE, "GT", gone.fence, keys.ERASED_FENCE)
            plan = Plan(id, mark, gone.counts)
            name_of_plan = await self._ledger.plan(plan, Evidence(time, traces).packed)
            verdict, *told = await self._server.script("wipe", (mark,), (name_of_plan.encode(), prefix, *gone.orders))
            if verdict == b"ok":
                await self._ledger.carried_out(name_of_plan, plan)
                return told == [b"empty"] or not await self._server.command("EXISTS", prefix + b"owner")
            await self._ledger.give_up(name_of_plan)
        raise Conflict("others write for whom is being erased, all the time; end them first")

    async def _look_at_space(self, space: Space, gone: _Gone) -> None:
        within = keys.within(space)
        seq, fence = await self._server.command("HMGET", keys.owner(space), b"seq:" + within, b"fence:" + within)
        entries = tasks = 0
        async for id, value in self._fields(keys.data(space)):
            entries += 1
            gone.note(id, value, *_texts_of(value))
        async for task, row in self._fields(keys.table(space)):
            tasks += 1
            await self._look_at_work((space, task.decode("utf-8", "surrogatepass")), row, gone)
        gone.note(within, keys.names_of(space))
        gone.counts[space.tier] += entries + tasks
        gone.fence = max(gone.fence, int(fence or 0))
        gone.seen += (within, b"%d" % entries, b"%d" % tasks, seq or b"", fence or b"")
        gone.goes += (b"space", within)

    async def _look_at_task(self, name: keys.TaskName, gone: _Gone) -> None:
        space, task = name
        row = await self._server.command("HGET", keys.table(space), keys.raw(task)) or b""
        if row:
            gone.counts[space.tier] += 1
            await self._look_at_work(name, row, gone)
        gone.goes += (b"task", keys.within(space), keys.raw(task), end_of(task_from(task, row)))

    async def _look_at_work(self, name: keys.TaskName, row: bytes, gone: _Gone) -> None:
        """A task's row, its versions and its journal."""
        gone.rows += (keys.within(name[0]), keys.raw(name[1]), row)
        gone.note(keys.raw(name[1]), row)
        async for _, version in self._fields(keys.of_task(b"versions", name)):
            gone.note(version[64:].partition(b"\n")[2])
        async for step, told in self._fields(keys.of_task(b"steps", name)):
            gone.note(step, told)

    async def _fields(self, key: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """A hash page by page; a field may come twice, and is given once."""
        seen: set[bytes] = set()
        cursor: Any = 0
        while True:
            cursor, told = await self._server.command("HSCAN", key, cursor, "COUNT", _PAGE)
            for name, value in told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True):
                if name not in seen:
                    seen.add(name)
                    yield name, value
            if int(cursor) == 0:
                return

    async def _strike(self, emptied: Iterable[tuple[bytes, bytes]]) -> None:
        """Off the list of owners, and with them what is left of their batches' ids."""
        listed = list(emptied)
        for prefix, index in listed:
            await self._server.command("SREM", index, prefix)
            if await self._server.command("EXISTS", prefix + b"owner"):  # somebody has come back
                await self._server.command("SADD", index, prefix)
        # One way through all keys, however many owners went.
        if listed:
            for key in await self._server.names(keys.ROOT + b"*}:done:*"):
                if key.startswith(tuple(prefix for prefix, _ in listed)):
                    await self._server.command("UNLINK", key)

    async def _of_owner(self, prefix: bytes) -> list[Space]:
        told = await self._server.command("HGETALL", prefix + b"owner")
        held = dict(told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True))
        if b"names" not in held:
            return []
        tenant, user, agent = names_in(held[b"names"])
        counted = [name.partition(b":")[2] for name in held if name.startswith((b"seq:", b"fence:"))]
        listed = await self._server.command("HKEYS", prefix + b"logs")
        working = await self._server.command("SMEMBERS", prefix + b"spaces")
        spaces = []
        for name in dict.fromkeys([*counted, *listed, *working]):
            tier, _, session = name.decode("utf-8", "surrogatepass").partition("/")
            spaces.append(Space(tenant, cast(Tier, tier), user, agent, session))
        return spaces or [Space(tenant, _NO_SPACE, user, agent)]


def _texts_of(value: bytes) -> list[bytes]:
    """What an entry says, as it stands in its value: pieces of the whole may all lie beside it."""
    try:
        content, metadata = parts_of(value)[2:4]
    except (StoreCorrupt, ValueError):  # damaged: it goes all the same, and is looked for as it stands
        return [value]
    return [json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode() for part in (content, metadata)]
