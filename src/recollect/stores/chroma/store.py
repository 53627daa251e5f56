"""The Chroma store: items in a local directory, or on a server that several processes share."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from recollect.clock import Clock, from_micros, system_clock, to_micros, to_utc
from recollect.errors import BadVector, Conflict, RecollectError, StoreClosed, StoreCorrupt, Unsupported
from recollect.stores.base import Capabilities, Records, SpaceTrace, Vector, get_space_names
from recollect.stores.chroma import records
from recollect.stores.chroma.client import ChromaAddress, ChromaClient, ChromaDirectoryLock, ChromaRecord
from recollect.stores.chroma.records import META, VECTORS_PREFIX, ChromaItem, name_items, name_vectors, within
from recollect.stores.codec import decode_int, decode_text, detect_corruption, normalize_item, normalize_vectors
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
    SearchEvidence,
    build_empty_evidence,
    build_evidence,
    compute_bm25,
    compute_idf,
    select_best,
)
from recollect.stores.validation import build_model_mismatch, validate_limit, validate_write
from recollect.stores.writes import Delete, Embed, Model, Put, Touch, Write
from recollect.types import MemoryItem, Space

P = ParamSpec("P")
T = TypeVar("T")
Rows = dict[str, ChromaItem]
"""Items by their id."""
Batch = dict[tuple[Space, str], ChromaItem | None]

_TIMEOUT_SECONDS = 30.0
# SQLite limits an expression to a depth of 1,000.
_TERMS_PER_QUERY = 100
_ITEMS_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class VectorSet:
    """The vectors of one model. Each change of the model starts a new generation of collections."""

    model: Model | None = None
    generation: str = ""


def in_worker(
    work: Callable[Concatenate[ChromaStore, P], T],
) -> Callable[Concatenate[ChromaStore, P], Coroutine[Any, Any, T]]:
    """Run a method in the thread of the store, which has one because chromadb blocks.

    Calls are made in order. A write that was begun is finished even if the caller is cancelled.
    """

    @wraps(work)
    async def run(store: ChromaStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if store.is_closed:
            raise StoreClosed("this store was closed; open it again to use it")
        return await asyncio.get_running_loop().run_in_executor(store.worker, partial(work, store, *args, **kwargs))

    return run


class ChromaStore(Records, ErasureStore):
    """Items and erasures in one Chroma directory or server. Open it with `ChromaStore.open`.

    Sixteen collections share the items of all spaces, and for each model sixteen their vectors, one record a passage.
    """

    capabilities = Capabilities(
        exact_search=False, atomic_batches=False, compare_and_set=False, durable=False, erasure="delete"
    )

    def __init__(self, url: str, client: ChromaClient, lock: ChromaDirectoryLock | None, clock: Clock) -> None:
        self.url = url
        self.worker = ThreadPoolExecutor(1, "recollect-chroma")
        self.is_closed = False
        self._directory = ChromaAddress.parse(url).directory
        self._client = client
        self._directory_lock = lock
        self._clock = clock
        self._salt = b""

    @classmethod
    async def open(cls, url: str, *, patience: float = _TIMEOUT_SECONDS, clock: Clock = system_clock) -> ChromaStore:
        """Open `chroma:./DIRECTORY` or `chroma+http://HOST:PORT`; `patience` is the timeout of a request in seconds."""
        address = ChromaAddress.parse(url)

        def connect() -> ChromaStore:
            lock = ChromaDirectoryLock(address.directory) if address.directory is not None else None
            try:
                client = ChromaClient.open(address, timeout=patience)
                if client.list_collections(records.OLD_FORMAT):
                    client.close()
                    raise Unsupported(
                        f"the facts at {address} have an older format, which this version cannot read. Export them "
                        "with the checkout that wrote them (`recollect export`), and import them into a new directory "
                        "or database"
                    )
            except BaseException:
                if lock is not None:
                    lock.close()
                raise
            return cls(url, client, lock, clock)

        store = await asyncio.to_thread(connect)
        with suppress(RecollectError):  # reads work if nothing can be written now
            await store.salt()
        return store

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        await asyncio.to_thread(self.worker.shutdown)
        self._client.close()
        if self._directory_lock is not None:
            self._directory_lock.close()

    # Reads

    @in_worker
    def get(self, space: Space, *ids: str) -> list[MemoryItem]:
        return [row.item for row in self._read(space, ids).values()]

    @in_worker
    def get_full(self, space: Space, *ids: str) -> list[Put]:
        active, rows = self._read_models()[0], self._read(space, ids)
        vectors = self._read_vectors(space, rows.values(), active)
        for id, row in rows.items():
            if len(vectors.get(id, ())) != len(row.list_passages(active.generation)):
                raise StoreCorrupt(
                    f"a vector of item {id!r:.80} is missing from Chroma. Write the item again, run "
                    "`recollect reembed`, or restore a backup"
                )
        return [
            Put(item=row.item, terms=row.terms, vectors=vectors.get(id), model=active.model if id in vectors else None)
            for id, row in rows.items()
        ]

    @in_worker
    def find(self, where: Where, *, limit: int = 100, after: MemoryItem | None = None) -> list[MemoryItem]:
        count = validate_limit(limit)
        older = () if after is None else ({"created": {"$lte": to_micros(after.created_at)}},)
        items = sorted((row.item for row in self._select(where, *older).values()), key=_get_age_key, reverse=True)
        if after is not None:
            items = [item for item in items if _get_age_key(item) < _get_age_key(after)]
        return items[:count]

    @in_worker
    def last_turns(self, space: Space, session: str, *, limit: int = 1) -> list[MemoryItem]:
        rows = self._select(Where(space), {"session": session}).values()
        turns = [(row.item.turn.position, row.item.id, row.item) for row in rows if row.item.turn is not None]
        return [item for _, _, item in sorted(turns, key=lambda turn: turn[:2], reverse=True)[: validate_limit(limit)]]

    @in_worker
    def paths(self, space: Space) -> frozenset[str]:
        return self._read_names(space, "path")

    @in_worker
    def trace_spaces(self, tenant: str | None = None) -> list[SpaceTrace]:
        traces = []
        for space in map(records.decode_space, self._client.find(META, {"kind": "space"})):
            if tenant in (None, space.tenant):
                found = self._client.find(name_items(space), within(space), "metadatas")
                with detect_corruption(f"an item of {space}"):
                    times = [decode_int("created", record.metadata["created"]) for record in found]
                newest = from_micros(max(times)) if times else None
                traces.append(SpaceTrace(space, items=len(times), newest=newest))
        return sorted(traces, key=lambda trace: get_space_names(trace.space))

    def _read(self, space: Space, ids: Iterable[str]) -> Rows:
        """Return the items that exist, in the order of `ids`."""
        return self._read_records(space, [records.build_record_id(space, "item", id) for id in dict.fromkeys(ids)])

    def _read_records(self, space: Space, record_ids: Sequence[str]) -> Rows:
        found = {record.id: record for record in self._client.get(name_items(space), record_ids)}
        return _decode(found[id] for id in record_ids if id in found)

    def _select(self, where: Where, *clauses: dict[str, object]) -> Rows:
        """Return all items that match a filter, and Chroma's `clauses`."""
        where = normalize_times(where)
        if where.ids is not None and not clauses:
            rows = self._read(where.space, where.ids)
        else:
            rows = _decode(self._client.find(name_items(where.space), records.build_filter(where, *clauses)))
        return {id: row for id, row in rows.items() if matches_where(where, row.item)}

    def _iter_items(self) -> Iterator[ChromaItem]:
        """Yield all items of the store, in pages."""
        for name in self._client.list_collections(records.ITEMS_PREFIX):
            ids = self._client.find_ids(name)
            for start in range(0, len(ids), _ITEMS_PER_PAGE):
                yield from map(records.decode_item, self._client.get(name, ids[start : start + _ITEMS_PER_PAGE]))

    def _read_names(self, space: Space, kind: str) -> frozenset[str]:
        found = self._client.find(META, within(space, {"kind": kind}))
        with detect_corruption(f"a name in the collection {META!r}"):
            return frozenset(decode_text("name", record.metadata["name"]) for record in found)

    # Search

    @in_worker
    def gather(self, ask: EvidenceQuery, judge: Callable[[SearchEvidence, EvidenceLookup], T]) -> T:
        where, limit, active = normalize_times(ask.where), validate_limit(ask.limit), self._read_models()[0]
        speakers = self._read_names(where.space, "speaker")
        if ask.vector is not None and active.model is not None and ask.model not in (None, active.model):
            raise build_model_mismatch(active.model, ask.model)
        vector = None if ask.vector is None or active.model is None else normalize_vectors(ask.vector)[0]
        total = self._count_items(where.space)
        if not total:
            return judge(build_empty_evidence(ask, speakers), _ChromaLookup({}))
        near = {} if vector is None else self._find_nearest(where, vector, limit, active, total)
        matches, parts, weights = self._match_terms(where, ask.terms, limit, total)
        rows = near | matches
        rows |= self._find_neighbors(where, rows.values(), ask.reach)
        cosines = {} if vector is None else self._compute_cosines(where.space, rows.values(), vector, active)
        briefs = [row.build_brief(active.generation) for row in rows.values()]
        return judge(build_evidence(briefs, cosines, parts, weights, speakers), _ChromaLookup(rows))

    def _count_items(self, space: Space) -> int:
        """Return the number of items of a space, which BM25 needs."""
        return len(self._client.find_ids(name_items(space), within(space)))

    def _find_nearest(self, where: Where, vector: Vector, limit: int, active: VectorSet, total: int) -> Rows:
        """Return the nearest items that match a filter; exact for few items and for a narrow filter."""
        assert active.model is not None
        if len(vector) != active.model.dim:
            raise BadVector(
                f"the query vector has {len(vector)} dimensions, the store {active.model.dim}; check the embedder"
            )
        is_small = where.is_narrow or not limit or total <= 2 * limit
        rows = self._select(where) if is_small else self._query(where, vector, limit, active)
        cosines = self._compute_cosines(where.space, rows.values(), vector, active)
        best = select_best(list(cosines), list(cosines.values()), limit)
        return {id: rows[id] for id in (list(cosines)[at] for at in best)}

    def _query(self, where: Where, vector: Vector, limit: int, active: VectorSet) -> Rows:
        """Return at least `limit` items that match a filter, with the nearest ones that Chroma's index finds.

        The index knows passages, and filters only by space: more are requested until enough items match.
        """
        collection, count = name_vectors(active.generation, where.space), 2 * limit
        while True:
            found = self._client.query(collection, vector, within(where.space), count)
            rows = self._read_records(where.space, list(dict.fromkeys(id.partition(".")[0] for id in found)))
            rows = {id: row for id, row in rows.items() if matches_where(where, row.item)}
            if len(rows) >= limit:
                return rows
            if len(found) < count:  # there are no more, or the index does not reach them
                return self._select(where)
            count *= 4

    def _compute_cosines(
        self, space: Space, rows: Collection[ChromaItem], vector: Vector, active: VectorSet
    ) -> dict[str, float]:
        """Return the cosine of the best passage of each item that has vectors."""
        wide, found = vector.astype(np.float64), self._read_vectors(space, rows, active)
        return {id: float((passages.astype(np.float64) @ wide).max()) for id, passages in found.items()}

    def _read_vectors(self, space: Space, rows: Collection[ChromaItem], active: VectorSet) -> dict[str, Vector]:
        """Return the vectors of items by id; those that Chroma has lost are left out."""
        owners = {id: row.item.id for row in rows for id in row.list_passages(active.generation)}
        collection = name_vectors(active.generation, space)
        found = {record.id: record.vector for record in self._client.get(collection, list(owners), "embeddings")}
        vectors: dict[str, list[object]] = {}
        for id, owner in owners.items():
            if id in found:
                vectors.setdefault(owner, []).append(found[id])
        return {owner: np.array(passages, np.float32) for owner, passages in vectors.items()}

    def _match_terms(
        self, where: Where, terms: Sequence[str], limit: int, total: int
    ) -> tuple[Rows, dict[str, tuple[float, ...]], list[float]]:
        """Return the best matches, the BM25 parts of all items of the space with a term, and the weights of the terms.

        The weights are exact. The mean length is that of the items with a term.
        """
        collection, rows = name_items(where.space), Rows()
        known = [term for term in dict.fromkeys(terms) if term and records.is_valid_text(term)]
        clauses = [{"terms": {"$contains": term}} for term in known]
        for start in range(0, len(clauses), _TERMS_PER_QUERY):
            chunk = clauses[start : start + _TERMS_PER_QUERY]
            any_term = {"$or": chunk} if len(chunk) > 1 else chunk[0]
            rows |= _decode(self._client.find(collection, within(where.space, any_term)))
        lengths = np.array([len(row.terms) for row in rows.values()], np.float64)
        corpus = CorpusStats(total, float(lengths.mean()) if rows else 0.0)
        counts = np.array([[row.terms.count(term) for row in rows.values()] for term in terms], np.float64)
        counts = counts.reshape(len(terms), len(rows))
        weights = [compute_idf(corpus, int(np.count_nonzero(row))) for row in counts]
        table = compute_bm25(corpus, counts, lengths, np.array(weights).reshape(-1, 1))
        parts = {id: tuple(column) for id, column in zip(rows, table.T.tolist(), strict=True)}
        matches = [id for id, row in rows.items() if matches_where(where, row.item)]
        best = select_best(matches, [sum(parts[id]) for id in matches], limit)
        return {matches[at]: rows[matches[at]] for at in best}, parts, weights

    def _find_neighbors(self, where: Where, rows: Iterable[ChromaItem], reach: int) -> Rows:
        """Return the turns at the positions of the given turns, and within `reach` of them."""
        turns = [row.item.turn for row in rows if row.item.turn is not None]
        places = {
            records.name_place(turn.session, turn.position + step)
            for turn in turns
            for step in range(-reach, reach + 1)
        }
        found = self._select(where, {"place": {"$in": sorted(places)}}) if places else {}
        return {
            id: row
            for id, row in found.items()
            for place in [row.item.turn]
            if place is not None
            and any(turn.session == place.session and abs(turn.position - place.position) <= reach for turn in turns)
        }

    # Writes

    @in_worker
    def write(self, *writes: Write) -> None:
        self._write(writes)

    def touch(self, touch: Touch) -> None:
        if not self.is_closed:
            self.worker.submit(self._count_accesses, touch)

    def _count_accesses(self, touch: Touch) -> None:
        """Change the metadata of the items alone; their texts and vectors are not written again."""
        rows = self._read(touch.space, touch.ids).values()
        counted = {row.record_id: _add_access(row, touch.at).access_metadata for row in rows}
        self._client.update(name_items(touch.space), counted)

    def _write(self, writes: Sequence[Write]) -> Counter[str]:
        """Apply a batch and return the number of deleted items by tier.

        Everything is checked before the first record is written. Then new vectors are written, the items in the order
        of the writes, and last the vectors that are left over are deleted. After a crash the rest is missing.
        """
        writes = [validate_write(write) for write in writes]
        before = self._read_batch(writes)
        after, (active, preparing) = dict(before), self._read_models()
        is_bound = active.model is not None
        for write in writes:
            if active.model is None and isinstance(write, Put) and write.vectors is not None:
                active = VectorSet(write.model, "first")
            self._apply(write, after, active, preparing)
        if active.model is not None and not is_bound:
            self._bind_model(active.model)
        changed = {key: row for key, row in after.items() if row is not before[key]}
        self._write_names(row for row in changed.values() if row is not None)
        stale = self._write_vectors(before, changed)
        for (name, is_deletion), keys in itertools.groupby(
            changed, lambda key: (name_items(key[0]), changed[key] is None)
        ):
            if is_deletion:
                self._client.delete(name, [row.record_id for key in keys if (row := before[key]) is not None])
            else:
                self._client.upsert(name, [row.to_record(before[key]) for key in keys if (row := changed[key])])
        for name, ids in stale.items():
            self._client.delete(name, ids)
        self._delete_speakers({(row.space, row.speaker) for key in changed if (row := before[key]) is not None})
        return Counter(space.tier for (space, _), row in changed.items() if row is None)

    def _read_batch(self, writes: Sequence[Write]) -> Batch:
        """Return the items that a batch changes."""
        ids: dict[Space, list[str]] = {}
        for write in writes:
            if isinstance(write, Put):
                ids.setdefault(write.space, []).append(write.item.id)
            elif isinstance(write, Delete | Embed):
                ids.setdefault(write.space, []).append(write.id)
            elif isinstance(write, Touch):
                ids.setdefault(write.space, []).extend(write.ids)
        rows = {space: self._read(space, wanted) for space, wanted in ids.items()}
        return {(space, id): rows[space].get(id) for space, wanted in ids.items() for id in wanted}

    def _apply(self, write: Write, batch: Batch, active: VectorSet, preparing: VectorSet) -> None:
        """Apply one write to the items of a batch in memory."""
        match write:
            case Put():
                _set(batch, write.space, write.item.id, self._put(write, batch, active))
            case Delete():
                _check_version(batch, write.space, write.id, write.expect, must_exist=True)
                _set(batch, write.space, write.id, None)
            case Touch():
                for id in write.ids:
                    if (row := batch[write.space, id]) is not None:
                        _set(batch, write.space, id, _add_access(row, write.at))
            case Embed():
                if preparing.model != write.model:
                    raise Conflict(f"{write.model.name!r} is not being prepared; call `find_unembedded` with it first")
                row = batch[write.space, write.id]
                if row is not None and write.expect in (None, row.item.version):
                    generation, others = preparing.generation, row.passages
                    embedded = row.with_vectors(generation, write.vectors, prepared=generation, others=others)
                    _set(batch, write.space, write.id, embedded)
            case _:
                raise Unsupported(f"Chroma keeps facts and procedures; {type(write).__name__} needs another store")

    def _put(self, put: Put, batch: Batch, active: VectorSet) -> ChromaItem:
        """Return the item that replaces the stored one; what the write leaves out is kept."""
        before = _check_version(batch, put.space, put.item.id, put.expect)
        row = replace(before or ChromaItem(put.item), item=normalize_item(put.item, before.item if before else None))
        if put.terms is not None:
            row = replace(row, terms=tuple(put.terms))
        if put.vectors is None or put.model is None or active.model is None:
            return row
        if active.model != put.model:
            raise build_model_mismatch(active.model, put.model)
        return row.with_vectors(active.generation, put.vectors, prepared="", others={})

    def _write_names(self, rows: Iterable[ChromaItem]) -> None:
        """Record new spaces, metadata paths and speakers."""
        names: dict[str, ChromaRecord] = {}
        for row in rows:
            own = [("space", ""), *(("path", path) for path in iter_metadata_paths(row.item.metadata))]
            own += [] if row.speaker is None else [("speaker", row.speaker)]
            for kind, name in own:
                id = records.build_record_id(row.space, kind, name)
                metadata = {"space": records.encode_space(row.space), "kind": kind, "name": name}
                names[id] = ChromaRecord(id, metadata)
        known = {record.id for record in self._client.get(META, list(names), "metadatas")}
        self._client.upsert(META, [record for id, record in names.items() if id not in known])

    def _write_vectors(self, before: Batch, changed: Batch) -> dict[str, list[str]]:
        """Write new passages. Return those that are left of longer texts and of deleted items, by collection."""
        added: dict[str, list[ChromaRecord]] = {}
        stale: dict[str, list[str]] = {}
        for (space, id), row in changed.items():
            metadata, old = {"space": records.encode_space(space)}, before[space, id]
            for generation, vectors in row.new_vectors.items() if row is not None else ():
                ids = row.list_passages(generation) if row is not None else ()
                passages = [ChromaRecord(id, metadata, vector=vector) for id, vector in zip(ids, vectors, strict=True)]
                added.setdefault(name_vectors(generation, space), []).extend(passages)
            for generation in old.passages if old is not None else ():
                kept = row.list_passages(generation) if row is not None else ()
                gone = old.list_passages(generation)[len(kept) :] if old is not None else ()
                stale.setdefault(name_vectors(generation, space), []).extend(gone)
        for name, passages in added.items():
            self._client.upsert(name, passages)
        return stale

    def _delete_speakers(self, names: Iterable[tuple[Space, str | None]]) -> None:
        """Delete the names of speakers who have no turn any more."""
        for space, speaker in names:
            if speaker and not self._client.find_ids(name_items(space), within(space, {"speaker": speaker}), limit=1):
                self._client.delete(META, [records.build_record_id(space, "speaker", speaker)])

    # Models

    @in_worker
    def model(self) -> Model | None:
        return self._read_models()[0].model

    @in_worker
    def bind_model(self, model: Model) -> None:
        self._bind_model(model)

    @in_worker
    def find_unembedded(self, model: Model, *, limit: int = 100) -> list[MemoryItem]:
        limit = validate_limit(limit)
        active, preparing = self._read_models()
        if active.model is None:
            self._bind_model(model)
        if preparing.model != model:
            if preparing.model is not None:
                self._client.drop_collections(f"{VECTORS_PREFIX}{preparing.generation}.")
            preparing = VectorSet(model, secrets.token_hex(4))
            self._client.upsert(META, [_encode_model("preparing", preparing)])
        return self._list_unembedded(preparing, limit)

    @in_worker
    def activate_model(self, model: Model) -> None:
        active, preparing = self._read_models()
        if active.model == model and preparing.model is None:
            return
        prepared = preparing if preparing.model == model else VectorSet(model, secrets.token_hex(4))
        if self._list_unembedded(prepared, 1):
            raise Conflict(f"some items have no vectors of {model.name!r} yet; go on embedding, then switch")
        self._client.upsert(META, [_encode_model("active", prepared)])
        self._client.delete(META, ["preparing"])
        for replaced in {active.generation, preparing.generation} - {prepared.generation}:
            self._client.drop_collections(f"{VECTORS_PREFIX}{replaced}.")

    def _read_models(self) -> tuple[VectorSet, VectorSet]:
        """Return the active model and the one in preparation."""
        models = {}
        for record in self._client.get(META, ["active", "preparing"]):
            with detect_corruption(records.describe_record(record)):
                model = Model.decode(*json.loads(decode_text("model", record.metadata["model"])))
                models[record.id] = VectorSet(model, decode_text("generation", record.metadata["generation"]))
        return models.get("active", VectorSet()), models.get("preparing", VectorSet())

    def _bind_model(self, model: Model) -> None:
        """Bind the store to its first model; of several clients, the first wins."""
        self._client.add(META, _encode_model("active", VectorSet(model, "first")))
        active = self._read_models()[0].model
        if active is not None and active != model:
            raise build_model_mismatch(active, model)

    def _list_unembedded(self, vectors: VectorSet, limit: int) -> list[MemoryItem]:
        found: list[MemoryItem] = []
        for name in self._client.list_collections(records.ITEMS_PREFIX):
            if left := limit - len(found):
                rows = self._client.find(name, {"prepared": {"$ne": vectors.generation}}, limit=left)
                found += [row.item for row in map(records.decode_item, rows)]
        return found

    # Erasure

    @property
    def receipts(self) -> Path | None:
        """A file next to the directory, which survives the restore of an older copy; None for a server."""
        return self._directory and self._directory.with_name(self._directory.name + ".erasures.jsonl")

    async def salt(self) -> bytes:
        if not self._salt or self.is_closed:
            self._salt = await self._load_salt()
        return self._salt

    @in_worker
    def set_salt(self, salt: bytes) -> None:
        if self._list_erasures():
            raise Conflict("this store already has an erasure ledger with its own key; move the receipt file away")
        self._client.upsert(META, [ChromaRecord("salt", {"kind": "salt", "salt": salt.hex()})])
        self._salt = salt

    @in_worker
    def _load_salt(self) -> bytes:
        salt = self._client.add(META, ChromaRecord("salt", {"kind": "salt", "salt": secrets.token_hex(32)}))
        with detect_corruption(records.describe_record(salt)):
            return bytes.fromhex(decode_text("salt", salt.metadata["salt"]))

    @in_worker
    def ledger(self, *, unfinished: bool = False) -> list[ErasureRecord]:
        return [erasure for erasure in self._list_erasures() if not unfinished or erasure.receipt is None]

    @in_worker
    def change_erasure(self, id: str, change: ErasureChange) -> ErasureRecord:
        before, chain = self._get_erasure(id), [row.receipt for row in self._list_erasures() if row.receipt]
        row = change(before, chain[-1] if chain else None)
        if before is None:
            self._client.add(META, records.encode_erasure(row))
        elif row != before:
            self._save_erasure(row, **({} if row.receipt is None else {"link": len(chain)}))
        return row

    @in_worker
    def wipe(self, id: str, doomed: ErasureSelection) -> None:
        """Delete a selection and count it in the ledger. After a crash in between, the counts are too low."""
        erasure = require_erasure(id, self._get_erasure(id))
        # First of all: the named tiers tell `scan`, also after a crash, that something may have been deleted.
        tiers = [*(space.tier for space in doomed.spaces), *(write.space.tier for write in doomed.writes)]
        erasure = replace(erasure, erased={**dict.fromkeys(tiers, 0), **erasure.erased})
        self._save_erasure(erasure)
        counts = self._write(doomed.writes)
        for space in doomed.spaces:
            counts[space.tier] += self._count_items(space)
            self._delete_space(space)
        for space in {write.space for write in doomed.writes}:
            rows = self._select(Where(space)).values()
            used = {path for row in rows for path in iter_metadata_paths(row.item.metadata)}
            unused = self._read_names(space, "path") - used
            self._client.delete(META, [records.build_record_id(space, "path", path) for path in unused])
        counts.update(erasure.erased)
        rederived = erasure.rederived + sum(isinstance(write, Put) for write in doomed.writes)
        self._save_erasure(replace(erasure, erased=dict(counts), rederived=rederived))

    async def scan(self, evidence: bytes, key: bytes) -> ByteScan:
        """Return what Chroma keeps of deleted records. Nothing can remove it while Chroma is in use."""
        if not evidence:  # nothing was deleted here
            return ByteScan()
        place = ChromaAddress.parse(self.url)
        return ByteScan(
            unseen=(f"earlier backups of {place}",),
            waits=(
                f"{place} keeps deleted texts in chroma.sqlite3 (write-ahead log, full-text index, free pages), and "
                "deleted vectors in its index folders; copy the facts to a new store with `recollect migrate`, use "
                "that one, and delete this one",
            ),
        )

    def _list_erasures(self) -> list[ErasureRecord]:
        """Return all erasures: complete ones in the order of their chain, then the others by time."""
        found = self._client.find(META, {"kind": "erasure"})
        rows = [(record.metadata.get("link", math.inf), records.decode_erasure(record)) for record in found]
        return [row for _, row in sorted(rows, key=lambda pair: (pair[0], pair[1].requested_at, pair[1].id))]

    def _get_erasure(self, id: str) -> ErasureRecord | None:
        found = self._client.get(META, [f"erasure.{id}"])
        return records.decode_erasure(found[0]) if found else None

    def _save_erasure(self, erasure: ErasureRecord, **more: int) -> None:
        record = records.encode_erasure(erasure)
        self._client.upsert(META, [replace(record, metadata={**record.metadata, **more})])

    def _delete_space(self, space: Space) -> None:
        """Delete the vectors, items and names of a space."""
        for vectors in self._read_models():
            self._client.delete_where(name_vectors(vectors.generation, space), within(space))
        self._client.delete_where(name_items(space), within(space))
        self._client.delete_where(META, within(space))

    # Health

    async def check(self) -> list[str]:
        report = await self.check_integrity()
        lost = f"{report.missing_vectors} items have lost a vector; write them again, or run: recollect reembed"
        return [*report.problems, *([lost] if report.missing_vectors else [])]

    @in_worker
    def check_integrity(self, tell: ProgressCallback = ignore_progress) -> IntegrityReport:
        tell("items and vectors")
        expected, stored = set[str](), set[str]()
        try:
            active = self._read_models()[0]
            for row in self._iter_items():
                expected.update(row.list_passages(active.generation))
            for name in self._client.list_collections(f"{VECTORS_PREFIX}{active.generation}."):
                ids = self._client.find_ids(name)
                stored.update(ids)
                for start in range(0, len(ids), _ITEMS_PER_PAGE):  # a lost vector has its id, but cannot be read
                    self._client.get(name, ids[start : start + _ITEMS_PER_PAGE], "embeddings")
        except StoreCorrupt as error:
            return IntegrityReport(faults=(str(error),))
        missing = {id.partition(".")[0] for id in expected - stored}
        return IntegrityReport(missing_vectors=len(missing), orphaned_vectors=len(stored - expected))

    @in_worker
    def read_stats(self) -> StoreStats:
        items = [row.item for row in self._iter_items()]
        times = [item.created_at for item in items]
        directory = self._directory
        return StoreStats(
            engine="Chroma",
            versions={"Chroma" if directory else "Chroma server": self._client.version},
            durability="a crash of its processes",
            oldest=min(times, default=None),
            newest=max(times, default=None),
            files=(directory, directory / "chroma.sqlite3") if directory else (),
            bytes=self._measure_bytes(),
            items=len(items),
            superseded=sum(item.superseded_by is not None for item in items),
            encrypted=False if directory else None,
        )

    @in_worker
    def size(self) -> int:
        return self._measure_bytes()

    def _measure_bytes(self) -> int:
        """Return the size of the directory, or of the texts on a server, which does not report its size."""
        if self._directory is None:
            return sum(len(row.item.content.encode()) for row in self._iter_items())
        return sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())

    async def backup(self, path: str) -> None:
        raise Unsupported(
            f"Chroma cannot be copied to {path} while it is in use; close the store or stop the server and copy its "
            "directory, or use: recollect export"
        )


@dataclass(frozen=True, slots=True)
class _ChromaLookup:
    """Item reads for the ranking function of `gather`."""

    rows: Rows

    def items(self, ids: Sequence[str]) -> dict[str, MemoryItem]:
        return {id: self.rows[id].item for id in ids if id in self.rows}

    def terms(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: " ".join(self.rows[id].terms) for id in ids if id in self.rows}


def _decode(found: Iterable[ChromaRecord]) -> Rows:
    return {row.item.id: row for row in map(records.decode_item, found)}


def _check_version(
    batch: Batch, space: Space, id: str, expect: int | None, *, must_exist: bool = False
) -> ChromaItem | None:
    """Return an item of a batch; raise `Conflict` if it does not have the expected version."""
    row = batch[space, id]
    version = row.item.version if row else 0
    if expect is not None and (expect != version or (must_exist and row is None)):
        state = f"is at version {version}" if row else "is not there"
        raise Conflict(f"item {id!r} {state}, not at version {expect}; read it again")
    return row


def _set(batch: Batch, space: Space, id: str, row: ChromaItem | None) -> None:
    """Set an item and make it the last one: items are written in the order of their last writes."""
    batch.pop((space, id))
    batch[space, id] = row


def _add_access(row: ChromaItem, at: datetime) -> ChromaItem:
    item, last = row.item, max(row.item.last_accessed or to_utc(at), to_utc(at))
    return replace(row, item=replace(item, access_count=item.access_count + 1, last_accessed=last))


def _encode_model(id: str, vectors: VectorSet) -> ChromaRecord:
    model = vectors.model
    assert model is not None
    text = json.dumps([model.name, model.dim, model.fingerprint])
    return ChromaRecord(id, {"kind": "model", "model": text, "generation": vectors.generation})


def _get_age_key(item: MemoryItem) -> tuple[int, str]:
    return to_micros(item.created_at), item.id
