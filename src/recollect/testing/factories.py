"""Sample values and a manual clock for contract tests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from math import isnan
from typing import Any

import numpy as np
import pytest

from recollect.stores.base import Capabilities, Records, Vector, get_capabilities
from recollect.stores.filters import Where
from recollect.stores.search import EvidenceLookup, EvidenceQuery, ScoredItem, SearchEvidence, sort_by_score
from recollect.stores.writes import Append, Entry, Journal, Model, Put, Save, Task
from recollect.types import MemoryItem, Scope, Turn

Test = Callable[[Any, Any], Coroutine[Any, Any, None]]

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)

MODEL = Model("sample", 4, "5a3c")
OTHER_MODEL = Model("another", 3, "77e1")

# Texts that a comparison of prefixes may get wrong. PostgreSQL indexes the first 200 characters of a key.
HOSTILE_TEXTS = (
    "a", "a/", "a/b", "a0", "A", "%", "%%", "a%", "_", "a_", "a*", "[a]", "'", "' or 1=1 --", '"', "\\", "\\%", "\x00",
    "a\x00", "a\x00b", "a\x01", "a\x02", "é", "e\u0301", "\ud7ff", "\ud7ffa", "\ue000", "👩‍👩‍👧", "👩", "\U0010ffff",
    "\U0010ffff\U0010ffff", "\U0010ffff\U0010ffffx", "x" * 200, "x" * 201, "x" * 300, "x" * 300 + "y",
)  # fmt: skip

ADA = Scope(tenant="acme", user="ada", agent="helper")
BOB = Scope(tenant="acme", user="bob", agent="helper")
# Differs from ADA only in the tenant.
ADA_ELSEWHERE = Scope(tenant="globex", user="ada", agent="helper")

SPACE = ADA.space("semantic")
EVERYTHING = Where(SPACE)
LOG = ADA.space("conversation")
TASKS = ADA.space("checkpoints")


def make_item(id: str, content: str | None = None, **fields: Any) -> MemoryItem:
    fields.setdefault("scope", ADA)
    fields.setdefault("created_at", START)
    return MemoryItem(id=id, content=content or f"content of {id}", **fields)


def make_put(id: str, vector: Sequence[Any] | None = None, terms: str | None = None, **fields: Any) -> Put:
    """Return a put of a sample item; `vector` is one vector or a list of passages, `terms` is split at spaces."""
    return Put(
        item=make_item(id, **fields),
        vectors=None if vector is None else np.atleast_2d(np.array(vector, np.float32)),
        terms=None if terms is None else tuple(terms.split()),
        model=None if vector is None else MODEL,
    )


def make_turn(id: str, session: str, position: float, speaker: str | None = None, **fields: Any) -> Put:
    return make_put(id, turn=Turn(session, position, speaker), **fields)


def make_vector(*numbers: float) -> Vector:
    return np.array(numbers, np.float32)


EAST = make_vector(1, 0, 0, 0)


def make_append(id: str, cap: int | None = None, expect_last: int | None = None, **fields: Any) -> Append:
    space = fields.pop("space", LOG)
    fields.setdefault("kind", "user")
    fields.setdefault("content", f"content of {id}")
    fields.setdefault("at", START)
    return Append(space=space, entry=Entry(id=id, **fields), expect_last=expect_last, cap=cap)


def make_save(state: str = "{}", **fields: Any) -> Save:
    fields.setdefault("space", TASKS)
    fields.setdefault("task", "t")
    return Save(state=state, **fields)


def make_note(step: str, fence: int, status: Any = "started", **fields: Any) -> Journal:
    fields.setdefault("space", TASKS)
    fields.setdefault("task", "t")
    fields.setdefault("attempts", 1)
    return Journal(step=step, status=status, fence=fence, idempotency_key=f"key of {step}", **fields)


async def find_nearest(store: Records, where: Where, vector: Vector, *, limit: int = 10) -> list[ScoredItem]:
    """Return the items with the highest cosine, best first, ties by id."""

    def rank(found: SearchEvidence, lookup: EvidenceLookup) -> list[ScoredItem]:
        scores = zip(found.briefs, found.cosines.tolist(), strict=True)
        return sort_by_score([ScoredItem(brief, cosine) for brief, cosine in scores if not isnan(cosine)], limit)

    return await store.gather(EvidenceQuery(where, vector, (), limit, reach=0), rank)


async def find_everywhere(store: Records, where: Where) -> list[str]:
    """Return the ids of the items that match, sorted; assert that searches by vector and by term find the same.

    All items of the space must have a vector and the term `word`.
    """
    found = sorted(list_ids(await store.find(where, limit=100)))
    assert sorted(list_ids(await find_nearest(store, where, EAST, limit=100))) == found
    assert sorted(list_ids(await find_matching(store, where, "word", limit=100))) == found
    return found


async def find_matching(store: Records, where: Where, *terms: str, limit: int = 10) -> list[ScoredItem]:
    """Return the items with the highest BM25 over the terms, best first, ties by id."""
    return await store.gather(
        EvidenceQuery(where, None, terms, limit, reach=0), lambda found, lookup: found.rank_by_terms(limit)
    )


async def gather_evidence(store: Records, **options: Any) -> SearchEvidence:
    """Return the evidence for a query, by default the ten items nearest to a vector."""
    asked: dict[str, Any] = {"where": EVERYTHING, "vector": EAST, "terms": (), "limit": 10, "reach": 0, "model": MODEL}
    return await store.gather(EvidenceQuery(**{**asked, **options}), lambda found, lookup: found)


def list_ids(found: Sequence[MemoryItem | Entry | Task | ScoredItem] | SearchEvidence) -> list[str]:
    if isinstance(found, SearchEvidence):
        return [brief.id for brief in found.briefs]
    return [result.brief.id if isinstance(result, ScoredItem) else result.id for result in found]


def requires(guarantee: str) -> Callable[[Test], Test]:
    """Return a decorator for the test of a guarantee; a store that declares to lack it is not tested."""
    assert hasattr(Capabilities, guarantee)

    def decorate(test: Test) -> Test:
        @wraps(test)
        async def run(self: Any, store: Any) -> None:
            if getattr(get_capabilities(store), guarantee):
                await test(self, store)

        return run

    return decorate


class AsyncContract:
    """Base of the contracts: all tests are coroutines."""

    pytestmark = pytest.mark.asyncio


class ManualClock:
    """Clock that moves only by its methods."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, by: timedelta) -> None:
        self.now += by

    def back(self, by: timedelta) -> None:
        self.now -= by
