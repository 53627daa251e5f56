"""The reference store: items, logs and tasks in plain dictionaries of this process.

Every search scans all items of a space. That is slow, simple and exact.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from recollect.clock import Clock, system_clock, to_micros, to_utc
from recollect.errors import BadVector, Conflict, StoreClosed
from recollect.stores import leases
from recollect.stores.base import Capabilities, Log, LogTail, Records, SpaceTrace, TailLimits, Tasks, get_space_names
from recollect.stores.codec import normalize_item, pack_vectors
from recollect.stores.erasure import (
    ByteScan,
    ErasureChange,
    ErasureRecord,
    ErasureSelection,
    ErasureStore,
    require_erasure,
)
from recollect.stores.filters import Where, iter_metadata_paths, matches_where, normalize_times
from recollect.stores.health import IntegrityReport, ProgressCallback, StoreStats, ignore_progress
from recollect.stores.search import (
    CorpusStats,
    EvidenceLookup,
    EvidenceQuery,
    ItemBrief,
    ScoredItem,
    SearchEvidence,
    build_brief,
    build_evidence,
    compute_bm25,
    compute_idf,
    sort_by_score,
)
from recollect.stores.validation import (
    ALL_VERSIONS,
    build_model_mismatch,
    check_claim,
    check_last_seq,
    check_ttl,
    validate_limit,
    validate_writes,
)
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
    Write,
)
from recollect.types import EMPTY_MAPPING, MemoryItem, Space
from recollect.validation import to_plain_json

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
VectorRows = NDArray[np.float16]
TaskKey = tuple[Space, str]


class InMemoryTable:
    """The clock, the open state and the undo log that all tables of one store share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_closed = False
        self._undo_steps: list[Callable[[], object]] = []

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Undo all changes made within if an exception leaves the block."""
        self._check_open()
        self._undo_steps.clear()
        try:
            yield
        except BaseException:
            while self._undo_steps:
                self._undo_steps.pop()()
            raise

    def _set(self, table: dict[K, V], key: K, value: V) -> None:
        self._record_undo(table, key)
        table[key] = value

    def _unset(self, table: dict[K, V], key: K) -> None:
        self._record_undo(table, key)
        table.pop(key, None)

    def _record_undo(self, table: dict[K, V], key: K) -> None:
        if key in table:
            before = table[key]
            self._undo_steps.append(lambda: table.__setitem__(key, before))
        else:
            self._undo_steps.append(lambda: table.pop(key, None))

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


@dataclass(frozen=True, slots=True)
class InMemoryItem:
    """An item with its terms, its vectors, and the vectors of a model that is being prepared."""

    item: MemoryItem
    terms: tuple[str, ...] = ()
    vectors: VectorRows | None = None
    prepared_vectors: VectorRows | None = None

    def build_brief(self) -> ItemBrief:
        passages = 1 if self.vectors is None else len(self.vectors)
        return build_brief(self.item, length=len(self.terms), passages=passages)


class InMemoryItems(InMemoryTable, Records):
    """All items, by space and id."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._items: dict[Space, dict[str, InMemoryItem]] = {}
        self._paths: dict[Space, dict[str, None]] = {}
        self._models: dict[str, Model] = {}

    async def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        return self._get_items(space, ids)

    async def get_full(self, space: Space, *ids: str) -> list[Put]:
        rows, model = self._get_space(space), self._models.get("active")
        return [
            Put(
                item=row.item,
                terms=row.terms,
                vectors=None if row.vectors is None else row.vectors.astype(np.float32),
                model=None if row.vectors is None else model,
            )
            for row in (rows[id] for id in dict.fromkeys(ids) if id in rows)
        ]

    async def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        found = sorted((row.item for row in self._filter_items(where)), key=_get_age_key, reverse=True)
        if after is not None:
            found = [item for item in found if _get_age_key(item) < _get_age_key(after)]
        return found[: validate_limit(limit)]

    async def gather(self, ask: EvidenceQuery, judge: Callable[[SearchEvidence, EvidenceLookup], T]) -> T:
        await asyncio.sleep(0)  # yields to other tasks, as every other store does
        return judge(self._gather_evidence(ask.normalize()), _InMemoryLookup(self, ask.where.space))

    async def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        turns = [
            (row.item.turn.position, row.item.id)
            for row in self._get_space(space).values()
            if row.item.turn is not None and row.item.turn.session == session
        ]
        return self._get_items(space, [id for _, id in sorted(turns, reverse=True)[: validate_limit(limit)]])

    def touch(self, touch: Touch) -> None:
        with self._transaction():
            self._touch(touch)

    async def paths(self, space: Space) -> frozenset[str]:
        self._check_open()
        return frozenset(self._paths.get(space, ()))

    async def model(self) -> Model | None:
        self._check_open()
        return self._models.get("active")

    async def bind_model(self, model: Model) -> None:
        with self._transaction():
            self._bind_model(model)

    async def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        with self._transaction():
            self._prepare_model(model)
        return self._list_unprepared()[: validate_limit(limit)]

    async def activate_model(self, model: Model) -> None:
        with self._transaction():
            if self._models.get("active") == model and "preparing" not in self._models:
                return
            self._prepare_model(model)
            if self._list_unprepared():
                raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
            self._set(self._models, "active", model)
            self._unset(self._models, "preparing")
            self._update_all(lambda row: replace(row, vectors=row.prepared_vectors, prepared_vectors=None))

    def _write_record(self, write: RecordWrite) -> None:
        match write:
            case Put():
                self._put(write)
            case Delete():
                rows = self._get_space(write.space)
                row = rows.get(write.id)
                if write.expect is not None and (row is None or row.item.version != write.expect):
                    raise _build_conflict(write.id, row, write.expect)
                self._unset(rows, write.id)
            case Touch():
                self._touch(write)
            case Embed():
                self._embed(write)

    def _put(self, put: Put) -> None:
        rows, id = self._get_space(put.space), put.item.id
        before = rows.get(id)
        if put.expect is not None and put.expect != (before.item.version if before else 0):
            raise _build_conflict(id, before, put.expect)
        item = normalize_item(put.item, before.item if before else None)
        row = replace(before, item=item) if before else InMemoryItem(item)
        if put.terms is not None:
            row = replace(row, terms=tuple(put.terms))
        if put.vectors is not None:
            assert put.model is not None
            self._bind_model(put.model)
            row = replace(row, vectors=pack_vectors(put.vectors), prepared_vectors=None)
        self._set(rows, id, row)
        for path in iter_metadata_paths(put.item.metadata):
            self._set(self._paths.setdefault(put.space, {}), path, None)

    def _touch(self, touch: Touch) -> None:
        rows, at = self._get_space(touch.space), to_utc(touch.at)
        for id in touch.ids:
            if row := rows.get(id):
                last = max(row.item.last_accessed or at, at)
                item = replace(row.item, access_count=row.item.access_count + 1, last_accessed=last)
                self._set(rows, id, replace(row, item=item))

    def _embed(self, embed: Embed) -> None:
        if self._models.get("preparing") != embed.model:
            raise Conflict(f"{embed.model.name!r} is not being prepared; call `find_unembedded` with it first")
        rows = self._get_space(embed.space)
        row = rows.get(embed.id)
        if row is not None and embed.expect in (None, row.item.version):
            self._set(rows, embed.id, replace(row, prepared_vectors=pack_vectors(embed.vectors)))

    def _get_space(self, space: Space) -> dict[str, InMemoryItem]:
        self._check_open()
        return self._items.setdefault(space, {})

    def _get_items(self, space: Space, ids: Sequence[str]) -> list[MemoryItem]:
        rows = self._get_space(space)
        return [rows[id].item for id in dict.fromkeys(ids) if id in rows]

    def _filter_items(self, where: Where) -> list[InMemoryItem]:
        where = normalize_times(where)
        return [row for row in self._get_space(where.space).values() if matches_where(where, row.item)]

    def _gather_evidence(self, query: EvidenceQuery) -> SearchEvidence:
        rows = self._filter_items(query.where)
        cosines = self._compute_cosines(rows, query)
        parts, weights = self._score_terms(rows, query)
        near = [ScoredItem(row.build_brief(), cosines[row.item.id]) for row in rows if row.item.id in cosines]
        matches = [ScoredItem(row.build_brief(), sum(parts[row.item.id])) for row in rows if any(parts[row.item.id])]
        found = (*sort_by_score(near, query.limit), *sort_by_score(matches, query.limit))
        briefs = {item.brief.id: item.brief for item in found}
        chosen = list(briefs.values())
        for brief in (row.build_brief() for row in rows):
            if any(_are_neighbors(brief, other, query.reach) for other in chosen):
                briefs[brief.id] = brief
        turns = (row.item.turn for row in self._get_space(query.where.space).values())
        speakers = frozenset(turn.speaker for turn in turns if turn is not None and turn.speaker is not None)
        return build_evidence(briefs.values(), cosines, parts, weights, speakers)

    def _compute_cosines(self, rows: Sequence[InMemoryItem], query: EvidenceQuery) -> dict[str, float]:
        """Return the cosine of the best passage of each item with vectors."""
        model = self._models.get("active")
        if query.vector is None or model is None:
            return {}
        if query.model not in (None, model):
            raise build_model_mismatch(model, query.model)
        has_vectors = any(row.vectors is not None for row in self._get_space(query.where.space).values())
        if has_vectors and len(query.vector) != model.dim:
            raise BadVector(
                f"the query vector has {len(query.vector)} dimensions, the store {model.dim}; check the embedder"
            )
        wide = query.vector.astype(np.float64)
        return {
            row.item.id: float((row.vectors.astype(np.float64) @ wide).max())
            for row in rows
            if row.vectors is not None and len(row.vectors)
        }

    def _score_terms(
        self, rows: Sequence[InMemoryItem], query: EvidenceQuery
    ) -> tuple[dict[str, tuple[float, ...]], list[float]]:
        """Return the BM25 parts of each item, and the weight of each term in the space."""
        stored = self._get_space(query.where.space).values()
        if not stored:
            return {}, [0.0] * len(query.terms)
        corpus = CorpusStats(len(stored), sum(len(row.terms) for row in stored) / len(stored))
        weights = [compute_idf(corpus, sum(term in row.terms for row in stored)) for term in query.terms]
        counts = np.array([[row.terms.count(term) for term in query.terms] for row in rows], np.float64)
        lengths = np.array([[len(row.terms)] for row in rows], np.float64)
        parts = compute_bm25(corpus, counts, lengths, np.array(weights)) if rows else counts
        return {row.item.id: tuple(part) for row, part in zip(rows, parts.tolist(), strict=True)}, weights

    def _bind_model(self, model: Model) -> None:
        active = self._models.get("active")
        if active is None:
            self._set(self._models, "active", model)
        elif active != model:
            raise build_model_mismatch(active, model)

    def _prepare_model(self, model: Model) -> None:
        if "active" not in self._models:
            self._bind_model(model)
        if self._models.get("preparing") != model:
            self._update_all(lambda row: replace(row, prepared_vectors=None))
            self._set(self._models, "preparing", model)

    def _list_unprepared(self) -> list[MemoryItem]:
        return [row.item for rows in self._items.values() for row in rows.values() if row.prepared_vectors is None]

    def _update_all(self, change: Callable[[InMemoryItem], InMemoryItem]) -> None:
        for rows in self._items.values():
            for id, row in list(rows.items()):
                self._set(rows, id, change(row))

    def _erase_items(self, space: Space) -> None:
        self._unset(self._items, space)
        self._unset(self._paths, space)

    def _rebuild_paths(self, space: Space) -> None:
        """Keep only the metadata paths that remaining items have: a path may contain personal data."""
        left = [path for row in self._get_space(space).values() for path in iter_metadata_paths(row.item.metadata)]
        if space in self._paths:
            self._set(self._paths, space, dict.fromkeys(left))


@dataclass(frozen=True, slots=True)
class _InMemoryLookup:
    """Item reads for the ranking function of `gather`."""

    table: InMemoryItems
    space: Space

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {item.id: item for item in self.table._get_items(self.space, ids)}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        rows = self.table._get_space(self.space)
        return {id: " ".join(rows[id].terms) for id in ids if id in rows}


def _are_neighbors(one: ItemBrief, other: ItemBrief, reach: int) -> bool:
    if one.position is None or other.position is None:
        return False
    return one.session == other.session and abs(one.position - other.position) <= reach


def _build_conflict(id: str, row: InMemoryItem | None, expect: int) -> Conflict:
    state = f"is at version {row.item.version}" if row else "is not there"
    return Conflict(f"item {id!r} {state}, not at version {expect}; read it again")


def _get_age_key(item: MemoryItem) -> tuple[int, str]:
    return to_micros(item.created_at), item.id


class InMemoryLogs(InMemoryTable, Log):
    """All log entries, by space and seq."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._entries: dict[Space, dict[int, Entry]] = {}
        self._seqs: dict[tuple[Space, str], int] = {}
        self._last_seqs: dict[Space, int] = {}

    async def entries(self, space: Space, *ids: str) -> list[Entry]:
        now = self._now()
        seqs = [self._seqs[space, id] for id in dict.fromkeys(ids) if (space, id) in self._seqs]
        return [entry for seq in seqs if _is_live(entry := self._entries[space][seq], now)]

    async def recent(self, space: Space, *, limit: int = 10, kinds: Sequence[str] = ()) -> list[Entry]:
        return self._list_recent(space, validate_limit(limit), self._now(), kinds)

    async def read_tails(self, space: Space, reach: TailLimits) -> list[LogTail]:
        limits, now = reach.validate(), self._now()
        others = [log for log in self._list_logs(space, now) if log != space]
        others = others[max(len(others) - limits.other_logs, 0) :]
        return [
            LogTail.from_entries(space, self._list_recent(space, limits.own_entries, now)),
            *(LogTail.from_entries(log, self._list_recent(log, limits.entries_per_log, now)) for log in others),
        ]

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
        now = self._get_visibility_time(hidden)
        entries = [entry for entry in self._list_entries(space) if entry.seq > after and _is_live(entry, now)]
        if since is not None:
            entries = [entry for entry in entries if entry.at >= to_utc(since)]
        if until is not None:
            entries = [entry for entry in entries if entry.at < to_utc(until)]
        return entries[: validate_limit(limit)]

    async def logs(self, owner: Space, *, hidden: bool = False) -> list[Space]:
        return self._list_logs(owner, self._get_visibility_time(hidden))

    def _write_log(self, write: LogWrite, now: datetime) -> None:
        match write:
            case Append():
                self._append(write, now)
                if write.cap is not None:
                    self._trim(write.space, write.cap, now)
            case Clear():
                for entry in self._list_entries(write.space):
                    self._drop_entry(write.space, entry)
            case Drop():
                for entry in self._list_entries(write.space):
                    if entry.seq in write.seqs:
                        self._drop_entry(write.space, entry)

    def _append(self, write: Append, now: datetime) -> None:
        space, entry = write.space, write.entry
        seq = self._seqs.get((space, entry.id))
        if seq is not None:
            before = self._entries[space][seq]
            if _is_live(before, now):
                return
            self._drop_entry(space, before)
        else:
            check_last_seq(write, self._last_seqs.get(space, 0))
        seq = max(self._last_seqs.get(space, 0) + 1, write.seq)
        stored = replace(
            entry,
            seq=seq,
            at=to_utc(entry.at),
            expires_at=None if entry.expires_at is None else to_utc(entry.expires_at),
            metadata=MappingProxyType(to_plain_json(dict(entry.metadata))) if entry.metadata else EMPTY_MAPPING,
        )
        self._set(self._last_seqs, space, seq)
        self._set(self._seqs, (space, entry.id), seq)
        self._set(self._entries.setdefault(space, {}), seq, stored)

    def _trim(self, space: Space, cap: int, now: datetime) -> None:
        live = [entry.seq for entry in self._list_entries(space) if _is_live(entry, now)]
        if len(live) > cap:
            for entry in self._list_entries(space):
                if entry.seq <= live[-cap - 1]:
                    self._drop_entry(space, entry)

    def _drop_entry(self, space: Space, entry: Entry) -> None:
        self._unset(self._entries[space], entry.seq)
        self._unset(self._seqs, (space, entry.id))

    def _list_entries(self, space: Space) -> list[Entry]:
        entries = self._entries.get(space, {})
        return [entries[seq] for seq in sorted(entries)]

    def _list_recent(self, space: Space, limit: int, now: datetime, kinds: Sequence[str] = ()) -> list[Entry]:
        live = [entry for entry in self._list_entries(space) if _is_live(entry, now)]
        found = [entry for entry in live if not kinds or entry.kind in kinds]
        return found[-limit:] if limit else []

    def _list_logs(self, owner: Space, now: datetime | None) -> list[Space]:
        owned = [space for space in self._entries if replace(space, session="") == replace(owner, session="")]
        live = {space: [entry for entry in self._list_entries(space) if _is_live(entry, now)] for space in owned}
        newest = [(entries[-1].at, space.session, space) for space, entries in live.items() if entries]
        return [space for _, _, space in sorted(newest, key=lambda row: row[:2])]

    def _erase_log(self, space: Space) -> None:
        for entry in self._list_entries(space):
            self._drop_entry(space, entry)
        self._unset(self._entries, space)
        self._unset(self._last_seqs, space)


def _is_live(entry: Entry, now: datetime | None) -> bool:
    return now is None or entry.expires_at is None or entry.expires_at > now


class InMemoryTasks(InMemoryTable, Tasks):
    """All tasks, with their checkpoints and steps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._tasks: dict[TaskKey, Task] = {}
        self._versions: dict[TaskKey, tuple[Checkpoint, ...]] = {}
        self._steps: dict[TaskKey, tuple[Step, ...]] = {}
        self._fences: dict[Space, int] = {}
        self._erased_fences: dict[str, int] = {}  # "highest" alone: no name of an erased space is kept

    async def claim(
        self, space: Space, task: str, owner: str, ttl: timedelta, *, plan_hash: str | None = None
    ) -> Lease:
        check_claim(task, owner, ttl)
        with self._transaction():
            # One sequence a space: a fence is not given twice, even after its task was dropped or its space erased.
            fence = self._fences.get(space, self._erased_fences.get("highest", 0)) + 1
            request = leases.LeaseRequest(space, task, owner, ttl, plan_hash)
            claimed = leases.claim_task(self._tasks.get((space, task)), request, fence, self._now())
            self._set(self._fences, space, fence)
            self._set(self._tasks, (space, task), claimed)
            return leases.build_lease(space, claimed)

    async def renew(self, lease: Lease, ttl: timedelta) -> Lease:
        check_ttl(ttl)
        with self._transaction():
            key = (lease.space, lease.task)
            task = leases.renew_lease(self._tasks.get(key), lease, ttl, self._now())
            self._set(self._tasks, key, task)
            return leases.build_lease(lease.space, task)

    async def release(self, lease: Lease) -> None:
        with self._transaction():
            key = (lease.space, lease.task)
            task = leases.release_lease(self._tasks.get(key), lease, self._now())
            if task is not None:
                self._set(self._tasks, key, task)

    async def task(self, space: Space, task: str, *, hidden: bool = False) -> Task | None:
        now = self._get_visibility_time(hidden)
        found = self._tasks.get((space, task))
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
        now = self._now()
        listed = [task for task in self._list_tasks(space) if task.id.startswith(prefix) and task.id > (after or "")]
        found = [task for task in listed if status in (None, task.status) and not leases.is_expired(task, now)]
        return sorted(found, key=lambda task: task.id)[: validate_limit(limit)]

    async def expired(
        self, space: Space, before: datetime, *, limit: int = 100, after: Task | None = None
    ) -> list[Task]:
        now, end = self._now(), to_utc(before)
        found = [task for task in self._list_tasks(space) if leases.is_expired_by(task, end, now)]
        if after is not None:
            found = [task for task in found if _get_expiry_key(task) > _get_expiry_key(after)]
        return sorted(found, key=_get_expiry_key)[: validate_limit(limit)]

    async def checkpoints(
        self, space: Space, task: str, *, version: int | None = None, limit: int = ALL_VERSIONS, hidden: bool = False
    ) -> list[Checkpoint]:
        if await self.task(space, task, hidden=hidden) is None:
            return []
        found = [saved for saved in self._versions.get((space, task), ()) if version in (None, saved.version)]
        return found[::-1][: validate_limit(limit)]

    async def steps(self, space: Space, task: str, *, hidden: bool = False) -> list[Step]:
        if await self.task(space, task, hidden=hidden) is None:
            return []
        return list(self._steps.get((space, task), ()))

    def _write_task(self, write: TaskWrite, now: datetime) -> None:
        key = (write.space, write.task)
        before = self._tasks.get(key)
        match write:
            case DropTask():
                leases.check_drop(before, write, now)
                self._drop_task(key)
            case Save():
                task = leases.save_version(before, write, now)
                self._set(self._tasks, key, task)
                new = Checkpoint(task.version, task.fence, write.schema, write.state, task.updated_at, intact=True)
                oldest = 0 if write.keep is None else task.version - write.keep
                recent = [old for old in self._versions.get(key, ()) if old.version > oldest]
                self._set(self._versions, key, (*recent, new))
            case Journal():
                self._set(self._tasks, key, leases.apply_note(before, write, now))
                steps = {step.key: step for step in (*self._steps.get(key, ()), write.build_step(now))}
                self._set(self._steps, key, tuple(steps.values()))
            case SetStatus():
                self._set(self._tasks, key, leases.apply_note(before, write, now))
            case Restore():
                self._set(self._tasks, key, leases.restore_task(before, write))
                self._set(self._versions, key, tuple(sorted(write.checkpoints, key=lambda row: row.version)))
                self._set(self._steps, key, write.steps)
                self._set(self._fences, key[0], max(self._fences.get(key[0], 0), write.highest_fence))

    def _list_tasks(self, space: Space) -> list[Task]:
        return [task for (owner, _), task in self._tasks.items() if owner == space]

    def _drop_task(self, key: TaskKey) -> None:
        self._unset(self._tasks, key)
        self._unset(self._versions, key)
        self._unset(self._steps, key)

    def _erase_tasks(self, space: Space) -> None:
        for task in self._list_tasks(space):
            self._drop_task((space, task.id))
        highest = max(self._erased_fences.get("highest", 0), self._fences.get(space, 0))
        self._set(self._erased_fences, "highest", highest)
        self._unset(self._fences, space)


def _get_expiry_key(task: Task) -> tuple[datetime, str]:
    assert task.expires_at is not None
    return task.expires_at, task.id


class InMemoryStore(InMemoryItems, InMemoryLogs, InMemoryTasks, ErasureStore):
    """A store in dictionaries. No call awaits inside a batch, so each batch is atomic."""

    capabilities = Capabilities(durable=False)

    def __init__(self, *, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._salt = secrets.token_bytes(32)
        self._erasures: dict[str, ErasureRecord] = {}
        self._receipt_chain: list[str] = []

    async def write(self, *writes: Write) -> None:
        checked = validate_writes(writes)
        with self._transaction():
            self._apply(checked, self._now())

    async def close(self) -> None:
        self._is_closed = True

    async def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        self._check_open()
        with_tasks = {space for space, _ in self._tasks}
        known = {*self._items, *self._paths, *self._last_seqs, *self._fences, *with_tasks}
        return [
            SpaceTrace(
                space,
                items=len(rows := self._items.get(space, {})),
                newest=max((row.item.created_at for row in rows.values()), default=None),
                has_entries=bool(self._entries.get(space)),
                last_seq=self._last_seqs.get(space),
                has_tasks=space in with_tasks,
            )
            for space in sorted(known, key=get_space_names)
            if tenant in (None, space.tenant)
        ]

    async def read_stats(self) -> StoreStats:
        """Return the counts, and the bytes of texts and vectors without Python's overhead."""
        self._check_open()
        rows = [row for rows in self._items.values() for row in rows.values()]
        size = sum(len(row.item.content.encode()) for row in rows)
        size += sum(row.vectors.nbytes for row in rows if row.vectors is not None)
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

    async def ledger(self, *, unfinished: bool = False) -> list[ErasureRecord]:
        self._check_open()
        waiting = [record for record in self._erasures.values() if record.receipt is None]
        completed = [] if unfinished else [self._erasures[id] for id in self._receipt_chain]
        return [*completed, *sorted(waiting, key=lambda record: (record.requested_at, record.id))]

    async def wipe(self, id: str, doomed: ErasureSelection) -> None:
        checked = validate_writes(doomed.writes)
        with self._transaction():
            record, before = require_erasure(id, self._erasures.get(id)), self._count_rows()
            self._apply(checked, self._now())
            for space in doomed.spaces:
                self._erase_items(space)
                self._erase_log(space)
                self._erase_tasks(space)
            for space in {write.space for write in checked}:
                self._rebuild_paths(space)
            rederived = record.rederived + sum(isinstance(write, Put) for write in checked)
            erased = dict(Counter(record.erased) + (before - self._count_rows()))
            self._set(self._erasures, id, replace(record, erased=erased, rederived=rederived))

    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        """Return an empty scan: no file and no copy exists."""
        self._check_open()
        return ByteScan()

    async def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        self._check_open()
        before = self._erasures.get(id)
        last = self._erasures[self._receipt_chain[-1]].receipt if self._receipt_chain else None
        row = self._erasures[id] = change(before, last)
        if row.receipt is not None and id not in self._receipt_chain:
            self._receipt_chain.append(id)
        return row

    def _apply(self, writes: Sequence[Write], now: datetime) -> None:
        for write in writes:
            if isinstance(write, RecordWrite):
                self._write_record(write)
            elif isinstance(write, LogWrite):
                self._write_log(write, now)
            else:
                self._write_task(write, now)

    def _count_rows(self) -> Counter[str]:
        """Count the items, entries and tasks by tier."""
        counts = Counter[str](space.tier for space, _ in self._tasks)
        for space, items in self._items.items():
            counts[space.tier] += len(items)
        for space, entries in self._entries.items():
            counts[space.tier] += len(entries)
        return counts
