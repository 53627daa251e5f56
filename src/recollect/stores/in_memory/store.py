"""The reference store: items, logs and tasks in plain dictionaries of this process.

Every search scans all items of a space. That is slow, simple and exact.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recollect.clock import Clock, system_clock, to_micros, to_utc
from recollect.errors import BadVector, Conflict, StoreClosed
from recollect.stores import erasure, leases, search, validation
from recollect.stores.base import Capabilities, Log, Records, SpaceTrace, Tasks, get_space_names
from recollect.stores.codec import VECTOR_DTYPE, normalize_item, pack_vectors
from recollect.stores.filters import Where, iter_metadata_paths, matches_where, normalize_times
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.stores.validation import ALL_VERSIONS, validate_limit, validate_writes
from recollect.stores.writes import (
    Append,
    Checkpoint,
    Clear,
    Delete,
    Drop,
    DropTask,
    Embed,
    Entry,
    Journal,
    Lease,
    LogWrite,
    Model,
    Put,
    RecordWrite,
    Restore,
    Save,
    SetStatus,
    Step,
    Task,
    TaskStatus,
    TaskWrite,
    Touch,
    Vectors,
    Write,
)
from recollect.types import EMPTY_MAPPING, MemoryItem, Space
from recollect.validation import to_plain_json

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class InMemoryTables:
    """The tables of one store, its clock and its open state."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_closed = False
        self._undo_steps: list[Callable[[], object]] | None = None
        # Items as the writes that restore them, and their vectors of the model in preparation, by id.
        self._items: dict[Space, dict[str, Put]] = {}
        self._prepared: dict[Space, dict[str, Vectors]] = {}
        self._paths: dict[Space, frozenset[str]] = {}
        self._models: dict[str, Model] = {}
        # Entries by id.
        self._entries: dict[Space, dict[str, Entry]] = {}
        self._last_seqs: dict[Space, int] = {}
        self._tasks: dict[Space, dict[str, Task]] = {}
        self._versions: dict[Space, dict[str, tuple[Checkpoint, ...]]] = {}
        self._steps: dict[Space, dict[str, dict[str, Step]]] = {}
        # One sequence a space: a fence is not given twice, even after its task was dropped or its space erased.
        self._fences: dict[Space, int] = {}
        self._highest_erased_fence = 0
        # Complete erasures in the order of their chain, then the others.
        self._erasures: dict[str, erasure.ErasureRecord] = {}

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Undo all changes made within if an exception leaves the block."""
        self._check_open()
        self._undo_steps = []
        try:
            yield
        except BaseException:
            while self._undo_steps:
                self._undo_steps.pop()()
            raise
        finally:
            self._undo_steps = None

    def _set(self, table: dict[K, V], key: K, value: V) -> None:
        """Store a value. A transaction that fails restores the value before."""
        if self._undo_steps is not None:
            undo = partial(table.__setitem__, key, table[key]) if key in table else partial(table.pop, key)
            self._undo_steps.append(undo)
        table[key] = value

    def _drop(self, table: dict[Space, dict[K, V]], space: Space, key: K) -> None:
        """Delete a value of a space if it exists. A transaction that fails restores it."""
        rows = table.get(space, {})
        if key in rows:
            before = rows.pop(key)
            if self._undo_steps is not None:
                self._undo_steps.append(partial(rows.__setitem__, key, before))

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("this in-memory store was closed and its data is gone; open a new one")

    def _now(self) -> datetime:
        self._check_open()
        return to_utc(self._clock())

    def _get_visibility_time(self, hidden: bool) -> datetime | None:
        """Return the time by which expired rows are hidden, or None to hide nothing."""
        now = self._now()
        return None if hidden else now


class InMemoryItems(InMemoryTables, Records):
    """Items, their vectors and their terms."""

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        rows = self._get_rows(space)
        return [rows[id].item for id in dict.fromkeys(ids) if id in rows]

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        rows = self._get_rows(space)
        return [rows[id] for id in dict.fromkeys(ids) if id in rows]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        found = sorted((row.item for row in self._select(where)), key=_get_age_key, reverse=True)
        if after is not None:
            found = [item for item in found if _get_age_key(item) < _get_age_key(after)]
        return found[: validate_limit(limit)]

    async def gather(
        self, ask: search.EvidenceQuery, judge: Callable[[search.SearchEvidence, search.EvidenceLookup], T]
    ) -> T:
        await asyncio.sleep(0)  # yields to other tasks, as every other store does
        return judge(self._gather_evidence(ask.normalize()), _InMemoryLookup(self._get_rows(ask.where.space)))

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        rows = self._get_rows(space)
        turns = [(turn.position, id) for id, row in rows.items() if (turn := row.item.turn) and turn.session == session]
        return [rows[id].item for _, id in sorted(turns, reverse=True)[: validate_limit(limit)]]

    def touch(self, touch: Touch) -> None:
        rows, at = self._get_rows(touch.space), to_utc(touch.at)
        for id, row in ((id, rows[id]) for id in touch.ids if id in rows):
            last, count = max(row.item.last_accessed or at, at), row.item.access_count + 1
            self._set(rows, id, replace(row, item=replace(row.item, last_accessed=last, access_count=count)))

    async def paths(self, space: Space) -> frozenset[str]:
        self._check_open()
        return self._paths.get(space, frozenset())

    async def model(self) -> Model | None:
        self._check_open()
        return self._models.get("active")

    async def bind_model(self, model: Model) -> None:
        self._bind(model)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        self._check_open()
        if self._models.get("preparing") != model:
            self._models, self._prepared = {"active": self._models.get("active", model), "preparing": model}, {}
        return self._list_unembedded(self._prepared)[: validate_limit(limit)]

    async def activate_model(self, model: Model) -> None:
        self._check_open()
        if self._models == {"active": model}:
            return
        prepared = self._prepared if self._models.get("preparing") == model else {}
        if self._list_unembedded(prepared):
            raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
        for space, rows in self._items.items():
            for id, row in rows.items():
                rows[id] = replace(row, vectors=prepared[space][id], model=model)
        self._models, self._prepared = {"active": model}, {}

    def _write_record(self, write: RecordWrite) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete():
                if write.expect is not None:
                    self._check_version(write.space, write.id, write.expect, missing=-1)
                self._drop(self._items, write.space, write.id)
                self._drop(self._prepared, write.space, write.id)
            case Touch():
                self.touch(write)
            case Embed(space, id, vectors, model, expect):
                if self._models.get("preparing") != model:
                    raise Conflict(f"{model.name!r} is not being prepared; call `find_unembedded` with it first")
                row = self._get_rows(space).get(id)
                if row is not None and expect in (None, row.item.version):
                    self._set(self._prepared.setdefault(space, {}), id, _round(vectors))

    def _put(self, put: Put) -> None:
        space, id = put.space, put.item.id
        before = self._check_version(space, id, put.expect, missing=0)
        item = normalize_item(put.item, before.item if before else None)
        terms, vectors, model = (before.terms, before.vectors, before.model) if before else ((), None, None)
        if put.terms is not None:
            terms = tuple(put.terms)
        if put.vectors is not None and put.model is not None:
            self._bind(put.model)
            self._drop(self._prepared, space, id)
            vectors, model = _round(put.vectors), put.model
        row = Put(item=item, terms=terms, vectors=vectors, model=model)
        self._set(self._items.setdefault(space, {}), id, row)
        known = self._paths.get(space)
        if known is None or (item.metadata and not known.issuperset(iter_metadata_paths(item.metadata))):
            self._set(self._paths, space, (known or frozenset()) | {*iter_metadata_paths(item.metadata)})

    def _check_version(self, space: Space, id: str, expect: int | None, *, missing: int) -> Put | None:
        """Return the row; raise `Conflict` if it does not have the expected version."""
        row = self._get_rows(space).get(id)
        if expect is not None and expect != (row.item.version if row else missing):
            state = f"is at version {row.item.version}" if row else "is not there"
            raise Conflict(f"item {id!r} {state}, not at version {expect}; read it again")
        return row

    def _bind(self, model: Model) -> None:
        self._check_open()
        active = self._models.get("active")
        if active is None:
            self._set(self._models, "active", model)
        elif active != model:
            raise validation.build_model_mismatch(active, model)

    def _list_unembedded(self, vectors: Mapping[Space, Mapping[str, Vectors]]) -> list[MemoryItem]:
        tables = ((rows, vectors.get(space, {})) for space, rows in self._items.items())
        return [row.item for rows, embedded in tables for id, row in rows.items() if id not in embedded]

    def _get_rows(self, space: Space) -> dict[str, Put]:
        self._check_open()
        return self._items.get(space, {})

    def _select(self, where: Where) -> list[Put]:
        where = normalize_times(where)
        return [row for row in self._get_rows(where.space).values() if matches_where(where, row.item)]

    def _gather_evidence(self, ask: search.EvidenceQuery) -> search.SearchEvidence:
        rows, found = self._get_rows(ask.where.space), self._select(ask.where)
        cosines = self._compute_cosines(rows, found, ask)
        if not rows:
            return search.build_empty_evidence(ask)
        parts, weights = _score_terms(rows, ask.terms)
        briefs = {id: _build_brief(row) for id, row in rows.items()}
        near = [search.ScoredItem(briefs[id], cosine) for id, cosine in cosines.items()]
        ids = [row.item.id for row in found]
        matches = [search.ScoredItem(briefs[id], sum(parts[id])) for id in ids if any(parts[id])]
        best = [scored.brief for ranked in (near, matches) for scored in search.sort_by_score(ranked, ask.limit)]
        around = [briefs[id] for id in ids if any(_are_neighbors(briefs[id], turn, ask.reach) for turn in best)]
        speakers = frozenset(brief.speaker for brief in briefs.values() if brief.speaker is not None)
        return search.build_evidence({*best, *around}, cosines, parts, weights, speakers)

    def _compute_cosines(
        self, rows: Mapping[str, Put], found: Sequence[Put], ask: search.EvidenceQuery
    ) -> dict[str, float]:
        """Return the cosine of the best passage of each item with vectors."""
        model = self._models.get("active")
        if ask.vector is None or model is None:
            return {}
        if ask.model not in (None, model):
            raise validation.build_model_mismatch(model, ask.model)
        if len(ask.vector) != model.dim and any(row.vectors is not None for row in rows.values()):
            raise BadVector(
                f"the query vector has {len(ask.vector)} dimensions, the store {model.dim}; check the embedder"
            )
        wide = ask.vector.astype(np.float64)
        rated = ((row.item.id, row.vectors @ wide) for row in found if row.vectors is not None)
        return {id: float(cosines.max()) for id, cosines in rated if len(cosines)}


class _InMemoryLookup(NamedTuple):
    """Reads of the same moment for the ranking function of `gather`."""

    rows: Mapping[str, Put]

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {id: self.rows[id].item for id in ids if id in self.rows}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: " ".join(self.rows[id].terms or ()) for id in ids if id in self.rows}


def _score_terms(rows: Mapping[str, Put], terms: Sequence[str]) -> tuple[dict[str, Sequence[float]], list[float]]:
    """Return the BM25 parts of each item of a space, and the weight of each term."""
    texts = [row.terms or () for row in rows.values()]
    counts = np.array([[text.count(term) for term in terms] for text in texts], np.float64)
    lengths = np.array([[len(text)] for text in texts], np.float64)
    corpus = search.CorpusStats(len(texts), float(lengths.mean()))
    weights = [search.compute_idf(corpus, holders) for holders in np.count_nonzero(counts, axis=0).tolist()]
    parts = search.compute_bm25(corpus, counts, lengths, np.array(weights))
    return dict(zip(rows, parts.tolist(), strict=True)), weights


def _round(vectors: Vectors) -> Vectors:
    """Return the vectors as they are read back."""
    return pack_vectors(vectors).astype(np.float32)


def _build_brief(row: Put) -> search.ItemBrief:
    passages = 1 if row.vectors is None else len(row.vectors)
    return search.build_brief(row.item, length=len(row.terms or ()), passages=passages)


def _are_neighbors(one: search.ItemBrief, other: search.ItemBrief, reach: int) -> bool:
    if one.position is None or other.position is None:
        return False
    return one.session == other.session and abs(one.position - other.position) <= reach


def _get_age_key(item: MemoryItem) -> tuple[int, str]:
    return to_micros(item.created_at), item.id


class InMemoryLogs(InMemoryTables, Log):
    """Logs."""

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        rows, now = self._entries.get(space, {}), self._now()
        return [rows[id] for id in dict.fromkeys(ids) if id in rows and _is_live(rows[id], now)]

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        live = self._list_live(space, self._now())
        found = [entry for entry in live if not kinds or entry.kind in kinds]
        return found[-limit:] if validate_limit(limit) else []

    async def read(
        self,
        space: Space,
        *,
        after: int = 0,
        limit: int = 1000,
        since: datetime | None = None,
        until: datetime | None = None,
        hidden: bool = False,
    ) -> list[Entry]:
        start, end = (None if at is None else to_utc(at) for at in (since, until))
        entries = [entry for entry in self._list_live(space, self._get_visibility_time(hidden)) if entry.seq > after]
        entries = [entry for entry in entries if (not start or entry.at >= start) and (not end or entry.at < end)]
        return entries[: validate_limit(limit)]

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        now = self._get_visibility_time(hidden)
        owned = [space for space in self._entries if replace(space, session="") == replace(owner, session="")]
        live = {space: entries for space in owned if (entries := self._list_live(space, now))}
        return sorted(live, key=lambda space: (live[space][-1].at, space.session))

    def _write_log(self, write: LogWrite, now: datetime) -> None:
        entries = self._entries.setdefault(write.space, {})
        dropped: list[Entry] = []
        match write:
            case Append(cap=cap):
                self._append(write, now)
                live = [] if cap is None else self._list_live(write.space, now)
                if cap is not None and len(live) > cap:
                    dropped = [entry for entry in entries.values() if entry.seq <= live[-cap - 1].seq]
            case Clear():
                dropped = list(entries.values())
            case Drop(seqs=seqs):
                dropped = [entry for entry in entries.values() if entry.seq in seqs]
        for entry in dropped:
            self._drop(self._entries, write.space, entry.id)

    def _append(self, write: Append, now: datetime) -> None:
        entry, entries, last_seq = write.entry, self._entries[write.space], self._last_seqs.get(write.space, 0)
        before = entries.get(entry.id)
        if before is None:
            validation.check_last_seq(write, last_seq)
        elif _is_live(before, now):
            return
        seq = max(last_seq + 1, write.seq)
        expires_at = None if entry.expires_at is None else to_utc(entry.expires_at)
        metadata = MappingProxyType(to_plain_json(dict(entry.metadata))) if entry.metadata else EMPTY_MAPPING
        stored = replace(entry, seq=seq, at=to_utc(entry.at), expires_at=expires_at, metadata=metadata)
        self._set(entries, entry.id, stored)
        self._set(self._last_seqs, write.space, seq)

    def _list_live(self, space: Space, now: datetime | None) -> list[Entry]:
        entries = sorted(self._entries.get(space, {}).values(), key=attrgetter("seq"))
        return [entry for entry in entries if _is_live(entry, now)]


def _is_live(entry: Entry, now: datetime | None) -> bool:
    return now is None or entry.expires_at is None or entry.expires_at > now


class InMemoryTasks(InMemoryTables, Tasks):
    """Tasks, with their checkpoints and steps."""

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        validation.check_claim(task, owner, ttl)
        before, fence = self._find_task(space, task), self._fences.get(space, self._highest_erased_fence) + 1
        request = leases.LeaseRequest(space, task, owner, ttl, plan_hash)
        claimed = self._set_task(space, leases.claim_task(before, request, fence, self._now()))
        self._set(self._fences, space, fence)
        return leases.build_lease(space, claimed)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        validation.check_ttl(ttl)
        before, now = self._find_task(lease.space, lease.task), self._now()
        return leases.build_lease(lease.space, self._set_task(lease.space, leases.renew_lease(before, lease, ttl, now)))

    async def release(self, lease: Lease) -> None:
        task = leases.release_lease(self._find_task(lease.space, lease.task), lease, self._now())
        if task is not None:
            self._set_task(lease.space, task)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        now, found = self._get_visibility_time(hidden), self._find_task(space, task)
        return None if found is None or (now is not None and leases.is_expired(found, now)) else found

    async def tasks(
        self,
        space: Space,
        *,
        status: TaskStatus | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        now, rows = self._now(), self._tasks.get(space, {})
        ids = sorted(id for id in rows if id.startswith(prefix) and id > (after or ""))
        found = [rows[id] for id in ids if status in (None, rows[id].status) and not leases.is_expired(rows[id], now)]
        return found[: validate_limit(limit)]

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        now, end, sort_key = self._now(), to_utc(before), attrgetter("expires_at", "id")
        found = [task for task in self._tasks.get(space, {}).values() if leases.is_expired_by(task, end, now)]
        if after is not None:
            found = [task for task in found if sort_key(task) > sort_key(after)]
        return sorted(found, key=sort_key)[: validate_limit(limit)]

    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        if await self.task(space, task, hidden=hidden) is None:
            return []
        found = [saved for saved in self._versions[space].get(task, ()) if version in (None, saved.version)]
        return found[::-1][: validate_limit(limit)]

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        if await self.task(space, task, hidden=hidden) is None:
            return []
        return list(self._steps[space].get(task, {}).values())

    def _write_task(self, write: TaskWrite, now: datetime) -> None:
        space, id = write.space, write.task
        before = self._find_task(space, id)
        match write:
            case DropTask():
                leases.check_drop(before, write, now)
                self._drop(self._tasks, space, id)
                self._drop(self._versions, space, id)
                self._drop(self._steps, space, id)
            case Save():
                task = self._set_task(space, leases.save_version(before, write, now))
                new = Checkpoint(task.version, task.fence, write.schema, write.state, task.updated_at, intact=True)
                oldest = 0 if write.keep is None else task.version - write.keep
                recent = [old for old in self._versions[space].get(id, ()) if old.version > oldest]
                self._set(self._versions[space], id, (*recent, new))
            case Journal():
                self._set_task(space, leases.apply_note(before, write, now))
                steps = self._steps[space].get(id, {})
                self._set(self._steps[space], id, {**steps, write.step: write.build_step(now)})
            case SetStatus():
                self._set_task(space, leases.apply_note(before, write, now))
            case Restore():
                self._set_task(space, leases.restore_task(before, write))
                self._set(self._versions[space], id, tuple(sorted(write.checkpoints, key=lambda saved: saved.version)))
                self._set(self._steps[space], id, {step.key: step for step in write.steps})
                self._set(self._fences, space, max(self._fences.get(space, 0), write.highest_fence))

    def _find_task(self, space: Space, id: str) -> Task | None:
        return self._tasks.get(space, {}).get(id)

    def _set_task(self, space: Space, task: Task) -> Task:
        self._set(self._tasks.setdefault(space, {}), task.id, task)
        self._versions.setdefault(space, {})
        self._steps.setdefault(space, {})
        return task


class InMemoryStore(InMemoryItems, InMemoryLogs, InMemoryTasks, erasure.ErasureStore):
    """A store in dictionaries. No call awaits inside a batch, so each batch is atomic."""

    capabilities = Capabilities(durable=False)

    def __init__(self, *, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._salt = secrets.token_bytes(32)

    async def write(self, *writes: Write) -> None:
        checked = validate_writes(writes)
        with self._transaction():
            self._apply(checked)

    async def close(self) -> None:
        self._is_closed = True

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        self._check_open()
        known = {*self._paths, *self._last_seqs, *self._fences, *self._tasks}
        return [
            SpaceTrace(
                space,
                items=len(rows := self._items.get(space, {})),
                newest=max((row.item.created_at for row in rows.values()), default=None),
                has_entries=bool(self._entries.get(space)),
                last_seq=self._last_seqs.get(space),
                has_tasks=bool(self._tasks.get(space)),
            )
            for space in sorted(known, key=get_space_names)
            if tenant in (None, space.tenant)
        ]

    async def read_stats(self) -> StoreStats:
        """Return the counts, and the bytes of texts and vectors without Python's overhead."""
        self._check_open()
        rows = [row for rows in self._items.values() for row in rows.values()]
        size = sum(len(row.item.content.encode()) for row in rows)
        size += sum(row.vectors.size * VECTOR_DTYPE.itemsize for row in rows if row.vectors is not None)
        return StoreStats(engine="memory", durability="nothing", blocked_by="", items=len(rows), bytes=size)

    async def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        self._check_open()
        tell("nothing")
        return IntegrityReport()

    async def salt(self) -> bytes:
        self._check_open()
        return self._salt

    async def set_salt(self, salt: bytes) -> None:
        self._check_open()
        if self._erasures:
            raise Conflict("this store already has an erasure ledger with its own key; open a new store")
        self._salt = salt

    async def ledger(self, *, unfinished: bool = False) -> list[erasure.ErasureRecord]:
        self._check_open()
        waiting = [record for record in self._erasures.values() if record.receipt is None]
        completed = [record for record in self._erasures.values() if record.receipt is not None and not unfinished]
        return [*completed, *sorted(waiting, key=lambda record: (record.requested_at, record.id))]

    async def wipe(self, id: str, doomed: erasure.ErasureSelection) -> None:
        checked = validate_writes(doomed.writes)
        with self._transaction():
            record, before = erasure.require_erasure(id, self._erasures.get(id)), self._count_rows()
            self._apply(checked)
            tables: list[dict[Space, Any]] = [self._items, self._prepared, self._paths, self._entries, self._last_seqs]
            tables += [self._tasks, self._versions, self._steps, self._fences]
            for space in doomed.spaces:
                self._highest_erased_fence = max(self._highest_erased_fence, self._fences.get(space, 0))
                for table in tables:
                    table.pop(space, None)  # nothing can fail after this
            for space in {write.space for write in checked} & self._paths.keys():
                items = [row.item for row in self._get_rows(space).values()]
                left = frozenset(path for item in items for path in iter_metadata_paths(item.metadata))
                self._set(self._paths, space, left)
            rederived = record.rederived + sum(isinstance(write, Put) for write in checked)
            erased = dict(Counter(record.erased) + (before - self._count_rows()))
            self._set(self._erasures, id, replace(record, erased=erased, rederived=rederived))

    async def scan(self, evidence: bytes, key: bytes) -> erasure.ByteScan:
        """Return an empty scan: no file and no copy exists."""
        self._check_open()
        return erasure.ByteScan()

    async def change_erasure(self, id: str, change: erasure.ErasureChange) -> erasure.ErasureRecord:
        completed, before = [row.receipt for row in await self.ledger() if row.receipt], self._erasures.get(id)
        row = change(before, completed[-1] if completed else None)
        if row.receipt is not None and (before is None or before.receipt is None):
            self._erasures.pop(id, None)  # it becomes the last of the chain
        self._erasures[id] = row
        return row

    def _apply(self, writes: Sequence[Write]) -> None:
        now = self._now()
        for write in writes:
            if isinstance(write, RecordWrite):
                self._write_record(write)
            elif isinstance(write, LogWrite):
                self._write_log(write, now)
            else:
                self._write_task(write, now)

    def _count_rows(self) -> Counter[str]:
        """Count the items, entries and tasks by tier."""
        tables: tuple[Mapping[Space, Mapping[str, object]], ...] = (self._items, self._entries, self._tasks)
        counts = Counter[str]()
        for space, rows in (row for table in tables for row in table.items()):
            counts[space.tier] += len(rows)
        return counts
