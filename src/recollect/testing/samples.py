"""Small values for the contract tests to write."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from recollect.stores.base import Task, Vector
from recollect.stores.evidence import Found
from recollect.stores.ops import Append, Entry, Journal, Model, Put, Save
from recollect.stores.where import Where
from recollect.values import MemoryItem, Scope, Turn

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

MODEL = Model("sample", 4, "5a3c")
OTHER_MODEL = Model("another", 3, "77e1")

ADA = Scope(tenant="acme", user="ada", agent="helper")
BOB = Scope(tenant="acme", user="bob", agent="helper")
# Another tenant whose names are the same in every other part.
ADA_ELSEWHERE = Scope(tenant="globex", user="ada", agent="helper")

SPACE = ADA.space("semantic")
EVERYTHING = Where(SPACE)
LOG = ADA.space("conversation")
TASKS = ADA.space("checkpoints")


def item(id: str, content: str | None = None, **fields: Any) -> MemoryItem:
    fields.setdefault("scope", ADA)
    fields.setdefault("created_at", START)
    return MemoryItem(id=id, content=content or f"content of {id}", **fields)


def put(id: str, vector: Sequence[Any] | None = None, terms: str | None = None, **fields: Any) -> Put:
    """A put of a sample item; `vector` may be one vector or a list of passages, `terms` is one line of words."""
    return Put(
        item=item(id, **fields),
        vectors=None if vector is None else np.atleast_2d(np.array(vector, np.float32)),
        terms=None if terms is None else tuple(terms.split()),
        model=None if vector is None else MODEL,
    )


def turn(id: str, session: str, position: float, speaker: str | None = None, **fields: Any) -> Put:
    return put(id, turn=Turn(session, position, speaker), **fields)


def vector(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


def append(id: str, cap: int | None = None, **fields: Any) -> Append:
    space = fields.pop("space", LOG)
    fields.setdefault("kind", "user")
    fields.setdefault("content", f"content of {id}")
    fields.setdefault("at", START)
    return Append(space=space, entry=Entry(id=id, **fields), cap=cap)


def save(state: str = "{}", **fields: Any) -> Save:
    fields.setdefault("space", TASKS)
    fields.setdefault("task", "t")
    return Save(state=state, **fields)


def note(step: str, fence: int, status: Any = "started", **fields: Any) -> Journal:
    fields.setdefault("space", TASKS)
    fields.setdefault("task", "t")
    fields.setdefault("attempts", 1)
    return Journal(step=step, status=status, fence=fence, idempotency_key=f"key of {step}", **fields)


def ids(found: Sequence[MemoryItem | Entry | Task | Found]) -> list[str]:
    return [one.brief.id if isinstance(one, Found) else one.id for one in found]
