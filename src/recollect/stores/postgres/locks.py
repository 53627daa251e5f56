"""Who waits for whom: every writer takes its locks first and in one order, so that no two wait for each other.

Everything that is written belongs to a space or to one task of it. A batch locks all that it writes to, in the order
of the locks' numbers, before it reads anything; then nobody else changes what it has read. `GROWTH` comes after those
and is held only to add what is missing: whoever has it waits for no other lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from recollect.stores.ops import Embed, Put, TaskWrite, Write
from recollect.stores.postgres.rows import space_handle
from recollect.stores.postgres.server import Lock
from recollect.values import Space

_MODELS = 0x5265636F_00000001
MODELS = f"select pg_advisory_xact_lock({_MODELS})"
"""Held by whoever changes which vectors there are to be; whoever writes vectors shares it."""
GROWTH = f"select pg_advisory_xact_lock({0x5265636F_00000002})"


def locks(writes: Iterable[Write], wiped: Iterable[Space] = ()) -> list[Lock]:
    """The locks of a batch, in their order; of spaces that are wiped nobody else writes anything."""
    writes = list(writes)
    vectors = any(
        isinstance(write, Embed) or (isinstance(write, Put) and write.vectors is not None) for write in writes
    )
    spaces = {write.space for write in writes if not isinstance(write, TaskWrite)}
    tasks = {(write.space, write.task) for write in writes if isinstance(write, TaskWrite)}
    alone = {_number(space, "") for space in (*wiped, *spaces)} | {_number(space, task) for space, task in tasks}
    shared = {_number(space, "") for space, _ in tasks}
    return [*([Lock(_MODELS, shared=True)] if vectors else []), *_in_order(alone, shared)]


def task_lock(space: Space, task: str) -> list[Lock]:
    return _in_order({_number(space, task)}, {_number(space, "")})


def _in_order(alone: set[int], shared: set[int]) -> list[Lock]:
    """Who works on one task shares its space: not with each other, but with whoever would wipe it under their hands."""
    return [Lock(number, shared=number not in alone) for number in sorted(alone | shared)]


@lru_cache(maxsize=1024)  # whoever writes to a space mostly writes there again
def _number(space: Space, task: str) -> int:
    """Two that get the same number only wait for each other without need."""
    name = "\0".join((space.tenant, space_handle(space), task))
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)
