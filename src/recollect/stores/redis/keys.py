"""The names of keys: all that belongs to one owner lies in one slot, and so in one place of a cluster.

An owner is a tenant with a user and an agent. Its keys are `recollect:{TAG}:…`, where the tag is made of hashes: names
may hold any character, and a list of owners that outlives its members then names nobody.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from recollect.stores.ops import TaskWrite, Write
from recollect.values import Space

ROOT = b"recollect:"
ERASURES = ROOT + b"{erasures}:"
"""What the names of the ledger's keys begin with; all of it lies in one slot."""
ERASED_FENCE = ERASURES + b"fence"
TaskName = tuple[Space, str]


def raw(text: str) -> bytes:
    """As bytes, also what is no proper text: it may be asked for, and is then not found."""
    return text.encode("utf-8", "surrogatepass")


def prefix_of(space: Space) -> bytes:
    """What the names of all of an owner's keys begin with."""
    return _prefix(space.tenant, space.user, space.agent)


def names_of(space: Space) -> bytes:
    """The owner as the store remembers it, to be listed by."""
    return _names(space.tenant, space.user, space.agent)


def within(space: Space) -> bytes:
    """A space's name among those of its owner."""
    return raw(f"{space.tier}/{space.session}")


def index_of(tenant: str) -> bytes:
    """The list of a tenant's owners. It lies where its own name says, which is elsewhere than the owners do."""
    return b"%s{%s}:owners" % (ROOT, _digest(tenant))


def owner(space: Space) -> bytes:
    """The names of an owner, and how far its logs and fences are counted."""
    return prefix_of(space) + b"owner"


def logs(space: Space) -> bytes:
    """What is known of each of an owner's logs."""
    return prefix_of(space) + b"logs"


def newest(space: Space) -> bytes:
    """The logs of an owner's tier, by time."""
    return prefix_of(space) + b"newest:" + space.tier.encode()


def order(space: Space) -> bytes:
    return prefix_of(space) + b"order:" + within(space)


def data(space: Space) -> bytes:
    return prefix_of(space) + b"data:" + within(space)


def table(space: Space) -> bytes:
    return prefix_of(space) + b"tasks:" + within(space)


def names(space: Space) -> bytes:
    return prefix_of(space) + b"names:" + within(space)


def ends(space: Space) -> bytes:
    return prefix_of(space) + b"ends:" + within(space)


def of_task(kind: bytes, name: TaskName) -> bytes:
    """A key of one task alone: its `versions`, its `steps` or the `course` of them."""
    space = within(name[0])
    return b"%s%s:%d:%s%s" % (prefix_of(name[0]), kind, len(space), space, raw(name[1]))


def task_of(write: Write) -> TaskName | None:
    return (write.space, write.task) if isinstance(write, TaskWrite) else None


@lru_cache(maxsize=1024)  # every call names the same few owners, several times
def _prefix(tenant: str, user: str, agent: str) -> bytes:
    return b"%s{%s.%s}:" % (ROOT, _digest(tenant), _digest(tenant, user, agent))


@lru_cache(maxsize=1024)
def _names(tenant: str, user: str, agent: str) -> bytes:
    return raw(json.dumps([tenant, user, agent]))


def _digest(*names: str) -> bytes:
    return hashlib.blake2b(raw(json.dumps(names)), digest_size=16).hexdigest().encode()
